// The model's own parts; nothing outside src/model includes this.
#ifndef TF_MODEL_INTERNAL_H
#define TF_MODEL_INTERNAL_H

#include "format/checkpoint.h"
#include "model/layout.h"
#include "model/model.h"
#include "model/weights.h"

// A matrix with all that belongs to it.
int64_t weight_stored_bytes(const struct weight *w);

// Calls fn with the device's bytes, piece by piece. In visit.c.
void visit_memory(struct device *d, const void *memory, int64_t bytes, model_visit_fn *fn, void *context);

struct model {
    struct checkpoint *checkpoint;
    struct model_config config;
    struct model_weights *weights;
    int64_t weight_bytes, mtp_bytes;
    float *inv_freq; // [n_rotary / 2]: theta^(-2 i / n_rotary)

    struct model_drafts drafts;
    bool mtp_is_there; // the head's weights are where the device can read them

    // From model_load on.
    struct device *device;
    struct model_limits limits;
    struct run_layout run;
    struct page_layout page;
    int64_t n_row;        // of the newest call
    void *memory;         // device: what scratch lies in
    void *device_weights; // where the device has memory of its own; else NULL, as device_inv_freq
    float *device_inv_freq;
    struct scratch scratch;
};

// One walk through the layers: what a block reads and writes besides its weights. The tensors of `scratch` have exactly
// the batch's rows.
struct walk {
    struct model *m;
    struct device *device;
    const struct ops *ops;
    const struct batch *batch;
    void *pages;
    struct scratch scratch;
    struct tensor next; // where the coming mixer leaves the stream: scratch.x, but behind a tapped layer
};

// A mixer or a feed-forward block with its norm before and its residual after: next = x + block(norm(x)), and for a
// feed-forward block the two are the same.
// nth counts the layers of the same kind before this one: it says which part of a run or page is the layer's.
typedef void layer_fn(const struct walk *w, const struct layer_weights *weights, int64_t nth);

layer_fn layer_attention, layer_delta, layer_mlp, layer_moe;

struct walk walk_begin(struct model *m, const struct batch *b, void *pages); // for the batch's rows
// The feed-forward block that all layers of the model have.
void layer_feed_forward(const struct walk *w, const struct layer_weights *weights, int64_t nth);

// The beginning of layer_attention: projections, and the rows' keys and values stored.
layer_fn layer_attention_store;

// ---- mtp.c ----
// After the layers of a prompt pass: the head's keys and values of its rows, and what the next pass and keeps need.
void mtp_after_prompt(const struct walk *w);

// The end of a block: next = scratch.x + out weight^T.
void layer_add(const struct walk *w, struct tensor out, const struct weight *weight);

// Where the nth attention layer's keys and values lie.
struct kv_layer model_kv_layer(const struct walk *w, int64_t nth);

#endif
