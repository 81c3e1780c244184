// Owns what a checkpoint's JSON files say about the model: family, sizes, layer kinds, quantisation, end-of-text ids
// and default sampling. Refuses what is missing, out of range, contradictory, or of a model that is not built; every
// sentence names the file and JSON pointer. Plain data, read by any thread once loaded.
#ifndef TF_MODEL_CONFIG_H
#define TF_MODEL_CONFIG_H

#include "base/status.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#define MODEL_LAYERS_MAX       256
#define MODEL_EXPERTS_MAX      1024
#define MODEL_EOS_MAX          16
#define MODEL_MTP_LAYERS_MAX   8
#define MODEL_QUANT_PATH_BYTES 128

enum model_family { MODEL_QWEN35, MODEL_QWEN35_MOE };
enum layer_kind { LAYER_DELTA, LAYER_ATTENTION }; // "linear_attention", "full_attention"

// How one module is stored, as config.json says. The tensors' shapes decide; this is checked against them.
struct quant_override {
    char path
        [MODEL_QUANT_PATH_BYTES]; // without the prefixes that differ between exporters: "layers.0.mlp.gate", "lm_head"
    int bits, group;              // 0 and 0: the module is not quantised
};

struct quant_config {
    int bits, group;                  // 0: the checkpoint is not quantised
    struct quant_override *overrides; // sorted by path; owned
    size_t n_overrides;
};

// Defaults for requests that say nothing. A field is NaN (top_k: -1) when the checkpoint does not say either.
struct sampling_defaults {
    double temperature, top_p, min_p, repetition_penalty, presence_penalty;
    int64_t top_k; // 0: off
};

// Letters as in ops/ops.h.
struct model_config {
    enum model_family family;
    int64_t n_layers, n_hidden, n_vocab; // L, H, V
    int64_t n_context;                   // max_position_embeddings
    bool tied;                           // the output matrix is the embedding
    double norm_eps;

    uint8_t layers[MODEL_LAYERS_MAX]; // enum layer_kind
    int64_t n_attention_layers, n_delta_layers;

    int64_t n_heads, n_kv_heads, head_dim; // Hq, Hkv, D
    int64_t n_rotary;                      // rotated dims of a head, even
    double rope_theta;

    int64_t n_key_heads, n_value_heads, key_dim, value_dim; // Hk, Hv, Dk, Dv
    int64_t n_taps;                                         // K, of the convolution
    bool gate_sigmoid; // activation of z in the gated norm: sigmoid instead of silu

    int64_t n_intermediate;                                        // I; 0 when MoE
    int64_t n_experts, n_experts_used, expert_width, shared_width; // 0 when dense

    int64_t n_mtp_layers;   // that the config announces; whether the tensors are there, weights.h finds out
    bool mtp_own_embedding; // the MTP head would need an embedding of its own
    struct quant_config quant;
    struct sampling_defaults sampling;

    // Ids that end a reply: the union of config.json and generation_config.json, and, once config_resolve_eos has run,
    // of tokenizer_config.json, which gives its token as text.
    int32_t eos_ids[MODEL_EOS_MAX];
    int n_eos;
    char eos_text[64]; // "" when tokenizer_config.json names none
};

// Conv channels: 2 Hk Dk + Hv Dv.
static inline int64_t config_n_channels(const struct model_config *c) {
    return 2 * c->n_key_heads * c->key_dim + c->n_value_heads * c->value_dim;
}

// Fills *out from the three files' objects; generation and tokenizer may be NULL. Sentences start with "config.json: ",
// "generation_config.json: " or "tokenizer_config.json: ". The caller frees with config_free.
enum status config_parse(const json_t *config, const json_t *generation, const json_t *tokenizer,
                         struct model_config *out, struct error *e);

struct checkpoint;
// The same for an open checkpoint; sentences start with its folder.
enum status config_load(const struct checkpoint *c, struct model_config *out, struct error *e);
void config_free(struct model_config *c);

// Adds the id of eos_text to eos_ids. find_token returns the id of a token by its text, or -1 when there is none.
enum status config_resolve_eos(struct model_config *c, int32_t (*find_token)(void *context, const char *text),
                               void *context, struct error *e);
bool config_is_eos(const struct model_config *c, int32_t id);

// The override for a module, whatever prefix its path has; NULL when there is none.
const struct quant_override *config_find_override(const struct model_config *c, const char *module);
// A module's or tensor's path without the prefix that exporters put before the text model.
const char *config_strip_prefix(const char *path);

const char *config_family_name(enum model_family family); // "qwen3_5", "qwen3_5_moe"

#endif
