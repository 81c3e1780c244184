#include "memory/plan.h"
#include "memory/profile.h"
#include "memory/windows.h"
#include <stdio.h>

#define GIB              (1024.0 * 1024.0 * 1024.0)
#define SHORTEST_CONTEXT 256 // a window shorter than this serves nobody

static int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }

static double gib(int64_t bytes) { return (double)bytes / GIB; }

static int64_t window_bytes(const struct plan_request *r, int32_t context) {
    struct memory_shape s = {.n_lane = 1, .context = context, .max_window = r->max_window, .page_rows = r->page_rows};
    return memory_pages_per_window(&s) * r->page_bytes + r->run_bytes;
}

// The longest window, up to `most`, of which `count` fit into `left`; 0 if none does.
static int32_t longest_context(const struct plan_request *r, int64_t left, int32_t count, int32_t most) {
    int64_t pages = (left / count - r->run_bytes) / r->page_bytes;
    int64_t rows = pages * r->page_rows - r->max_window;
    return rows <= 0 ? 0 : (int32_t)minimum(rows, most);
}

static enum status refuse_streams(const struct plan_request *r, int64_t left, int32_t context, struct error *e) {
    int64_t each = window_bytes(r, context), fit = left / each;
    int32_t shorter = longest_context(r, left, r->parallel, context);
    char hint[128] = "";
    if (fit >= 1 && shorter >= SHORTEST_CONTEXT)
        snprintf(hint, sizeof hint, "use --parallel %lld or --context %d", (long long)fit, shorter);
    else if (fit >= 1)
        snprintf(hint, sizeof hint, "use --parallel %lld", (long long)fit);
    else if (shorter >= SHORTEST_CONTEXT)
        snprintf(hint, sizeof hint, "use --context %d", shorter);
    else
        snprintf(hint, sizeof hint, "not even one short stream fits");
    return error_set(e, STATUS_LIMIT, "%d streams of %d tokens need %.2f GiB and %.2f GiB are left: %s", r->parallel,
                     context, gib(each) * r->parallel, gib(left), hint);
}

enum status plan_make(const struct plan_request *r, struct plan *out, struct error *e) {
    must(r->parallel > 0 && r->page_rows > 0 && r->page_bytes > 0 && r->run_bytes >= 0 && r->context >= 0);
    int32_t most = (int32_t)minimum(r->context_max, PLAN_CONTEXT_MAX);
    if (r->context > most)
        return error_set(e, STATUS_LIMIT, "--context %d is more than the %d tokens that this model can take",
                         r->context, most);
    int64_t budget = r->available_bytes - r->reserve_bytes;
    if (r->memory_cap > 0) budget = minimum(budget, r->memory_cap);
    int64_t left = budget - r->weight_bytes - r->scratch_bytes;
    if (left <= 0)
        return error_set(e, STATUS_LIMIT,
                         "weights (%.2f GiB) and scratch (%.2f GiB) do not fit into the %.2f GiB there are for them",
                         gib(r->weight_bytes), gib(r->scratch_bytes), gib(budget < 0 ? 0 : budget));
    if (r->kv_cap > 0) left = minimum(left, r->kv_cap);
    int32_t context = r->context;
    if (context == 0) {
        context = longest_context(r, left, r->parallel, most);
        if (context < minimum(most, SHORTEST_CONTEXT))
            return refuse_streams(r, left, (int32_t)minimum(most, SHORTEST_CONTEXT), e);
    }
    // Divided, not multiplied: the product of what users may ask for can be over 2^63.
    int64_t each = window_bytes(r, context);
    if (each > left / r->parallel) return refuse_streams(r, left, context, e);
    struct memory_shape shape = {
        .n_lane = r->parallel, .context = context, .max_window = r->max_window, .page_rows = r->page_rows};
    *out = (struct plan){.parallel = r->parallel,
                         .context = context,
                         .n_pages = memory_pages_total(&shape),
                         .window_bytes = each,
                         .stream_bytes = each * r->parallel,
                         .left_bytes = left,
                         .used_bytes = r->weight_bytes + r->scratch_bytes + each * r->parallel};
    return STATUS_OK;
}

int64_t plan_unset_reserve(int64_t total_bytes) {
    int64_t tenth = total_bytes / 10;
    return tenth > (int64_t)GIB ? tenth : (int64_t)GIB;
}

enum status plan_reserve(int64_t total_bytes, int64_t *reserve_bytes, struct error *e) {
    return profile_get(PROFILE_MEMORY_RESERVE, plan_unset_reserve(total_bytes), reserve_bytes, e);
}
