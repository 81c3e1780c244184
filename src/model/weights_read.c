#include "model/weights_internal.h"

#include "base/numeric.h"
#include "format/mlx.h"
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void *loader_alloc(struct weights_loader *l, int64_t n, size_t size) {
    return arena_alloc_zero(l->weights->arena, n > 0 ? (size_t)n : 1, size);
}

static const struct safetensors_tensor *find_named(struct weights_loader *l, const char *name) {
    size_t i;
    if (!checkpoint_find(l->checkpoint, name, &i)) return NULL;
    return checkpoint_tensor_at(l->checkpoint, i);
}

const struct safetensors_tensor *loader_find(struct weights_loader *l, const char *format, ...) {
    char name[TENSOR_NAME_BYTES];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(name, sizeof name, format, args);
    va_end(args);
    must(n >= 0 && (size_t)n < sizeof name);
    return find_named(l, name);
}

static void mark_used(struct weights_loader *l, const struct safetensors_tensor *t) {
    size_t i;
    must(checkpoint_find(l->checkpoint, t->name, &i));
    must(!l->used[i]);
    l->used[i] = true;
    l->weights->used_bytes += (int64_t)t->bytes;
    if (l->census == &l->weights->mtp_census) l->weights->mtp_bytes += (int64_t)t->bytes;
}

static enum status missing(struct weights_loader *l, const char *prefix, const char *name, const char *suffix) {
    return error_set(l->error, STATUS_INVALID, "%s: tensor %s%s%s is missing", checkpoint_folder(l->checkpoint), prefix,
                     name, suffix);
}

static bool value_type(const struct safetensors_tensor *t, enum dtype *out) {
    switch (t->type) {
    case SAFETENSORS_BF16: *out = DTYPE_BF16; return true;
    case SAFETENSORS_F16: *out = DTYPE_F16; return true;
    case SAFETENSORS_F32: *out = DTYPE_F32; return true;
    default: return false;
    }
}

static enum status wrong_type(struct weights_loader *l, const struct safetensors_tensor *t, const char *wanted) {
    return error_set(l->error, STATUS_UNSUPPORTED, "%s: tensor %s is %s; supported here is %s", t->file, t->name,
                     safetensors_type_name(t->type), wanted);
}

static bool shape_is(const struct safetensors_tensor *t, const int64_t *shape, int n_dims) {
    return t->n_dims == n_dims && !memcmp(t->shape, shape, (size_t)n_dims * sizeof *shape);
}

static enum status wrong_shape(struct weights_loader *l, const struct safetensors_tensor *t, const int64_t *shape,
                               int n_dims) {
    char found[96], wanted[96];
    struct safetensors_tensor w = {.n_dims = n_dims};
    memcpy(w.shape, shape, (size_t)n_dims * sizeof *shape);
    return error_set(l->error, STATUS_INVALID, "%s: tensor %s has shape %s, but by config.json it must be %s", t->file,
                     t->name, safetensors_shape_text(t, found, sizeof found),
                     safetensors_shape_text(&w, wanted, sizeof wanted));
}

// ---- vectors ----

// Element i, wherever the bytes lie: a file may place a tensor at any offset.
static float element(const struct safetensors_tensor *t, int64_t i) {
    uint16_t half;
    float value;
    if (t->type == SAFETENSORS_F32) {
        memcpy(&value, t->data + i * 4, 4);
        return value;
    }
    memcpy(&half, t->data + i * 2, 2);
    return t->type == SAFETENSORS_BF16 ? bf16_to_float(half) : f16_to_float(half);
}

