// resume: a prompt that goes on from the prompt cache gives the bits of the same prompt run cold, and it must really
// have gone on from where it could.
#include "gate/suites.h"

#define N_SCENARIOS 9

static const char *const scenario_names[N_SCENARIOS] = {
    "second turn",       "edited question",   "other chat, same system", "tool result",         "resumes near 4796",
    "resumes near 8192", "resumes near 8292", "resumes near 8448",       "a restore that fails"};

static enum status run(struct gate *g, const int32_t *at, enum engine_fault fault, struct verdict *v, struct error *e) {
    bool fails = at[2] == N_SCENARIOS - 1;
    int32_t which = suite_find_case(g, fails ? scenario_names[0] : scenario_names[at[2]]);
    struct arm arm = suite_arm(at[0], at[1], 2, fails ? FAULT_RESTORE_FAILS : fault);
    arm.cache_bytes = SUITE_CACHE_BYTES;
    // What this model's window has no room for, or whose template cannot be resumed there, is no cell.
    if (which < 0 || g->cases.list[which].resumes_at == 0) return STATUS_OK;
    // Nor is what a server cannot know of, which sees ids alone.
    bool by_template = g->cases.list[g->cases.list[which].follows].by_template;
    if (g->options->program != NULL && !fails && !by_template) return STATUS_OK;
    return suite_run_resumed(g, &arm, which, v, e);
}

const struct suite suite_resume = {
    .name = "resume",
    .dims = {{"kv", kv_names, N_KV}, {"paging", paging_names, 8}, {"prompt", scenario_names, N_SCENARIOS}},
    .n_dims = 3,
    .controls = {{FAULT_STALE_STATE, "a resume without the recurrent state", {0, 4, 0}},
                 {FAULT_EARLY_STATE, "a state kept 64 rows too early", {0, 0, 0}},
                 {FAULT_SKIPPED_ROWS, "a resume 64 rows too late", {0, 6, 2}}},
    .n_controls = 3,
    .run = run,
};
