#include "model/synth_internal.h"

#include "format/json.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEAD_DIM = 256,
    KEY_DIM = 128,
    VALUE_DIM = 128,
    TAPS = 4,
    GROUP = 64,
    INTERVAL = 4,
    REAL_VOCAB = 248320,
    REAL_CONTEXT = 262144,
    TINY_CONTEXT = 32768
};

// The published sizes; the tiny ones keep their head sizes, which kernels are made for.
static const struct synth_shape shapes[] = {
    // name, real ids, L, H, I, Hq, Hkv, Hk, Hv, V (0: as the vocabulary needs), context, tied, E, used, Ie, Is
    {"tiny", false, 4, 256, 512, 4, 2, 2, 4, 0, TINY_CONTEXT, true, 0, 0, 0, 0},
    {"tiny-moe", false, 4, 256, 0, 4, 2, 2, 4, 0, TINY_CONTEXT, false, 16, 4, 128, 128},
    {"qwen3.5-0.8b", true, 24, 1024, 3584, 8, 2, 16, 16, REAL_VOCAB, REAL_CONTEXT, true, 0, 0, 0, 0},
    {"qwen3.5-2b", true, 24, 2048, 6144, 8, 2, 16, 16, REAL_VOCAB, REAL_CONTEXT, true, 0, 0, 0, 0},
    {"qwen3.5-4b", true, 32, 2560, 9216, 16, 4, 16, 32, REAL_VOCAB, REAL_CONTEXT, true, 0, 0, 0, 0},
    {"qwen3.5-9b", true, 32, 4096, 12288, 16, 4, 16, 32, REAL_VOCAB, REAL_CONTEXT, false, 0, 0, 0, 0},
    {"qwen3.8-27b", true, 64, 5120, 17408, 24, 4, 16, 48, REAL_VOCAB, REAL_CONTEXT, false, 0, 0, 0, 0},
    {"qwen3.6-35b-a3b", true, 40, 2048, 0, 16, 2, 16, 32, REAL_VOCAB, REAL_CONTEXT, false, 256, 8, 512, 512},
};

#define N_SHAPES ((int)(sizeof shapes / sizeof *shapes))

const char *synth_shape_name(int i) {
    return i >= 0 && i < N_SHAPES ? shapes[i].name : synth_drafter_name(i - N_SHAPES);
}

const struct synth_shape *synth_find_shape(const char *name) {
    for (int i = 0; i < N_SHAPES; i++)
        if (!strcmp(shapes[i].name, name)) return &shapes[i];
    return NULL;
}

// ---- tensors ----

static uint64_t hash_name(const char *name, uint64_t seed) { // FNV-1a
    uint64_t h = 14695981039346656037u ^ seed * 0x9e3779b97f4a7c15u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 1099511628211u;
    return h;
}

static struct synth_tensor *add(struct synth_lister *l, const char *name, const char *suffix,
                                enum safetensors_type type, enum synth_fill fill) {
    static struct synth_tensor nowhere; // what is added after memory ran out
    struct synth_plan *p = l->plan;
    if (!p->failed && p->n == p->capacity) {
        size_t capacity = p->capacity ? p->capacity * 2 : 256;
        void *grown = realloc(p->tensors, capacity * sizeof *p->tensors);
        if (grown)
            p->tensors = grown, p->capacity = capacity;
        else
            p->failed = true;
    }
    struct synth_tensor *t = p->failed ? &nowhere : &p->tensors[p->n++];
    *t = (struct synth_tensor){.type = type, .fill = fill};
    int n = snprintf(t->name, sizeof t->name, "%s%s", l->prefix, name);
    t->key = hash_name(t->name, l->seed); // before the suffix: codes, scales and biases of a module share it
    must(n >= 0 && snprintf(t->name + n, sizeof t->name - (size_t)n, "%s", suffix) < (int)sizeof t->name - n);
    return t;
}

