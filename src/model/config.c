#include "model/config_internal.h"

#include "format/checkpoint.h"
#include <inttypes.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_OF(a) (sizeof(a) / sizeof *(a))

// ---- which model ----

static const struct {
    const char *name;
    enum model_family family;
} model_types[] = {
    {"qwen3_5", MODEL_QWEN35},
    {"qwen3_5_text", MODEL_QWEN35},
    {"qwen3_5_moe", MODEL_QWEN35_MOE},
    {"qwen3_5_moe_text", MODEL_QWEN35_MOE},
};

const char *config_family_name(enum model_family family) {
    return family == MODEL_QWEN35_MOE ? "qwen3_5_moe" : "qwen3_5";
}

static enum status parse_model_type(const struct json_view *v, enum json_need need, enum model_family *out,
                                    struct error *e) {
    const char *name = NULL;
    enum status status = json_get_string(v, "model_type", need, &name, NULL, e);
    if (status || !name) return status;
    for (size_t i = 0; i < N_OF(model_types); i++) {
        if (strcmp(name, model_types[i].name)) continue;
        *out = model_types[i].family;
        return STATUS_OK;
    }
    return error_set(e, STATUS_UNSUPPORTED,
                     "%s/model_type is \"%.60s\"; supported are qwen3_5 and qwen3_5_moe (Qwen 3.5, 3.6 and 3.8)",
                     v->path, name);
}

static enum status parse_family(const struct json_view *root, const struct json_view *text, struct model_config *c,
                                struct error *e) {
    bool nested = text->value != root->value;
    enum status status = parse_model_type(root, nested ? JSON_OPTIONAL : JSON_REQUIRED, &c->family, e);
    if (status || !nested) return status;
    enum model_family outer = c->family;
    bool has_outer = json_object_get(root->value, "model_type") != NULL;
    status = parse_model_type(text, has_outer ? JSON_OPTIONAL : JSON_REQUIRED, &c->family, e);
    if (!status && has_outer && outer != c->family)
        return error_set(e, STATUS_INVALID, "/model_type and /text_config/model_type name different families");
    return status;
}

// ---- sizes ----

struct int_field {
    const char *key;
    size_t offset; // of an int64_t in struct model_config
    int64_t min, max;
};

#define FIELD(key, member, min, max)                                                                                   \
    { key, offsetof(struct model_config, member), min, max }

static const struct int_field common_fields[] = {
    FIELD("num_hidden_layers", n_layers, 1, MODEL_LAYERS_MAX),
    FIELD("hidden_size", n_hidden, 1, 65536),
    FIELD("vocab_size", n_vocab, 2, 1 << 24),
    FIELD("max_position_embeddings", n_context, 1, 1 << 24),
    FIELD("num_attention_heads", n_heads, 1, 1024),
    FIELD("num_key_value_heads", n_kv_heads, 1, 1024),
    FIELD("head_dim", head_dim, 2, 1024),
    FIELD("linear_num_key_heads", n_key_heads, 1, 1024),
    FIELD("linear_num_value_heads", n_value_heads, 1, 1024),
    FIELD("linear_key_head_dim", key_dim, 1, 1024),
    FIELD("linear_value_head_dim", value_dim, 1, 1024),
    FIELD("linear_conv_kernel_dim", n_taps, 2, 8),
};

static const struct int_field dense_fields[] = {FIELD("intermediate_size", n_intermediate, 1, 1 << 20)};

static const struct int_field moe_fields[] = {
    FIELD("num_experts", n_experts, 1, MODEL_EXPERTS_MAX),
    FIELD("num_experts_per_tok", n_experts_used, 1, MODEL_EXPERTS_MAX),
    FIELD("moe_intermediate_size", expert_width, 1, 1 << 20),
    FIELD("shared_expert_intermediate_size", shared_width, 1, 1 << 20),
};

static enum status parse_fields(const struct json_view *text, const struct int_field *fields, size_t n,
                                struct model_config *c, struct error *e) {
    enum status status = STATUS_OK;
    for (size_t i = 0; i < n && !status; i++)
        status = json_get_int(text, fields[i].key, JSON_REQUIRED, fields[i].min, fields[i].max,
                              (int64_t *)((char *)c + fields[i].offset), e);
    return status;
}

static enum status must_divide(const struct json_view *text, const char *small_key, int64_t small,
                               const char *large_key, int64_t large, struct error *e) {
    if (large % small == 0) return STATUS_OK;
    return error_set(e, STATUS_INVALID, "%s/%s is %" PRId64 ", which is not a multiple of %s, %" PRId64, text->path,
                     large_key, large, small_key, small);
}

