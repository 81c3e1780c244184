// Owns the memory plan: plain arithmetic, made from headers before any weight is read. It refuses what cannot fit, with
// the count or the window that does. The caller owns both structs; any thread.
#ifndef TF_MEMORY_PLAN_H
#define TF_MEMORY_PLAN_H

#include "base/status.h"
#include <stdint.h>

#define PLAN_CONTEXT_MAX 262144 // the family's longest context

struct plan_request {
    int64_t available_bytes; // what the device could give now
    int64_t reserve_bytes;   // to be left alone
    int64_t memory_cap;      // on all that the process takes; 0: none
    int64_t kv_cap;          // on what streams take; 0: none
    int64_t weight_bytes, scratch_bytes;
    int64_t page_bytes, run_bytes;
    int32_t page_rows, max_window;
    int32_t parallel;
    int32_t context;     // 0: the longest that fits
    int32_t context_max; // of the checkpoint
};

struct plan {
    int32_t parallel, context;
    int64_t n_pages;      // of all windows
    int64_t window_bytes; // one stream's pages and run
    int64_t stream_bytes; // all streams'
    int64_t left_bytes;   // what streams could have taken
    int64_t used_bytes;   // weights, scratch and streams
};

// STATUS_LIMIT when it does not fit. The sentence has the need, what is left, and what fits.
enum status plan_make(const struct plan_request *request, struct plan *out, struct error *e);

// What is left alone when nothing is said: max(1 GiB, a tenth of total). And what TF_MEMORY_RESERVE_GIB says, or else
// that (STATUS_INVALID if it is no number >= 0).
int64_t plan_unset_reserve(int64_t total_bytes);
enum status plan_reserve(int64_t total_bytes, int64_t *reserve_bytes, struct error *e);

#endif
