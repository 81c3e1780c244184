// Owns the file that rounds are added to over several runs: a JSON line for each round of a cell, with what was
// measured and under what. Refuses lines that are not of its kind. Main thread only.
#ifndef TF_MEASURE_RECORD_H
#define TF_MEASURE_RECORD_H

#include "measure/rounds.h"

struct record {
    const char *path;
    const char *about; // model, device and settings of all arms, in words: only lines with the same are added up
    const struct arm *arms;
    int n_arms;
};

// Adds the file's rounds of the same cells, arms and `about`; a file that is not there has none. *n_other: lines that
// tell of something else.
enum status record_read(const struct record *r, struct cell_rounds *cells, int n, int *n_other, struct error *e);

// Appends the last round of a cell; for rounds_options.on_round, with a struct record as context.
enum status record_append(void *record, const struct cell_rounds *c, struct error *e);

#endif
