// What a drafter's config.json says, and whether that fits the target.
#include "model/config_internal.h"
#include "model/drafter_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define N_OF(a) (sizeof(a) / sizeof *(a))

static enum status parse_kind(const struct json_view *root, struct drafter_config *c, struct error *e) {
    struct json_view list, one;
    enum status s = json_get_view(root, "architectures", JSON_REQUIRED, JSON_ARRAY, &list, e);
    if (s) return s;
    const char *name = "";
    if (json_element(&list, 0, &one)) s = json_as_string(&one, &name, NULL, e);
    if (s) return s;
    c->has_selector = !strcmp(name, "DFlash2DraftModel");
    if (!c->has_selector && strcmp(name, "DFlashDraftModel"))
        return error_set(e, STATUS_UNSUPPORTED,
                         "%s/0 is \"%.60s\"; drafters are DFlashDraftModel and DFlash2DraftModel", list.path, name);
    return STATUS_OK;
}

static enum status parse_sizes(const struct json_view *root, struct drafter_config *c, struct error *e) {
    const struct {
        const char *key;
        int64_t *out, min, max;
    } fields[] = {
        {"hidden_size", &c->n_hidden, 1, 65536},       {"intermediate_size", &c->n_intermediate, 1, 1 << 20},
        {"vocab_size", &c->n_vocab, 2, 1 << 24},       {"num_hidden_layers", &c->n_layers, 1, DRAFTER_MAX_LAYERS},
        {"num_attention_heads", &c->n_heads, 1, 1024}, {"num_key_value_heads", &c->n_kv_heads, 1, 1024},
        {"head_dim", &c->head_dim, 2, 1024},
    };
    enum status s = STATUS_OK;
    for (size_t i = 0; i < N_OF(fields) && !s; i++)
        s = json_get_int(root, fields[i].key, JSON_REQUIRED, fields[i].min, fields[i].max, fields[i].out, e);
    if (!s) s = json_get_real(root, "rms_norm_eps", JSON_REQUIRED, 1e-12, 0.1, &c->norm_eps, e);
    if (!s && (c->n_heads % c->n_kv_heads != 0 || c->head_dim % 2 != 0))
        s = error_set(
            e, STATUS_INVALID,
            "/num_attention_heads must be a multiple of /num_key_value_heads, and /head_dim even, not %" PRId64
            ", %" PRId64 " and %" PRId64,
            c->n_heads, c->n_kv_heads, c->head_dim);
    return s;
}

static enum status refuse_true(const struct json_view *v, const char *key, struct error *e) {
    bool value = false;
    enum status s = json_get_bool(v, key, JSON_OPTIONAL, &value, e);
    if (!s && value) s = error_set(e, STATUS_UNSUPPORTED, "%s/%s is true, which is not supported", v->path, key);
    return s;
}

static enum status parse_rope(const struct json_view *root, struct drafter_config *c, struct error *e) {
    struct json_view rope, other;
    const char *type = "default";
    c->rope_theta = 1e7;
    enum status s = json_get_view(root, "rope_parameters", JSON_OPTIONAL, JSON_OBJECT, &rope, e);
    if (!s && rope.value) s = json_get_string(&rope, "rope_type", JSON_OPTIONAL, &type, NULL, e);
    if (!s) s = json_get_real(root, "rope_theta", JSON_OPTIONAL, 1, 1e12, &c->rope_theta, e);
    if (!s && rope.value) s = json_get_real(&rope, "rope_theta", JSON_OPTIONAL, 1, 1e12, &c->rope_theta, e);
    if (!s && (strcmp(type, "default") || json_find(root, "rope_scaling", &other)))
        s = error_set(e, STATUS_UNSUPPORTED, "scaled rotary positions are not supported for drafters");
    return s;
}

// The one value of a number that only changes the drafter's arithmetic in ways that are not built.
static enum status refuse_unless(const struct json_view *v, const char *key, double wanted, struct error *e) {
    double value = wanted;
    enum status s = json_get_real(v, key, JSON_OPTIONAL, -1e30, 1e30, &value, e);
    if (!s && value != wanted)
        s = error_set(e, STATUS_UNSUPPORTED, "%s/%s is %g, which is not supported", v->path, key, value);
    return s;
}

