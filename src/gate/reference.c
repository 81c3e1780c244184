// What each prompt gives alone: in a window, in passes of 64 rows, with nothing kept, shared or resumed.
#include "gate/internal.h"
#include <stdlib.h>
#include <string.h>

static enum status run(struct gate *g, bool fp8, int32_t which, struct reference *out, struct error *e) {
    struct arm alone = {.fp8 = fp8, .parallel = 1, .pass_rows = 64, .in_process = true, .states = true};
    struct job j = {.which = which, .reply = REPLY_MOST, .cancel_at = -1};
    enum status s = arms_start(g, &alone, e);
    if (s == STATUS_OK) s = arms_run(g, &j, 1, true, e);
    if (s != STATUS_OK) {
        jobs_free(&j, 1);
        return s;
    }
    size_t bytes = (size_t)g->n_passes * sizeof *out->passes;
    out->passes = malloc(bytes);
    if (out->passes == NULL) {
        jobs_free(&j, 1);
        return error_memory(e);
    }
    memcpy(out->passes, g->passes, bytes);
    out->n_passes = g->n_passes;
    out->state = g->states[0];
    out->tokens = j.tokens;
    out->n = j.n;
    out->known = true;
    return STATUS_OK;
}

enum status reference_prepare(struct gate *g, bool fp8, const struct job *jobs, int32_t n, struct error *e) {
    enum status s = STATUS_OK;
    for (int32_t i = 0; i < n && s == STATUS_OK; i++) {
        struct reference *ref = &g->references[(fp8 ? CASES_MAX : 0) + jobs[i].which];
        if (!ref->known) s = run(g, fp8, jobs[i].which, ref, e);
    }
    return s;
}

// What a drafter ends with alone does not depend on how wide its windows are.
static enum status run_drafter(struct gate *g, bool fp8, int32_t which, const struct draft_options *by,
                               struct reference *ref, struct error *e) {
    struct arm alone = {.fp8 = fp8,
                        .parallel = 1,
                        .pass_rows = 64,
                        .in_process = true,
                        .states = true,
                        .drafts = {.mtp = by->mtp, .block = by->block, .forced = true, .max_window = 2}};
    struct job j = {.which = which, .reply = REPLY_MOST, .cancel_at = -1};
    enum status s = arms_start(g, &alone, e);
    if (s == STATUS_OK) s = arms_run(g, &j, 1, true, e);
    if (s == STATUS_OK && by->mtp) memcpy(ref->state.mtp_sha256, g->states[0].mtp_sha256, sizeof ref->state.mtp_sha256);
    if (s == STATUS_OK && by->block)
        memcpy(ref->state.block_sha256, g->states[0].block_sha256, sizeof ref->state.block_sha256);
    ref->head_known |= s == STATUS_OK && by->mtp;
    ref->block_known |= s == STATUS_OK && by->block;
    jobs_free(&j, 1);
    return s;
}

enum status reference_prepare_drafters(struct gate *g, bool fp8, const struct draft_options *by, const struct job *jobs,
                                       int32_t n, struct error *e) {
    enum status s = reference_prepare(g, fp8, jobs, n, e);
    for (int32_t i = 0; i < n && s == STATUS_OK; i++) {
        struct reference *ref = &g->references[(fp8 ? CASES_MAX : 0) + jobs[i].which];
        if ((by->mtp && !ref->head_known) || (by->block && !ref->block_known))
            s = run_drafter(g, fp8, jobs[i].which, by, ref, e);
    }
    return s;
}

void references_free(struct gate *g) {
    for (int32_t i = 0; i < 2 * CASES_MAX && g->references != NULL; i++) {
        free(g->references[i].tokens);
        free(g->references[i].passes);
    }
    free(g->references);
}
