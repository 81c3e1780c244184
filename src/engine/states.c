// What gates see of a lane at its end: a digest of all that the stream's next row would be computed from.
#include "engine/internal.h"
#include <openssl/evp.h>

static void add(void *context, const void *bytes, size_t n) { EVP_DigestUpdate(context, bytes, n); }

void states_report(struct engine *e, const struct request *r) {
    if (e->options.on_state == NULL) return;
    struct state_report report = {.request = r->number, .position = r->n_rows_done};
    struct lane lane = {.position = r->n_rows_done,
                        .n_pending = r->n_pending,
                        .pages = r->claim.pages,
                        .n_page = r->claim.n_page,
                        .run = engine_run(e, r->claim.run)};
    EVP_MD_CTX *digest = EVP_MD_CTX_new();
    if (digest == NULL || EVP_DigestInit_ex(digest, EVP_sha256(), NULL) != 1) {
        EVP_MD_CTX_free(digest);
        return; // a report that is missing is red
    }
    model_commit(e->model, &lane);
    model_visit_lane(e->model, &lane, e->memory, add, digest);
    EVP_DigestFinal_ex(digest, report.sha256, NULL);
    EVP_MD_CTX_free(digest);
    e->options.on_state(e->options.on_pass_context, &report);
}