// Values of a matrix have variance 1 / n_in, so that what goes in with variance 1 comes out with variance 1; `gain`
// times as much where the matrix is not a layer's.
void synth_add_matrix(struct synth_lister *l, const char *name, int64_t n_stack, int64_t n_out, int64_t n_in, int bits,
                      double gain) {
    static const struct {
        const char *suffix;
        enum safetensors_type type;
        enum synth_fill fill;
    } parts[] = {{".weight", SAFETENSORS_U32, FILL_CODES},
                 {".scales", SAFETENSORS_BF16, FILL_SCALES},
                 {".biases", SAFETENSORS_BF16, FILL_BIASES}};
    for (int i = 0; i < 3; i++) {
        struct synth_tensor *t = add(l, name, parts[i].suffix, parts[i].type, parts[i].fill);
        if (n_stack) t->shape[t->n_dims++] = n_stack;
        t->shape[t->n_dims++] = n_out;
        t->shape[t->n_dims++] = i ? n_in / GROUP : n_in * bits / 32;
        t->bits = bits;
        t->spread = (float)(gain / sqrt((double)n_in));
    }
}

void synth_add_vector(struct synth_lister *l, const char *name, int64_t n, double centre, double spread) {
    struct synth_tensor *t = add(l, name, "", SAFETENSORS_BF16, FILL_NORMAL);
    t->n_dims = 1;
    t->shape[0] = n;
    t->centre = (float)centre;
    t->spread = (float)spread;
}

static void add_attention(struct synth_lister *l, const struct synth_shape *s, double norm) {
    int64_t H = s->n_hidden, Q = s->n_heads * HEAD_DIM, K = s->n_kv_heads * HEAD_DIM;
    synth_add_matrix(l, "self_attn.q_proj", 0, 2 * Q, H, 4, 1);
    synth_add_matrix(l, "self_attn.k_proj", 0, K, H, 4, 1);
    synth_add_matrix(l, "self_attn.v_proj", 0, K, H, 4, 1);
    synth_add_matrix(l, "self_attn.o_proj", 0, H, Q, 4, 1);
    synth_add_vector(l, "self_attn.q_norm.weight", HEAD_DIM, norm, 0.1);
    synth_add_vector(l, "self_attn.k_norm.weight", HEAD_DIM, norm, 0.1);
}

static void add_delta(struct synth_lister *l, const struct synth_shape *s) {
    int64_t H = s->n_hidden, V = s->n_value_heads * VALUE_DIM, C = 2 * s->n_key_heads * KEY_DIM + V;
    synth_add_matrix(l, "linear_attn.in_proj_qkv", 0, C, H, 4, 1);
    synth_add_matrix(l, "linear_attn.in_proj_z", 0, V, H, 4, 1);
    synth_add_matrix(l, "linear_attn.in_proj_b", 0, s->n_value_heads, H, 4, 1);
    synth_add_matrix(l, "linear_attn.in_proj_a", 0, s->n_value_heads, H, 4, 1);
    synth_add_matrix(l, "linear_attn.out_proj", 0, H, V, 4, 1);
    synth_add_vector(l, "linear_attn.conv1d.weight", C, 0, 0.5);
    struct synth_tensor *conv = l->plan->failed ? NULL : &l->plan->tensors[l->plan->n - 1];
    if (conv) conv->n_dims = 3, conv->shape[1] = TAPS, conv->shape[2] = 1;
    struct synth_tensor *a = add(l, "linear_attn.A_log", "", SAFETENSORS_F32, FILL_A_LOG);
    a->n_dims = 1;
    a->shape[0] = s->n_value_heads;
    synth_add_vector(l, "linear_attn.dt_bias", s->n_value_heads, 0, 1);
    synth_add_vector(l, "linear_attn.norm.weight", VALUE_DIM, 1, 0.1);
}

static void add_mlp(struct synth_lister *l, const char *module, int64_t H, int64_t width) {
    char name[64];
    snprintf(name, sizeof name, "%s.gate_proj", module);
    synth_add_matrix(l, name, 0, width, H, 4, 1);
    snprintf(name, sizeof name, "%s.up_proj", module);
    synth_add_matrix(l, name, 0, width, H, 4, 1);
    snprintf(name, sizeof name, "%s.down_proj", module);
    synth_add_matrix(l, name, 0, H, width, 4, 1);
}

