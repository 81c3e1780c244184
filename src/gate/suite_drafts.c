// drafts: windows of any width, with drafts from anywhere, right or wrong, give the tokens, log probabilities and
// states that plain rounds give; and what the model's own head has of a reply does not depend on how it drafted.
#include "gate/suites.h"

#define N_KINDS  22
#define N_PLACES 8

static const struct kind {
    const char *name;
    struct draft_options drafts;
} kinds[N_KINDS] = {
    {"all right, 2 rows", {.expected = true, .forced = true, .max_window = 2}},
    {"all right, 5 rows", {.expected = true, .forced = true, .max_window = 5}},
    {"all right, 16 rows", {.expected = true, .forced = true, .max_window = 16}},
    {"all wrong, 3 rows", {.expected = true, .forced = true, .max_window = 3, .pattern = DRAFTS_ALL_WRONG}},
    {"all wrong, 16 rows", {.expected = true, .forced = true, .max_window = 16, .pattern = DRAFTS_ALL_WRONG}},
    {"in turns, 4 rows", {.expected = true, .forced = true, .max_window = 4, .pattern = DRAFTS_ALTERNATE}},
    {"in turns, 9 rows", {.expected = true, .forced = true, .max_window = 9, .pattern = DRAFTS_ALTERNATE}},
    {"at random, 8 rows", {.expected = true, .forced = true, .max_window = 8, .pattern = DRAFTS_RANDOM}},
    {"at random, 1 to 16 rows", {.expected = true, .forced = true, .max_window = 16, .pattern = DRAFTS_ANY_WIDTH}},
    {"copies, 4 rows", {.copies = true, .forced = true, .max_window = 4}},
    {"copies, 16 rows", {.copies = true, .forced = true, .max_window = 16}},
    {"head, 2 rows", {.mtp = true, .forced = true, .max_window = 2}},
    {"head, 4 rows", {.mtp = true, .forced = true, .max_window = 4}},
    {"head, 9 rows", {.mtp = true, .forced = true, .max_window = 9}},
    {"copies and head, 16 rows", {.copies = true, .mtp = true, .forced = true, .max_window = 16, .max_chain = 6}},
    {"copies and head, measured", {.copies = true, .mtp = true}},
    {"drafter, 2 rows", {.block = true, .forced = true, .max_window = 2}},
    {"drafter, 8 rows", {.block = true, .forced = true, .max_window = 8}},
    {"copies and drafter, 16 rows", {.copies = true, .block = true, .forced = true, .max_window = 16}},
    {"copies and drafter, measured", {.copies = true, .block = true}},
    {"head, doubted", {.mtp = true, .doubted = true}},
    {"drafter, doubted", {.block = true, .doubted = true}},
};
static const char *const kind_names[N_KINDS] = {
    kinds[0].name,  kinds[1].name,  kinds[2].name,  kinds[3].name,  kinds[4].name,  kinds[5].name,
    kinds[6].name,  kinds[7].name,  kinds[8].name,  kinds[9].name,  kinds[10].name, kinds[11].name,
    kinds[12].name, kinds[13].name, kinds[14].name, kinds[15].name, kinds[16].name, kinds[17].name,
    kinds[18].name, kinds[19].name, kinds[20].name, kinds[21].name};

static int64_t count_looked_back(const struct gate *g) {
    struct engine_counts counts;
    engine_get_counts(g->engine, &counts);
    return counts.n_looked_back;
}

static enum status run(struct gate *g, const int32_t *at, enum engine_fault fault, struct verdict *v, struct error *e) {
    const struct kind *kind = &kinds[at[3]];
    struct job jobs[JOBS_MAX];
    bool has_drafter = engine_get_info(g->engine)->drafter_block > 0;
    if (kind->drafts.block && !has_drafter) return STATUS_OK; // not for this model
    struct arm arm = suite_arm(at[0], at[1], suite_streams(at[2]), fault);
    arm.drafts = kind->drafts;
    arm.garbage = (at[1] + at[3]) % 3 == 0;                       // what was not written is not read, drafts or not
    arm.in_process = kind->drafts.forced || kind->drafts.doubted; // a server drafts as it is measured to be fastest
    int32_t n = suite_short_jobs(g, jobs, arm.parallel);
    for (int32_t i = 0; i < n; i++) jobs[i].reply = i % 4 == 3 ? REPLY_SHORT : REPLY_MOST;
    enum status s = kind->drafts.mtp || kind->drafts.block
                        ? reference_prepare_drafters(g, arm.fp8, &kind->drafts, jobs, n, e)
                        : STATUS_OK;
    if (s == STATUS_OK) s = suite_run_together(g, &arm, jobs, n, v, e);
    bool by_drafter = kind->drafts.block && (kind->drafts.forced || kind->drafts.doubted);
    if (s == STATUS_OK && (kind->drafts.expected || by_drafter) && v->n_drafted == 0)
        verdict_red(v, "nothing was drafted");
    if (s == STATUS_OK && kind->drafts.doubted && kind->drafts.mtp && count_looked_back(g) == 0)
        verdict_red(v, "nobody looked back at what the head would have drafted");
    int32_t which = suite_find_case(g, "second turn");
    if (s != STATUS_OK || v->red || at[2] != 1 || which < 0 || g->cases.list[which].resumes_at == 0) return s;
    arm.cache_bytes = SUITE_CACHE_BYTES;
    return suite_run_resumed(g, &arm, which, v, e);
}

const struct suite suite_drafts = {
    .name = "drafts",
    .dims = {{"kv", kv_names, N_KV},
             {"paging", paging_names, N_PLACES},
             {"streams", stream_names, N_STREAMS},
             {"drafts", kind_names, N_KINDS}},
    .n_dims = 4,
    .controls = {{FAULT_DRAFT_AHEAD, "the state is one row ahead of what was kept", {0, 0, 2, 6}},
                 {FAULT_DRAFT_STALE, "the row of a wrong draft stays", {0, 1, 0, 5}},
                 {FAULT_DRAFT_NOISE, "noise keyed by the row's place in its window", {0, 0, 2, 1}},
                 {FAULT_DRAFT_TRUSTED, "a draft is kept that is not the draw", {0, 0, 0, 3}},
                 {FAULT_DRAFT_POSITION, "the head's rows are a position too far", {0, 0, 2, 12}},
                 {FAULT_DRAFT_RING, "the drafter has a stale row", {0, 0, 2, 17}}},
    .n_controls = 6,
    .run = run,
};
