// Block drafters with random weights, of the shapes of published ones: 4 bits, and 8 where a drafter that is quantised
// when it is loaded has 8.
#include "model/synth_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { HEAD_DIM = 128, GROUP = 64, BLOCK = 8, WINDOW = 2048, CONV_TAPS = 2, CONV_GROUP = 16, N_CANDIDATES = 16 };

struct synth_drafter {
    const char *name, *target;
    int64_t n_layers, n_intermediate, n_heads, n_kv_heads, rank;
    int n_taps, taps[8];
};

static const struct synth_drafter drafters[] = {
    {"tiny-dflash2", "tiny", 2, 512, 4, 2, 64, 3, {0, 1, 3}},
    {"qwen3.8-27b-dflash2", "qwen3.8-27b", 5, 17408, 32, 8, 256, 5, {5, 19, 33, 47, 61}},
};

#define N_DRAFTERS ((int)(sizeof drafters / sizeof *drafters))

const char *synth_drafter_name(int i) { return i >= 0 && i < N_DRAFTERS ? drafters[i].name : NULL; }

const char *synth_drafter_target(const struct synth_drafter *d) { return d->target; }

const struct synth_drafter *synth_find_drafter(const char *name) {
    for (int i = 0; i < N_DRAFTERS; i++)
        if (!strcmp(drafters[i].name, name)) return &drafters[i];
    return NULL;
}

// ---- tensors ----

// The taps of a row that is not convolved would be 1 and 0 on both sides.
static void add_conv(struct synth_lister *l, const char *module, int64_t H) {
    char name[64];
    snprintf(name, sizeof name, "%s.base_kernel", module);
    synth_add_vector(l, name, 2 * CONV_TAPS * H, 0, 0.5);
    struct synth_tensor *base = l->plan->failed ? NULL : &l->plan->tensors[l->plan->n - 1];
    if (base) base->n_dims = 3, base->shape[0] = 2, base->shape[1] = CONV_TAPS, base->shape[2] = H;
    snprintf(name, sizeof name, "%s.kernel_projection", module);
    synth_add_matrix(l, name, 0, 2 * CONV_TAPS * (H / CONV_GROUP), H, 8, 0.25);
}

static void add_layer(struct synth_lister *l, const struct synth_drafter *d, int64_t H) {
    int64_t Q = d->n_heads * HEAD_DIM, K = d->n_kv_heads * HEAD_DIM, I = d->n_intermediate;
    synth_add_vector(l, "input_layernorm.weight", H, 1, 0.1);
    synth_add_vector(l, "post_attention_layernorm.weight", H, 1, 0.1);
    synth_add_vector(l, "self_attn.q_norm.weight", HEAD_DIM, 1, 0.1);
    synth_add_vector(l, "self_attn.k_norm.weight", HEAD_DIM, 1, 0.1);
    synth_add_matrix(l, "self_attn.q_proj", 0, Q, H, 4, 1);
    synth_add_matrix(l, "self_attn.k_proj", 0, K, H, 4, 1);
    synth_add_matrix(l, "self_attn.v_proj", 0, K, H, 4, 1);
    synth_add_matrix(l, "self_attn.o_proj", 0, H, Q, 4, 1);
    synth_add_matrix(l, "mlp.gate_proj", 0, I, H, 4, 1);
    synth_add_matrix(l, "mlp.up_proj", 0, I, H, 4, 1);
    synth_add_matrix(l, "mlp.down_proj", 0, H, I, 4, 1);
    add_conv(l, "attention_conv", H);
    add_conv(l, "mlp_conv", H);
}

static void add_codebook(struct synth_lister *l, const char *name, int64_t n_vocab, int64_t rank) {
    synth_add_vector(l, name, n_vocab * rank, 0, 0.1);
    struct synth_tensor *t = l->plan->failed ? NULL : &l->plan->tensors[l->plan->n - 1];
    if (t) t->n_dims = 2, t->shape[0] = n_vocab, t->shape[1] = rank;
}

