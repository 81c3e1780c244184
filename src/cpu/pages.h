// Owns the address of a stored key or value: the layout of batch.h.
#ifndef TF_CPU_PAGES_H
#define TF_CPU_PAGES_H

#include "cpu/internal.h"

// The row of `position` in KV head `head`; the rows after it on the same page follow without gaps.
static inline char *cpu_kv_row(const struct kv_layer *kv, const struct lane *lane, int n_kv_head, int head_dim,
                               int head, int64_t position, bool is_value) {
    int64_t page = position / kv->page_rows, slot = position % kv->page_rows;
    must(page < lane->n_page);
    int64_t plane_rows = (int64_t)n_kv_head * kv->page_rows;
    int64_t row = (is_value ? plane_rows : 0) + (int64_t)head * kv->page_rows + slot;
    return (char *)kv->pages + lane->pages[page] * kv->page_bytes + kv->layer_offset +
           row * head_dim * (int64_t)dtype_bytes(kv->dtype);
}

#endif