enum status loader_take_vector(struct weights_loader *l, const char *prefix, const char *name, int64_t n_rows,
                               int64_t n_taps, float add, const float **out) {
    const struct safetensors_tensor *t = loader_find(l, "%s%s", prefix, name);
    if (!t) return missing(l, prefix, name, "");
    enum dtype type;
    if (!value_type(t, &type)) return wrong_type(l, t, "BF16, F16 or F32");
    const int64_t vector[] = {n_rows}, taps_last[] = {n_rows, 1, n_taps}, channels_last[] = {n_rows, n_taps, 1};
    const int64_t *shape = !n_taps ? vector : l->channels_last ? channels_last : taps_last;
    int n_dims = n_taps ? 3 : 1;
    if (!shape_is(t, shape, n_dims)) return wrong_shape(l, t, shape, n_dims);
    int64_t n = n_rows * (n_taps ? n_taps : 1);
    float *values = loader_alloc(l, n, sizeof *values);
    if (!values) return error_memory(l->error);
    for (int64_t i = 0; i < n; i++) {
        values[i] = element(t, i) + add;
        if (!isfinite(values[i]))
            return error_set(l->error, STATUS_INVALID, "%s: tensor %s holds a value that is not finite, at %" PRId64,
                             t->file, t->name, i);
    }
    mark_used(l, t);
    l->census->n_by_bits[dtype_bytes(type) * 8] += n;
    *out = values;
    return STATUS_OK;
}

// ---- matrices ----

// The tensor's bytes, copied if they do not lie at a multiple of `align` in the mapping.
static enum status aligned_data(struct weights_loader *l, const struct safetensors_tensor *t, size_t align,
                                const void **out) {
    if ((uintptr_t)t->data % align == 0) {
        *out = t->data;
        return STATUS_OK;
    }
    void *copy = arena_alloc(l->weights->arena, t->bytes);
    if (!copy) return error_memory(l->error);
    memcpy(copy, t->data, t->bytes);
    l->weights->copied_bytes += (int64_t)t->bytes;
    *out = copy;
    return STATUS_OK;
}

// The shape of a tensor of this matrix whose rows have n_col entries.
static int matrix_dims(struct matrix_shape m, int64_t n_col, int64_t dims[3]) {
    int n = 0;
    if (m.n_stack) dims[n++] = m.n_stack;
    dims[n++] = m.n_out;
    dims[n++] = n_col;
    return n;
}

static enum status take_plain(struct weights_loader *l, const struct safetensors_tensor *t, const char *module,
                              struct matrix_shape m, struct weight *out) {
    struct weight w = {.kind = WEIGHT_PLAIN, .n_out = (m.n_stack ? m.n_stack : 1) * m.n_out, .n_in = m.n_in};
    if (!value_type(t, &w.dtype))
        return wrong_type(l, t, "BF16, F16 or F32, or U32 codes with .scales and .biases beside them");
    const struct quant_override *o = config_find_override(l->config, module);
    int64_t dims[3];
    int n_dims = matrix_dims(m, m.n_in, dims);
    if (!shape_is(t, dims, n_dims)) return wrong_shape(l, t, dims, n_dims);
    if (o && o->bits)
        return error_set(l->error, STATUS_INVALID, "%s: tensor %s is not quantised, but config.json gives %s %d bits",
                         t->file, t->name, o->path, o->bits);
    enum status status = aligned_data(l, t, dtype_bytes(w.dtype), &w.data);
    if (status) return status;
    mark_used(l, t);
    l->census->n_by_bits[dtype_bytes(w.dtype) * 8] += w.n_out * w.n_in;
    *out = w;
    return STATUS_OK;
}

