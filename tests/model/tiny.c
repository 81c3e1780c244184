#include "tests/model/tiny.h"

#include "base/numeric.h"
#include "base/random.h"
#include "format/checkpoint.h"
#include "format/json.h"
#include "format/mlx.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    H = 64,
    HQ = 2,
    HKV = 1,
    D = 32,
    HK = 1,
    HV = 2,
    DK = 8,
    DV = 16,
    C = 2 * HK * DK + HV * DV,
    K = 4,
    V = 128,
    I = 96,
    E = 4,
    IE = 32,
    IS = 64,
    L = 2
};

static const char config_text[] =
    "{\"architectures\":[\"Qwen3_5ForConditionalGeneration\"],\"model_type\":\"qwen3_5\",\"tie_word_embeddings\":false,"
    "\"text_config\":{\"model_type\":\"qwen3_5_text\",\"vocab_size\":128,\"hidden_size\":64,\"num_hidden_layers\":2,"
    "\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":32,\"linear_num_key_heads\":1,"
    "\"linear_num_value_heads\":2,\"linear_key_head_dim\":8,\"linear_value_head_dim\":16,\"linear_conv_kernel_dim\":4,"
    "\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-6,\"max_position_embeddings\":4096,\"tie_word_embeddings\":false,"
    "\"attn_output_gate\":true,\"attention_bias\":false,\"output_gate_type\":\"swish\",\"mamba_ssm_dtype\":\"float32\","
    "\"layer_types\":[\"linear_attention\",\"full_attention\"],\"full_attention_interval\":2,"
    "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000000,\"partial_rotary_factor\":0.25,"
    "\"mrope_section\":[2,1,1],\"mrope_interleaved\":true},\"eos_token_id\":1,\"mtp_num_hidden_layers\":1}}";

static uint64_t hash(const char *text) { // FNV-1a
    uint64_t h = 14695981039346656037u;
    for (; *text; text++) h = (h ^ (unsigned char)*text) * 1099511628211u;
    return h;
}

float tiny_value(const char *module, int64_t i) {
    double x = random_normal(hash(module), (uint64_t)i, 0);
    bool plain_norm = strstr(module, "linear_attn.norm");
    if (strstr(module, "norm")) return round_bf16((float)(0.2 * x + plain_norm));
    return round_bf16((float)(0.2 * x));
}

static struct tiny_tensor *add(struct tiny *t, const char *name, enum safetensors_type type, int n_dims,
                               const int64_t *shape) {
    t->tensors = realloc(t->tensors, (t->n + 1) * sizeof *t->tensors);
    must(t->tensors);
    struct tiny_tensor *tensor = &t->tensors[t->n++];
    memset(tensor, 0, sizeof *tensor);
    must(snprintf(tensor->name, sizeof tensor->name, "%s", name) < (int)sizeof tensor->name);
    tensor->entry.type = type;
    tensor->entry.n_dims = n_dims;
    tensor->bytes = safetensors_type_bytes(type);
    for (int i = 0; i < n_dims; i++) tensor->bytes *= (size_t)(tensor->entry.shape[i] = shape[i]);
    tensor->data = calloc(tensor->bytes ? tensor->bytes : 1, 1);
    must(tensor->data);
    return tensor;
}

static void set_value(struct tiny_tensor *tensor, int64_t i, float x) {
    uint16_t half = tensor->entry.type == SAFETENSORS_F16 ? float_to_f16(x) : float_to_bf16(x);
    if (tensor->entry.type == SAFETENSORS_F32)
        memcpy(tensor->data + i * 4, &x, 4);
    else
        memcpy(tensor->data + i * 2, &half, 2);
}

static bool is_mlx(const struct tiny *t) {
    return t->options.layout == TINY_MLX || t->options.layout == TINY_MLX_PLAIN;
}

