// What gates see of a lane at its end: a digest of all that the stream's next row would be computed from.
#include "engine/internal.h"
#include <openssl/evp.h>

static void add(void *context, const void *bytes, size_t n) { EVP_DigestUpdate(context, bytes, n); }

typedef void visit_fn(struct model *m, const struct lane *lane, const void *pages, model_visit_fn *fn, void *context);

static bool digest(struct engine *e, const struct lane *lane, visit_fn *visit, unsigned char *sha256) {
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool ok = context != NULL && EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1;
    if (ok) visit(e->model, lane, e->memory, add, context);
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
    bool ok = digest(e, &lane, model_visit_lane, report.sha256);
    if (e->has_mtp && r->may_draft) {
        mtp_drafts_finish(e, r);
        lane.position++; // it has the last token too
        ok = ok && digest(e, &lane, model_visit_mtp, report.mtp_sha256);
    }
    if (ok) e->options.on_state(e->options.on_pass_context, &report);
}