void synth_list_drafter(const struct synth_drafter *d, const struct synth_shape *target, uint64_t seed,
                        struct synth_plan *plan) {
    int64_t H = target->n_hidden;
    struct synth_lister l = {plan, seed, ""};
    synth_add_matrix(&l, "fc", 0, H, d->n_taps * H, 4, 1);
    synth_add_vector(&l, "hidden_norm.weight", H, 1, 0.1);
    synth_add_vector(&l, "norm.weight", H, 1, 0.1);
    for (int64_t i = 0; i < d->n_layers; i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "layers.%" PRId64 ".", i);
        l.prefix = prefix;
        add_layer(&l, d, H);
    }
    l.prefix = "candidate_selector.";
    add_codebook(&l, "predecessor_codebook", target->n_vocab, d->rank);
    add_codebook(&l, "successor_codebook", target->n_vocab, d->rank);
    synth_add_matrix(&l, "hidden_projection", 0, d->rank, H, 8, 1);
}

// ---- config.json ----

static void write_list(const struct synth_drafter *d, struct buffer *b) {
    buffer_append_text(b, "  \"layer_types\": [");
    for (int64_t i = 0; i < d->n_layers; i++) buffer_printf(b, "%s\"sliding_attention\"", i ? ", " : "");
    buffer_append_text(b, "],\n  \"dflash_config\": {\n    \"target_layer_ids\": [");
    for (int i = 0; i < d->n_taps; i++) buffer_printf(b, "%s%d", i ? ", " : "", d->taps[i]);
    buffer_append_text(b, "],\n");
}

static void write_quantization(const struct synth_drafter *d, struct buffer *b) {
    buffer_printf(b, "  \"quantization\": {\n    \"group_size\": %d,\n    \"bits\": 4,\n    \"mode\": \"affine\"",
                  GROUP);
    for (int64_t i = 0; i < 2 * d->n_layers; i++)
        buffer_printf(b, ",\n    \"layers.%" PRId64 ".%s_conv.kernel_projection\": {\"group_size\": %d, \"bits\": 8}",
                      i / 2, i % 2 ? "mlp" : "attention", GROUP);
    buffer_printf(b, ",\n    \"candidate_selector.hidden_projection\": {\"group_size\": %d, \"bits\": 8}\n  }\n",
                  GROUP);
}

// The mask is an added token, as in published drafters.
void synth_write_drafter_config(const struct synth_drafter *d, const struct synth_shape *target, int64_t first_added,
                                struct buffer *b) {
    const struct {
        const char *key;
        int64_t value;
    } sizes[] = {{"hidden_size", target->n_hidden},
                 {"intermediate_size", d->n_intermediate},
                 {"num_hidden_layers", d->n_layers},
                 {"num_attention_heads", d->n_heads},
                 {"num_key_value_heads", d->n_kv_heads},
                 {"head_dim", HEAD_DIM},
                 {"vocab_size", target->n_vocab},
                 {"num_target_layers", target->n_layers},
                 {"sliding_window", WINDOW}};
    buffer_append_text(b, "{\n  \"architectures\": [\"DFlash2DraftModel\"],\n  \"model_type\": \"qwen3\",\n");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        buffer_printf(b, "  \"%s\": %" PRId64 ",\n", sizes[i].key, sizes[i].value);
    buffer_append_text(b, "  \"rms_norm_eps\": 1e-06,\n  \"is_causal\": false,\n  \"hidden_act\": \"silu\",\n"
                          "  \"attention_bias\": false,\n  \"rope_parameters\": {\"rope_type\": \"default\", "
                          "\"rope_theta\": 10000000},\n");
    write_list(d, b);
    buffer_printf(b,
                  "    \"block_size\": %d,\n    \"mask_token_id\": %" PRId64 ",\n    \"conv_kernel_size\": %d,\n"
                  "    \"conv_group_size\": %d,\n    \"selector_rank\": %" PRId64
                  ",\n    \"selector_top_k\": %d\n  },\n",
                  BLOCK, first_added + 1, CONV_TAPS, CONV_GROUP, d->rank, N_CANDIDATES);
    write_quantization(d, b);
    buffer_append_text(b, "}\n");
}