// The full name of a module of the text model ("layers.0.mlp.gate_proj"), of lm_head, or of the MTP head.
static const char *full_name(const struct tiny *t, const char *module, const char *suffix, char *name, size_t n) {
    static const char *const prefixes[] = {"model.language_model.", "model.", "language_model.model.",
                                           "language_model.model."};
    const char *prefix = !strncmp(module, "mtp.", 4)     ? ""
                         : strncmp(module, "lm_head", 7) ? prefixes[t->options.layout]
                         : is_mlx(t)                     ? "language_model."
                                                         : "";
    must(snprintf(name, n, "%s%s%s", prefix, module, suffix) < (int)n);
    return name;
}

// values: index of the first value within `module`.
static void add_plain(struct tiny *t, const char *name, const char *module, int n_dims, const int64_t *shape,
                      int64_t first, float shift, enum safetensors_type type) {
    struct tiny_tensor *tensor = add(t, name, type, n_dims, shape);
    int64_t n = (int64_t)(tensor->bytes / safetensors_type_bytes(type));
    for (int64_t i = 0; i < n; i++) set_value(tensor, i, tiny_value(module, first + i) + shift);
}

static void add_vector(struct tiny *t, const char *module, const char *suffix, int64_t n, enum safetensors_type type) {
    char name[160];
    bool mtp = !strncmp(module, "mtp.", 4);
    bool shifted = mtp ? t->options.mtp_shifted : is_mlx(t);
    bool centred = strstr(module, "norm") && !strstr(module, "linear_attn.norm");
    add_plain(t, full_name(t, module, suffix, name, sizeof name), module, 1, &n, 0, centred && shifted, type);
}

static void add_matrix_at(struct tiny *t, const char *path, const char *module, int n_dims, const int64_t *shape,
                          int64_t first, int bits) {
    char name[160];
    bool bare = strstr(path, "experts.gate_up_proj") || strstr(path, "experts.down_proj");
    full_name(t, path, bare ? "" : ".weight", name, sizeof name);
    if (t->options.layout != TINY_MLX || !strncmp(module, "mtp.", 4)) {
        add_plain(t, name, module, n_dims, shape, first, 0, t->options.type);
        return;
    }
    int64_t n_in = shape[n_dims - 1], n_rows = 1, codes_shape[3], scales_shape[3];
    for (int i = 0; i < n_dims - 1; i++) n_rows *= codes_shape[i] = scales_shape[i] = shape[i];
    codes_shape[n_dims - 1] = n_in * bits / 32;
    scales_shape[n_dims - 1] = n_in / 32;
    size_t at = t->n;
    add(t, name, SAFETENSORS_U32, n_dims, codes_shape);
    add(t, full_name(t, path, ".scales", name, sizeof name), t->options.type, n_dims, scales_shape);
    add(t, full_name(t, path, ".biases", name, sizeof name), t->options.type, n_dims, scales_shape);
    for (int64_t r = 0; r < n_rows; r++) {
        float w[256], scales[8], biases[8];
        for (int64_t i = 0; i < n_in; i++) w[i] = tiny_value(module, first + r * n_in + i);
        mlx_quantise_row(w, bits, 32, n_in, t->tensors[at].data + r * n_in * bits / 8, scales, biases);
        for (int64_t g = 0; g < n_in / 32; g++) {
            set_value(&t->tensors[at + 1], r * (n_in / 32) + g, scales[g]);
            set_value(&t->tensors[at + 2], r * (n_in / 32) + g, biases[g]);
        }
    }
}

static void add_matrix(struct tiny *t, const char *module, int64_t n_out, int64_t n_in, int bits) {
    const int64_t shape[] = {n_out, n_in};
    add_matrix_at(t, module, module, 2, shape, 0, bits);
}

