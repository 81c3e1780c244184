#include "model/weights_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N_OF(a) (sizeof(a) / sizeof *(a))

// ---- layers ----

static enum status take_mlp(struct weights_loader *l, const char *prefix, int64_t width, struct mlp_weights *out) {
    int64_t H = l->config->n_hidden;
    enum status status =
        loader_take_matrix(l, prefix, "gate_proj", (struct matrix_shape){0, width, H, false}, &out->gate);
    if (!status) status = loader_take_matrix(l, prefix, "up_proj", (struct matrix_shape){0, width, H, false}, &out->up);
    if (!status)
        status = loader_take_matrix(l, prefix, "down_proj", (struct matrix_shape){0, H, width, false}, &out->down);
    return status;
}

// Experts in one tensor each of gate, up and down (MLX), in one of gate and up together and one of down (Hugging Face),
// or one by one: in all three, expert e's matrix is a range of rows.
static enum status take_experts(struct weights_loader *l, const char *prefix, struct layer_weights *out) {
    const struct model_config *c = l->config;
    int64_t E = c->n_experts, H = c->n_hidden, I = c->expert_width;
    struct weight *gate = loader_alloc(l, E, sizeof *gate), *up = loader_alloc(l, E, sizeof *up),
                  *down = loader_alloc(l, E, sizeof *down), gates, ups, downs;
    if (!gate || !up || !down) return error_memory(l->error);
    out->expert_gate = gate;
    out->expert_up = up;
    out->expert_down = down;
    enum status status = STATUS_OK;
    if (loader_find(l, "%smlp.experts.0.gate_proj.weight", prefix)) {
        for (int64_t e = 0; e < E && !status; e++) {
            char one[TENSOR_NAME_BYTES];
            struct mlp_weights mlp;
            snprintf(one, sizeof one, "%smlp.experts.%" PRId64 ".", prefix, e);
            status = take_mlp(l, one, I, &mlp);
            if (status) break;
            gate[e] = mlp.gate;
            up[e] = mlp.up;
            down[e] = mlp.down;
        }
        return status;
    }
    bool split = loader_find(l, "%smlp.switch_mlp.gate_proj.weight", prefix) != NULL;
    struct matrix_shape in = {E, I, H, false}, both = {E, 2 * I, H, true}, back = {E, H, I, !split};
    if (split) {
        status = loader_take_matrix(l, prefix, "mlp.switch_mlp.gate_proj", in, &gates);
        if (!status) status = loader_take_matrix(l, prefix, "mlp.switch_mlp.up_proj", in, &ups);
        if (!status) status = loader_take_matrix(l, prefix, "mlp.switch_mlp.down_proj", back, &downs);
    } else {
        status = loader_take_matrix(l, prefix, "mlp.experts.gate_up_proj", both, &gates);
        if (!status) status = loader_take_matrix(l, prefix, "mlp.experts.down_proj", back, &downs);
    }
    for (int64_t e = 0; e < E && !status; e++) {
        gate[e] = split ? weight_rows(gates, e * I, I) : weight_rows(gates, 2 * e * I, I);
        up[e] = split ? weight_rows(ups, e * I, I) : weight_rows(gates, (2 * e + 1) * I, I);
        down[e] = weight_rows(downs, e * H, H);
    }
    return status;
}

static enum status take_feed_forward(struct weights_loader *l, const char *prefix, struct layer_weights *out) {
    const struct model_config *c = l->config;
    char inner[TENSOR_NAME_BYTES];
    bool moe = c->n_experts > 0;
    snprintf(inner, sizeof inner, "%s%s", prefix, moe ? "mlp.shared_expert." : "mlp.");
    enum status status = take_mlp(l, inner, moe ? c->shared_width : c->n_intermediate, &out->mlp);
    if (status || !moe) return status;
    status = loader_take_matrix(l, prefix, "mlp.gate", (struct matrix_shape){0, c->n_experts, c->n_hidden, false},
                                &out->router);
    if (!status)
        status = loader_take_matrix(l, prefix, "mlp.shared_expert_gate",
                                    (struct matrix_shape){0, 1, c->n_hidden, false}, &out->shared_gate);
    return status ? status : take_experts(l, prefix, out);
}

static enum status take_attention(struct weights_loader *l, const char *prefix, float norm_add,
                                  struct layer_weights *out) {
    const struct model_config *c = l->config;
    int64_t H = c->n_hidden, Q = c->n_heads * c->head_dim, K = c->n_kv_heads * c->head_dim;
    const struct {
        const char *name;
        struct matrix_shape shape;
        struct weight *out;
    } matrices[] = {
        {"self_attn.q_proj", {0, 2 * Q, H, false}, &out->q},
        {"self_attn.k_proj", {0, K, H, false}, &out->k},
        {"self_attn.v_proj", {0, K, H, false}, &out->v},
        {"self_attn.o_proj", {0, H, Q, false}, &out->o},
    };
    enum status status =
        loader_take_vector(l, prefix, "self_attn.q_norm.weight", c->head_dim, 0, norm_add, &out->q_norm);
    if (!status)
        status = loader_take_vector(l, prefix, "self_attn.k_norm.weight", c->head_dim, 0, norm_add, &out->k_norm);
    for (size_t i = 0; i < N_OF(matrices) && !status; i++)
        status = loader_take_matrix(l, prefix, matrices[i].name, matrices[i].shape, matrices[i].out);
    return status;
}

