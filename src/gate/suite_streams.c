// streams: what runs beside a request, and in which order they came, changes none of its bits.
#include "gate/suites.h"

#define N_ORDERS 3

static const char *const order_names[N_ORDERS] = {"as listed", "backwards", "all the same"};
static const char *const kind_names[] = {"windows", "pages of 256", "pages of 1"};

static enum status run(struct gate *g, const int32_t *at, enum engine_fault fault, struct verdict *v, struct error *e) {
    struct job jobs[JOBS_MAX];
    int32_t streams = suite_streams(at[2]);
    struct arm arm = suite_arm(at[0], at[1], streams, fault);
    int32_t n = suite_short_jobs(g, jobs, streams + 2); // more than there are lanes: some come when others leave
    for (int32_t i = 0; i < n / 2 && at[3] == 1; i++) {
        struct job j = jobs[i];
        jobs[i] = jobs[n - 1 - i];
        jobs[n - 1 - i] = j;
    }
    for (int32_t i = 0; i < n && at[3] == 2; i++) jobs[i].which = suite_find_case(g, "edited question");
    return suite_run_together(g, &arm, jobs, n, v, e);
}

const struct suite suite_streams_any = {
    .name = "streams",
    .dims = {{"kv", kv_names, N_KV},
             {"paging", kind_names, 3},
             {"streams", stream_names, N_STREAMS},
             {"order", order_names, N_ORDERS}},
    .n_dims = 4,
    .controls = {{FAULT_LANE_NOISE, "noise keyed by the lane", {0, 0, 2, 0}}},
    .n_controls = 1,
    .run = run,
};
