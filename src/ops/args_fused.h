// Owns the contracts of the operations that stand for several others in rounds (FORM_ROWS). A backend may leave them
// out: they are NULL there. Where one is, it returns false, having done nothing, if it has no kernels for what it is
// given; that follows from shapes and weights alone, never from the rows. Letters and promises: ops.h.
#ifndef TF_OPS_ARGS_FUSED_H
#define TF_OPS_ARGS_FUSED_H

#include "ops/args_mixers.h"
#include "ops/args_rows.h"
#include <stdbool.h>

// The feed-forward block with experts: norm, router, linear with the shared expert's gate and up, swiglu into `gated`,
// linear with its down, and experts, whose shared_out that is. Router's x, `experts.x` and the linears' x are the
// norm's out; router's results are what experts takes. What these operations write for each other (norm.out, gated.*,
// experts.shared_out) may be written or not; ids, weights and shared are.
struct moe_args {
    struct norm_args norm;
    struct router_args router;
    const struct weight *gate, *up, *down; // of the shared expert: [Is, H], [Is, H], [H, Is]
    struct swiglu_args gated;
    struct experts_args experts;
};

// linear with a gate and an up of one shape, without a residual, and swiglu of its outs, which may be written or not.
struct linear_swiglu_args {
    struct linear_args linear;
    struct swiglu_args gated;
};

// conv, and delta of its out, which may be written or not.
struct conv_delta_args {
    struct conv_args conv;
    struct delta_args delta;
};

#endif
