// A drafter's matrices and vectors: found and checked, then quantised, cut by taps, and brought to the device.
#include "model/drafter_internal.h"

#include "base/machine.h"
#include "base/numeric.h"
#include "base/workers.h"
#include "format/mlx.h"
#include "model/weights_device.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define N_OF(a)        (sizeof(a) / sizeof *(a))
#define NARROW_BITS    4
#define SENSITIVE_BITS 8 // of matrices whose outputs multiply others

// ---- taking ----

static enum status take_base(struct weights_loader *l, const char *prefix, const struct drafter_config *c,
                             const float **out) {
    struct weight w;
    struct matrix_shape shape = {2, c->conv_taps, c->n_hidden, true};
    enum status s = loader_take_matrix(l, prefix, "base_kernel", shape, &w);
    if (s) return s;
    int64_t n = w.n_out * w.n_in;
    float *values = loader_alloc(l, n, sizeof *values);
    if (values == NULL) return error_memory(l->error);
    for (int64_t i = 0; i < n; i++) {
        uint16_t half = w.dtype == DTYPE_F32 ? 0 : ((const uint16_t *)w.data)[i];
        values[i] = w.dtype == DTYPE_F32    ? ((const float *)w.data)[i]
                    : w.dtype == DTYPE_BF16 ? bf16_to_float(half)
                                            : f16_to_float(half);
        if (!isfinite(values[i]))
            return error_set(l->error, STATUS_INVALID, "%s: tensor %sbase_kernel holds a value that is not finite",
                             checkpoint_folder(l->checkpoint), prefix);
    }
    *out = values;
    return STATUS_OK;
}

static enum status take_conv(struct weights_loader *l, const char *layer, const char *name,
                             const struct drafter_config *c, struct drafter_conv *out) {
    char prefix[TENSOR_NAME_BYTES];
    snprintf(prefix, sizeof prefix, "%s%s.", layer, name);
    enum status s = take_base(l, prefix, c, &out->base);
    struct matrix_shape shape = {0, 2 * c->conv_taps * (c->n_hidden / c->conv_group), c->n_hidden, false};
    return s ? s : loader_take_matrix(l, prefix, "kernel_projection", shape, &out->kernels);
}

static enum status take_layer(struct weights_loader *l, const char *prefix, const struct drafter_config *c,
                              struct drafter_layer *out) {
    int64_t H = c->n_hidden, I = c->n_intermediate, Q = c->n_heads * c->head_dim, K = c->n_kv_heads * c->head_dim;
    const struct {
        const char *name;
        int64_t n;
        const float **out;
    } vectors[] = {{"input_layernorm.weight", H, &out->input_norm},
                   {"post_attention_layernorm.weight", H, &out->post_norm},
                   {"self_attn.q_norm.weight", c->head_dim, &out->q_norm},
                   {"self_attn.k_norm.weight", c->head_dim, &out->k_norm}};
    const struct {
        const char *name;
        int64_t n_out, n_in;
        struct weight *out;
    } matrices[] = {{"self_attn.q_proj", Q, H, &out->q}, {"self_attn.k_proj", K, H, &out->k},
                    {"self_attn.v_proj", K, H, &out->v}, {"self_attn.o_proj", H, Q, &out->o},
                    {"mlp.gate_proj", I, H, &out->gate}, {"mlp.up_proj", I, H, &out->up},
                    {"mlp.down_proj", H, I, &out->down}};
    enum status s = STATUS_OK;
    for (size_t i = 0; i < N_OF(vectors) && !s; i++)
        s = loader_take_vector(l, prefix, vectors[i].name, vectors[i].n, 0, 0, vectors[i].out);
    for (size_t i = 0; i < N_OF(matrices) && !s; i++) {
        struct matrix_shape shape = {0, matrices[i].n_out, matrices[i].n_in, false};
        s = loader_take_matrix(l, prefix, matrices[i].name, shape, matrices[i].out);
    }
    if (!s && c->has_selector) s = take_conv(l, prefix, "attention_conv", c, &out->attention_conv);
    if (!s && c->has_selector) s = take_conv(l, prefix, "mlp_conv", c, &out->mlp_conv);
    return s;
}

