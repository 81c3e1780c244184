// Owns where a stream's data and a pass's intermediate results lie: the run that every lane has (recurrent states, conv
// rings, logs), the pages of keys and values, and scratch. Arithmetic over the configuration only; any thread may call
// it.
#ifndef TF_MODEL_LAYOUT_H
#define TF_MODEL_LAYOUT_H

#include "model/config.h"
#include "ops/batch.h"

#define LAYOUT_ALIGN 256 // bytes; what device memory and lane runs are aligned to (ops/device.h, ops/batch.h)

// A lane run: the states of all delta layers, then all their conv rings, then all their logs. What a stream needs to go
// on after a prompt pass is thus the run's first kept_bytes, in one piece; logs matter within a reply only.
struct run_layout {
    int32_t
        ring_rows; // of a conv ring: max_window new rows, and the n_taps - 1 before them, which others may still read
    int64_t state_bytes, ring_bytes, log_bytes; // of one layer; multiples of LAYOUT_ALIGN
    int64_t ring_start, log_start;
    int64_t kept_bytes, bytes;
};

struct run_layout run_lay_out(const struct model_config *c, int32_t max_window, enum dtype activation);

// Bytes from the start of a run, of the i-th delta layer.
static inline int64_t run_state_offset(const struct run_layout *l, int64_t i) { return i * l->state_bytes; }
static inline int64_t run_ring_offset(const struct run_layout *l, int64_t i) {
    return l->ring_start + i * l->ring_bytes;
}
static inline int64_t run_log_offset(const struct run_layout *l, int64_t i) { return l->log_start + i * l->log_bytes; }

// A page: page_rows positions of all attention layers, layer-major (ops/batch.h). kv is f32, bf16 or e4m3; e4m3 has the
// scales of all layers behind their codes.
struct page_layout {
    int64_t layer_bytes;              // keys and values, or their codes, of one layer
    int64_t scale_start, scale_bytes; // from the page's start; of one layer, 0 but for e4m3
    int64_t page_bytes;               // a multiple of LAYOUT_ALIGN
};

struct page_layout page_lay_out(const struct model_config *c, int32_t page_rows, enum dtype kv);

// Intermediate results of one pass or round, [rows, ...] each. The parts of a mixer and of a feed-forward block never
// live at the same time, so `attention`, `delta`, `mlp` and `moe` share the same bytes; the others are their own.
struct scratch {
    struct tensor x;      // residual stream
    struct tensor hidden; // after the final norm; of the newest call's rows, until the next call
    struct tensor logits; // [n_logits, V] f32
    struct {
        struct tensor qg, k, v, q, out;
    } attention;
    struct {
        struct tensor m, c, z, a, b, out;
    } delta;
    struct {
        struct tensor gate, up;
    } mlp;
    struct {
        struct tensor x, gate, up, shared_out; // the normed stream, and the shared expert's rows
        int32_t *ids;                          // [rows, n_experts_used]
        float *weights, *shared;               // [rows, n_experts_used], [rows]
    } moe;
};

// Lays scratch out from `base` on (device memory, LAYOUT_ALIGN aligned; NULL: all data pointers are NULL) and returns
// its bytes.
int64_t scratch_lay_out(const struct model_config *c, enum dtype activation, int64_t n_rows, int64_t n_logits,
                        void *base, struct scratch *out);

#endif
