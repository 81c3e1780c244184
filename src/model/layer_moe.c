// The mixture-of-experts feed-forward block with its shared expert (spec section 2.8).
#include "model/internal.h"

static void shared_expert(const struct walk *w, const struct layer_weights *weights) {
    const struct scratch *s = &w->scratch;
    struct linear_args widen = {
        .form = w->batch->form,
        .x = s->moe.x,
        .n_parts = 2,
        .part = {{&weights->mlp.gate, s->moe.gate}, {&weights->mlp.up, s->moe.up}},
    };
    w->ops->linear(w->device, &widen);
    struct swiglu_args gate = {
        .gate = s->moe.gate,
        .up = s->moe.up,
        .out = s->moe.gate,
    };
    w->ops->swiglu(w->device, &gate);
    struct linear_args narrow = {
        .form = w->batch->form,
        .x = s->moe.gate,
        .n_parts = 1,
        .part = {{&weights->mlp.down, s->moe.shared_out}},
    };
    w->ops->linear(w->device, &narrow);
}

void layer_moe(const struct walk *w, const struct layer_weights *weights, int64_t nth) {
    (void)nth;
    const struct model_config *c = &w->m->config;
    const struct scratch *s = &w->scratch;
    // Router and experts take the normed stream as it is, so it is made once instead of inside each of them.
    struct norm_args norm = {
        .x = s->x,
        .out = s->moe.x,
        .weight = weights->post_norm,
        .eps = (float)c->norm_eps,
    };
    w->ops->norm(w->device, &norm);
    struct router_args route = {
        .form = w->batch->form,
        .x = s->moe.x,
        .gate = &weights->router,
        .shared_gate = &weights->shared_gate,
        .n_used = (int)c->n_experts_used,
        .ids = s->moe.ids,
        .weights = s->moe.weights,
        .shared = s->moe.shared,
    };
    w->ops->router(w->device, &route);
    shared_expert(w, weights);
    struct experts_args experts = {
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
        .shared_out = s->moe.shared_out,
        .residual = s->x,
        .out = s->x,
    };
    w->ops->experts(w->device, &experts);
}