static enum status take_neg_a(struct weights_loader *l, const char *prefix, struct layer_weights *out) {
    int64_t n = l->config->n_value_heads;
    const float *log;
    enum status status = loader_take_vector(l, prefix, "linear_attn.A_log", n, 0, 0, &log);
    float *neg_a = status ? NULL : loader_alloc(l, n, sizeof *neg_a);
    if (status) return status;
    if (!neg_a) return error_memory(l->error);
    for (int64_t i = 0; i < n; i++) {
        neg_a[i] = (float)-exp((double)log[i]);
        if (!isfinite(neg_a[i]))
            return error_set(l->error, STATUS_INVALID, "%s: tensor %slinear_attn.A_log holds %g, too large an exponent",
                             checkpoint_folder(l->checkpoint), prefix, (double)log[i]);
    }
    out->neg_a = neg_a;
    return STATUS_OK;
}

static enum status take_delta(struct weights_loader *l, const char *prefix, struct layer_weights *out) {
    const struct model_config *c = l->config;
    int64_t H = c->n_hidden, C = config_n_channels(c), V = c->n_value_heads * c->value_dim, n = c->n_value_heads;
    const struct {
        const char *name;
        struct matrix_shape shape;
        struct weight *out;
    } matrices[] = {
        {"linear_attn.in_proj_qkv", {0, C, H, false}, &out->qkv}, {"linear_attn.in_proj_z", {0, V, H, false}, &out->z},
        {"linear_attn.in_proj_b", {0, n, H, false}, &out->b},     {"linear_attn.in_proj_a", {0, n, H, false}, &out->a},
        {"linear_attn.out_proj", {0, H, V, false}, &out->out},
    };
    enum status status = loader_take_vector(l, prefix, "linear_attn.conv1d.weight", C, c->n_taps, 0, &out->conv);
    if (!status) status = take_neg_a(l, prefix, out);
    if (!status) status = loader_take_vector(l, prefix, "linear_attn.dt_bias", n, 0, 0, &out->dt_bias);
    if (!status) status = loader_take_vector(l, prefix, "linear_attn.norm.weight", c->value_dim, 0, 0, &out->out_norm);
    for (size_t i = 0; i < N_OF(matrices) && !status; i++)
        status = loader_take_matrix(l, prefix, matrices[i].name, matrices[i].shape, matrices[i].out);
    return status;
}

enum status loader_take_layer(struct weights_loader *l, const char *prefix, enum layer_kind kind, float norm_add,
                              struct layer_weights *out) {
    int64_t H = l->config->n_hidden;
    out->kind = kind;
    enum status status = loader_take_vector(l, prefix, "input_layernorm.weight", H, 0, norm_add, &out->input_norm);
    if (!status)
        status = loader_take_vector(l, prefix, "post_attention_layernorm.weight", H, 0, norm_add, &out->post_norm);
    if (!status)
        status = kind == LAYER_ATTENTION ? take_attention(l, prefix, norm_add, out) : take_delta(l, prefix, out);
    return status ? status : take_feed_forward(l, prefix, out);
}

// ---- layouts ----

static const char *const text_prefixes[] = {"model.language_model.", "language_model.model.", "model.",
                                            "language_model."};
static const char *const head_prefixes[] = {"", "language_model.", "model.", "model.language_model."};
static const char *const mtp_prefixes[] = {"mtp.", "language_model.mtp.", "model.mtp.", "model.language_model.mtp.",
                                           "language_model.model.mtp."};

// The one prefix under which `name` exists; NULL when there is none.
static enum status find_prefix(struct weights_loader *l, const char *const *prefixes, size_t n, const char *name,
                               const char **out) {
    *out = NULL;
    for (size_t i = 0; i < n; i++) {
        if (!loader_find(l, "%s%s", prefixes[i], name)) continue;
        if (*out)
            return error_set(l->error, STATUS_INVALID, "%s: holds both %s%s and %s%s", checkpoint_folder(l->checkpoint),
                             *out, name, prefixes[i], name);
        *out = prefixes[i];
    }
    return STATUS_OK;
}

static void find_mtp_prefix(struct weights_loader *l) {
    for (size_t i = 0; i < checkpoint_count(l->checkpoint) && !l->mtp_prefix; i++) {
        const char *name = checkpoint_tensor_at(l->checkpoint, i)->name;
        for (size_t p = 0; p < N_OF(mtp_prefixes); p++)
            if (!strncmp(name, mtp_prefixes[p], strlen(mtp_prefixes[p]))) l->mtp_prefix = mtp_prefixes[p];
    }
}