// norm: the mean of norm weights as this part of the file holds them.
static void add_layer(struct synth_lister *l, const struct synth_shape *s, bool attention, double norm) {
    int64_t H = s->n_hidden;
    synth_add_vector(l, "input_layernorm.weight", H, norm, 0.1);
    synth_add_vector(l, "post_attention_layernorm.weight", H, norm, 0.1);
    if (attention)
        add_attention(l, s, norm);
    else
        add_delta(l, s);
    if (!s->n_experts) {
        add_mlp(l, "mlp", H, s->n_intermediate);
        return;
    }
    synth_add_matrix(l, "mlp.gate", 0, s->n_experts, H, 8, 1);
    synth_add_matrix(l, "mlp.shared_expert_gate", 0, 1, H, 8, 1);
    add_mlp(l, "mlp.shared_expert", H, s->shared_width);
    synth_add_matrix(l, "mlp.switch_mlp.gate_proj", s->n_experts, s->expert_width, H, 4, 1);
    synth_add_matrix(l, "mlp.switch_mlp.up_proj", s->n_experts, s->expert_width, H, 4, 1);
    synth_add_matrix(l, "mlp.switch_mlp.down_proj", s->n_experts, H, s->expert_width, 4, 1);
}

static bool is_attention(int64_t layer) { return (layer + 1) % INTERVAL == 0; }

// As mlx-lm writes a converted model: its prefix, convolutions [C, K, 1], norms with the "1 +". The MTP head, which
// mlx-lm drops, keeps its own names and zero-centred norms; its matrices are quantised like the others.
void synth_list_tensors(const struct synth_shape *s, uint64_t seed, struct synth_plan *plan) {
    int64_t H = s->n_hidden, V = s->n_vocab;
    struct synth_lister l = {plan, seed, "language_model."};
    // Logits are sums over a row of unit variance: a gain of 2 gives them a standard deviation of 2. An embedding that
    // is not also the output matrix has variance 1, like the layers' own outputs.
    synth_add_matrix(&l, "model.embed_tokens", 0, V, H, 4, s->tied ? 2 : sqrt((double)H));
    if (!s->tied) synth_add_matrix(&l, "lm_head", 0, V, H, 4, 2);
    synth_add_vector(&l, "model.norm.weight", H, 1, 0.1);
    for (int64_t i = 0; i < s->n_layers; i++) {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "language_model.model.layers.%" PRId64 ".", i);
        l.prefix = prefix;
        add_layer(&l, s, is_attention(i), 1);
    }
    l.prefix = "mtp.";
    synth_add_matrix(&l, "fc", 0, H, 2 * H, 4, 1);
    synth_add_vector(&l, "pre_fc_norm_embedding.weight", H, 0, 0.1);
    synth_add_vector(&l, "pre_fc_norm_hidden.weight", H, 0, 0.1);
    synth_add_vector(&l, "norm.weight", H, 0, 0.1);
    l.prefix = "mtp.layers.0.";
    add_layer(&l, s, true, 0);
}

// ---- config.json ----

static void write_int(struct buffer *b, const char *key, int64_t value) {
    buffer_printf(b, "    \"%s\": %" PRId64 ",\n", key, value);
}

static void write_layer_types(const struct synth_shape *s, struct buffer *b) {
    buffer_append_text(b, "    \"layer_types\": [\n");
    for (int64_t i = 0; i < s->n_layers; i++)
        buffer_printf(b, "      \"%s\"%s\n", is_attention(i) ? "full_attention" : "linear_attention",
                      i + 1 < s->n_layers ? "," : "");
    buffer_append_text(b, "    ],\n");
}

