// Owns the page pools of the attention cases: lanes' keys and values on shuffled pages of any size.
#ifndef TF_CHECK_KV_H
#define TF_CHECK_KV_H

#include "check/check.h"

#define KV_MAX_LANES 4
#define KV_LAYERS    2 // of a page; the cases use the second

#define KV_LONG_PAGE_DIM 64 // pages of 4096 positions are tried with heads up to this size: larger ones take too long

struct kv_shape {
    int n_kv_head, head_dim;
    enum dtype dtype;
};

// One lane's rows of a call, and what is stored of it before the call.
struct kv_lane {
    int32_t position, n_row;
    int32_t n_stored;   // positions [0, n_stored) have keys and values
    const float *k, *v; // [n_stored][n_kv_head * head_dim], in the cache's precision; NULL when n_stored is 0
    const float *k_scale, *v_scale; // of e4m3: [n_stored][n_kv_head]
};

struct kv_pool {
    struct kv_shape shape;
    int32_t page_rows;
    struct kv_layer layer; // device
    size_t bytes;
    struct lane lanes[KV_MAX_LANES];
    struct batch batch;
};

// Lays out the lanes' pages, shuffled by `shuffle`, on a staged pool that is NaN wherever nothing is stored. With
// may_store the rows of the call may be written, and nothing else.
void kv_open(struct kv_pool *p, struct stage *s, const struct kv_shape *shape, enum form form, int32_t page_rows,
             const struct kv_lane *lanes, int n_lane, bool may_store, uint64_t shuffle);

// What the pool holds at the call's rows: [T][n_kv_head * head_dim] each, and the scales [T][n_kv_head], which are 1
// in other types than e4m3.
struct kv_rows {
    float *k, *v, *k_scale, *v_scale;
};
void kv_read_rows(struct kv_pool *p, struct stage *s, struct kv_rows *out);

// Rounds vectors to what e4m3 holds of them, by the formula of ops/batch.h; scales: [n_vector].
void kv_round_e4m3(float *x, int64_t n_vector, int head_dim, float *scales);

// Where the scale of a stored vector lies, from the start of the pool.
size_t kv_scale_offset(const struct kv_layer *l, const struct lane *lane, int n_kv_head, int head, int64_t position,
                       bool is_value);

#endif
