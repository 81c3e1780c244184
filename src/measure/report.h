// Owns what people and programs are told of the rounds: a table, JSON, and a plot. Main thread only.
#ifndef TF_MEASURE_REPORT_H
#define TF_MEASURE_REPORT_H

#include "base/buffer.h"
#include "measure/rounds.h"

#define PLAIN_ARM "plain" // what drafted arms are told beside, where there is one

struct report {
    const char *what; // the model and what it runs on
    const struct arm *arms;
    int n_arms;
    const struct cell_rounds *cells;
    int n_cells;
    // Of the base, where it runs in this process; 0: not known.
    double memory_bytes_per_s;
    int64_t round_bytes; // of weights, that a round of one row reads
};

// With one arm, the cells beside what the memory allows; with more, each arm beside the base and its verdict.
enum status report_write_table(const struct report *r, struct buffer *out, struct error *e);
enum status report_write_json(const struct report *r, struct buffer *out, struct error *e);
// A bar with its interval for each arm, a scale of its own for each cell.
enum status report_write_svg(const struct report *r, struct buffer *out, struct error *e);

bool report_is_red(const struct report *r); // an arm gave other tokens than the base

#endif
