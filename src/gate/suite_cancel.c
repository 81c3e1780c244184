// cancel: requests that are given up, in whatever state they are, change nothing for the others and leave nothing held.
#include "gate/suites.h"

#define N_KINDS  8
#define N_PHASES 4

static const char *const phase_names[N_PHASES] = {"at once", "after the first token", "in mid-reply", "all of them"};

static enum status run(struct gate *g, const int32_t *at, enum engine_fault fault, struct verdict *v, struct error *e) {
    static const int32_t cancel_at[N_PHASES] = {0, 1, 9, 3};
    struct job jobs[JOBS_MAX];
    struct arm arm = suite_arm(at[0], at[1], 4, fault);
    arm.cache_bytes = (int64_t)256 << 20;
    arm.states = true;
    int32_t n = suite_short_jobs(g, jobs, 12);
    for (int32_t i = 0; i < n; i++) {
        jobs[i].reply = REPLY_MOST;
        if (at[2] == 3 || i % 3 != 1) jobs[i].cancel_at = cancel_at[at[2]];
    }
    enum status s = reference_prepare(g, arm.fp8, jobs, n, e);
    if (s == STATUS_OK) s = arms_start(g, &arm, e);
    if (s == STATUS_OK) s = arms_run(g, jobs, n, true, e);
    if (s == STATUS_OK) s = arms_judge(g, &arm, jobs, n, v, e);
    if (s == STATUS_OK) arms_judge_idle(g, v);
    jobs_free(jobs, n);
    if (s != STATUS_OK) return s;
    n = suite_short_jobs(g, jobs, 4); // on the lanes that they left
    s = arms_run(g, jobs, n, true, e);
    if (s == STATUS_OK) s = arms_judge(g, &arm, jobs, n, v, e);
    if (s == STATUS_OK) arms_judge_idle(g, v);
    jobs_free(jobs, n);
    return s;
}

const struct suite suite_cancel = {
    .name = "cancel",
    .dims = {{"kv", kv_names, N_KV}, {"paging", paging_names, N_KINDS}, {"when", phase_names, N_PHASES}},
    .n_dims = 3,
    .controls = {{FAULT_CANCEL_LEAK, "a cancelled request keeps a page", {0, 1, 2}},
                 {FAULT_CANCEL_TOUCH, "a cancelled request marks the state of a running one", {0, 0, 2}}},
    .n_controls = 2,
    .run = run,
};
