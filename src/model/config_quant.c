#include "model/config_internal.h"

#include "format/mlx.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// Exporters put "model.", "language_model." or both, in either order, before the text model.
const char *config_strip_prefix(const char *path) {
    for (;;) {
        if (!strncmp(path, "language_model.", 15))
            path += 15;
        else if (!strncmp(path, "model.", 6))
            path += 6;
        else
            return path;
    }
}

static int by_path(const void *x, const void *y) {
    const struct quant_override *a = x, *b = y;
    return strcmp(a->path, b->path);
}

const struct quant_override *config_find_override(const struct model_config *c, const char *module) {
    if (!c->quant.n_overrides) return NULL;
    struct quant_override key;
    const char *path = config_strip_prefix(module);
    if (strlen(path) >= sizeof key.path) return NULL;
    strcpy(key.path, path);
    return bsearch(&key, c->quant.overrides, c->quant.n_overrides, sizeof key, by_path);
}

// bits and group_size of an object; those it does not give keep their values.
static enum status parse_widths(const struct json_view *v, enum json_need need, int *bits, int *group,
                                struct error *e) {
    int64_t b = *bits, g = *group;
    const char *mode = "affine";
    enum status status = json_get_string(v, "mode", JSON_OPTIONAL, &mode, NULL, e);
    if (!status && strcmp(mode, "affine"))
        return error_set(e, STATUS_UNSUPPORTED, "%s/mode is \"%.40s\"; supported is affine", v->path, mode);
    if (!status) status = json_get_int(v, "bits", need, 1, 64, &b, e);
    if (!status) status = json_get_int(v, "group_size", need, 1, 1 << 20, &g, e);
    if (status) return status;
    if (!mlx_width_valid((int)b))
        return error_set(e, STATUS_UNSUPPORTED, "%s/bits is %" PRId64 "; supported are 2, 3, 4, 5, 6 and 8", v->path,
                         b);
    if (!mlx_group_valid((int)g))
        return error_set(e, STATUS_UNSUPPORTED, "%s/group_size is %" PRId64 "; supported are 32, 64 and 128", v->path,
                         g);
    *bits = (int)b;
    *group = (int)g;
    return STATUS_OK;
}

static enum status parse_override(const struct json_view *v, const char *key, const struct quant_config *q,
                                  struct quant_override *out, struct error *e) {
    const char *path = config_strip_prefix(key);
    if (strlen(path) >= sizeof out->path)
        return error_set(e, STATUS_LIMIT, "%s: the name is longer than %zu bytes", v->path, sizeof out->path - 1);
    strcpy(out->path, path);
    out->bits = q->bits;
    out->group = q->group;
    if (json_is_true(v->value)) return STATUS_OK;
    if (json_is_false(v->value)) {
        out->bits = out->group = 0;
        return STATUS_OK;
    }
    int64_t bits = q->bits;
    enum status status = json_must_be(v, JSON_OBJECT, e);
    if (!status) status = json_get_int(v, "bits", JSON_OPTIONAL, 1, 64, &bits, e);
    if (!status && bits >= 16) { // how some exporters say "not quantised"
        out->bits = out->group = 0;
        return STATUS_OK;
    }
    return status ? status : parse_widths(v, JSON_OPTIONAL, &out->bits, &out->group, e);
}

// The same module may be named under several prefixes, but not with different values.
static enum status merge_overrides(struct quant_config *q, const char *where, struct error *e) {
    qsort(q->overrides, q->n_overrides, sizeof *q->overrides, by_path);
    size_t n = 0;
    for (size_t i = 0; i < q->n_overrides; i++) {
        struct quant_override *last = n ? &q->overrides[n - 1] : NULL, *o = &q->overrides[i];
        if (!last || strcmp(last->path, o->path)) {
            q->overrides[n++] = *o;
        } else if (last->bits != o->bits || last->group != o->group) {
            return error_set(e, STATUS_INVALID, "%s gives two widths for %s, under different prefixes", where, o->path);
        }
    }
    q->n_overrides = n;
    return STATUS_OK;
}

enum status config_parse_quant(const struct json_view *root, const struct json_view *text, struct quant_config *out,
                               struct error *e) {
    static const char *const keys[] = {"quantization", "quantization_config"};
    struct json_view v = {0};
    enum status status = STATUS_OK;
    for (int i = 0; i < 4 && !v.value && !status; i++)
        status = json_get_view(i < 2 ? root : text, keys[i % 2], JSON_OPTIONAL, JSON_OBJECT, &v, e);
    if (status || !v.value) return status;
    const char *method = NULL;
    status = json_get_string(&v, "quant_method", JSON_OPTIONAL, &method, NULL, e);
    if (status) return status;
    if (method)
        return error_set(e, STATUS_UNSUPPORTED,
                         "%s/quant_method is \"%.40s\"; supported are MLX affine weights and "
                         "weights that are not quantised",
                         v.path, method);
    struct quant_config q = {0};
    status = parse_widths(&v, JSON_REQUIRED, &q.bits, &q.group, e);
    if (status) return status;
    q.overrides = calloc(json_length(&v) + 1, sizeof *q.overrides);
    if (!q.overrides) return error_memory(e);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)v.value, key, value) {
        struct json_view member;
        if (!strcmp(key, "bits") || !strcmp(key, "group_size") || !strcmp(key, "mode")) continue;
        if (!json_find(&v, key, &member)) continue;
        status = parse_override(&member, key, &q, &q.overrides[q.n_overrides++], e);
        if (status) break;
    }
    if (!status) status = merge_overrides(&q, v.path, e);
    if (status)
        free(q.overrides);
    else
        *out = q;
    return status;
}
