#include "gate/suites.h"
#include <string.h>

const char *const kv_names[N_KV] = {"bf16", "fp8"};
const char *const stream_names[N_STREAMS] = {"1", "2", "4", "8", "16"};

static const struct paging {
    int32_t rows;
    bool all, share;
} pagings[N_PAGINGS] = {{0, false, false},  {256, false, false}, {1, false, false},    {96, true, false},
                        {64, false, true},  {4096, true, true},  {256, true, true},    {1, true, true},
                        {96, false, false}, {64, true, false},   {4096, false, false}, {256, true, false},
                        {256, false, true}, {64, true, true}};
const char *const paging_names[N_PAGINGS] = {"windows",
                                             "pages of 256",
                                             "pages of 1",
                                             "pages of 96, all",
                                             "pages of 64, shared",
                                             "pages of 4096, all, shared",
                                             "pages of 256, all, shared",
                                             "pages of 1, all, shared",
                                             "pages of 96",
                                             "pages of 64, all",
                                             "pages of 4096",
                                             "pages of 256, all",
                                             "pages of 256, shared",
                                             "pages of 64, all, shared"};

int32_t suite_streams(int32_t i) { return 1 << i; }

struct arm suite_arm(int32_t kv, int32_t paging, int32_t streams, enum engine_fault fault) {
    const struct paging *p = &pagings[paging];
    return (struct arm){.page_rows = p->rows,
                        .pages_all = p->all,
                        .share = p->share,
                        .fp8 = kv == 1,
                        .parallel = streams,
                        .fault = fault};
}

int32_t suite_add_job(struct job *jobs, int32_t n, int32_t which, int32_t reply) {
    must(n < JOBS_MAX);
    jobs[n] = (struct job){.which = which, .reply = reply, .cancel_at = -1};
    return n + 1;
}

int32_t suite_short_jobs(const struct gate *g, struct job *jobs, int32_t n) {
    int32_t made = 0;
    for (int32_t turn = 0; turn == 0 || made < n; turn++)
        for (int32_t i = 0; i < g->cases.n && (turn == 0 || made < n); i++)
            if (!g->cases.list[i].is_long)
                made = suite_add_job(jobs, made, i, (made + turn) % 3 == 1 ? REPLY_SHORT : REPLY_MOST / 2);
    return made;
}

int32_t suite_find_case(const struct gate *g, const char *name) {
    for (int32_t i = 0; i < g->cases.n; i++)
        if (strcmp(g->cases.list[i].name, name) == 0) return i;
    return -1;
}

// Only replies that are as long as their references end in the same state.
static enum status start(struct gate *g, const struct arm *arm, const struct job *jobs, int32_t n, struct error *e) {
    struct arm a = *arm;
    for (int32_t i = 0; i < n; i++) a.states |= jobs[i].reply == REPLY_MOST;
    return arms_start(g, &a, e);
}

enum status suite_run_together(struct gate *g, const struct arm *arm, struct job *jobs, int32_t n, struct verdict *v,
                               struct error *e) {
    enum status s = reference_prepare(g, arm->fp8, jobs, n, e);
    if (s == STATUS_OK) s = start(g, arm, jobs, n, e);
    if (s == STATUS_OK) s = arms_run(g, jobs, n, true, e);
    if (s == STATUS_OK) s = arms_judge(g, arm, jobs, n, v, e);
    if (s == STATUS_OK) arms_judge_idle(g, v);
    jobs_free(jobs, n);
    return s;
}

enum status suite_run_resumed(struct gate *g, const struct arm *arm, int32_t which, struct verdict *v,
                              struct error *e) {
    const struct gate_case *c = &g->cases.list[which];
    struct job jobs[2];
    int32_t n = suite_add_job(jobs, 0, c->follows, REPLY_SHORT);
    n = suite_add_job(jobs, n, which, arm->drafts.max_window > 0 ? REPLY_MOST : REPLY_SHORT); // to compare states
    enum status s = reference_prepare(g, arm->fp8, jobs, n, e);
    if (s == STATUS_OK) s = start(g, arm, jobs, n, e);
    if (s == STATUS_OK) s = arms_run(g, jobs, n, false, e);
    if (s == STATUS_OK) s = arms_judge(g, arm, jobs, n, v, e);
    int32_t wanted = arm->fault == FAULT_RESTORE_FAILS ? 0 : c->resumes_at;
    if (s == STATUS_OK && jobs[1].n_cached != wanted)
        verdict_red(v, "%s: it resumed at row %d, and should at %d", c->name, jobs[1].n_cached, wanted);
    if (s == STATUS_OK) arms_judge_idle(g, v);
    jobs_free(jobs, n);
    return s;
}
