// The gated delta rule (spec section 2.5).
#include "model/internal.h"

void layer_delta(const struct walk *w, const struct layer_weights *weights, int64_t nth) {
    const struct model_config *c = &w->m->config;
    const struct run_layout *run = &w->m->run;
    const struct scratch *s = &w->scratch;
    struct linear_args project = {
        .form = w->batch->form,
        .x = s->x,
        .norm_weight = weights->input_norm,
        .norm_eps = (float)c->norm_eps,
        .n_parts = 4,
        .part = {{&weights->qkv, s->delta.m},
                 {&weights->z, s->delta.z},
                 {&weights->a, s->delta.a},
                 {&weights->b, s->delta.b}},
    };
    w->ops->linear(w->device, &project);
    struct conv_delta_args mix;
    mix.conv = (struct conv_args){
        .batch = w->batch,
        .m = s->delta.m,
        .weight = weights->conv,
        .n_tap = (int)c->n_taps,
        .ring_rows = run->ring_rows,
        .ring_offset = run_ring_offset(run, nth),
        .out = s->delta.c,
    };
    mix.delta = (struct delta_args){
        .batch = w->batch,
        .c = s->delta.c,
        .a = s->delta.a,
        .b = s->delta.b,
        .z = s->delta.z,
        .neg_a = weights->neg_a,
        .dt_bias = weights->dt_bias,
        .out_norm = weights->out_norm,
        .eps = (float)c->norm_eps,
        .gate_sigmoid = c->gate_sigmoid,
        .n_key_head = (int)c->n_key_heads,
        .n_value_head = (int)c->n_value_heads,
        .key_dim = (int)c->key_dim,
        .value_dim = (int)c->value_dim,
        .state_offset = run_state_offset(run, nth),
        .log_offset = run_log_offset(run, nth),
        .out = s->delta.out,
    };
    bool is_round = w->batch->form == FORM_ROWS;
    if (!is_round || w->ops->conv_delta == NULL || !w->ops->conv_delta(w->device, &mix)) {
        w->ops->conv(w->device, &mix.conv);
        w->ops->delta(w->device, &mix.delta);
    }
    layer_add(w, s->delta.out, &weights->out);
}
