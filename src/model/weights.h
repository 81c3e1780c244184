// Owns a model's weights as the forward pass reads them, whatever layout the checkpoint has (Hugging Face bf16, f16,
// f32; MLX affine; experts stacked or one by one; any of the known prefixes; tied or not). Matrices are references into
// the mapped checkpoint, which must outlive this (one that is not aligned for its type is copied); vectors are fp32
// copies. Every tensor's shape and type is checked against the config, and every tensor of the checkpoint must have a
// place: vision tensors are skipped, anything else is refused by name. Built by one thread; read by any.
#ifndef TF_MODEL_WEIGHTS_H
#define TF_MODEL_WEIGHTS_H

#include "base/status.h"
#include "model/config.h"
#include "ops/tensor.h"

struct checkpoint;

struct mlp_weights {
    struct weight gate, up, down; // [I, H], [I, H], [H, I]
};

// All float arrays are fp32. Letters as in ops/ops.h.
struct layer_weights {
    enum layer_kind kind;
    const float *input_norm, *post_norm; // [H], "1 +" folded in: multiply by them as they are

    // LAYER_ATTENTION
    struct weight q;              // [Hq * 2 * D, H]: per head, D rows of query, then D rows of gate
    struct weight k, v;           // [Hkv * D, H]
    struct weight o;              // [H, Hq * D]
    const float *q_norm, *k_norm; // [D], "1 +" folded in

    // LAYER_DELTA
    struct weight qkv;     // [2 Hk Dk + Hv Dv, H]: rows of q, then k, then v, each head-major
    struct weight z;       // [Hv * Dv, H]
    struct weight b, a;    // [Hv, H]
    struct weight out;     // [H, Hv * Dv]
    const float *conv;     // [C][K]: a channel's taps lie together; tap K - 1 is the current row's
    const float *neg_a;    // [Hv]: -exp(A_log)
    const float *dt_bias;  // [Hv]
    const float *out_norm; // [Dv], plain: no "1 +" in any layout

    struct mlp_weights mlp; // the dense MLP, or the shared expert (width shared_width) of a MoE layer

    // MoE; NULL and WEIGHT_NONE when dense
    struct weight router;                                       // [E, H]
    struct weight shared_gate;                                  // [1, H]
    const struct weight *expert_gate, *expert_up, *expert_down; // [E] each: [Ie, H], [Ie, H], [H, Ie]
    bool experts_lie_evenly;                                    // known of each kind: alike, and at equal distances
};

// The multi-token-prediction head: u = fc [embedding_norm(e) | hidden_norm(h)], one attention layer, norm; it shares
// the embedding and the output matrix. All norms have "1 +" folded in, whether or not the file's had.
struct mtp_weights {
    bool present;
    char absence[160];       // why not, for the user: one sentence; "" when present
    bool file_norms_shifted; // the file's norms already held the "1 +"
    int64_t n_layers;
    struct layer_weights *layers;                     // LAYER_ATTENTION
    struct weight fc;                                 // [H, 2 H]
    const float *embedding_norm, *hidden_norm, *norm; // [H]
};

// How many parameters are stored at each width.
struct weight_census {
    int64_t n_by_bits[33]; // 2, 3, 4, 5, 6, 8: affine codes (scales and biases not counted); 16, 32: plain values
};

struct model_weights {
    struct weight embedding;      // [V, H]
    struct weight output;         // [V, H]; the embedding itself when tied
    const float *final_norm;      // [H], "1 +" folded in
    struct layer_weights *layers; // [n_layers of the config]
    struct mtp_weights mtp;
    struct weight_census census, mtp_census; // the text model (a tied matrix counts once); the MTP head
    int64_t used_bytes, mtp_bytes; // of the checkpoint's tensors that have a place here; of those, the MTP head's
    int64_t copied_bytes;          // matrices held here rather than in the mapping
    struct arena *arena;
};

// Errors: INVALID (one sentence that names file and tensor), UNSUPPORTED (a format that is not built), MEMORY. Reads
// the small vectors and no matrix. The caller frees with weights_free.
enum status weights_load(const struct checkpoint *c, const struct model_config *config, struct model_weights **out,
                         struct error *e);
void weights_free(struct model_weights *w); // NULL is fine

int64_t weights_count(const struct weight_census *census); // parameters of all widths

// Rows [first, first + n) of a matrix.
struct weight weight_rows(struct weight w, int64_t first, int64_t n);

#endif
