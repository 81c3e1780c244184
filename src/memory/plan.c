#include "memory/plan.h"
#include "memory/ledger.h"
#include "memory/profile.h"
#include <stdio.h>

#define GIB              (1024.0 * 1024.0 * 1024.0)
#define SHORTEST_CONTEXT 256 // a window shorter than this serves nobody
#define POOL_ALIGN       256 // bytes: runs lie at the pool's end and are aligned to this

static int64_t minimum(int64_t a, int64_t b) { return a < b ? a : b; }

static double gib(int64_t bytes) { return (double)bytes / GIB; }

static int64_t pages_for(const struct plan_request *r, int64_t rows) {
    return ledger_pages_for(rows, r->max_window, r->page_rows);
}

static int64_t stream_bytes(const struct plan_request *r, int64_t rows) {
    return pages_for(r, rows) * r->page_bytes + r->run_bytes;
}

// The longest window, up to `most`, of which `count` fit into `left`; 0 if none does.
static int32_t longest_context(const struct plan_request *r, int64_t left, int32_t count, int32_t most) {
    int64_t pages = (left / count - r->run_bytes) / r->page_bytes;
    int64_t rows = pages * r->page_rows - r->max_window;
    return rows <= 0 ? 0 : (int32_t)minimum(rows, most);
}

static enum status refuse_streams(const struct plan_request *r, int64_t left, int32_t count, int32_t context,
                                  struct error *e) {
    int64_t each = stream_bytes(r, context), fit = left > 0 ? left / each : 0;
    int32_t shorter = left > 0 ? longest_context(r, left, count, context) : 0;
    char hint[128] = "";
    if (fit >= 1 && shorter >= SHORTEST_CONTEXT)
        snprintf(hint, sizeof hint, "use --parallel %lld or --context %d", (long long)fit, shorter);
    else if (fit >= 1)
        snprintf(hint, sizeof hint, "use --parallel %lld", (long long)fit);
    else if (shorter >= SHORTEST_CONTEXT)
        snprintf(hint, sizeof hint, "use --context %d", shorter);
    else
        snprintf(hint, sizeof hint, "not even one short stream fits");
    return error_set(e, STATUS_LIMIT, "%d stream%s of %d tokens need%s %.2f GiB and %.2f GiB are left: %s", count,
                     count == 1 ? "" : "s", context, count == 1 ? "s" : "", gib(each) * count, gib(left > 0 ? left : 0),
                     hint);
}

// ---- streams: windows, or one pool ----

static enum status choose_context(const struct plan_request *r, int64_t left, int32_t count, int32_t most,
                                  int32_t *context, struct error *e) {
    int32_t shortest = (int32_t)minimum(most, SHORTEST_CONTEXT);
    *context = r->context > 0 ? r->context : longest_context(r, left, count, most);
    // Where everything is on pages, a context may be longer than the pool: what does not fit is refused at its claim.
    int32_t must_fit = r->pages_all && !r->windows ? (int32_t)minimum(*context, shortest) : *context;
    if (r->context == 0 && *context < shortest) return refuse_streams(r, left, count, shortest, e);
    // Divided, not multiplied: the product of what users may ask for can be over 2^63.
    if (stream_bytes(r, must_fit) > left / count) return refuse_streams(r, left, count, must_fit, e);
    return STATUS_OK;
}

static enum status plan_windows(const struct plan_request *r, int64_t left, int32_t most, struct plan *p,
                                struct error *e) {
    int64_t staging = r->n_staging * r->run_bytes;
    enum status s = choose_context(r, left - staging, r->parallel, most, &p->context, e);
    if (s != STATUS_OK) return s;
    p->parallel = r->parallel;
    p->n_run = r->parallel + r->n_staging;
    p->window_bytes = stream_bytes(r, p->context);
    p->pool_bytes = p->window_bytes * r->parallel + staging;
    p->parts[PLAN_STAGING] = staging;
    return STATUS_OK;
}