// MLX's converter turns conv weights from [C, 1, K] to [C, K, 1] and adds 1 to the zero-centred norms in the same step,
// and only then: the shape of one tells about the other.
static enum status find_layout(struct weights_loader *l) {
    enum status status = find_prefix(l, text_prefixes, N_OF(text_prefixes), "embed_tokens.weight", &l->text_prefix);
    if (!status) status = find_prefix(l, head_prefixes, N_OF(head_prefixes), "lm_head.weight", &l->head_prefix);
    if (status) return status;
    if (!l->text_prefix)
        return error_set(l->error, STATUS_INVALID,
                         "%s: tensor embed_tokens.weight is missing, under every known prefix",
                         checkpoint_folder(l->checkpoint));
    find_mtp_prefix(l);
    l->channels_last = !strcmp(checkpoint_format(l->checkpoint), "mlx");
    for (int64_t i = 0; i < l->config->n_layers; i++) {
        const struct safetensors_tensor *t =
            loader_find(l, "%slayers.%" PRId64 ".linear_attn.conv1d.weight", l->text_prefix, i);
        if (!t || t->n_dims != 3) continue;
        l->channels_last = t->shape[2] == 1;
        break;
    }
    return STATUS_OK;
}

static bool has_component(const char *name, const char *wanted) {
    size_t n = strlen(wanted);
    for (const char *p = name; p; p = strchr(p, '.') ? strchr(p, '.') + 1 : NULL)
        if (!strncmp(p, wanted, n) && (p[n] == '.' || !p[n])) return true;
    return false;
}

static bool is_vision(const char *name) {
    static const char *const parts[] = {"visual", "vision_tower", "vision_model", "multi_modal_projector"};
    for (size_t i = 0; i < N_OF(parts); i++)
        if (has_component(name, parts[i])) return true;
    return false;
}

static enum status refuse_leftovers(struct weights_loader *l) {
    for (size_t i = 0; i < checkpoint_count(l->checkpoint); i++) {
        const struct safetensors_tensor *t = checkpoint_tensor_at(l->checkpoint, i);
        if (l->used[i] || is_vision(t->name)) continue;
        if (!l->weights->mtp.present && l->mtp_prefix && !strncmp(t->name, l->mtp_prefix, strlen(l->mtp_prefix)))
            continue;
        if (l->config->tied && l->head_prefix && has_component(t->name, "lm_head"))
            return error_set(l->error, STATUS_INVALID,
                             "%s: tensor %s is there, but config.json says that the output is "
                             "tied to the embedding",
                             t->file, t->name);
        return error_set(l->error, STATUS_INVALID, "%s: tensor %s has no place in the model that config.json describes",
                         t->file, t->name);
    }
    return STATUS_OK;
}

// ---- the whole ----

static enum status take_text(struct weights_loader *l) {
    const struct model_config *c = l->config;
    struct model_weights *w = l->weights;
    struct matrix_shape table = {0, c->n_vocab, c->n_hidden, false};
    float norm_add = l->channels_last ? 0 : 1;
    l->census = &w->census;
    enum status status = loader_take_matrix(l, l->text_prefix, "embed_tokens", table, &w->embedding);
    if (!status && !c->tied)
        status = loader_take_matrix(l, l->head_prefix ? l->head_prefix : "", "lm_head", table, &w->output);
    if (status) return status;
    if (c->tied) w->output = w->embedding;
    status = loader_take_vector(l, l->text_prefix, "norm.weight", c->n_hidden, 0, norm_add, &w->final_norm);
    if (status) return status;
    w->layers = loader_alloc(l, c->n_layers, sizeof *w->layers);
    if (!w->layers) return error_memory(l->error);
    for (int64_t i = 0; i < c->n_layers && !status; i++) {
        char prefix[TENSOR_NAME_BYTES];
        snprintf(prefix, sizeof prefix, "%slayers.%" PRId64 ".", l->text_prefix, i);
        status = loader_take_layer(l, prefix, c->layers[i], norm_add, &w->layers[i]);
    }
    return status;
}

enum status weights_load(const struct checkpoint *c, const struct model_config *config, struct model_weights **out,
                         struct error *e) {
    struct model_weights *w = calloc(1, sizeof *w);
    bool *used = calloc(checkpoint_count(c) + 1, sizeof *used);
    enum status status = STATUS_OK;
    if (!w || !used || !(w->arena = arena_create(0))) status = error_memory(e);
    struct weights_loader l = {.checkpoint = c, .config = config, .weights = w, .used = used, .error = e};
    if (!status) status = find_layout(&l);
    if (!status) status = take_text(&l);
    if (!status) status = loader_take_mtp(&l, &w->mtp);
    if (!status) status = refuse_leftovers(&l);
    free(used);
    if (status)
        weights_free(w);
    else
        *out = w;
    return status;
}

void weights_free(struct model_weights *w) {
    if (!w) return;
    arena_free(w->arena);
    free(w);
}

int64_t weights_count(const struct weight_census *census) {
    int64_t n = 0;
    for (size_t i = 0; i < N_OF(census->n_by_bits); i++) n += census->n_by_bits[i];
    return n;
}
