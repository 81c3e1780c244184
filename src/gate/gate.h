// Owns the gates: suites that run the same prompts under many settings of the engine, over weights that are loaded
// once, and ask that every reply and every prompt pass has the bits that it has alone (docs/architecture.md, the law).
// Each suite knows planted faults that must turn it red. Main thread only.
#ifndef TF_GATE_GATE_H
#define TF_GATE_GATE_H

#include "base/status.h"
#include "engine/engine.h"
#include <stdbool.h>

struct gate_options {
    const char *model_dir;
    struct device *device;        // owned by the caller
    struct engine_options engine; // what suites do not set: memory, progress
    const char *suite;            // the name of one, or "all"
    bool controls;                // plant the faults instead, and expect red
    double budget_s;              // 0: run everything; else pairs of settings first, as far as the time goes
    int64_t from;                 // the first cell to run, counted from 0 in the order that they run in
    int part, n_part;             // of each n_part cells the part-th, counted from 0; 0 of 1: all
    // A server of its own for each arm instead, started as `program serve model_dir` with these flags more; NULL: no.
    const char *program;
    const char *const *flags; // [n_flags]
    int n_flags;
};

// Names of the suites with blanks between; false: there is no suite of that name.
const char *gate_suite_names(void);
bool gate_has_suite(const char *name);

// Prints a line a cell to stdout. *green: all was as it must be; with controls: every fault was found. An error means
// that the gates could not run.
enum status gate_run(const struct gate_options *options, bool *green, struct error *e);

#endif
