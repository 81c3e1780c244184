// Owns who holds which part of one device allocation, by index only: no device calls, no allocation after creation.
// KV pages are taken from the bottom, lowest free page first; lane runs are a fixed grid of equal slots from the top,
// slot 0 uppermost. A page and a run may cover the same bytes, so holding one keeps the other from being taken.
// Everything is held either by lanes or by the prompt cache: what only the cache holds can be reclaimed, and the
// arithmetic of admission counts it as open. Only the engine thread calls it. The same pool, with other units, is the
// prompt cache's tier in host memory.
#ifndef TF_MEMORY_POOL_H
#define TF_MEMORY_POOL_H

#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

#define POOL_NONE (-1) // no page, no run

struct pool;

enum holder { HOLDER_LANE, HOLDER_CACHE };

struct pool_shape {
    int64_t bytes;      // of the allocation
    int64_t page_bytes; // > 0; page i lies at i * page_bytes
    int64_t run_bytes;  // > 0; run j ends j * run_bytes below the top
    int32_t n_run;      // most runs; fewer where bytes has no room for them
};

// STATUS_LIMIT when there are more pages than an int32_t counts; STATUS_MEMORY.
enum status pool_create(const struct pool_shape *shape, struct pool **out, struct error *e);
void pool_free(struct pool *p); // NULL is fine

// ---- where things lie: bytes from the start of the allocation; never changes, so any thread may ask ----

int32_t pool_count_pages(const struct pool *p); // held or not
int64_t pool_page_offset(const struct pool *p, int32_t page);
int64_t pool_run_offset(const struct pool *p, int32_t run);
// The pages that share bytes with a run: *n of them from *first on; 0 where the run is above the last whole page.
void pool_pages_of_run(const struct pool *p, int32_t run, int32_t *first, int32_t *n);

// ---- pages: each reference names its kind of holder ----

// n pages that nobody holds and that lie in no held or guarded run, the lowest ones, ascending; one reference each.
// All or none: false when there are not enough.
bool pool_take_pages(struct pool *p, enum holder holder, int32_t n, int32_t *pages);
void pool_hold_page(struct pool *p, enum holder holder, int32_t page); // one more reference on a page that has one
void pool_drop_page(struct pool *p, enum holder holder, int32_t page); // the last one frees it
int32_t pool_page_refs(const struct pool *p, enum holder holder, int32_t page);

// ---- runs: one holder each ----

bool pool_run_is_free(const struct pool *p, int32_t run);            // not held, and no page that covers it is
bool pool_run_is_held(const struct pool *p, int32_t run);            // by a lane or the cache
int32_t pool_find_free_run(const struct pool *p);                    // the lowest-numbered one, or POOL_NONE
void pool_take_run(struct pool *p, enum holder holder, int32_t run); // which must be free
void pool_pass_run(struct pool *p, int32_t run, enum holder to);     // from the other kind of holder
void pool_drop_run(struct pool *p, int32_t run);

// ---- what lanes could have if the cache gave up all it holds ----

bool pool_run_is_open(const struct pool *p, int32_t run); // no lane holds it, nor a page that covers it
int32_t pool_count_open(const struct pool *p); // pages without a lane's reference, in no run of a lane or guarded
int32_t pool_count_open_in_run(const struct pool *p, int32_t run); // of them, those that share bytes with a run

// While a run is guarded, pages that cover it are neither free nor open: they are not handed out, so that those that
// hold it now leave it empty when they end. One run at a time; POOL_NONE: none.
void pool_guard_run(struct pool *p, int32_t run);

// ---- counters, all exact ----

struct pool_counts {
    int64_t n_page, n_page_free; // free: could be taken now
    int64_t n_page_lane;         // that a lane holds, whoever else does
    int64_t n_page_cached;       // that only the cache holds
    int64_t n_page_shared;       // with more than one reference of lanes
    int64_t n_lane_refs, n_cache_refs;
    int32_t n_run, n_run_lane, n_run_cached;
};
void pool_get_counts(const struct pool *p, struct pool_counts *out);

// Counts everything anew and compares: false is a bug. For tests; takes time with the number of pages.
bool pool_is_consistent(const struct pool *p);

#endif
