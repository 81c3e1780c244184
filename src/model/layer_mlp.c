// The dense feed-forward block (spec section 2.7).
#include "model/internal.h"

void layer_mlp(const struct walk *w, const struct layer_weights *weights, int64_t nth) {
    (void)nth;
    const struct scratch *s = &w->scratch;
    struct linear_args widen = {
        .form = w->batch->form,
        .x = s->x,
        .norm_weight = weights->post_norm,
        .norm_eps = (float)w->m->config.norm_eps,
        .n_parts = 2,
        .part = {{&weights->mlp.gate, s->mlp.gate}, {&weights->mlp.up, s->mlp.up}},
    };
    struct linear_swiglu_args both = {
        .linear = widen,
        .gated = {.gate = s->mlp.gate, .up = s->mlp.up, .out = s->mlp.gate},
    };
    bool is_round = w->batch->form == FORM_ROWS;
    if (is_round && w->ops->linear_swiglu != NULL && w->ops->linear_swiglu(w->device, &both)) {
        layer_add(w, s->mlp.gate, &weights->mlp.down);
        return;
    }
    w->ops->linear(w->device, &widen);
    if (!is_round) { // a pass of thousands of rows is not written once more
        struct linear_args narrow = {
            .form = FORM_PROMPT,
            .x = s->mlp.gate,
            .up = s->mlp.up,
            .n_parts = 1,
            .part = {{&weights->mlp.down, s->x}},
            .residual = s->x,
        };
        w->ops->linear(w->device, &narrow);
        return;
    }
    w->ops->swiglu(w->device, &both.gated);
    layer_add(w, s->mlp.gate, &weights->mlp.down);
}
