// Owns who holds which pages and which lane run, by index only: no device calls, no allocation after creation. Here
// every lane has a window: pages for the whole context, set aside up front. Only the engine thread calls it. The
// interface is that of a ledger: a pool whose lanes claim prompt + reply only can replace it.
#ifndef TF_MEMORY_WINDOWS_H
#define TF_MEMORY_WINDOWS_H

#include "base/status.h"
#include <stdint.h>

struct memory;

struct memory_shape {
    int32_t n_lane;     // most streams seated at once
    int32_t context;    // most positions of one stream, prompt + reply
    int32_t max_window; // rows of one more round, beyond the context
    int32_t page_rows;  // positions a page
};

// Pages that one window takes, and that all take together; no overflow for any positive shape.
int64_t memory_pages_per_window(const struct memory_shape *s);
int64_t memory_pages_total(const struct memory_shape *s);

enum status memory_create(const struct memory_shape *shape, struct memory **out, struct error *e);
void memory_free(struct memory *m); // NULL is fine

enum claim {
    CLAIM_SEATED,
    CLAIM_NOT_NOW, // does not fit beside those that run: wait
    CLAIM_NEVER,   // prompt + reply is over the context: refuse
};

struct seat {
    int32_t lane;         // 0..n_lane-1: its number and that of its run
    const int32_t *pages; // page numbers, owned by the memory; valid until released
    int32_t n_page;
};

// prompt and reply are row counts of any size. On CLAIM_SEATED *seat is filled; on CLAIM_NOT_NOW *reason says what it
// waits for (static text). The lowest free lane is taken.
enum claim memory_claim(struct memory *m, int64_t prompt, int64_t reply, struct seat *seat, const char **reason);
void memory_release(struct memory *m, const struct seat *seat); // a seat that is not held is a bug

struct memory_counts {
    int64_t n_pages, n_pages_used;
    int32_t n_lane, n_lane_used;
};
void memory_get_counts(const struct memory *m, struct memory_counts *out);

#endif
