// pages: windows, and pages of any size and kind, under any number of streams, give the same bits.
#include "gate/suites.h"

static enum status run(struct gate *g, const int32_t *at, enum engine_fault fault, struct verdict *v, struct error *e) {
    struct job jobs[JOBS_MAX];
    int32_t streams = suite_streams(at[2]);
    struct arm arm = suite_arm(at[0], at[1], streams, fault);
    int32_t n = suite_short_jobs(g, jobs, streams);
    // A reply that is long beside a page must have pages of its own.
    for (int32_t i = 0; i < n && fault == FAULT_ADMIT_COUNT; i++) jobs[i].reply = REPLY_MOST;
    int32_t needle = suite_find_case(g, "needle");
    // The long prompt goes with every second cell: it costs more than all the others together.
    if (needle >= 0 && fault == FAULT_NONE && (at[1] + at[2]) % 2 == 0) n = suite_add_job(jobs, n, needle, REPLY_SHORT);
    return suite_run_together(g, &arm, jobs, n, v, e);
}

const struct suite suite_pages = {
    .name = "pages",
    .dims = {{"kv", kv_names, N_KV}, {"paging", paging_names, N_PAGINGS}, {"streams", stream_names, N_STREAMS}},
    .n_dims = 3,
    .controls = {{FAULT_WRONG_PAGE, "rounds find the first page one page further", {0, 4, 2}},
                 {FAULT_ADMIT_COUNT, "a claim is a page short", {0, 9, 2}}},
    .n_controls = 2,
    .run = run,
};