static enum status parse_sizes(const struct json_view *text, struct model_config *c, struct error *e) {
    enum status status = parse_fields(text, common_fields, N_OF(common_fields), c, e);
    bool moe = c->family == MODEL_QWEN35_MOE;
    if (!status)
        status = moe ? parse_fields(text, moe_fields, N_OF(moe_fields), c, e)
                     : parse_fields(text, dense_fields, N_OF(dense_fields), c, e);
    if (!status) status = must_divide(text, "num_key_value_heads", c->n_kv_heads, "num_attention_heads", c->n_heads, e);
    if (!status)
        status =
            must_divide(text, "linear_num_key_heads", c->n_key_heads, "linear_num_value_heads", c->n_value_heads, e);
    if (!status && moe && c->n_experts_used > c->n_experts)
        status = error_set(e, STATUS_INVALID, "%s/num_experts_per_tok is %" PRId64 ", more than num_experts, %" PRId64,
                           text->path, c->n_experts_used, c->n_experts);
    int64_t experts = 0;
    if (!status && !moe) status = json_get_int(text, "num_experts", JSON_OPTIONAL, 0, INT64_MAX, &experts, e);
    if (!status && experts)
        status =
            error_set(e, STATUS_INVALID, "%s/num_experts is %" PRId64 ", but a model of type qwen3_5 has no experts",
                      text->path, experts);
    if (!status)
        status =
            json_get_int(text, "mtp_num_hidden_layers", JSON_OPTIONAL, 0, MODEL_MTP_LAYERS_MAX, &c->n_mtp_layers, e);
    if (!status) status = json_get_bool(text, "mtp_use_dedicated_embeddings", JSON_OPTIONAL, &c->mtp_own_embedding, e);
    if (!status) status = json_get_real(text, "rms_norm_eps", JSON_REQUIRED, 1e-12, 0.1, &c->norm_eps, e);
    return status;
}

// ---- what this program computes in one way only ----

static enum status refuse_unless(const struct json_view *text, const char *key, bool wanted, struct error *e) {
    bool value = wanted;
    enum status status = json_get_bool(text, key, JSON_OPTIONAL, &value, e);
    if (!status && value != wanted)
        status = error_set(e, STATUS_UNSUPPORTED, "%s/%s is %s, which is not supported", text->path, key,
                           value ? "true" : "false");
    return status;
}

static enum status parse_variants(const struct json_view *text, struct model_config *c, struct error *e) {
    enum status status = refuse_unless(text, "attn_output_gate", true, e);
    if (!status) status = refuse_unless(text, "attention_bias", false, e);
    const char *activation = "silu", *gate = "silu";
    if (!status) status = json_get_string(text, "hidden_act", JSON_OPTIONAL, &activation, NULL, e);
    if (!status && strcmp(activation, "silu"))
        status =
            error_set(e, STATUS_UNSUPPORTED, "%s/hidden_act is \"%.40s\"; supported is silu", text->path, activation);
    if (!status) status = json_get_string(text, "output_gate_type", JSON_OPTIONAL, &gate, NULL, e);
    if (status) return status;
    c->gate_sigmoid = !strcmp(gate, "sigmoid");
    if (!c->gate_sigmoid && strcmp(gate, "silu") && strcmp(gate, "swish"))
        return error_set(e, STATUS_UNSUPPORTED,
                         "%s/output_gate_type is \"%.40s\"; supported are silu, swish and sigmoid", text->path, gate);
    return STATUS_OK;
}

static enum status parse_tied(const struct json_view *root, const struct json_view *text, struct model_config *c,
                              struct error *e) {
    bool outer = false, inner = false;
    enum status status = json_get_bool(root, "tie_word_embeddings", JSON_OPTIONAL, &outer, e);
    inner = outer;
    if (!status) status = json_get_bool(text, "tie_word_embeddings", JSON_OPTIONAL, &inner, e);
    struct json_view v;
    if (!status && inner != outer && json_find(root, "tie_word_embeddings", &v))
        status = error_set(e, STATUS_INVALID, "/tie_word_embeddings and %s/tie_word_embeddings contradict each other",
                           text->path);
    c->tied = inner;
    return status;
}

// ---- layers ----