static void write_text_config(const struct synth_shape *s, int64_t first_added, struct buffer *b) {
    buffer_printf(b, "    \"model_type\": \"%s\",\n", s->n_experts ? "qwen3_5_moe_text" : "qwen3_5_text");
    write_int(b, "vocab_size", s->n_vocab);
    write_int(b, "hidden_size", s->n_hidden);
    write_int(b, "num_hidden_layers", s->n_layers);
    write_int(b, "num_attention_heads", s->n_heads);
    write_int(b, "num_key_value_heads", s->n_kv_heads);
    write_int(b, "head_dim", HEAD_DIM);
    write_int(b, "linear_num_key_heads", s->n_key_heads);
    write_int(b, "linear_num_value_heads", s->n_value_heads);
    write_int(b, "linear_key_head_dim", KEY_DIM);
    write_int(b, "linear_value_head_dim", VALUE_DIM);
    write_int(b, "linear_conv_kernel_dim", TAPS);
    if (s->n_experts) {
        write_int(b, "num_experts", s->n_experts);
        write_int(b, "num_experts_per_tok", s->n_experts_used);
        write_int(b, "moe_intermediate_size", s->expert_width);
        write_int(b, "shared_expert_intermediate_size", s->shared_width);
    } else {
        write_int(b, "intermediate_size", s->n_intermediate);
    }
    write_layer_types(s, b);
    write_int(b, "full_attention_interval", INTERVAL);
    write_int(b, "max_position_embeddings", s->n_context);
    write_int(b, "mtp_num_hidden_layers", 1);
    write_int(b, "eos_token_id", first_added);
    buffer_printf(
        b,
        "    \"hidden_act\": \"silu\",\n    \"rms_norm_eps\": 1e-06,\n    \"attention_bias\": false,\n"
        "    \"attn_output_gate\": true,\n    \"mamba_ssm_dtype\": \"float32\",\n    \"dtype\": \"bfloat16\",\n"
        "    \"mtp_use_dedicated_embeddings\": false,\n    \"tie_word_embeddings\": %s,\n"
        "    \"partial_rotary_factor\": 0.25,\n    \"rope_parameters\": {\n      \"rope_type\": \"default\",\n"
        "      \"rope_theta\": 10000000,\n      \"partial_rotary_factor\": 0.25,\n"
        "      \"mrope_section\": [11, 11, 10],\n      \"mrope_interleaved\": true\n    }\n",
        s->tied ? "true" : "false");
}

static void write_quantization(const struct synth_shape *s, const char *key, const char *end, struct buffer *b) {
    buffer_printf(b, "  \"%s\": {\n    \"group_size\": %d,\n    \"bits\": 4,\n    \"mode\": \"affine\"", key, GROUP);
    for (int64_t i = 0; s->n_experts && i <= s->n_layers; i++) {
        char layer[64];
        snprintf(layer, sizeof layer, i < s->n_layers ? "language_model.model.layers.%" PRId64 : "mtp.layers.0", i);
        for (int k = 0; k < 2; k++)
            buffer_printf(b, ",\n    \"%s.mlp.%s\": {\"group_size\": %d, \"bits\": 8}", layer,
                          k ? "shared_expert_gate" : "gate", GROUP);
    }
    buffer_printf(b, "\n  }%s\n", end);
}

void synth_write_config(const struct synth_shape *s, int64_t first_added, struct buffer *b) {
    buffer_printf(b, "{\n  \"architectures\": [\"%s\"],\n  \"model_type\": \"%s\",\n  \"tie_word_embeddings\": %s,\n",
                  s->n_experts ? "Qwen3_5MoeForConditionalGeneration" : "Qwen3_5ForConditionalGeneration",
                  s->n_experts ? "qwen3_5_moe" : "qwen3_5", s->tied ? "true" : "false");
    buffer_printf(b, "  \"eos_token_id\": %" PRId64 ",\n  \"text_config\": {\n", first_added);
    write_text_config(s, first_added, b);
    buffer_append_text(b, "  },\n");
    write_quantization(s, "quantization", ",", b);
    write_quantization(s, "quantization_config", "", b);
    buffer_append_text(b, "}\n");
}
