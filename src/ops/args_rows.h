// Owns the contracts of the operations that work on each row by itself. Letters and promises: ops.h.
#ifndef TF_OPS_ARGS_ROWS_H
#define TF_OPS_ARGS_ROWS_H

#include "ops/batch.h"
#include "ops/tensor.h"

// out[t] = round(table[ids[t]]), dequantised where the table is quantised. ids are the batch's, all in range.
struct embed_args {
    const struct batch *batch;
    const struct weight *table; // [V, H]
    struct tensor out;          // [T, H]
};

// out[t] = round(x * rsqrt(mean(x^2) + eps) * weight), all in fp32. weight is fp32 [n_col] with any "1 +" folded in.
struct norm_args {
    struct tensor x, out; // [T, n_col]; may alias
    const float *weight;
    float eps;
};

#define LINEAR_MAX_PARTS 6

// For each part p: out_p[t] = round(sum_i x'[t][i] * w_p[o][i]  (+ residual[t][o], in fp32, where residual.data is
// set)), where x' is x, or norm(x) as in norm_args when norm_weight is set, or round(silu(x) * up) when up.data is
// set, which is for FORM_PROMPT alone and excludes a norm. All parts share x. With a residual there is one part, and
// residual may alias its out. Sums are fp32 over i in an order fixed by the weight's shape and the form; the backend's
// compute mode says at which precision products are formed (device.h).
struct linear_args {
    enum form form;
    struct tensor x, up;      // [T, n_in]; up.data NULL: none
    const float *norm_weight; // NULL: none
    float norm_eps;
    int n_parts;
    struct {
        const struct weight *w;
        struct tensor out; // [T, w->n_out], f32 or the activation type
    } part[LINEAR_MAX_PARTS];
    struct tensor residual; // data NULL: none
};

// out = round(silu(gate) * up)
struct swiglu_args {
    struct tensor gate, up, out; // [T, I]; out may alias either
};

// logits = x W^T in fp32; p = softmax(logits); the n_used largest p in falling order, ties to the lower id; weights are
// those p divided by their sum. shared[t] = sigmoid(x . shared_gate) where shared_gate is set.
struct router_args {
    enum form form;
    struct tensor x;                         // [T, H], normed
    const struct weight *gate, *shared_gate; // [E, H], [1, H]
    int n_used;
    int32_t *ids;   // [T, n_used]
    float *weights; // [T, n_used]
    float *shared;  // [T]
};

// out[t] = round(residual[t] + sum_{s < n_used, in slot order} weights[t][s] * E_{ids[t][s]}(x[t])
//                + shared[t] * shared_out[t])
// in fp32, with E_e(x) = down_e(round(silu(gate_e x) * (up_e x))); residual may alias out.
struct experts_args {
    enum form form;
    struct tensor x; // [T, H]
    int n_expert, n_used;
    const int32_t *ids;
    const float *weights, *shared;
    const struct weight *gate, *up, *down; // [n_expert] each: [Ie, H], [Ie, H], [H, Ie]
    int lie_evenly;              // known of each kind: matrices are alike and at equal distances; 0: it is looked up
    struct tensor shared_out;    // [T, H]
    struct tensor residual, out; // [T, H]
};

#endif