// Published files leave out the ".weight" of a codebook; some converters add it.
static enum status take_codebook(struct weights_loader *l, const char *name, const struct drafter_config *c,
                                 struct weight *out) {
    struct matrix_shape shape = {0, c->n_vocab, c->rank, loader_find(l, "candidate_selector.%s.weight", name) == NULL};
    enum status s = loader_take_matrix(l, "candidate_selector.", name, shape, out);
    if (!s && out->kind != WEIGHT_PLAIN)
        s = error_set(l->error, STATUS_UNSUPPORTED, "%s: candidate_selector.%s is quantised, which is not supported",
                      checkpoint_folder(l->checkpoint), name);
    return s;
}

static enum status take_all(struct weights_loader *l, const struct drafter_config *c, struct drafter_weights *w) {
    int64_t H = c->n_hidden;
    enum status s = loader_take_matrix(l, "", "fc", (struct matrix_shape){0, H, c->n_tap * H, false}, &w->fc);
    if (!s && w->fc.kind == WEIGHT_AFFINE && H % w->fc.group != 0)
        s = error_set(l->error, STATUS_UNSUPPORTED,
                      "%s: groups of %d of fc do not end where a tapped layer's part ends",
                      checkpoint_folder(l->checkpoint), w->fc.group);
    if (!s) s = loader_take_vector(l, "", "hidden_norm.weight", H, 0, 0, &w->hidden_norm);
    if (!s) s = loader_take_vector(l, "", "norm.weight", H, 0, 0, &w->norm);
    for (int64_t i = 0; i < c->n_layers && !s; i++) {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "layers.%" PRId64 ".", i);
        s = take_layer(l, prefix, c, &w->layers[i]);
    }
    if (s || !c->has_selector) return s;
    s = take_codebook(l, "predecessor_codebook", c, &w->predecessor);
    if (!s) s = take_codebook(l, "successor_codebook", c, &w->successor);
    if (!s)
        s = loader_take_matrix(l, "candidate_selector.", "hidden_projection",
                               (struct matrix_shape){0, c->rank, H, false}, &w->hidden);
    return s;
}

enum status drafter_take_weights(struct drafter *d, struct error *e) {
    size_t n = checkpoint_count(d->checkpoint);
    bool *used = calloc(n + 1, sizeof *used);
    d->loaded = calloc(1, sizeof *d->loaded);
    if (d->loaded != NULL) d->loaded->arena = arena_create(0);
    if (used == NULL || d->loaded == NULL || d->loaded->arena == NULL) {
        free(used);
        return error_memory(e);
    }
    struct model_config widths = {.quant = d->config.quant}; // all that the readers ask of it
    struct weights_loader l = {.checkpoint = d->checkpoint,
                               .config = &widths,
                               .weights = d->loaded,
                               .used = used,
                               .census = &d->loaded->census,
                               .error = e};
    enum status s = take_all(&l, &d->config, &d->weights);
    for (size_t i = 0; i < n && !s; i++) {
        const struct safetensors_tensor *t = checkpoint_tensor_at(d->checkpoint, i);
        if (!used[i])
            s = error_set(e, STATUS_INVALID, "%s: tensor %s has no place in the drafter that config.json describes",
                          t->file, t->name);
    }
    free(used);
    return s;
}

// ---- visiting ----

// Every matrix of the device, with the width that it is quantised to if it is to be. Codebooks stay in host memory.
typedef enum status matrix_fn(void *context, struct weight *w, int bits, struct error *e);

static enum status visit_matrices(struct drafter *d, matrix_fn *fn, void *context, struct error *e) {
    struct drafter_weights *w = &d->weights;
    bool selector = d->config.has_selector, cut = w->fc_of[0].kind != WEIGHT_NONE;
    enum status s = cut ? STATUS_OK : fn(context, &w->fc, NARROW_BITS, e);
    for (int i = 0; cut && i < d->config.n_tap && !s; i++) s = fn(context, &w->fc_of[i], NARROW_BITS, e);
    for (int64_t i = 0; i < d->config.n_layers && !s; i++) {
        struct drafter_layer *l = &w->layers[i];
        struct weight *const wide[] = {&l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down};
        for (size_t k = 0; k < N_OF(wide) && !s; k++) s = fn(context, wide[k], NARROW_BITS, e);
        if (!s && selector) s = fn(context, &l->attention_conv.kernels, SENSITIVE_BITS, e);
        if (!s && selector) s = fn(context, &l->mlp_conv.kernels, SENSITIVE_BITS, e);
    }
    return s || !selector ? s : fn(context, &w->hidden, SENSITIVE_BITS, e);
}

