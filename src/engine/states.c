// What gates see of a lane at its end: a digest of all that the stream's next row would be computed from.
#include "engine/internal.h"
#include <openssl/evp.h>

static void add(void *context, const void *bytes, size_t n) { EVP_DigestUpdate(context, bytes, n); }

typedef void visit_fn(struct engine *e, struct request *r, const struct lane *lane, void *context);

static void visit_lane(struct engine *e, struct request *r, const struct lane *lane, void *context) {
    (void)r;
    model_visit_lane(e->model, lane, e->memory, add, context);
}

static void visit_head(struct engine *e, struct request *r, const struct lane *lane, void *context) {
    struct lane with_last = *lane;
    mtp_drafts_finish(e, r);
    with_last.position++; // it has the last token too
    model_visit_mtp(e->model, &with_last, e->memory, add, context);
}

static void visit_drafter(struct engine *e, struct request *r, const struct lane *lane, void *context) {
    (void)lane;
    block_drafts_finish(e, r);
    drafter_visit(e->drafter, &e->asks[0], add, context);
}

static bool digest(struct engine *e, struct request *r, const struct lane *lane, visit_fn *visit,
                   unsigned char *sha256) {
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool ok = context != NULL && EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1;
    if (ok) visit(e, r, lane, context);
    ok = ok && EVP_DigestFinal_ex(context, sha256, NULL) == 1;
    EVP_MD_CTX_free(context);
    return ok; // a report that is missing is red
}

void states_report(struct engine *e, struct request *r) {
    if (e->options.on_state == NULL) return;
    struct state_report report = {.request = r->number, .position = r->n_rows_done};
    struct lane lane = {.position = r->n_rows_done,
                        .n_pending = r->n_pending,
                        .pages = r->claim.pages,
                        .n_page = r->claim.n_page,
                        .run = engine_run(e, r->claim.run)};
    model_commit(e->model, &lane);
    // A claim that is too small (a planted fault) has no pages for its last rows.
    bool ok = lane.position <= (int64_t)lane.n_page * e->info.plan.page_rows;
    ok = ok && digest(e, r, &lane, visit_lane, report.sha256);
    bool drafts = r->may_draft && !r->drafting.asleep;
    if (e->has_mtp && drafts) ok = ok && digest(e, r, &lane, visit_head, report.mtp_sha256);
    if (e->has_block && drafts && !r->drafting.has_slept)
        ok = ok && digest(e, r, &lane, visit_drafter, report.block_sha256);
    if (ok) e->options.on_state(e->options.on_pass_context, &report);
}
