// garbage: every run, page and scratch buffer is full of NaN when a lane opens, and nothing changes: what was not
// written is not read.
#include "gate/suites.h"

#define N_KINDS     6
#define N_SCENARIOS 4

static const char *const scenario_names[N_SCENARIOS] = {"fresh", "warm", "resumed", "resumed by an edit"};

static enum status run(struct gate *g, const int32_t *at, enum engine_fault fault, struct verdict *v, struct error *e) {
    struct job jobs[JOBS_MAX];
    struct arm arm = suite_arm(at[0], at[1], 4, fault);
    arm.garbage = true;
    if (at[2] >= 2) {
        int32_t which = suite_find_case(g, at[2] == 2 ? "second turn" : "edited question");
        arm.cache_bytes = SUITE_CACHE_BYTES;
        return which < 0 || g->cases.list[which].resumes_at == 0 ? STATUS_OK : suite_run_resumed(g, &arm, which, v, e);
    }
    int32_t n = suite_short_jobs(g, jobs, 8);
    if (at[2] == 1) n += suite_short_jobs(g, jobs + n, 4); // lanes that others have used
    return suite_run_together(g, &arm, jobs, n, v, e);
}

const struct suite suite_garbage = {
    .name = "garbage",
    .dims = {{"kv", kv_names, N_KV}, {"paging", paging_names, N_KINDS}, {"lanes", scenario_names, N_SCENARIOS}},
    .n_dims = 3,
    .controls = {{FAULT_UNWRITTEN_ROW, "one row is read that was not written", {0, 1, 0}}},
    .n_controls = 1,
    .run = run,
};