// The group of a matrix that is to be quantised; 0: it stays as it is.
static int group_for(const struct drafter *d, const struct weight *w) {
    if (d->bits == 0 || w->kind != WEIGHT_PLAIN) return 0;
    return w->n_in % 64 == 0 ? 64 : w->n_in % 32 == 0 ? 32 : 0;
}

struct counting {
    const struct drafter *d;
    int64_t bytes;
};

static enum status count_matrix(void *context, struct weight *w, int bits, struct error *e) {
    struct counting *c = context;
    (void)e;
    struct weight used = *w;
    int group = group_for(c->d, w);
    if (group > 0) {
        used.kind = WEIGHT_AFFINE;
        used.dtype = DTYPE_BF16;
        used.bits = bits;
        used.group = group;
    }
    c->bytes += weight_stored_bytes(&used);
    return STATUS_OK;
}

int64_t drafter_count_bytes(const struct drafter *d) {
    struct drafter copy = *d; // visited as matrices that may change, and none does
    struct counting c = {d, 0};
    visit_matrices(&copy, count_matrix, &c, NULL);
    if (d->config.has_selector)
        c.bytes += weight_stored_bytes(&d->weights.predecessor) + weight_stored_bytes(&d->weights.successor);
    return c.bytes;
}

// ---- quantising and cutting, in host memory ----

static void row_as_floats(const struct weight *w, int64_t row, float *out) {
    const char *from = (const char *)w->data + (size_t)row * weight_row_bytes(w);
    for (int64_t i = 0; i < w->n_in; i++) {
        if (w->dtype == DTYPE_F32)
            out[i] = ((const float *)(const void *)from)[i];
        else
            out[i] = w->dtype == DTYPE_BF16 ? bf16_to_float(((const uint16_t *)(const void *)from)[i])
                                            : f16_to_float(((const uint16_t *)(const void *)from)[i]);
    }
}

struct quantising {
    struct drafter *d;
    struct workers *workers;
    // Of the matrix at hand.
    const struct weight *from;
    struct weight to;
    char *codes;
    uint16_t *scales, *biases;
    float *rows; // a row with its scales and biases, for each thread
    atomic_bool not_finite;
};

static void quantise_rows(void *context, long first, long last, int thread) {
    struct quantising *q = context;
    int64_t n_in = q->from->n_in, n_group = n_in / q->to.group;
    float *row = q->rows + thread * (n_in + 2 * n_group), *scale = row + n_in, *bias = scale + n_group;
    for (long o = first; o < last; o++) {
        row_as_floats(q->from, o, row);
        for (int64_t i = 0; i < n_in; i++)
            if (!isfinite(row[i])) {
                atomic_store(&q->not_finite, true);
                return;
            }
        mlx_quantise_row(row, q->to.bits, q->to.group, n_in, q->codes + (size_t)o * weight_row_bytes(&q->to), scale,
                         bias);
        for (int64_t g = 0; g < n_group; g++) {
            q->scales[o * n_group + g] = float_to_bf16(scale[g]);
            q->biases[o * n_group + g] = float_to_bf16(bias[g]);
        }
    }
}

static enum status quantise_matrix(void *context, struct weight *w, int bits, struct error *e) {
    struct quantising *q = context;
    struct arena *arena = q->d->matrices;
    int group = group_for(q->d, w);
    if (group == 0) return STATUS_OK;
    int64_t n_group = w->n_in / group;
    q->from = w;
    q->to = (struct weight){
        .kind = WEIGHT_AFFINE, .dtype = DTYPE_BF16, .bits = bits, .group = group, .n_out = w->n_out, .n_in = w->n_in};
    q->to.data = q->codes = arena_alloc(arena, (size_t)w->n_out * weight_row_bytes(&q->to));
    q->to.scales = q->scales = arena_alloc(arena, (size_t)(w->n_out * n_group) * sizeof *q->scales);
    q->to.biases = q->biases = arena_alloc(arena, (size_t)(w->n_out * n_group) * sizeof *q->biases);
    q->rows = malloc((size_t)(workers_count(q->workers) * (w->n_in + 2 * n_group)) * sizeof *q->rows);
    bool ok = q->codes != NULL && q->scales != NULL && q->biases != NULL && q->rows != NULL;
    if (ok) workers_run(q->workers, (long)w->n_out, 16, quantise_rows, q);
    free(q->rows);
    if (!ok) return error_memory(e);
    if (atomic_load(&q->not_finite))
        return error_set(e, STATUS_INVALID, "%s: a matrix holds a value that is not finite",
                         checkpoint_folder(q->d->checkpoint));
    *w = q->to;
    return STATUS_OK;
}

