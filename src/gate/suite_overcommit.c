// overcommit: more is asked for than the pool holds. Some requests wait, all finish, each equals itself alone, and a
// short reply is the start of a long one.
#include "gate/suites.h"
#include "model/model.h"

#define N_JOBS     16
#define N_KINDS    6
#define OVER_TENTH 14 // what is claimed, in tenths of the pool
#define TRIES      5

static const char *const kind_names[N_KINDS] = {"pages of 256, all", "pages of 64",        "pages of 1, all",
                                                "pages of 96",       "pages of 4096, all", "pages of 1"};
static const int32_t kind_rows[N_KINDS] = {256, 64, 1, 96, 4096, 1};
static const bool kind_all[N_KINDS] = {true, false, true, false, true, false};

static const char *const cache_names[2] = {"no cache", "a cache"};

// All claims, with the window that is set aside, and the share of it that the pool is to hold.
static int64_t pool_bytes(const struct gate *g, const struct arm *arm, const struct job *jobs, int32_t n) {
    const struct plan *p = &engine_get_info(g->engine)->plan; // of the same arm, with memory for all
    int64_t bytes = 0;
    for (int32_t i = 0; i < n; i++) {
        int64_t rows = g->cases.list[jobs[i].which].n + jobs[i].reply;
        bytes += ledger_pages_for(rows, p->max_window, arm->page_rows) * p->page_bytes + p->run_bytes;
    }
    return bytes * 10 / OVER_TENTH;
}

static enum status run(struct gate *g, const int32_t *at, enum engine_fault fault, struct verdict *v, struct error *e) {
    struct job jobs[JOBS_MAX];
    struct arm arm = {.page_rows = kind_rows[at[1]],
                      .pages_all = kind_all[at[1]],
                      .share = at[2] == 1 && PROMPT_MAX_ROWS % kind_rows[at[1]] == 0,
                      .fp8 = at[0] == 1,
                      .parallel = N_JOBS};
    int32_t n = suite_short_jobs(g, jobs, N_JOBS), longest = 0;
    for (int32_t i = 0; i < n; i++) {
        jobs[i].reply = i % 2 == 0 || fault == FAULT_ADMIT_COUNT ? REPLY_MOST : REPLY_SHORT;
        int32_t rows = g->cases.list[jobs[i].which].n + jobs[i].reply;
        if (rows > longest) longest = rows;
    }
    arm.context = longest;
    arm.in_process = true; // to know what a page and a run take
    arm.cache_bytes = at[2] == 1 ? (int64_t)64 << 20 : 0;
    enum status s = reference_prepare(g, arm.fp8, jobs, n, e);
    if (s == STATUS_OK) s = arms_start(g, &arm, e);
    if (s != STATUS_OK) return s;
    arm.kv_memory_bytes = pool_bytes(g, &arm, jobs, n);
    arm.fault = fault;
    arm.in_process = false;
    // On a machine that is busy with other things each request may be done before the next one comes.
    int tries = 0;
    do s = suite_run_together(g, &arm, jobs, n, v, e);
    while (s == STATUS_OK && !v->red && g->most_waiting == 0 && ++tries < TRIES);
    if (s == STATUS_OK && g->most_waiting == 0) verdict_red(v, "no request had to wait");
    return s;
}

const struct suite suite_overcommit = {
    .name = "overcommit",
    .dims = {{"kv", kv_names, N_KV}, {"paging", kind_names, N_KINDS}, {"cache", cache_names, 2}},
    .n_dims = 3,
    .controls = {{FAULT_ADMIT_COUNT, "a claim is a page short", {0, 1, 0}},
                 {FAULT_LIMIT_NOISE, "noise keyed by the reply's limit", {0, 0, 0}}},
    .n_controls = 2,
    .run = run,
};
