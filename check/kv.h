// Owns the page pools of the attention cases: lanes' keys and values on shuffled pages of any size.
#ifndef TF_CHECK_KV_H
#define TF_CHECK_KV_H

#include "check/check.h"

#define KV_MAX_LANES 4
#define KV_LAYERS    2 // of a page; the cases use the second

struct kv_shape {
    int n_kv_head, head_dim;
    enum dtype dtype;
};

// One lane's rows of a call, and what is stored of it before the call.
struct kv_lane {
    int32_t position, n_row;
    int32_t n_stored;   // positions [0, n_stored) have keys and values
    const float *k, *v; // [n_stored][n_kv_head * head_dim], in the cache's precision; NULL when n_stored is 0
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

// What the pool holds at the call's rows, [T][n_kv_head * head_dim] each.
void kv_read_rows(struct kv_pool *p, struct stage *s, float *k, float *v);

#endif
