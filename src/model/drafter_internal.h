// Shared by the files of drafter.h only.
#ifndef TF_MODEL_DRAFTER_INTERNAL_H
#define TF_MODEL_DRAFTER_INTERNAL_H

#include "model/drafter.h"
#include "model/internal.h"
#include "model/weights_internal.h"

#define DRAFTER_MAX_LAYERS  32
#define DRAFTER_MAX_BLOCK   32
#define DRAFTER_MAX_RANK    1024
#define DRAFTER_MAX_RING    4096 // rows: what a page of a KV layer may have (ops/batch.h)
#define DRAFTER_BACKLOG     64   // rows whose taps a lane can put aside
#define DRAFTER_BATCH_LANES 32   // most that propose together: bounds scratch
#define DRAFTER_LOGITS_ROWS 64   // rows whose logits are computed at a time: bounds their scratch

// Letters as in ops/ops.h.
struct drafter_config {
    bool has_selector; // DFlash2: candidate selector and dynamic convolutions
    int64_t n_layers, n_hidden, n_intermediate, n_heads, n_kv_heads, head_dim, n_vocab;
    double norm_eps, rope_theta, output_multiplier;
    int32_t block, mask_id;
    int32_t n_tap, taps[DRAFTER_MAX_TAPS];
    int32_t conv_taps, conv_group;
    int32_t rank, n_candidate;
    int32_t window[DRAFTER_MAX_LAYERS]; // keys before its own that a row sees, and its own
    bool causal[DRAFTER_MAX_LAYERS];
    struct quant_config quant;
};

// Sentences start with "config.json: ". The caller frees with drafter_config_free.
enum status drafter_parse_config(const json_t *config, const struct model_config *target, struct drafter_config *out,
                                 struct error *e);
void drafter_config_free(struct drafter_config *c);

// One convolution: base [2 sides][conv_taps][H], fp32, and what makes the dynamic part of both sides.
struct drafter_conv {
    const float *base;
    struct weight kernels; // [2 * conv_taps * H / conv_group, H]
};

struct drafter_layer {
    const float *input_norm, *post_norm, *q_norm, *k_norm; // plain
    struct weight q, k, v, o, gate, up, down;
    struct drafter_conv attention_conv, mlp_conv; // DFlash2
};

struct drafter_weights {
    struct weight fc;                      // [H, n_tap * H], as the file has it
    struct weight fc_of[DRAFTER_MAX_TAPS]; // [H, H] each, once loaded
    const float *hidden_norm, *norm;       // [H]
    struct drafter_layer layers[DRAFTER_MAX_LAYERS];
    // DFlash2. Codebooks stay in host memory: of a proposal some rows are read.
    struct weight predecessor, successor; // [V, rank], plain
    struct weight hidden;                 // [rank, H]
};

// Intermediate results. Those of blocks have a block for each of the lanes that propose together, or DRAFTER_BACKLOG
// rows; features, k and v those of a prompt pass, if more.
struct drafter_scratch {
    struct tensor x, y, z;                   // [rows, H]: residual stream, a sublayer's input, its output
    struct tensor q, attended;               // [rows, Hq * D]
    struct tensor gate, up;                  // [rows, I]
    struct tensor dyn;                       // [rows, 2 * conv_taps * H / conv_group] f32
    struct tensor drafts;                    // [rows, H]: final rows of the drafts alone
    struct tensor edges;                     // [rows, rank] f32
    struct tensor logits;                    // [DRAFTER_LOGITS_ROWS at most, V] f32
    struct tensor features;                  // [pass rows, H]
    struct tensor k, v;                      // [pass rows, Hkv * D]
    struct tensor backlog[DRAFTER_MAX_TAPS]; // [rows, H]
};

struct drafter {
    const struct model *target;
    struct checkpoint *checkpoint;
    struct drafter_config config;
    struct drafter_weights weights;
    struct model_weights *loaded; // what the readers of weights fill: its arena holds the vectors
    int bits;
    int32_t ring_rows;
    int64_t weight_bytes;

    // From drafter_load on.
    struct device *device;
    struct model_limits limits;
    struct arena *matrices; // quantised or cut, in host memory
    void *device_weights;   // where the device has memory of its own
    float *inv_freq;        // [D / 2], where the device reads it
    void *memory;           // what scratch lies in
    struct drafter_scratch scratch;
    // Host: of one call.
    struct lane *lanes;
    int32_t *ids, *first;
    int32_t *pages, n_page; // [drafter_batch_lanes][n_page]
    float *first_logits;    // of each row's best candidate, where asked for
    struct draw_params *params;
    struct draw_result *results;
    float *host_edges;
};

enum status drafter_take_weights(struct drafter *d, struct error *e);
// Quantises and cuts what is to be, into host memory, then copies all to the device if it has its own.
enum status drafter_bring_weights(struct drafter *d, struct error *e);
int64_t drafter_count_bytes(const struct drafter *d);

int64_t drafter_ring_bytes(const struct drafter *d, enum dtype kv);
// A layer's part of rings whose page numbers count LAYOUT_ALIGN bytes from `base`.
struct kv_layer drafter_ring(const struct drafter *d, const void *base, int64_t layer);
// d->lanes[i] = lane, all of whose pages are the ring at `own`.
void drafter_set_lane(struct drafter *d, int32_t i, const void *base, const void *own, struct lane lane);
// Where page numbers of the asks' rings may count from.
const void *drafter_lowest(const struct drafter_ask *asks, int32_t n);
// Rows that the asking lanes have put aside become keys and values, in as few batches as scratch allows.
void drafter_catch_up(struct drafter *d, struct drafter_ask *asks, int32_t n, const void *base);

// Lanes that propose together.
static inline int32_t drafter_batch_lanes(const struct model_limits *l) {
    return l->max_lanes < DRAFTER_BATCH_LANES ? l->max_lanes : DRAFTER_BATCH_LANES;
}

// Chooses one ask's drafts from its rows' candidates, walking from each to the next: results[i] has the candidates of
// row i by falling logit, edges [n_want][rank] the selector's view of the row (DFlash2), first_logits the logits of
// results[i].top[0], which matter only to a repetition penalty.
void drafter_walk(const struct drafter *d, struct drafter_ask *ask, const struct draw_result *results,
                  const float *edges, const float *first_logits);

#endif
