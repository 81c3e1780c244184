// Owns where a stream's data and a pass's intermediate results lie: the run that every lane has (recurrent states, conv
// rings, logs), the pages of keys and values, and scratch. Arithmetic over the configuration only; any thread may call
// it.
#ifndef TF_MODEL_LAYOUT_H
#define TF_MODEL_LAYOUT_H

#include "model/config.h"
#include "ops/batch.h"

#define MODEL_TAPS_MAX 16
#define LAYOUT_ALIGN   256 // bytes; what device memory and lane runs are aligned to (ops/device.h, ops/batch.h)

// A lane run: the states of all delta layers, then all their conv rings, then what drafting keeps (run_add_drafts),
// then all their logs. What a stream needs to go on after a prompt pass is thus the run's first kept_bytes, in one
// piece; logs matter within a reply only.
struct run_layout {
    int32_t
        ring_rows; // of a conv ring: max_window new rows, and the n_taps - 1 before them, which others may still read
    int64_t state_bytes, ring_bytes, log_bytes; // of one layer; multiples of LAYOUT_ALIGN
    int64_t ring_start, log_start;
    int64_t kept_bytes, bytes;
    // Of the newest positions, the stream after the final norm: [hidden_rows][H], position p in row p % hidden_rows.
    int32_t hidden_rows; // 0: nobody needs it
    int64_t hidden_start, hidden_row_bytes;
    int64_t drafter_start; // a drafter's own part
};

struct run_layout run_lay_out(const struct model_config *c, int32_t max_window, enum dtype activation);

// Makes room for what drafting keeps of each stream: the hidden rows that an MTP head has not seen yet, and lane_bytes
// of a drafter's own (a multiple of LAYOUT_ALIGN).
void run_add_drafts(struct run_layout *l, const struct model_config *c, int32_t max_window, enum dtype activation,
                    bool mtp, int64_t lane_bytes);

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
    struct tensor before; // as many rows, one row earlier: each has the row before that of `hidden`
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
    // What drafting needs; no rows where it is off.
    struct tensor mtp_in;               // [n_logits, H]: hidden rows that go into the head
    struct tensor mtp_both;             // [rows, 2 H]: embedding and hidden row, normed
    struct tensor taps[MODEL_TAPS_MAX]; // [rows, H] each: the stream behind some layers
};

// Lays scratch out from `base` on (device memory, LAYOUT_ALIGN aligned; NULL: all data pointers are NULL) and returns
// its bytes.
struct scratch_shape {
    enum dtype activation;
    int64_t n_rows, n_logits;
    bool mtp;
    int n_taps;
};
int64_t scratch_lay_out(const struct model_config *c, const struct scratch_shape *shape, void *base,
                        struct scratch *out);

#endif
