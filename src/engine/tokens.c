// Draws: what they are keyed with, and what becomes of a drawn token.
#include "engine/internal.h"

static void prepare(struct request *r, int32_t row, const uint32_t *allowed, struct draw_params *p) {
    *p = r->draw;
    p->seed = fault_seed(r, row);
    p->position = (int64_t)r->n_prompt + r->drafting.n_before + row; // the drawn token's own: one after the row's
    p->seen = r->seen.entries;
    p->n_seen = r->seen.n;
    p->allowed = allowed;
}

void tokens_prepare_draw(struct request *r, int32_t row, struct draw_params *p) {
    prepare(r, row, request_mask_allowed(r), p);
}

void tokens_prepare_draft(struct request *r, int32_t step, struct draw_params *p) {
    prepare(r, step, request_mask_path_allowed(r), p);
    p->n_top = 0; // for the confidence
}

void tokens_draw(struct engine *e, struct tensor logits, int32_t row, int32_t n) {
    struct draw_args args = {.logits = tensor_rows(logits, row, n),
                             .n_vocab = e->n_vocab,
                             .params = e->params + row,
                             .results = e->results + row};
    e->device->ops->draw(e->device, &args);
}

void tokens_tell(struct engine *e) {
    for (int32_t i = 0; i < e->n_running; i++) request_tell(e->running[i]);
}

bool tokens_wait(struct engine *e) {
    struct error error;
    tokens_tell(e);
    struct device *d = e->device;
    if ((d->wait != NULL ? d->wait : d->sync)(d, &error) == STATUS_OK) return true;
    schedule_fail(e, &error);
    return false;
}

void tokens_teach(const struct request *r, struct draw_result *result) {
    const struct drafting *d = &r->drafting;
    if (d->kept != NULL && r->view.n_tokens < d->n_expected) result->id = d->expected[r->view.n_tokens];
}

bool tokens_take(struct request *r, const struct draw_result *result, enum finish *finish, bool *by_eos) {
    bool eos = config_is_eos(r->engine->info.config, result->id);
    if (r->has_penalty) seen_add(&r->seen, result->id, true);
    request_mask_take(r, result->id);
    request_append(r, result);
    *by_eos = eos && !r->ignore_eos;
    *finish = FINISH_STOP;
    if (*by_eos || (r->stopper != NULL && !eos && stops_hit(r, result->id))) return true;
    *finish = FINISH_LENGTH;
    return r->view.n_tokens == r->max_tokens;
}
