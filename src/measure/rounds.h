// Owns the order in which arms are measured, and what came of it: in each round every arm is visited there and back
// (A B B A), another arm first each time, so that what drifts meets all arms alike. Arms are measured through `target`,
// whatever stands behind it. Main thread only.
#ifndef TF_MEASURE_ROUNDS_H
#define TF_MEASURE_ROUNDS_H

#include "measure/arms.h"
#include "measure/cells.h"
#include "measure/statistics.h"

struct target {
    void *context;
    // Gets ready for these cells, with empty caches; then any number of measurements; stop gives back what start took.
    enum status (*start)(void *context, const struct cell *cells, int n, struct error *e);
    // Prompts are those of the key.
    enum status (*measure)(void *context, const struct cell *c, uint64_t key, struct sample *out, struct error *e);
    void (*stop)(void *context);
    bool keeps; // start empties no caches: every measurement has a prompt of its own
};

struct cell_rounds {
    struct cell cell;
    double (*rates)[ARMS_MAX]; // [n], tokens a second of each round: the geometric mean of there and back
    int n, capacity;
    bool differs[ARMS_MAX];           // its replies are not the base's for the same prompts
    int n_cached[ARMS_MAX];           // of the last measurement
    struct drafted drafted[ARMS_MAX]; // of this run's measurements
};

struct rounds_options {
    struct target targets[ARMS_MAX];
    int n_arms;             // 1: no arm to compare, and each round is one visit
    int repeats;            // rounds; 0: as many as the budget allows
    double budget_s;        // no round begins that would likely end after it; 0: none. One round is always run.
    bool all_cells_a_visit; // where a start is expensive; else each cell has visits of its own
    uint64_t seed;          // of prompts for targets that keep
    // Called at the end of each round for each cell, NULL: not.
    enum status (*on_round)(void *context, const struct cell_rounds *c, struct error *e);
    void *on_round_context;
};

void cell_rounds_init(struct cell_rounds *c, const struct cell *cell);
void cell_rounds_free(struct cell_rounds *c);
enum status cell_rounds_add(struct cell_rounds *c, const double rates[ARMS_MAX], struct error *e);

// Adds rounds to each of cells[n].
enum status rounds_run(const struct rounds_options *o, struct cell_rounds *cells, int n, struct error *e);

// ---- what they say ----

struct arm_result {
    double tokens_per_s, low, high; // the middle of its rounds, with its interval
    struct interval difference;     // log ratios to the base, of the same rounds
    double seen;                    // how large a log ratio had to be to be seen
    enum verdict verdict;           // of the base and its double: SAME
};
enum status rounds_judge(const struct cell_rounds *c, int n_arms, struct arm_result out[ARMS_MAX], struct error *e);

#endif
