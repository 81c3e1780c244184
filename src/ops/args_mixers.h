// Owns the contracts of the operations that look back: attention, convolution and the gated delta rule, with what a
// lane keeps between them. Letters and promises: ops.h.
#ifndef TF_OPS_ARGS_MIXERS_H
#define TF_OPS_ARGS_MIXERS_H

#include "ops/batch.h"
#include "ops/tensor.h"

// Prepares queries and stores keys and values, before any of them is read (store before attend).
//   q_out[t][h] = rope(norm(qg[t][h][0..D), q_norm), position t);   qg columns: per head [query D | gate D]
//   K[h][position t] = rope(norm(k[t][h], k_norm));   V[h][position t] = v[t][h];   both rounded to the cache's dtype
// norm as in norm_args over D; rope rotates the first n_rot of D in half-split pairs (i, i + n_rot / 2) by angle
// position * inv_freq[i], inv_freq[i] = theta^(-2 i / n_rot) rounded to fp32, the angle's product rounded to fp32.
struct qk_store_args {
    const struct batch *batch;
    struct tensor qg, k, v; // [T, Hq * 2 * D], [T, Hkv * D], [T, Hkv * D]
    int no_gate;            // block drafters: qg is [T, Hq * D], queries alone; n_head may be 0, then qg is not read
    const float *q_norm, *k_norm; // [D]
    float eps;
    const float *inv_freq; // [n_rot / 2]
    int n_rot, n_head, n_kv_head, head_dim;
    struct kv_layer kv;  // written at the rows' positions
    struct tensor q_out; // [T, Hq * D]
};

// out[t][h] = round(softmax_j(q[t][h] . K[h / (Hq / Hkv)][j] * scale) V[..][j] * sigmoid(gate[t][h])) over the keys
// first_key <= j <= position t, with gate = columns [D, 2 D) of head h of qg; K and V are read in stored form through
// the lane's page table, the batch's own rows included. FORM_PROMPT: one online-softmax chain over
// absolute tiles of 64 keys; first_key is 0. FORM_ROWS: partial results of absolute chunks of 512 keys (each a chain
// over its 64-key tiles), merged in chunk order; no row lies before first_key.
struct attention_args {
    const struct batch *batch;
    struct tensor q;  // [T, Hq * D]
    struct tensor qg; // [T, Hq * 2 * D], for the gate
    int n_head, n_kv_head, head_dim;
    float scale;
    struct kv_layer kv;
    int first_key;     // 0 or 1: the position of the first key that any row sees
    struct tensor out; // [T, Hq * D]
};

// Causal depthwise convolution over a lane's positions, summed from j = 0 up, with p the row's position:
//   out[t][c] = round(silu(sum_{j < K} w[c][j] * m[p - (K - 1) + j][c]))
// Rows before the batch come from the lane's conv ring, positions < 0 are zeros.
// Writes into the ring: FORM_ROWS all rows of the batch; FORM_PROMPT the last K - 1 positions of the pass and, for each
// of the batch's keeps, the K - 1 positions before it into that keep's run. Ring: slot p % ring_rows, [ring_rows][C] of
// m's dtype.
struct conv_args {
    const struct batch *batch;
    struct tensor m;     // [T, C]
    const float *weight; // [C, K] fp32
    int n_tap, ring_rows;
    int64_t ring_offset; // bytes from the start of a lane run
    struct tensor out;   // [T, C]
};

// Gated delta rule. Per row: q, k, v are the parts of c ([q Hk Dk | k Hk Dk | v Hv Dv]); per value head hv, with
// kh = hv / r:
//   q' = q * rsqrt(sum q^2 + 1e-6) * Dk^-0.5,  k' = k * rsqrt(sum k^2 + 1e-6)
//   beta = sigmoid(b[hv]),  g = neg_a[hv] * softplus(a[hv] + dt_bias[hv]),  neg_a = -exp(A_log),
//   softplus(x) = x for x > 20
//   S = e^g S;  d = beta (v - S^T k');  S = S + k' d^T;  o = S^T q'          all fp32; S [Dk][Dv] starts as zeros
//   out[t][hv] = round(o * rsqrt(mean(o^2) + eps) * out_norm * gate(z[t][hv]))
// with gate = silu, or sigmoid if gate_sigmoid is set.
// State in a lane run at state_offset: [Hv][Dk][Dv] fp32. Log at log_offset: k' [2W][Hk][Dk], then d [2W][Hv][Dv], then
// g [2W][Hv], all fp32; the row of position p is slot p % (2W), W = the batch's max_window.
//
// FORM_ROWS (one row after another): the lane's n_pending logged rows at positions [position - n_pending, position) are
// first folded into S in order (S = e^g S + k' d^T) and S is written; the batch's rows then run on that S without being
// written to it, and are logged. So the state is read and written once, and rolling back is a smaller n_pending next
// time.
// FORM_PROMPT (chunks of 64 at absolute positions, spec section 2.5): n_pending is 0; S is read (zeros when position is
// 0), written at the end of the pass, and at each of the batch's keeps (a multiple of 64) into that keep's run.
struct delta_args {
    const struct batch *batch;
    struct tensor c;              // [T, C], after the convolution
    struct tensor a, b;           // [T, Hv]
    struct tensor z;              // [T, Hv * Dv]
    const float *neg_a, *dt_bias; // [Hv]
    const float *out_norm;        // [Dv], plain
    float eps;
    int gate_sigmoid;
    int n_key_head, n_value_head, key_dim, value_dim;
    int64_t state_offset, log_offset;
    struct tensor out; // [T, Hv * Dv]
};

// Folds a lane's pending rows into its state (as FORM_ROWS would) and writes it, so that the state can be saved or
// compared. A device's `begin` stands between it and rows of that lane, which may read the state before earlier
// operations of their own batch have ended.
struct delta_commit_args {
    const struct lane *lane;
    int max_window, n_key_head, n_value_head, key_dim, value_dim;
    int64_t state_offset, log_offset;
};

#endif