static enum status quantise_all(struct drafter *d, struct error *e) {
    struct quantising q = {.d = d};
    enum status s = workers_create(machine_cores(), &q.workers, e);
    if (!s) s = visit_matrices(d, quantise_matrix, &q, e);
    workers_free(q.workers);
    return s;
}

// Columns [first, first + n_byte) of rows of row_bytes, one row after another.
static void *cut_columns(struct arena *a, const void *from, int64_t n_row, int64_t row_bytes, int64_t first,
                         int64_t n_byte) {
    char *to = arena_alloc(a, (size_t)(n_row * n_byte));
    for (int64_t r = 0; r < n_row && to != NULL; r++)
        memcpy(to + r * n_byte, (const char *)from + r * row_bytes + first, (size_t)n_byte);
    return to;
}

// fc times the taps side by side is the sum of its parts times one tap each, which need no room side by side.
static enum status cut_fc(struct drafter *d, struct error *e) {
    const struct weight *fc = &d->weights.fc;
    int64_t n_tap = d->config.n_tap, H = d->config.n_hidden, row = (int64_t)weight_row_bytes(fc);
    for (int64_t t = 0; t < n_tap; t++) {
        struct weight part = *fc;
        part.n_in = H;
        part.data = cut_columns(d->matrices, fc->data, H, row, t * (row / n_tap), row / n_tap);
        bool ok = part.data != NULL;
        if (fc->kind == WEIGHT_AFFINE) {
            int64_t groups = n_tap * H / fc->group * (int64_t)dtype_bytes(fc->dtype), own = groups / n_tap;
            part.scales = cut_columns(d->matrices, fc->scales, H, groups, t * own, own);
            part.biases = cut_columns(d->matrices, fc->biases, H, groups, t * own, own);
            ok = ok && part.scales != NULL && part.biases != NULL;
        }
        if (!ok) return error_memory(e);
        d->weights.fc_of[t] = part;
    }
    return STATUS_OK;
}

// ---- to a device that has its own memory ----

static enum status move_matrix(void *context, struct weight *w, int bits, struct error *e) {
    (void)bits;
    (void)e;
    weights_move_linear(context, w);
    return STATUS_OK;
}

static void move_all(struct weights_mover *m, struct drafter *d) {
    struct drafter_weights *w = &d->weights;
    const struct drafter_config *c = &d->config;
    m->used = 0;
    visit_matrices(d, move_matrix, m, NULL);
    weights_move_vector(m, &w->hidden_norm, c->n_hidden);
    weights_move_vector(m, &w->norm, c->n_hidden);
    for (int64_t i = 0; i < c->n_layers; i++) {
        struct drafter_layer *l = &w->layers[i];
        weights_move_vector(m, &l->input_norm, c->n_hidden);
        weights_move_vector(m, &l->post_norm, c->n_hidden);
        weights_move_vector(m, &l->q_norm, c->head_dim);
        weights_move_vector(m, &l->k_norm, c->head_dim);
        if (!c->has_selector) continue;
        weights_move_vector(m, &l->attention_conv.base, 2 * c->conv_taps * c->n_hidden);
        weights_move_vector(m, &l->mlp_conv.base, 2 * c->conv_taps * c->n_hidden);
    }
}

enum status drafter_bring_weights(struct drafter *d, struct error *e) {
    d->matrices = arena_create(0);
    if (d->matrices == NULL) return error_memory(e);
    // All of it, at once: rows of the codebooks are read here and there later, while the device waits for them.
    enum status s = checkpoint_prefetch(d->checkpoint, NULL, NULL, e);
    if (!s) s = cut_fc(d, e);
    if (!s) s = quantise_all(d, e);
    if (s || d->device->memory == NULL) return s;
    struct weights_mover m = {.device = d->device};
    move_all(&m, d);
    m.memory = d->device->alloc(d->device, (size_t)m.used);
    if (m.memory == NULL)
        return error_set(e, STATUS_MEMORY, "%s has no %.2f GiB for the drafter", d->device->name,
                         (double)m.used / (1024.0 * 1024.0 * 1024.0));
    d->device_weights = m.memory;
    move_all(&m, d);
    s = d->device->sync(d->device, e);
    arena_reset(d->matrices);
    return s;
}
