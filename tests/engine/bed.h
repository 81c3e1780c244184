// What the tests of the engine share: a small random checkpoint, a device, prompts of ids, and requests run to their
// ends. A failed expectation fails the test that calls.
#ifndef TF_TESTS_ENGINE_BED_H
#define TF_TESTS_ENGINE_BED_H

#include "engine/engine.h"
#include <stdbool.h>

#define BED_MODEL  "build/golden/dense-mlx4-g32"
#define BED_SECOND 1000000000ll
#define BED_VOCAB  512
#define BED_SKIP   77 // exit status when the checkpoint is missing

bool bed_start(void); // false: the checkpoint is missing, which has been said
void bed_stop(void);
struct device *bed_device(void);
// Transfers of engines that are opened from now on are made when they were asked about more than `turns` times, or are
// waited for; 0: at once.
void bed_copies_take(int turns);
int bed_count_brought(void); // transfers to the device that were begun
// Notes how many tokens a request had when the last transfer to the device began, and when it ended. NULL: none.
void bed_watch(struct request *r, int32_t *at_begin, int32_t *at_end);

// Options that are 0 get small defaults: BED_MODEL, 4 lanes, a queue of 64, 2048 tokens.
struct engine *bed_open(struct engine_options o);

int32_t *bed_prompt(int32_t n, uint32_t seed); // n ids that differ for each seed; malloc'd
struct request_params bed_params(const int32_t *prompt, int32_t n, int64_t max_tokens); // greedy

struct request *bed_submit(struct engine *e, const struct request_params *p);
struct request_view bed_view(struct request *r); // as it is now
struct request_view bed_wait_done(struct request *r);
void bed_wait_tokens(struct request *r, int32_t n);
// Runs one request and returns how many ids it gave. bed_run_view: what it looked like at the end.
int32_t bed_run(struct engine *e, const struct request_params *p, int32_t *ids);
struct request_view bed_run_view(struct engine *e, const struct request_params *p, int32_t *ids);
void bed_wait_idle(struct engine *e); // nothing runs, waits or is held

#endif
