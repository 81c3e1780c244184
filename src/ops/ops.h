// Owns the contract of every operation of the forward pass. A backend fills one `struct ops`; nothing above it knows
// which. An oracle must be writable from these comments alone.
//
// Letters: T rows of the batch, H hidden, Hq/Hkv query and KV heads, D head size of attention, Hk/Hv key and value
// heads of the delta rule, Dk/Dv their sizes, r = Hv / Hk, C = 2 Hk Dk + Hv Dv conv channels, K conv taps, V vocabulary
// rows. Head h of a tensor [T, heads * size] is columns [h * size, (h + 1) * size).
//
// Promises of every operation:
//  - A row's output bits depend on that row and its own lane's past only: not on T, the other rows, the lane's place,
//    page numbers, worker count, or where a prompt was cut into passes (at multiples of 64). FORM_PROMPT and FORM_ROWS
//    may differ in bits from each other.
//  - Outputs do not alias inputs unless said. Only what is named as written is written. Nothing unwritten is read.
//  - "round" is the conversion to the output's dtype, once, from fp32; inputs are widened to fp32 first.
//  - Operations are ordered: each sees the results of those before it. A device failure is sticky (device.h).
#ifndef TF_OPS_OPS_H
#define TF_OPS_OPS_H

#include "ops/args_blocks.h"
#include "ops/args_fused.h"
#include "ops/args_mixers.h"
#include "ops/args_rows.h"
#include "ops/draw.h"
#include <stdbool.h>

struct device;

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
    // Of block drafters; NULL both where there are none.
    void (*block_conv)(struct device *, const struct block_conv_args *);
    void (*block_attention)(struct device *, const struct block_attention_args *);
    // Several operations as one, where a backend gains by it; may be NULL.
    bool (*moe)(struct device *, const struct moe_args *);
    bool (*conv_delta)(struct device *, const struct conv_delta_args *);
    bool (*linear_swiglu)(struct device *, const struct linear_swiglu_args *);
};

#endif
