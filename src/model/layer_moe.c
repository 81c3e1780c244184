// The mixture-of-experts feed-forward block with its shared expert (spec section 2.8).
#include "model/internal.h"

// Router and experts take the normed stream as it is, so it is made once instead of inside each of them.
static struct moe_args block_of(const struct walk *w, const struct layer_weights *weights) {
    const struct model_config *c = &w->m->config;
    const struct scratch *s = &w->scratch;
    return (struct moe_args){
        .norm = {.x = s->x, .out = s->moe.x, .weight = weights->post_norm, .eps = (float)c->norm_eps},
        .router =
            {
                .form = w->batch->form,
                .x = s->moe.x,
                .gate = &weights->router,
                .shared_gate = &weights->shared_gate,
                .n_used = (int)c->n_experts_used,
                .ids = s->moe.ids,
                .weights = s->moe.weights,
                .shared = s->moe.shared,
            },
        .gate = &weights->mlp.gate,
        .up = &weights->mlp.up,
        .down = &weights->mlp.down,
        .gated = {.gate = s->moe.gate, .up = s->moe.up, .out = s->moe.gate},
        .experts =
            {
                .form = w->batch->form,
                .x = s->moe.x,
                .n_expert = (int)c->n_experts,
                .n_used = (int)c->n_experts_used,
                .ids = s->moe.ids,
                .weights = s->moe.weights,
                .shared = s->moe.shared,
                .gate = weights->expert_gate,
                .up = weights->expert_up,
                .down = weights->expert_down,
                .lie_evenly = weights->experts_lie_evenly,
                .shared_out = s->moe.shared_out,
                .residual = s->x,
                .out = s->x,
            },
    };
}

static void shared_expert(const struct walk *w, const struct moe_args *a) {
    struct linear_args widen = {
        .form = w->batch->form,
        .x = a->norm.out,
        .n_parts = 2,
        .part = {{a->gate, a->gated.gate}, {a->up, a->gated.up}},
    };
    w->ops->linear(w->device, &widen);
    w->ops->swiglu(w->device, &a->gated);
    struct linear_args narrow = {
        .form = w->batch->form,
        .x = a->gated.out,
        .n_parts = 1,
        .part = {{a->down, a->experts.shared_out}},
    };
    w->ops->linear(w->device, &narrow);
}

void layer_moe(const struct walk *w, const struct layer_weights *weights, int64_t nth) {
    (void)nth;
    struct moe_args block = block_of(w, weights);
    if (w->batch->form == FORM_ROWS && w->ops->moe != NULL && w->ops->moe(w->device, &block)) return;
    w->ops->norm(w->device, &block.norm);
    w->ops->router(w->device, &block.router);
    shared_expert(w, &block);
    w->ops->experts(w->device, &block.experts);
}