// What the window that is set aside may take. Where nobody said how long it is to be, it leaves other lanes as much as
// it takes itself, and prompt passes the room for what they keep; unless it would be too short to serve anybody.
static int64_t room_for_window(const struct plan_request *r, int64_t left, int32_t most) {
    if (r->context > 0 || r->pages_all) return left;
    int64_t room = (left - r->n_staging * r->run_bytes) / (r->parallel > 1 ? 2 : 1);
    return longest_context(r, room, 1, most) < minimum(most, SHORTEST_CONTEXT) ? left : room;
}

static enum status plan_pages(const struct plan_request *r, int64_t left, int32_t most, struct plan *p,
                              struct error *e) {
    enum status s = choose_context(r, room_for_window(r, left, most), 1, most, &p->context, e);
    if (s != STATUS_OK) return s;
    p->window_bytes = stream_bytes(r, p->context);
    left -= left % POOL_ALIGN;
    // No more lanes than could be seated at once, each with the shortest prompt and reply.
    int64_t least = stream_bytes(r, (int32_t)minimum(2, p->context));
    int64_t most_lanes = r->pages_all ? left / least : 1 + (left - p->window_bytes) / least;
    p->parallel = (int32_t)minimum(r->parallel, most_lanes);
    p->n_run = p->parallel + PLAN_KEPT_RUNS;
    int64_t claims = p->window_bytes < left / p->parallel ? p->window_bytes * p->parallel : left;
    // Beyond all that lanes could claim there is always room to keep a prompt; where they could claim everything, kept
    // prompts live in what they do not.
    p->parts[PLAN_STAGING] = minimum(r->n_staging, (left - claims) / r->run_bytes) * r->run_bytes;
    p->pool_bytes = claims + p->parts[PLAN_STAGING];
    return STATUS_OK;
}

static enum status plan_streams(const struct plan_request *r, int64_t left, int32_t most, struct plan *p,
                                struct error *e) {
    if (r->kv_cap > 0) left = minimum(left, r->kv_cap);
    enum status s = (r->windows ? plan_windows : plan_pages)(r, left, most, p, e);
    if (s != STATUS_OK) return s;
    p->left_bytes = left;
    p->window_pages = pages_for(r, p->context);
    p->parts[PLAN_RUNS] = p->parallel * r->run_bytes;
    p->parts[PLAN_PAGES] = p->pool_bytes - p->parts[PLAN_STAGING] - p->parts[PLAN_RUNS];
    p->n_pages = p->parts[PLAN_PAGES] / r->page_bytes;
    if (p->n_pages > INT32_MAX / 2)
        return error_set(e, STATUS_LIMIT, "%lld pages of %d positions are more than can be counted: use larger pages",
                         (long long)p->n_pages, r->page_rows);
    return STATUS_OK;
}

// ---- the prompt cache's tier in host memory ----

static enum status plan_beside_cache(const struct plan_request *r, int64_t left, int32_t most, struct plan *p,
                                     struct error *e) {
    bool unsaid = r->cache_bytes == PLAN_CACHE_DEFAULT;
    p->cache_bytes = unsaid ? PLAN_CACHE_BYTES : r->cache_bytes;
    if (!r->host_is_device) {
        if (unsaid && r->host_bytes > 0) p->cache_bytes = minimum(p->cache_bytes, r->host_bytes / 4);
        if (!unsaid && r->host_bytes > 0 && p->cache_bytes > r->host_bytes)
            return error_set(e, STATUS_LIMIT,
                             "a prompt cache of %.2f GiB does not fit into the %.2f GiB of host memory that are free",
                             gib(p->cache_bytes), gib(r->host_bytes));
        return plan_streams(r, left, most, p, e);
    }
    if (unsaid) p->cache_bytes = minimum(p->cache_bytes, left / 4);
    if (p->cache_bytes >= left)
        return error_set(e, STATUS_LIMIT, "a prompt cache of %.2f GiB does not fit into the %.2f GiB that are left",
                         gib(p->cache_bytes), gib(left));
    struct plan before = *p;
    enum status s = plan_streams(r, left - p->cache_bytes, most, p, unsaid ? NULL : e);
    if (s != STATUS_OK && unsaid) { // nobody asked for the cache, and somebody for the streams
        *p = before;
        s = plan_streams(r, left, most, p, e);
        if (s == STATUS_OK) p->cache_bytes = minimum(p->cache_bytes, left - p->pool_bytes);
        if (s == STATUS_OK) p->left_bytes = minimum(p->left_bytes, left - p->cache_bytes);
    }
    p->parts[PLAN_CACHE] = p->cache_bytes;
    return s;
}

