#include "model/layout.h"

static int64_t align_up(int64_t bytes) { return (bytes + LAYOUT_ALIGN - 1) / LAYOUT_ALIGN * LAYOUT_ALIGN; }

struct run_layout run_lay_out(const struct model_config *c, int32_t max_window, enum dtype activation) {
    must(max_window > 0);
    struct run_layout l = {.ring_rows = max_window + (int32_t)c->n_taps - 1};
    int64_t log_row = c->n_key_heads * c->key_dim + c->n_value_heads * c->value_dim + c->n_value_heads; // k', d, g
    l.state_bytes = align_up(c->n_value_heads * c->key_dim * c->value_dim * (int64_t)sizeof(float));
    l.ring_bytes = align_up(l.ring_rows * config_n_channels(c) * (int64_t)dtype_bytes(activation));
    l.log_bytes = align_up(2 * (int64_t)max_window * log_row * (int64_t)sizeof(float));
    l.ring_start = c->n_delta_layers * l.state_bytes;
    l.log_start = l.ring_start + c->n_delta_layers * l.ring_bytes;
    l.kept_bytes = l.log_start;
    l.bytes = l.log_start + c->n_delta_layers * l.log_bytes;
    return l;
}

void run_add_drafts(struct run_layout *l, const struct model_config *c, int32_t max_window, enum dtype activation,
                    bool mtp, int64_t lane_bytes) {
    must(lane_bytes % LAYOUT_ALIGN == 0);
    l->hidden_rows = mtp ? 2 * max_window : 0; // a round's rows, and as many that wait
    l->hidden_row_bytes = c->n_hidden * (int64_t)dtype_bytes(activation);
    l->hidden_start = l->log_start;
    l->drafter_start = l->hidden_start + align_up(l->hidden_rows * l->hidden_row_bytes);
    int64_t more = l->drafter_start + lane_bytes - l->log_start;
    l->log_start += more;
    l->kept_bytes += more;
    l->bytes += more;
}

struct page_layout page_lay_out(const struct model_config *c, int32_t page_rows, enum dtype kv) {
    must(page_rows > 0 && (kv == DTYPE_F32 || kv == DTYPE_BF16 || kv == DTYPE_E4M3));
    int64_t n_vector = 2 * c->n_kv_heads * page_rows; // keys and values of one layer
    struct page_layout l;
    l.layer_bytes = n_vector * c->head_dim * (int64_t)dtype_bytes(kv);
    l.scale_start = (c->n_attention_layers * l.layer_bytes + 3) / 4 * 4; // heads may have any size
    l.scale_bytes = kv == DTYPE_E4M3 ? n_vector * (int64_t)sizeof(float) : 0;
    l.page_bytes = align_up(l.scale_start + c->n_attention_layers * l.scale_bytes);
    return l;
}

// Hands out consecutive aligned pieces of one block.
struct cursor {
    char *base;
    int64_t used, most; // most: the highest `used` so far, since parts of the block are laid out more than once
};

static void *take(struct cursor *cur, int64_t bytes) {
    void *data = cur->base == NULL ? NULL : cur->base + cur->used;
    cur->used += align_up(bytes);
    if (cur->used > cur->most) cur->most = cur->used;
    return data;
}

static struct tensor take_tensor(struct cursor *cur, enum dtype dtype, int64_t n_row, int64_t n_col) {
    void *data = take(cur, n_row * n_col * (int64_t)dtype_bytes(dtype));
    return (struct tensor){.data = data, .dtype = dtype, .n_row = n_row, .n_col = n_col, .stride = n_col};
}

static void lay_out_mixers(const struct model_config *c, enum dtype activation, int64_t n_rows, struct cursor *cur,
                           struct scratch *s) {
    int64_t start = cur->used;
    int64_t n_query = c->n_heads * c->head_dim, n_kv = c->n_kv_heads * c->head_dim,
            n_value = c->n_value_heads * c->value_dim;
    s->attention.qg = take_tensor(cur, activation, n_rows, 2 * n_query);
    s->attention.k = take_tensor(cur, activation, n_rows, n_kv);
    s->attention.v = take_tensor(cur, activation, n_rows, n_kv);
    s->attention.q = take_tensor(cur, activation, n_rows, n_query);
    s->attention.out = take_tensor(cur, activation, n_rows, n_query);
    cur->used = start;
    s->delta.m = take_tensor(cur, activation, n_rows, config_n_channels(c));
    s->delta.c = take_tensor(cur, activation, n_rows, config_n_channels(c));
    s->delta.z = take_tensor(cur, activation, n_rows, n_value);
    // The decay and the step size enter a recurrence over the whole stream, so they are never rounded to 16 bits.
    s->delta.a = take_tensor(cur, DTYPE_F32, n_rows, c->n_value_heads);
    s->delta.b = take_tensor(cur, DTYPE_F32, n_rows, c->n_value_heads);
    s->delta.out = take_tensor(cur, activation, n_rows, n_value);
    cur->used = start;
}

static void lay_out_feed_forward(const struct model_config *c, enum dtype activation, int64_t n_rows,
                                 struct cursor *cur, struct scratch *s) {
    int64_t start = cur->used;
    if (c->n_experts == 0) {
        s->mlp.gate = take_tensor(cur, activation, n_rows, c->n_intermediate);
        s->mlp.up = take_tensor(cur, activation, n_rows, c->n_intermediate);
    } else {
        s->moe.x = take_tensor(cur, activation, n_rows, c->n_hidden);
        s->moe.gate = take_tensor(cur, activation, n_rows, c->shared_width);
        s->moe.up = take_tensor(cur, activation, n_rows, c->shared_width);
        s->moe.shared_out = take_tensor(cur, activation, n_rows, c->n_hidden);
        s->moe.ids = take(cur, n_rows * c->n_experts_used * (int64_t)sizeof(int32_t));
        s->moe.weights = take(cur, n_rows * c->n_experts_used * (int64_t)sizeof(float));
        s->moe.shared = take(cur, n_rows * (int64_t)sizeof(float));
    }
    cur->used = start;
}

static void lay_out_drafts(const struct model_config *c, const struct scratch_shape *shape, struct cursor *cur,
                           struct scratch *s) {
    if (shape->mtp) {
        s->mtp_in = take_tensor(cur, shape->activation, shape->n_logits, c->n_hidden);
        s->mtp_both = take_tensor(cur, shape->activation, shape->n_rows, 2 * c->n_hidden);
    }
    for (int i = 0; i < shape->n_taps; i++)
        s->taps[i] = take_tensor(cur, shape->activation, shape->n_rows, c->n_hidden);
}

int64_t scratch_lay_out(const struct model_config *c, const struct scratch_shape *shape, void *base,
                        struct scratch *out) {
    struct cursor cur = {.base = base};
    enum dtype activation = shape->activation;
    *out = (struct scratch){0};
    out->x = take_tensor(&cur, activation, shape->n_rows, c->n_hidden);
    int64_t row_bytes = c->n_hidden * (int64_t)dtype_bytes(activation);
    take(&cur, row_bytes);
    out->hidden = take_tensor(&cur, activation, shape->n_rows, c->n_hidden);
    out->before = out->hidden;
    if (base != NULL) out->before.data = (char *)out->hidden.data - row_bytes;
    out->logits = take_tensor(&cur, DTYPE_F32, shape->n_logits, c->n_vocab);
    lay_out_drafts(c, shape, &cur, out);
    lay_out_mixers(c, activation, shape->n_rows, &cur, out);
    lay_out_feed_forward(c, activation, shape->n_rows, &cur, out);
    return cur.most;
}
