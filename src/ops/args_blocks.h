// Owns the contracts of the operations that only a block drafter needs: they look at all rows that a lane brings,
// which are one block, and at a bounded part of what lies before it. A backend may leave them out: both are NULL there,
// and no drafter runs on it. Letters and promises: ops.h; a row's "own lane's past" includes all rows of its block.
#ifndef TF_OPS_ARGS_BLOCKS_H
#define TF_OPS_ARGS_BLOCKS_H

#include "ops/batch.h"
#include "ops/tensor.h"

// Dynamic causal convolution within each lane's rows, i counting them from 0, summed from k = 0 up, all in fp32:
//   out[i][c] = round(sum_{k <= min(i, n_tap - 1)} (base[k][c] + dyn[i][k * G + c / group]) * x[i - k][c]
//                     + residual[i][c]), G = C / group
// The residual is added where residual.data is set, and may alias out; x may not.
struct block_conv_args {
    const struct batch *batch;
    struct tensor x;   // [T, C]
    const float *base; // [n_tap][C]
    struct tensor dyn; // [T, n_tap * G]
    int n_tap, group;  // n_tap 1..8; C is a multiple of group
    struct tensor residual;
    struct tensor out;    // [T, C]
    struct tensor normed; // [T, C]: norm(out) by norm_weight and norm_eps; data NULL: it is not wanted
    const float *norm_weight;
    float norm_eps;
};

// out[t][h] = round(softmax_j(q[t][h] . K[h / (Hq / Hkv)][j] * scale) V[..][j]) over the positions
//   max(first, position t - window + 1) <= j < end,  end = position t + 1 if causal, else the end of the lane's rows
// K and V are read in stored form through the lane's page table, the batch's own rows included; no other position is
// read, so that a page table may name a ring's pages again and again. Partial results of chunks of keys that begin at
// absolute positions, each a chain over absolute tiles of 64, are merged in chunk order.
struct block_attention_args {
    const struct batch *batch; // FORM_ROWS
    struct tensor q;           // [T, Hq * D]
    int n_head, n_kv_head, head_dim;
    float scale;
    const int32_t *first; // host memory: [n_lane], >= 0
    int32_t window;       // > 0
    int causal;
    struct kv_layer kv; // of the device's own type (ops/device.h)
    struct tensor out;  // [T, Hq * D]
};

#endif