// Expert e of gate_up holds gate rows, then up rows; every layout cuts its tensors out of these same values.
static void add_experts(struct tiny *t, const char *layer) {
    char both[120], down[120], path[160];
    snprintf(both, sizeof both, "%smlp.experts.gate_up_proj", layer);
    snprintf(down, sizeof down, "%smlp.experts.down_proj", layer);
    if (t->options.one_by_one) {
        const int64_t in[] = {IE, H}, out[] = {H, IE};
        for (int e = 0; e < E; e++) {
            snprintf(path, sizeof path, "%smlp.experts.%d.gate_proj", layer, e);
            add_matrix_at(t, path, both, 2, in, (int64_t)(2 * e) * IE * H, 4);
            snprintf(path, sizeof path, "%smlp.experts.%d.up_proj", layer, e);
            add_matrix_at(t, path, both, 2, in, (int64_t)(2 * e + 1) * IE * H, 4);
            snprintf(path, sizeof path, "%smlp.experts.%d.down_proj", layer, e);
            add_matrix_at(t, path, down, 2, out, (int64_t)e * H * IE, 4);
        }
    } else if (is_mlx(t) && strncmp(layer, "mtp.", 4)) {
        const int64_t in[] = {E, IE, H}, out[] = {E, H, IE};
        static const char *const parts[] = {"gate_proj", "up_proj"};
        for (int p = 0; p < 2; p++) { // the values of one part are not contiguous in gate_up
            snprintf(path, sizeof path, "%smlp.switch_mlp.%s", layer, parts[p]);
            size_t at = t->n;
            add_matrix_at(t, path, path, 3, in, 0, 4);
            if (t->options.layout == TINY_MLX) continue;
            for (int64_t i = 0; i < E * IE * H; i++)
                set_value(&t->tensors[at], i, tiny_value(both, (i / (IE * H) * 2 + p) * IE * H + i % (IE * H)));
        }
        snprintf(path, sizeof path, "%smlp.switch_mlp.down_proj", layer);
        add_matrix_at(t, path, down, 3, out, 0, 4);
    } else {
        const int64_t in[] = {E, 2 * IE, H}, out[] = {E, H, IE};
        add_matrix_at(t, both, both, 3, in, 0, 4);
        add_matrix_at(t, down, down, 3, out, 0, 4);
    }
}

static void add_layer(struct tiny *t, const char *layer, bool attention) {
    char m[120];
#define MODULE(name) (snprintf(m, sizeof m, "%s%s", layer, name), m)
    enum safetensors_type type = t->options.type;
    add_vector(t, MODULE("input_layernorm"), ".weight", H, type);
    add_vector(t, MODULE("post_attention_layernorm"), ".weight", H, type);
    if (attention) {
        add_matrix(t, MODULE("self_attn.q_proj"), 2 * HQ * D, H, 4);
        add_matrix(t, MODULE("self_attn.k_proj"), HKV * D, H, 4);
        add_matrix(t, MODULE("self_attn.v_proj"), HKV * D, H, 4);
        add_matrix(t, MODULE("self_attn.o_proj"), H, HQ * D, 4);
        add_vector(t, MODULE("self_attn.q_norm"), ".weight", D, type);
        add_vector(t, MODULE("self_attn.k_norm"), ".weight", D, type);
    } else {
        add_matrix(t, MODULE("linear_attn.in_proj_qkv"), C, H, 4);
        add_matrix(t, MODULE("linear_attn.in_proj_z"), HV * DV, H, 4);
        add_matrix(t, MODULE("linear_attn.in_proj_b"), HV, H, 4);
        add_matrix(t, MODULE("linear_attn.in_proj_a"), HV, H, 4);
        add_matrix(t, MODULE("linear_attn.out_proj"), H, HV * DV, 4);
        const int64_t taps_last[] = {C, 1, K}, channels_last[] = {C, K, 1};
        char name[160];
        full_name(t, MODULE("linear_attn.conv1d"), ".weight", name, sizeof name);
        add_plain(t, name, m, 3, is_mlx(t) ? channels_last : taps_last, 0, 0, type);
        add_vector(t, MODULE("linear_attn.A_log"), "", HV, SAFETENSORS_F32);
        add_vector(t, MODULE("linear_attn.dt_bias"), "", HV, type);
        add_vector(t, MODULE("linear_attn.norm"), ".weight", DV, type);
    }
    if (!t->options.moe) {
        add_matrix(t, MODULE("mlp.gate_proj"), I, H, 4);
        add_matrix(t, MODULE("mlp.up_proj"), I, H, 4);
        add_matrix(t, MODULE("mlp.down_proj"), H, I, 4);
        return;
    }
    add_matrix(t, MODULE("mlp.gate"), E, H, 8);
    add_matrix(t, MODULE("mlp.shared_expert_gate"), 1, H, 8);
    add_matrix(t, MODULE("mlp.shared_expert.gate_proj"), IS, H, 4);
    add_matrix(t, MODULE("mlp.shared_expert.up_proj"), IS, H, 4);
    add_matrix(t, MODULE("mlp.shared_expert.down_proj"), H, IS, 4);
    add_experts(t, layer);
#undef MODULE
}

