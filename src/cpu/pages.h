// Owns the addresses of stored keys and values and of their scales: the layout of batch.h.
#ifndef TF_CPU_PAGES_H
#define TF_CPU_PAGES_H

#include "cpu/internal.h"

// The page that holds `position`.
static inline char *cpu_kv_page(const struct kv_layer *kv, const struct lane *lane, int64_t position) {
    int64_t page = position / kv->page_rows;
    must(page < lane->n_page);
    return (char *)kv->pages + lane->pages[page] * kv->page_bytes;
}

// Which of a layer's rows on that page is the position's, in KV head `head`: keys of all heads, then values.
static inline int64_t cpu_kv_nth_row(const struct kv_layer *kv, int n_kv_head, int head, int64_t position,
                                     bool is_value) {
    return ((int64_t)(is_value ? n_kv_head : 0) + head) * kv->page_rows + position % kv->page_rows;
}

// The row of `position` in KV head `head`; the rows after it on the same page follow without gaps.
static inline char *cpu_kv_row(const struct kv_layer *kv, const struct lane *lane, int n_kv_head, int head_dim,
                               int head, int64_t position, bool is_value) {
    int64_t row = cpu_kv_nth_row(kv, n_kv_head, head, position, is_value);
    return cpu_kv_page(kv, lane, position) + kv->layer_offset + row * head_dim * (int64_t)dtype_bytes(kv->dtype);
}

// The scale of an e4m3 row.
static inline float *cpu_kv_scale(const struct kv_layer *kv, const struct lane *lane, int n_kv_head, int head,
                                  int64_t position, bool is_value) {
    return (float *)(void *)(cpu_kv_page(kv, lane, position) + kv->scale_offset) +
           cpu_kv_nth_row(kv, n_kv_head, head, position, is_value);
}

#endif
