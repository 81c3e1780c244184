// Owns the contract of every operation of the forward pass. A backend fills one `struct ops`; nothing above it knows
// which. An oracle must be writable from these comments alone.
//
// Letters: T rows of the batch, H hidden, Hq/Hkv query and KV heads, D head size of attention, Hk/Hv key and value
// heads of the delta rule, Dk/Dv their sizes, r = Hv / Hk, C = 2 Hk Dk + Hv Dv conv channels, K conv taps, V vocabulary
// rows. Head h of a tensor [T, heads * size] is columns [h * size, (h + 1) * size).
//
// Promises of every operation:
//  - A row's output bits depend on that row and its own lane's past only: not on T, the other rows, the lane's place,
//    page numbers, worker count, or where a prompt was cut into passes (at multiples of 64). FORM_PROMPT and FORM_ROWS may
//    differ in bits from each other.
//  - Outputs do not alias inputs unless said. Only what is named as written is written. Nothing unwritten is read.
//  - "round" is the conversion to the output's dtype, once, from fp32; inputs are widened to fp32 first.
//  - Operations are ordered: each sees the results of those before it. A device failure is sticky (device.h).
#ifndef TF_OPS_OPS_H
#define TF_OPS_OPS_H

#include "ops/batch.h"
#include "ops/draw.h"
#include "ops/tensor.h"

struct device;

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
// set)), where x' is x, or norm(x) as in norm_args when norm_weight is set. All parts share x. With a residual there is
// one part, and residual may alias its out. Sums are fp32 over i in an order fixed by the weight's shape and the form;
// the backend's compute mode says at which precision products are formed (device.h).
struct linear_args {
    enum form form;
    struct tensor x;          // [T, n_in]
    const float *norm_weight; // NULL: none
    float norm_eps;
    int n_parts;
    struct {
        const struct weight *w;
        struct tensor out; // [T, w->n_out], f32 or the activation type
    } part[LINEAR_MAX_PARTS];
    struct tensor residual; // data NULL: none
};

// Prepares queries and stores keys and values, before any of them is read (store before attend).
//   q_out[t][h] = rope(norm(qg[t][h][0..D), q_norm), position t);   qg columns: per head [query D | gate D]
//   K[h][position t] = rope(norm(k[t][h], k_norm));   V[h][position t] = v[t][h];   both rounded to the cache's dtype
// norm as in norm_args over D; rope rotates the first n_rot of D in half-split pairs (i, i + n_rot / 2) by angle
// position * inv_freq[i], inv_freq[i] = theta^(-2 i / n_rot) rounded to fp32, the angle's product rounded to fp32.
struct qk_store_args {
    const struct batch *batch;
    struct tensor qg, k, v;       // [T, Hq * 2 * D], [T, Hkv * D], [T, Hkv * D]
    const float *q_norm, *k_norm; // [D]
    float eps;
    const float *inv_freq; // [n_rot / 2]
    int n_rot, n_head, n_kv_head, head_dim;
    struct kv_layer kv;  // written at the rows' positions
    struct tensor q_out; // [T, Hq * D]
};

// out[t][h] = round(softmax_{j <= position t}(q[t][h] . K[h / (Hq / Hkv)][j] * scale) V[..][j] * sigmoid(gate[t][h]))
// with gate = columns [D, 2 D) of head h of qg; K and V are read in stored form through the lane's page table, the
// batch's own rows included. FORM_PROMPT: one online-softmax chain over absolute tiles of 64 keys. FORM_ROWS: partial
// results of absolute chunks of 512 keys (each a chain over its 64-key tiles), merged in chunk order.
struct attention_args {
    const struct batch *batch;
    struct tensor q;  // [T, Hq * D]
    struct tensor qg; // [T, Hq * 2 * D], for the gate
    int n_head, n_kv_head, head_dim;
    float scale;
    struct kv_layer kv;
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
// compared.
struct delta_commit_args {
    const struct lane *lane;
    int max_window, n_key_head, n_value_head, key_dim, value_dim;
    int64_t state_offset, log_offset;
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
    struct tensor shared_out;              // [T, H]
    struct tensor residual, out;           // [T, H]
};

struct ops {
    // before the first operation of a batch: lane tables to the device
    void (*begin)(struct device *, const struct batch *);
    void (*embed)(struct device *, const struct embed_args *);
    void (*norm)(struct device *, const struct norm_args *);
    void (*linear)(struct device *, const struct linear_args *);
    void (*qk_store)(struct device *, const struct qk_store_args *);
    void (*attention)(struct device *, const struct attention_args *);
    void (*conv)(struct device *, const struct conv_args *);
    void (*delta)(struct device *, const struct delta_args *);
    void (*delta_commit)(struct device *, const struct delta_commit_args *);
    void (*swiglu)(struct device *, const struct swiglu_args *);
    void (*router)(struct device *, const struct router_args *);
    void (*experts)(struct device *, const struct experts_args *);
    void (*draw)(struct device *, const struct draw_args *);
};

#endif