static enum status parse_taps(const struct json_view *f, const struct model_config *target, struct drafter_config *c,
                              struct error *e) {
    struct json_view list, one;
    enum status s = json_get_view(f, "target_layer_ids", JSON_REQUIRED, JSON_ARRAY, &list, e);
    if (s) return s;
    size_t n = json_length(&list);
    if (n < 1 || n > DRAFTER_MAX_TAPS)
        return error_set(e, STATUS_INVALID, "%s has %zu layers, not 1 to %d", list.path, n, DRAFTER_MAX_TAPS);
    for (size_t i = 0; i < n && !s; i++) {
        int64_t layer = 0, before = i > 0 ? c->taps[i - 1] : -1;
        if (!json_element(&list, i, &one))
            return error_set(e, STATUS_INVALID, "%s/%zu must be an integer, not null", list.path, i);
        s = json_as_int(&one, 0, target->n_layers - 1, &layer, e);
        if (!s && layer <= before) s = error_set(e, STATUS_INVALID, "%s must rise, with no layer twice", list.path);
        c->taps[i] = (int32_t)layer;
    }
    c->n_tap = (int32_t)n;
    return s;
}

static enum status parse_block(const struct json_view *root, const struct json_view *f, struct drafter_config *c,
                               struct error *e) {
    struct json_view one;
    int64_t block = 0, mask = 0;
    const struct json_view *from = json_find(f, "block_size", &one) ? f : root;
    enum status s = json_get_int(from, "block_size", JSON_REQUIRED, 2, DRAFTER_MAX_BLOCK, &block, e);
    if (!s) s = json_get_int(f, "mask_token_id", JSON_REQUIRED, 0, c->n_vocab - 1, &mask, e);
    if (!s) s = refuse_unless(f, "input_embedding_scale", 1, e);
    if (!s) s = refuse_unless(f, "final_logit_softcapping", 0, e);
    c->output_multiplier = 1;
    if (!s) s = json_get_real(f, "output_multiplier", JSON_OPTIONAL, 1e-6, 1e6, &c->output_multiplier, e);
    c->block = (int32_t)block;
    c->mask_id = (int32_t)mask;
    return s;
}

static enum status parse_selector(const struct json_view *f, struct drafter_config *c, struct error *e) {
    int64_t taps = 0, group = 0, rank = 0, top = DRAW_MAX_TOP;
    enum status s = STATUS_OK;
    if (c->has_selector) {
        s = json_get_int(f, "conv_kernel_size", JSON_REQUIRED, 1, 8, &taps, e);
        if (!s) s = json_get_int(f, "conv_group_size", JSON_REQUIRED, 1, c->n_hidden, &group, e);
        if (!s) s = json_get_int(f, "selector_rank", JSON_REQUIRED, 1, DRAFTER_MAX_RANK, &rank, e);
        if (!s) s = json_get_int(f, "selector_top_k", JSON_REQUIRED, 1, DRAW_MAX_TOP, &top, e);
        if (!s && c->n_hidden % group != 0)
            s = error_set(e, STATUS_INVALID,
                          "/hidden_size is %" PRId64 ", not a multiple of %s/conv_group_size, %" PRId64, c->n_hidden,
                          f->path, group);
    }
    c->conv_taps = (int32_t)taps;
    c->conv_group = (int32_t)group;
    c->rank = (int32_t)rank;
    c->n_candidate = (int32_t)top;
    return s;
}