static enum status parse_layers(const struct json_view *text, struct model_config *c, struct error *e) {
    struct json_view list, entry;
    enum status status = json_get_view(text, "layer_types", JSON_OPTIONAL, JSON_ARRAY, &list, e);
    if (status) return status;
    if (list.value && json_length(&list) != (size_t)c->n_layers)
        return error_set(e, STATUS_INVALID, "%s has %zu entries for %" PRId64 " layers", list.path, json_length(&list),
                         c->n_layers);
    int64_t interval = 4;
    if (!list.value) status = json_get_int(text, "full_attention_interval", JSON_OPTIONAL, 1, 1024, &interval, e);
    for (int64_t i = 0; i < c->n_layers && !status; i++) {
        enum layer_kind kind = (i + 1) % interval == 0 ? LAYER_ATTENTION : LAYER_DELTA;
        if (list.value) {
            const char *name = "";
            if (!json_element(&list, (size_t)i, &entry))
                return error_set(e, STATUS_INVALID, "%s/%" PRId64 " must be a string, not null", list.path, i);
            status = json_as_string(&entry, &name, NULL, e);
            kind = !strcmp(name, "full_attention") ? LAYER_ATTENTION : LAYER_DELTA;
            if (!status && kind == LAYER_DELTA && strcmp(name, "linear_attention"))
                return error_set(e, STATUS_UNSUPPORTED,
                                 "%s is \"%.40s\"; supported are linear_attention and full_attention", entry.path,
                                 name);
        }
        c->layers[i] = (uint8_t)kind;
        c->n_attention_layers += kind == LAYER_ATTENTION;
    }
    c->n_delta_layers = c->n_layers - c->n_attention_layers;
    return status;
}

// ---- positions ----

// A rope field stands in rope_parameters, or flattened in the text config.
static const struct json_view *rope_place(const struct json_view *rope, const struct json_view *text, const char *key) {
    struct json_view v;
    return rope->value && json_find(rope, key, &v) ? rope : text;
}

static enum status parse_rope(const struct json_view *text, struct model_config *c, struct error *e) {
    struct json_view rope, scaling;
    const char *type = "default";
    double partial = 1;
    enum status status = json_get_view(text, "rope_parameters", JSON_OPTIONAL, JSON_OBJECT, &rope, e);
    if (!status)
        status = json_get_string(rope_place(&rope, text, "rope_type"), "rope_type", JSON_OPTIONAL, &type, NULL, e);
    if (status) return status;
    if (strcmp(type, "default"))
        return error_set(e, STATUS_UNSUPPORTED, "%s/rope_type is \"%.40s\"; supported is default",
                         rope_place(&rope, text, "rope_type")->path, type);
    if (json_find(text, "rope_scaling", &scaling))
        return error_set(e, STATUS_UNSUPPORTED, "%s is set; stretched positions are not supported", scaling.path);
    status =
        json_get_real(rope_place(&rope, text, "rope_theta"), "rope_theta", JSON_REQUIRED, 1, 1e12, &c->rope_theta, e);
    const struct json_view *place = rope_place(&rope, text, "partial_rotary_factor");
    if (!status) status = json_get_real(place, "partial_rotary_factor", JSON_REQUIRED, 0, 1, &partial, e);
    if (status) return status;
    double dims = (double)c->head_dim * partial;
    c->n_rotary = (int64_t)dims;
    if (dims < 2 || dims != (double)c->n_rotary || c->n_rotary % 2)
        return error_set(e, STATUS_INVALID,
                         "%s/partial_rotary_factor %g of head_dim %" PRId64
                         " is %g dims; an even number of them must rotate",
                         place->path, partial, c->head_dim, dims);
    return STATUS_OK;
}

// ---- end of text ----

static enum status add_eos(struct model_config *c, int64_t id, const char *path, struct error *e) {
    if (id < 0 || id >= c->n_vocab)
        return error_set(e, STATUS_INVALID, "%s is %" PRId64 ", which is not an id below vocab_size, %" PRId64, path,
                         id, c->n_vocab);
    if (config_is_eos(c, (int32_t)id)) return STATUS_OK;
    if (c->n_eos == MODEL_EOS_MAX)
        return error_set(e, STATUS_LIMIT, "%s is one more than the %d end-of-text ids that are supported", path,
                         MODEL_EOS_MAX);
    c->eos_ids[c->n_eos++] = (int32_t)id;
    return STATUS_OK;
}

static enum status parse_eos(const struct json_view *v, struct model_config *c, struct error *e) {
    struct json_view ids, one;
    if (!json_find(v, "eos_token_id", &ids)) return STATUS_OK;
    bool list = json_is_array(ids.value);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < (list ? json_length(&ids) : 1) && !status; i++) {
        int64_t id = 0;
        if (!list)
            one = ids;
        else if (!json_element(&ids, i, &one))
            return error_set(e, STATUS_INVALID, "%s/%zu must be an integer, not null", ids.path, i);
        status = json_as_int(&one, INT64_MIN, INT64_MAX, &id, e);
        if (!status) status = add_eos(c, id, one.path, e);
    }
    return status;
}

bool config_is_eos(const struct model_config *c, int32_t id) {
    for (int i = 0; i < c->n_eos; i++)
        if (c->eos_ids[i] == id) return true;
    return false;
}

