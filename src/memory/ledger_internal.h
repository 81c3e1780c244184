// The ledger's own parts; nothing outside src/memory includes this.
#ifndef TF_MEMORY_LEDGER_INTERNAL_H
#define TF_MEMORY_LEDGER_INTERNAL_H

#include "memory/ledger.h"

struct ledger {
    struct ledger_settings settings;
    int32_t n_window_page; // pages of a window
    int32_t n_fixed;       // lanes 0..n_fixed-1 have a run of their own for good: run i is lane i's
    struct claim **lanes;  // [parallel]: who is seated there, or NULL
    int32_t *pages;        // [parallel][n_window_page]
    int32_t *runs;         // [parallel + 2]: scratch
    struct claim *line;    // waiting, in order

    struct claim *head; // the first of the line, once it has been found to wait; NULL: no order to keep
    int32_t target;     // the run that it is meant to get; POOL_NONE where it does not need one kept for it

    uint64_t version, settled; // settled: the version of which admission has found that nobody can be seated
    int64_t look_again_ns;     // when that may change by time alone
    int32_t n_passers;
    struct ledger_counts counts;
};

// Whether lane 0 has a window set aside.
static inline bool ledger_sets_aside(const struct ledger *l) { return !l->settings.windows && !l->settings.pages_all; }

static inline int64_t ledger_pages_of(const struct ledger *l, const struct claim *c) {
    return l->settings.windows ? l->n_window_page
                               : ledger_pages_for(c->prompt + c->reply, l->settings.max_window, l->settings.page_rows);
}

// Pages outside of a set of runs, which is sorted in passing.
int64_t ledger_count_beside(const struct ledger *l, int32_t *runs, int32_t n_run);

// Pages that must stay open for the lane with a window set aside.
int32_t ledger_count_set_aside(const struct ledger *l);

// Seats c if there is room for it (LEDGER_WAIT_NONE), else says what it waits for. `passes`: the head waits.
enum ledger_wait ledger_seat(struct ledger *l, struct claim *c, bool passes, int64_t now_ns);

// Chooses what is kept for a head that has to wait.
void ledger_protect_head(struct ledger *l);

#endif
