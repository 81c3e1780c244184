// Owns the memory plan: plain arithmetic, made from headers before any weight is read. Everything that takes device
// memory is a line of it. It refuses what cannot fit, with the count or the window that does. The caller owns all
// structs; any thread.
#ifndef TF_MEMORY_PLAN_H
#define TF_MEMORY_PLAN_H

#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

#define PLAN_CONTEXT_MAX   262144      // the family's longest context
#define PLAN_CACHE_DEFAULT (-1)        // of cache_bytes
#define PLAN_CACHE_BYTES   (8ll << 30) // the prompt cache's tier in host memory when nothing was said
#define PLAN_KEPT_RUNS     1024        // most states of the prompt cache in the pool, beside the lanes' runs

struct plan_request {
    int64_t available_bytes; // what the device could give now
    int64_t reserve_bytes;   // to be left alone
    int64_t memory_cap;      // on all that the process takes on the device; 0: none
    int64_t kv_cap;          // on what streams take; 0: none

    int64_t weight_bytes, drafter_bytes;
    int64_t scratch_bytes; // of a prompt pass and a round, the backend's own included, logits not
    int64_t logits_bytes;
    int64_t graph_bytes;
    int64_t page_bytes, run_bytes; // multiples of 256
    int32_t page_rows, max_window;
    int32_t n_staging; // runs beside the lanes', in which passes capture what the prompt cache keeps; pages: at most

    bool windows, pages_all;
    int32_t parallel;
    int32_t context;     // 0: the longest that fits; with one window set aside for many lanes, into half of the room
    int32_t context_max; // of the checkpoint

    int64_t cache_bytes; // the prompt cache's tier in host memory; PLAN_CACHE_DEFAULT; 0: off
    bool host_is_device; // host memory is what available_bytes counts: the host tier is a line of the plan too
    int64_t host_bytes;  // else what the host could give now; 0: not known
};

enum plan_part {
    PLAN_WEIGHTS,
    PLAN_DRAFTER,
    PLAN_SCRATCH,
    PLAN_LOGITS,
    PLAN_GRAPHS,
    PLAN_STAGING, // runs for the prompt cache in the pool, beyond all that lanes could claim
    PLAN_RUNS,    // of all lanes
    PLAN_PAGES,   // of all windows, or what is left of the pool beside the lanes' runs
    PLAN_CACHE,   // the host tier, where host memory is the device's; else 0
    PLAN_N_PARTS,
};
const char *plan_part_name(enum plan_part part); // "weights", ...: in tables, and with '_' for ' ' in JSON

struct plan {
    bool windows, pages_all;
    int32_t parallel; // with pages a cap: no more than could ever be seated at once, so it can be less than asked for
    int32_t context;
    int32_t context_most; // that the model takes
    int32_t page_rows, max_window;
    int64_t page_bytes, run_bytes;
    int64_t parts[PLAN_N_PARTS];
    int64_t used_bytes;   // the sum of the parts
    int64_t left_bytes;   // for streams: what the budget leaves beside everything else, and no more than kv_cap
    int64_t unused_bytes; // of what is left
    int64_t pool_bytes;   // runs, staging and pages in one allocation
    int32_t n_run;        // of the pool: lanes', staging's, and with pages those that kept states may take
    int64_t n_pages;      // of all windows, or beside the runs of all lanes
    int64_t window_bytes; // one window: pages of a context and one more round, and a run
    int64_t window_pages;
    int64_t cache_bytes; // the host tier, wherever it lies
};

// STATUS_LIMIT when it does not fit. The sentence has the need, what is left, and what fits.
enum status plan_make(const struct plan_request *request, struct plan *out, struct error *e);

// How many streams that hold `rows` rows of prompt and reply each fit into `bytes` at once, each with its run: with
// windows each takes a window of the plan's context, whatever it holds; with pages what it holds and one more round.
// None, if the model takes no stream of so many rows.
int64_t plan_count_streams(const struct plan *plan, bool windows, int64_t rows, int64_t bytes);

// What is left alone when nothing is said: max(least, a tenth of total), least being one of these two. And what
// TF_MEMORY_RESERVE_GIB says, or else that (STATUS_INVALID if it is no number >= 0).
#define PLAN_RESERVE_CPU (1ll << 30)
#define PLAN_RESERVE_GPU (4ll << 30)
int64_t plan_unset_reserve(int64_t total_bytes, int64_t least);
enum status plan_reserve(int64_t total_bytes, int64_t least, int64_t *reserve_bytes, struct error *e);

#endif