static enum status parse_tokenizer(const json_t *tokenizer, struct model_config *c, struct error *e) {
    struct json_view root = json_root(tokenizer), v;
    if (!json_find(&root, "eos_token", &v)) return STATUS_OK;
    const char *text = "";
    enum status status = json_is_object(v.value) ? json_get_string(&v, "content", JSON_REQUIRED, &text, NULL, e)
                                                 : json_as_string(&v, &text, NULL, e);
    if (!status && strlen(text) >= sizeof c->eos_text)
        status = error_set(e, STATUS_LIMIT, "%s is longer than %zu bytes", v.path, sizeof c->eos_text - 1);
    if (!status) snprintf(c->eos_text, sizeof c->eos_text, "%s", text);
    return status;
}

enum status config_resolve_eos(struct model_config *c, int32_t (*find_token)(void *context, const char *text),
                               void *context, struct error *e) {
    if (!c->eos_text[0]) return STATUS_OK;
    int32_t id = find_token(context, c->eos_text);
    if (id < 0)
        return error_set(e, STATUS_INVALID,
                         "tokenizer_config.json: /eos_token is \"%s\", which the tokenizer does not have", c->eos_text);
    enum status status = add_eos(c, id, "/eos_token", e);
    if (status) error_prefix(e, "tokenizer_config.json");
    return status;
}

// ---- default sampling ----

static enum status parse_generation(const json_t *generation, struct model_config *c, struct error *e) {
    struct json_view root = json_root(generation);
    struct sampling_defaults *s = &c->sampling;
    bool sample = true;
    enum status status = parse_eos(&root, c, e);
    if (!status) status = json_get_real(&root, "temperature", JSON_OPTIONAL, 0, 100, &s->temperature, e);
    if (!status) status = json_get_real(&root, "top_p", JSON_OPTIONAL, 0, 1, &s->top_p, e);
    if (!status) status = json_get_int(&root, "top_k", JSON_OPTIONAL, 0, INT32_MAX, &s->top_k, e);
    if (!status) status = json_get_real(&root, "min_p", JSON_OPTIONAL, 0, 1, &s->min_p, e);
    if (!status)
        status = json_get_real(&root, "repetition_penalty", JSON_OPTIONAL, 0.01, 100, &s->repetition_penalty, e);
    if (!status) status = json_get_real(&root, "presence_penalty", JSON_OPTIONAL, -2, 2, &s->presence_penalty, e);
    if (!status) status = json_get_bool(&root, "do_sample", JSON_OPTIONAL, &sample, e);
    if (!status && !sample) s->temperature = 0;
    return status;
}

// ---- all of it ----

static enum status parse_config(const json_t *config, struct model_config *c, struct error *e) {
    struct json_view root = json_root(config), text;
    enum status status = json_must_be(&root, JSON_OBJECT, e);
    if (!status) status = json_get_view(&root, "text_config", JSON_OPTIONAL, JSON_OBJECT, &text, e);
    if (status) return status;
    if (!text.value) text = root;
    status = parse_family(&root, &text, c, e);
    if (!status) status = parse_sizes(&text, c, e);
    if (!status) status = parse_variants(&text, c, e);
    if (!status) status = parse_tied(&root, &text, c, e);
    if (!status) status = parse_layers(&text, c, e);
    if (!status) status = parse_rope(&text, c, e);
    if (!status) status = parse_eos(&text, c, e);
    if (!status && text.value != root.value) status = parse_eos(&root, c, e);
    if (!status) status = config_parse_quant(&root, &text, &c->quant, e);
    return status;
}

enum status config_parse(const json_t *config, const json_t *generation, const json_t *tokenizer,
                         struct model_config *out, struct error *e) {
    struct model_config c = {.sampling = {NAN, NAN, NAN, NAN, NAN, -1}};
    enum status status = parse_config(config, &c, e);
    if (status) error_prefix(e, "config.json");
    if (!status && generation) {
        status = parse_generation(generation, &c, e);
        if (status) error_prefix(e, "generation_config.json");
    }
    if (!status && tokenizer) {
        status = parse_tokenizer(tokenizer, &c, e);
        if (status) error_prefix(e, "tokenizer_config.json");
    }
    if (status)
        config_free(&c);
    else
        *out = c;
    return status;
}

enum status config_load(const struct checkpoint *ck, struct model_config *out, struct error *e) {
    enum status status =
        config_parse(checkpoint_config(ck), checkpoint_generation_config(ck), checkpoint_tokenizer_config(ck), out, e);
    if (status) error_prefix(e, "%s", checkpoint_folder(ck));
    return status;
}

void config_free(struct model_config *c) {
    free(c->quant.overrides);
    c->quant = (struct quant_config){0};
}