// ---- the whole ----

enum status plan_make(const struct plan_request *r, struct plan *out, struct error *e) {
    must(r->parallel > 0 && r->page_rows > 0 && r->page_bytes > 0 && r->run_bytes > 0 && r->context >= 0);
    int32_t most = (int32_t)minimum(r->context_max, PLAN_CONTEXT_MAX);
    if (r->context > most)
        return error_set(e, STATUS_LIMIT, "--context %d is more than the %d tokens that this model can take",
                         r->context, most);
    int64_t budget = r->available_bytes - r->reserve_bytes;
    if (r->memory_cap > 0) budget = minimum(budget, r->memory_cap);
    struct plan p = {.windows = r->windows,
                     .pages_all = r->pages_all && !r->windows,
                     .context_most = most,
                     .page_rows = r->page_rows,
                     .max_window = r->max_window,
                     .page_bytes = r->page_bytes,
                     .run_bytes = r->run_bytes,
                     .parts = {[PLAN_WEIGHTS] = r->weight_bytes,
                               [PLAN_DRAFTER] = r->drafter_bytes,
                               [PLAN_SCRATCH] = r->scratch_bytes,
                               [PLAN_LOGITS] = r->logits_bytes,
                               [PLAN_GRAPHS] = r->graph_bytes}};
    int64_t weights = r->weight_bytes + r->drafter_bytes, scratch = r->scratch_bytes + r->logits_bytes + r->graph_bytes;
    int64_t left = budget - weights - scratch;
    if (left <= 0)
        return error_set(e, STATUS_LIMIT,
                         "weights (%.2f GiB) and scratch (%.2f GiB) do not fit into the %.2f GiB there are for them",
                         gib(weights), gib(scratch), gib(budget < 0 ? 0 : budget));
    enum status s = plan_beside_cache(r, left, most, &p, e);
    if (s != STATUS_OK) return s;
    for (int i = 0; i < PLAN_N_PARTS; i++) p.used_bytes += p.parts[i];
    p.unused_bytes = p.left_bytes - p.pool_bytes;
    *out = p;
    return STATUS_OK;
}

const char *plan_part_name(enum plan_part part) {
    static const char *const names[] = {
        [PLAN_WEIGHTS] = "weights", [PLAN_DRAFTER] = "drafter", [PLAN_SCRATCH] = "scratch",
        [PLAN_LOGITS] = "logits",   [PLAN_GRAPHS] = "graphs",   [PLAN_STAGING] = "cache staging",
        [PLAN_RUNS] = "lane runs",  [PLAN_PAGES] = "pages",     [PLAN_CACHE] = "prompt cache"};
    return names[part];
}

int64_t plan_count_streams(const struct plan *p, bool windows, int64_t rows, int64_t bytes) {
    if (rows > (windows ? p->context : p->context_most)) return 0;
    int64_t pages = ledger_pages_for(windows ? p->context : rows, p->max_window, p->page_rows);
    return bytes / (pages * p->page_bytes + p->run_bytes);
}

int64_t plan_unset_reserve(int64_t total_bytes, int64_t least) {
    int64_t tenth = total_bytes / 10;
    return tenth > least ? tenth : least;
}

enum status plan_reserve(int64_t total_bytes, int64_t least, int64_t *reserve_bytes, struct error *e) {
    return profile_get(PROFILE_MEMORY_RESERVE, plan_unset_reserve(total_bytes, least), reserve_bytes, e);
}