static void make_config(struct tiny *t) {
    t->config = json_loads(config_text, 0, NULL);
    must(t->config);
    t->text = json_object_get(t->config, "text_config");
    json_object_set_new(t->config, "tie_word_embeddings", json_boolean(t->options.tied));
    json_object_set_new(t->text, "tie_word_embeddings", json_boolean(t->options.tied));
    if (t->options.moe) {
        json_object_set_new(t->config, "model_type", json_string("qwen3_5_moe"));
        json_object_set_new(t->text, "model_type", json_string("qwen3_5_moe_text"));
        json_object_set_new(t->text, "num_experts", json_integer(E));
        json_object_set_new(t->text, "num_experts_per_tok", json_integer(2));
        json_object_set_new(t->text, "moe_intermediate_size", json_integer(IE));
        json_object_set_new(t->text, "shared_expert_intermediate_size", json_integer(IS));
    } else {
        json_object_set_new(t->text, "intermediate_size", json_integer(I));
    }
    if (t->options.layout != TINY_MLX) return;
    json_t *q = json_pack("{s:i,s:i,s:s}", "group_size", 32, "bits", 4, "mode", "affine");
    for (int i = 0; t->options.moe && i < L; i++) {
        char path[100];
        snprintf(path, sizeof path, "language_model.model.layers.%d.mlp.gate", i);
        json_object_set_new(q, path, json_pack("{s:i,s:i}", "group_size", 32, "bits", 8));
        snprintf(path, sizeof path, "language_model.model.layers.%d.mlp.shared_expert_gate", i);
        json_object_set_new(q, path, json_pack("{s:i,s:i}", "group_size", 32, "bits", 8));
    }
    json_object_set_new(t->config, "quantization", q);
    json_object_set(t->config, "quantization_config", q);
}

struct tiny *tiny_create(struct tiny_options options) {
    struct tiny *t = calloc(1, sizeof *t);
    must(t);
    if (!options.type) options.type = SAFETENSORS_BF16;
    t->options = options;
    make_config(t);
    add_matrix(t, "embed_tokens", V, H, 4);
    if (!options.tied) add_matrix(t, "lm_head", V, H, 4);
    add_vector(t, "norm", ".weight", H, options.type);
    add_layer(t, "layers.0.", false);
    add_layer(t, "layers.1.", true);
    if (options.mtp) {
        add_matrix(t, "mtp.fc", H, 2 * H, 4);
        add_vector(t, "mtp.pre_fc_norm_embedding", ".weight", H, options.type);
        add_vector(t, "mtp.pre_fc_norm_hidden", ".weight", H, options.type);
        add_vector(t, "mtp.norm", ".weight", H, options.type);
        add_layer(t, "mtp.layers.0.", true);
    }
    return t;
}

void tiny_free(struct tiny *t) {
    for (size_t i = 0; i < t->n; i++) free(t->tensors[i].data);
    free(t->tensors);
    json_decref(t->config);
    free(t);
}

struct tiny_tensor *tiny_find(struct tiny *t, const char *name) {
    for (size_t i = 0; i < t->n; i++)
        if (!strcmp(t->tensors[i].name, name)) return &t->tensors[i];
    fprintf(stderr, "the tiny checkpoint has no tensor %s\n", name);
    abort();
}