// Widths come from the shapes; what config.json says of this very module must agree.
static enum status find_widths(struct weights_loader *l, const struct safetensors_tensor *t,
                               const struct safetensors_tensor *scales, const char *module, struct matrix_shape m,
                               struct weight *w) {
    int last = m.n_stack ? 2 : 1;
    char codes_text[96], scales_text[96];
    safetensors_shape_text(t, codes_text, sizeof codes_text);
    safetensors_shape_text(scales, scales_text, sizeof scales_text);
    int64_t dims[3];
    int n_dims = matrix_dims(m, t->shape[last], dims);
    bool fits = t->n_dims == n_dims && shape_is(t, dims, n_dims) && scales->n_dims == n_dims &&
                mlx_find_widths(m.n_in, t->shape[last], scales->shape[last], &w->bits, &w->group);
    if (fits) {
        matrix_dims(m, scales->shape[last], dims);
        fits = shape_is(scales, dims, n_dims);
    }
    if (!fits)
        return error_set(l->error, STATUS_INVALID,
                         "%s: tensor %s of shape %s with scales %s is no affine form of a matrix "
                         "of %" PRId64 " rows and %" PRId64 " columns",
                         t->file, t->name, codes_text, scales_text, m.n_out, m.n_in);
    const struct quant_override *o = config_find_override(l->config, module);
    if (o && (o->bits != w->bits || o->group != w->group))
        return error_set(l->error, STATUS_INVALID,
                         "%s: tensor %s of shape %s with scales %s has %d bits in groups of %d, "
                         "but config.json says %d in groups of %d",
                         t->file, t->name, codes_text, scales_text, w->bits, w->group, o->bits, o->group);
    return STATUS_OK;
}

static enum status take_affine(struct weights_loader *l, const struct safetensors_tensor *t,
                               const struct safetensors_tensor *scales, const char *module, struct matrix_shape m,
                               struct weight *out) {
    struct weight w = {.kind = WEIGHT_AFFINE, .n_out = (m.n_stack ? m.n_stack : 1) * m.n_out, .n_in = m.n_in};
    const struct safetensors_tensor *biases = loader_find(l, "%s.biases", module);
    if (t->type != SAFETENSORS_U32) return wrong_type(l, t, "U32, as .scales lie beside it");
    if (!value_type(scales, &w.dtype)) return wrong_type(l, scales, "BF16, F16 or F32");
    if (!biases) return missing(l, module, ".biases", "");
    if (biases->type != scales->type) return wrong_type(l, biases, "the type of its .scales");
    enum status status = find_widths(l, t, scales, module, m, &w);
    if (status) return status;
    if (!shape_is(biases, scales->shape, scales->n_dims)) return wrong_shape(l, biases, scales->shape, scales->n_dims);
    status = aligned_data(l, t, 4, &w.data);
    if (!status) status = aligned_data(l, scales, dtype_bytes(w.dtype), &w.scales);
    if (!status) status = aligned_data(l, biases, dtype_bytes(w.dtype), &w.biases);
    if (status) return status;
    mark_used(l, t);
    mark_used(l, scales);
    mark_used(l, biases);
    l->census->n_by_bits[w.bits] += w.n_out * w.n_in;
    *out = w;
    return STATUS_OK;
}

enum status loader_take_matrix(struct weights_loader *l, const char *prefix, const char *name,
                               struct matrix_shape shape, struct weight *out) {
    const char *suffix = shape.bare ? "" : ".weight";
    const struct safetensors_tensor *t = loader_find(l, "%s%s%s", prefix, name, suffix);
    if (!t) return missing(l, prefix, name, suffix);
    char module[TENSOR_NAME_BYTES];
    snprintf(module, sizeof module, "%s%s", prefix, name);
    const struct safetensors_tensor *scales = shape.bare ? NULL : loader_find(l, "%s.scales", module);
    return scales ? take_affine(l, t, scales, module, shape, out) : take_plain(l, t, module, shape, out);
}

struct weight weight_rows(struct weight w, int64_t first, int64_t n) {
    must(first >= 0 && n >= 0 && first + n <= w.n_out);
    w.data = (const char *)w.data + (size_t)first * weight_row_bytes(&w);
    if (w.kind == WEIGHT_AFFINE) {
        size_t skip = (size_t)(first * (w.n_in / w.group)) * dtype_bytes(w.dtype);
        w.scales = (const char *)w.scales + skip;
        w.biases = (const char *)w.biases + skip;
    }
    w.n_out = n;
    return w;
}
