// Owns how `bench` measures arms in its own process: one engine, whose weights are loaded once, is started again for
// each visit with the arm's flags and settings of the environment. Main thread only.
#ifndef TF_CLI_BENCH_ENGINE_H
#define TF_CLI_BENCH_ENGINE_H

#include "cli/options.h"
#include "measure/rounds.h"

struct bench_engine; // what the arms share

struct bench_arm { // one arm's share
    struct bench_engine *shared;
    const struct arm *arm;
    struct options options; // the command line's, with the arm's flags
};

// Nothing is loaded before the first visit. once: all visits are of one arm and the same cells,
// whose engine is started once.
enum status bench_engine_create(const struct options *o, const char *dir, bool once, struct bench_engine **out,
                                struct error *e);
void bench_engine_free(struct bench_engine *b);                            // NULL is fine
const struct engine_info *bench_engine_info(const struct bench_engine *b); // after the first visit

// STATUS_INVALID: a flag that is unknown, or that only a server of its own can have.
enum status bench_arm_init(struct bench_arm *a, struct bench_engine *shared, const struct arm *arm, struct error *e);
struct target bench_arm_target(struct bench_arm *a); // *a must outlive it

#endif