void tiny_remove(struct tiny *t, const char *name) {
    struct tiny_tensor *tensor = tiny_find(t, name);
    free(tensor->data);
    memmove(tensor, tensor + 1, (size_t)(t->tensors + t->n - (tensor + 1)) * sizeof *tensor);
    t->n--;
}

void tiny_rename(struct tiny *t, const char *from, const char *to) {
    snprintf(tiny_find(t, from)->name, sizeof t->tensors->name, "%s", to);
}

void tiny_put(struct tiny *t, const char *name, enum safetensors_type type, int n_dims, const int64_t *shape) {
    for (size_t i = 0; i < t->n; i++)
        if (!strcmp(t->tensors[i].name, name)) {
            tiny_remove(t, name);
            break;
        }
    add(t, name, type, n_dims, shape);
}

void json_edit(json_t *root, const char *path, const char *text) {
    char copy[200];
    snprintf(copy, sizeof copy, "%s", path + 1);
    json_t *at = root;
    char *save = NULL, *step = strtok_r(copy, "/", &save);
    for (char *next; (next = strtok_r(NULL, "/", &save)); step = next)
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(step)) : json_object_get(at, step);
    must(at);
    json_t *value = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
    must(value || !text);
    if (json_is_array(at))
        must(!json_array_set_new(at, (size_t)atoi(step), value));
    else if (text)
        must(!json_object_set_new(at, step, value));
    else
        json_object_del(at, step);
}

void tiny_write(const struct tiny *t, const struct folder *f, int n_shards) {
    struct buffer b;
    buffer_init(&b, 0);
    must(json_write(&b, t->config, JSON_STYLE_INDENT));
    folder_write(f, "config.json", b.data, b.n);
    buffer_clear(&b);
    buffer_append_text(&b, "{\"weight_map\":{");
    for (int s = 0; s < n_shards; s++) {
        struct safetensors_entry *entries = calloc(t->n + 1, sizeof *entries);
        size_t *from = calloc(t->n + 1, sizeof *from), n = 0;
        must(entries && from);
        char file[64];
        snprintf(file, sizeof file, n_shards == 1 ? "model.safetensors" : "model-%d.safetensors", s + 1);
        for (size_t i = (size_t)s; i < t->n; i += (size_t)n_shards) {
            entries[n] = t->tensors[i].entry;
            entries[n].name = t->tensors[i].name;
            from[n++] = i;
            buffer_printf(&b, "%s\"%s\":\"%s\"", b.data[b.n - 1] == '{' ? "" : ",", t->tensors[i].name, file);
        }
        struct safetensors_writer *w;
        must(!safetensors_writer_create(folder_file(f, file), entries, n, is_mlx(t) ? "mlx" : "pt", &w, NULL));
        for (size_t i = 0; i < n; i++)
            must(!safetensors_writer_write(w, i, 0, t->tensors[from[i]].data, t->tensors[from[i]].bytes, NULL));
        must(!safetensors_writer_finish(w, NULL));
        free(entries);
        free(from);
    }
    buffer_append_text(&b, "}}");
    if (n_shards > 1) folder_write(f, "model.safetensors.index.json", b.data, b.n);
    buffer_free(&b);
}

enum status tiny_load(const struct tiny *t, int n_shards, struct tiny_loaded *l, struct error *e) {
    memset(l, 0, sizeof *l);
    l->folder = folder_create();
    tiny_write(t, &l->folder, n_shards);
    enum status status = checkpoint_open(l->folder.path, &l->checkpoint, e);
    if (!status) status = config_load(l->checkpoint, &l->config, e);
    return status ? status : weights_load(l->checkpoint, &l->config, &l->weights, e);
}

void tiny_unload(struct tiny_loaded *l) {
    weights_free(l->weights);
    config_free(&l->config);
    checkpoint_free(l->checkpoint);
    folder_remove(&l->folder);
}