// What a layer sees: a window for sliding layers; full ones see as much as a ring may hold. Causality is what the file
// says, else sliding layers are causal and full ones are not.
static enum status parse_layers(const struct json_view *root, const struct json_view *f, struct drafter_config *c,
                                struct error *e) {
    struct json_view list, one;
    int64_t window = 0;
    const int32_t most = DRAFTER_MAX_RING - c->block + 1;
    bool causal = false, all_causal = false, slides = false;
    bool says = json_find(root, "is_causal", &one);
    enum status s = json_get_bool(f, "causal", JSON_OPTIONAL, &all_causal, e);
    if (!s && says) s = json_get_bool(root, "is_causal", JSON_OPTIONAL, &all_causal, e);
    says = says || json_find(f, "causal", &one);
    if (!s) s = json_get_int(root, "sliding_window", JSON_OPTIONAL, 1, INT32_MAX, &window, e);
    if (!s) s = json_get_int(f, "swa_window_size", JSON_OPTIONAL, 1, INT32_MAX, &window, e);
    if (!s) s = json_get_view(root, "layer_types", JSON_OPTIONAL, JSON_ARRAY, &list, e);
    if (s) return s;
    if (list.value && json_length(&list) != (size_t)c->n_layers)
        return error_set(e, STATUS_INVALID, "%s has %zu entries for %" PRId64 " layers", list.path, json_length(&list),
                         c->n_layers);
    for (int64_t i = 0; i < c->n_layers && !s; i++) {
        const char *name = "full_attention";
        if (list.value && !json_element(&list, (size_t)i, &one))
            return error_set(e, STATUS_INVALID, "%s/%" PRId64 " must be a string, not null", list.path, i);
        if (list.value) s = json_as_string(&one, &name, NULL, e);
        slides = !strcmp(name, "sliding_attention");
        if (!s && !slides && strcmp(name, "full_attention"))
            s = error_set(e, STATUS_UNSUPPORTED, "%s is \"%.40s\"; supported are sliding_attention and full_attention",
                          one.path, name);
        if (!s && slides && window == 0)
            s = error_set(e, STATUS_INVALID, "/sliding_window is missing, but %s/%" PRId64 " slides", list.path, i);
        causal = says ? all_causal : slides;
        c->window[i] = slides && window < most ? (int32_t)window : most;
        c->causal[i] = causal;
    }
    return s;
}

static enum status check_fit(const struct json_view *root, const struct model_config *target, struct drafter_config *c,
                             struct error *e) {
    int64_t n_layers = target->n_layers;
    enum status s = json_get_int(root, "num_target_layers", JSON_OPTIONAL, 1, INT32_MAX, &n_layers, e);
    if (s) return s;
    const struct {
        const char *key;
        int64_t own, target;
    } pairs[] = {{"hidden_size", c->n_hidden, target->n_hidden},
                 {"vocab_size", c->n_vocab, target->n_vocab},
                 {"num_target_layers", n_layers, target->n_layers}};
    for (size_t i = 0; i < N_OF(pairs); i++)
        if (pairs[i].own != pairs[i].target)
            return error_set(e, STATUS_INVALID,
                             "/%s is %" PRId64 ", but the model has %" PRId64
                             ": the drafter was made for another model",
                             pairs[i].key, pairs[i].own, pairs[i].target);
    return STATUS_OK;
}

static enum status parse(const struct json_view *root, const struct model_config *target, struct drafter_config *c,
                         struct error *e) {
    struct json_view f;
    const char *activation = "silu";
    enum status s = json_must_be(root, JSON_OBJECT, e);
    if (!s) s = parse_kind(root, c, e);
    if (!s) s = parse_sizes(root, c, e);
    if (!s) s = check_fit(root, target, c, e);
    if (!s) s = refuse_true(root, "attention_bias", e);
    if (!s) s = json_get_string(root, "hidden_act", JSON_OPTIONAL, &activation, NULL, e);
    if (!s && strcmp(activation, "silu"))
        s = error_set(e, STATUS_UNSUPPORTED, "/hidden_act is \"%.40s\"; supported is silu", activation);
    if (!s) s = parse_rope(root, c, e);
    if (!s) s = json_get_view(root, "dflash_config", JSON_REQUIRED, JSON_OBJECT, &f, e);
    if (!s) s = parse_block(root, &f, c, e);
    if (!s) s = parse_taps(&f, target, c, e);
    if (!s) s = parse_selector(&f, c, e);
    if (!s) s = parse_layers(root, &f, c, e);
    if (!s) s = config_parse_quant(root, root, &c->quant, e);
    return s;
}

enum status drafter_parse_config(const json_t *config, const struct model_config *target, struct drafter_config *out,
                                 struct error *e) {
    struct drafter_config c = {0};
    struct json_view root = json_root(config);
    enum status s = parse(&root, target, &c, e);
    if (s == STATUS_OK)
        *out = c;
    else
        error_prefix(e, "config.json");
    return s;
}

void drafter_config_free(struct drafter_config *c) {
    free(c->quant.overrides);
    c->quant = (struct quant_config){0};
}
