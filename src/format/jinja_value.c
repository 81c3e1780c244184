// Values and what Python's operators ask of them, and the limits of a render: every loop of the interpreter passes
// through render_step, every recursion through render_enter and every allocation through render_alloc.
#include "format/jinja_render.h"
#include "format/unicode.h"
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define CHUNK_BYTES ((size_t)64 << 10)

bool render_fail(struct render *r, enum status code, const char *format, ...) {
    if (r->status) return false;
    char text[ERROR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    r->status = error_set(r->error, code, "chat template, line %u: %s", r->line, text);
    return false;
}

bool render_step(struct render *r, uint64_t n) {
    r->steps += n;
    if (r->steps <= r->limits.max_steps) return true;
    return render_fail(r, STATUS_LIMIT, "rendering takes more than %llu steps",
                       (unsigned long long)r->limits.max_steps);
}

bool render_enter(struct render *r) {
    if (r->depth++ < r->limits.max_depth) return render_step(r, 1);
    return render_fail(r, STATUS_LIMIT, "expressions, calls or values are more than %u deep", r->limits.max_depth);
}

void render_leave(struct render *r) { r->depth--; }

// Most values need a few dozen bytes, which the arena would round up to cache lines: they are cut from chunks. Large
// ones go to the arena directly.
void *render_alloc(struct render *r, size_t n, size_t size) {
    size_t bytes, used = arena_used(r->memory);
    if (r->status) return NULL;
    if (__builtin_mul_overflow(n, size, &bytes) || bytes > r->limits.max_memory_bytes ||
        used > r->limits.max_memory_bytes - bytes) {
        render_fail(r, STATUS_LIMIT, "rendering takes more than %zu MiB of memory", r->limits.max_memory_bytes >> 20);
        return NULL;
    }
    bytes = (bytes + 15) & ~(size_t)15;
    char *memory = NULL;
    if (bytes > CHUNK_BYTES / 8) {
        memory = arena_alloc(r->memory, bytes);
    } else {
        if (bytes > r->chunk_left) {
            r->chunk = arena_alloc(r->memory, CHUNK_BYTES);
            r->chunk_left = r->chunk ? CHUNK_BYTES : 0;
        }
        if (r->chunk_left) {
            memory = r->chunk;
            r->chunk += bytes;
            r->chunk_left -= bytes;
        }
    }
    if (!memory) r->status = error_memory(r->error);
    return memory;
}

// The sentence is kept because undefined values are legal until they are used, often far from where they came from.
struct value value_undefined(struct render *r, const char *format, ...) {
    char text[160];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    size_t kept = unicode_valid_prefix(text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
    char *hint = render_alloc(r, kept + 1, 1);
    if (hint) {
        memcpy(hint, text, kept);
        hint[kept] = '\0';
    }
    return (struct value){.type = VALUE_UNDEFINED, .trusted = true, .hint = hint ? hint : ""};
}

struct value value_part(const struct value *text, size_t start, size_t end) {
    struct value part = *text;
    part.text += start;
    part.n = end - start;
    if (part.trust) part.trust += start;
    return part;
}

// Structures are wrapped and not copied: a template looks at a small part of what a request holds.
struct value value_json(struct render *r, const json_t *json, bool trusted) {
    struct value v = {.type = VALUE_MISSING, .trusted = trusted};
    switch (json_typeof(json)) {
    case JSON_NULL: v.type = VALUE_NONE; break;
    case JSON_TRUE:
    case JSON_FALSE:
        v.type = VALUE_BOOL;
        v.boolean = json_is_true(json);
        break;
    case JSON_INTEGER:
        v.type = VALUE_INTEGER;
        v.integer = json_integer_value(json);
        break;
    case JSON_REAL:
        v.type = VALUE_REAL;
        v.real = json_real_value(json);
        break;
    case JSON_STRING: return value_text(json_string_value(json), json_string_length(json), trusted);
    case JSON_ARRAY:
        v.sequence = render_alloc(r, 1, sizeof *v.sequence);
        if (!v.sequence) break;
        *v.sequence =
            (struct sequence){.kind = SEQUENCE_LIST, .trusted = trusted, .n = json_array_size(json), .json = json};
        v.type = VALUE_SEQUENCE;
        break;
    case JSON_OBJECT:
        v.dict = render_alloc(r, 1, sizeof *v.dict);
        if (!v.dict) break;
        *v.dict = (struct dict){.trusted = trusted, .n = json_object_size(json), .json = json};
        v.type = VALUE_DICT;
        break;
    }
    return v;
}

bool value_list(struct render *r, enum sequence_kind kind, const struct value *items, size_t n, struct value *out) {
    struct sequence *s = render_alloc(r, 1, sizeof *s);
    if (!s) return false;
    *s = (struct sequence){.kind = kind, .n = n, .items = items};
    *out = (struct value){.type = VALUE_SEQUENCE, .sequence = s};
    return true;
}

bool value_dict(struct render *r, const struct value *keys, const struct value *values, size_t n, struct value *out) {
    struct dict *d = render_alloc(r, 1, sizeof *d);
    if (!d) return false;
    *d = (struct dict){.n = n, .keys = keys, .values = values};
    *out = (struct value){.type = VALUE_DICT, .dict = d};
    return true;
}

struct value value_iterator(struct iterator *it) {
    return (struct value){.type = VALUE_ITERATOR, .iterator = it};
}

const char *value_type_name(const struct value *v) {
    static const char *const sequences[] = {"list", "tuple", "range", "dict_keys", "dict_values", "dict_items"};
    switch (v->type) {
    case VALUE_NONE: return "None";
    case VALUE_BOOL: return "bool";
    case VALUE_INTEGER: return "int";
    case VALUE_REAL: return "float";
    case VALUE_STRING: return "str";
    case VALUE_SEQUENCE: return sequences[v->sequence->kind];
    case VALUE_DICT: return "dict";
    case VALUE_ITERATOR: return "generator";
    case VALUE_NAMESPACE: return "namespace";
    case VALUE_MACRO: return "macro";
    case VALUE_LOOP: return "loop";
    case VALUE_FUNCTION:
    case VALUE_METHOD: return "function";
    default: return "undefined";
    }
}

bool value_truth(const struct value *v) {
    switch (v->type) {
    case VALUE_MISSING:
    case VALUE_UNDEFINED:
    case VALUE_NONE: return false;
    case VALUE_BOOL: return v->boolean;
    case VALUE_INTEGER: return v->integer != 0;
    case VALUE_REAL: return v->real != 0;
    case VALUE_STRING: return v->n != 0;
    case VALUE_SEQUENCE: return v->sequence->n != 0;
    case VALUE_DICT: return v->dict->n != 0;
    default: return true;
    }
}

bool sequence_item(struct render *r, const struct sequence *s, size_t i, struct value *out) {
    if (s->json)
        *out = value_json(r, json_array_get(s->json, i), s->trusted);
    else if (s->items)
        *out = s->items[i];
    else
        *out = value_integer(s->start + (int64_t)i * s->step, true);
    return out->type != VALUE_MISSING;
}

bool dict_arrays(struct render *r, const struct dict *d, const struct value **keys, const struct value **values) {
    if (d->json && !d->keys) {
        struct value *k = render_alloc(r, d->n + 1, sizeof *k), *v = render_alloc(r, d->n + 1, sizeof *v);
        if (!k || !v || !render_step(r, d->n)) return false;
        size_t i = 0;
        const char *key;
        json_t *value;
        json_object_foreach((json_t *)d->json, key, value) {
            k[i] = value_text(key, strlen(key), d->trusted);
            v[i] = value_json(r, value, d->trusted);
            if (v[i++].type == VALUE_MISSING) return false;
        }
        struct dict *cached = (struct dict *)d; // the arrays only spare later walks
        cached->keys = k;
        cached->values = v;
    }
    *keys = d->keys;
    *values = d->values;
    return true;
}

// A list or mapping cannot be a key; Python finds that out by asking for its hash.
static bool is_hashable(const struct value *v) {
    return v->type != VALUE_DICT && v->type != VALUE_NAMESPACE &&
           (v->type != VALUE_SEQUENCE || v->sequence->kind != SEQUENCE_LIST);
}

bool dict_find(struct render *r, const struct dict *d, const struct value *key, struct value *out, bool *found) {
    *found = false;
    if (!is_hashable(key)) return render_fail(r, STATUS_INVALID, "a %s cannot be a key", value_type_name(key));
    if (d->json) {
        if (key->type != VALUE_STRING || !key->n) {
            json_t *empty = key->type == VALUE_STRING ? json_object_get(d->json, "") : NULL;
            if (empty) *out = value_json(r, empty, d->trusted);
            *found = empty;
            return !r->status;
        }
        json_t *value = memchr(key->text, 0, key->n) ? NULL : json_object_getn(d->json, key->text, key->n);
        if (value) *out = value_json(r, value, d->trusted);
        *found = value;
        return !r->status;
    }
    for (size_t i = 0; i < d->n && !*found; i++) {
        if (!value_equal(r, &d->keys[i], key, found)) return false;
        if (*found && out) *out = d->values[i];
    }
    return true;
}

// Views of keys and items compare as sets, lists and tuples in order.
static bool equal_items(struct render *r, const struct sequence *a, const struct sequence *b, bool as_sets, bool *out) {
    *out = false;
    if (a->n != b->n) return true;
    struct value x, y, other = {.type = VALUE_SEQUENCE, .sequence = (struct sequence *)b};
    for (size_t i = 0; i < a->n; i++) {
        bool same;
        if (!sequence_item(r, a, i, &x)) return false;
        if (as_sets ? !value_contains(r, &other, &x, &same)
                    : !sequence_item(r, b, i, &y) || !value_equal(r, &x, &y, &same))
            return false;
        if (!same) return true;
    }
    *out = true;
    return true;
}

static bool equal_dicts(struct render *r, const struct dict *a, const struct dict *b, bool *out) {
    const struct value *keys, *values;
    *out = false;
    if (a->n != b->n) return true;
    if (!dict_arrays(r, a, &keys, &values)) return false;
    for (size_t i = 0; i < a->n; i++) {
        struct value other;
        bool found, same = false;
        if (!dict_find(r, b, &keys[i], &other, &found) || (found && !value_equal(r, &values[i], &other, &same)))
            return false;
        if (!same) return true;
    }
    *out = true;
    return true;
}

// x87's long double holds every int64_t and every double.
static long double exact_number(const struct value *v) {
    return v->type == VALUE_REAL ? (long double)v->real : (long double)value_as_integer(v);
}

bool value_equal(struct render *r, const struct value *a, const struct value *b, bool *out) {
    if (!render_enter(r)) return false;
    bool ok = true;
    if (value_is_number(a) && value_is_number(b)) {
        *out = exact_number(a) == exact_number(b);
    } else if (a->type != b->type) {
        *out = false;
    } else if (a->type == VALUE_STRING) {
        *out = a->n == b->n && !memcmp(a->text, b->text, a->n);
        ok = render_step(r, a->n == b->n ? a->n / 16 : 0);
    } else if (a->type == VALUE_DICT) {
        ok = equal_dicts(r, a->dict, b->dict, out);
    } else if (a->type == VALUE_SEQUENCE && a->sequence != b->sequence && a->sequence->kind == b->sequence->kind &&
               a->sequence->kind != SEQUENCE_VALUES) {
        ok = equal_items(r, a->sequence, b->sequence, a->sequence->kind >= SEQUENCE_KEYS, out);
    } else if (a->type == VALUE_NONE || a->type == VALUE_UNDEFINED) {
        *out = true;
    } else {
        *out = a->sequence == b->sequence; // the same object, whatever member of the union it is
    }
    render_leave(r);
    return ok;
}

static int compare_text(const struct value *a, const struct value *b) {
    int order = memcmp(a->text, b->text, a->n < b->n ? a->n : b->n); // UTF-8 sorts as its code points do
    return order ? order : a->n < b->n ? -1 : a->n > b->n;
}

bool value_less(struct render *r, const struct value *a, const struct value *b, const char *op, bool *out) {
    if (!render_enter(r)) return false;
    bool ok = true;
    if (value_is_number(a) && value_is_number(b)) {
        *out = exact_number(a) < exact_number(b);
    } else if (a->type == VALUE_STRING && b->type == VALUE_STRING) {
        *out = compare_text(a, b) < 0;
        ok = render_step(r, (a->n < b->n ? a->n : b->n) / 16);
    } else if (a->type == VALUE_SEQUENCE && b->type == VALUE_SEQUENCE && a->sequence->kind <= SEQUENCE_TUPLE &&
               a->sequence->kind == b->sequence->kind) {
        const struct sequence *s = a->sequence, *t = b->sequence;
        bool same = true;
        *out = s->n < t->n;
        for (size_t i = 0; ok && same && i < s->n && i < t->n; i++) {
            struct value x, y;
            ok = sequence_item(r, s, i, &x) && sequence_item(r, t, i, &y) && value_equal(r, &x, &y, &same);
            if (ok && !same) ok = value_less(r, &x, &y, op, out);
        }
    } else {
        const struct value *undefined = a->type == VALUE_UNDEFINED ? a : b->type == VALUE_UNDEFINED ? b : NULL;
        ok = undefined ? render_fail(r, STATUS_INVALID, "%s", undefined->hint)
                       : render_fail(r, STATUS_INVALID, "'%s' cannot compare a %s with a %s", op, value_type_name(a),
                                     value_type_name(b));
    }
    render_leave(r);
    return ok;
}

bool value_contains(struct render *r, const struct value *container, const struct value *item, bool *out) {
    *out = false;
    if (container->type == VALUE_STRING) {
        if (item->type != VALUE_STRING)
            return render_fail(r, STATUS_INVALID, "'in' needs a str on the left of a str, not a %s",
                               value_type_name(item));
        *out = text_find(container, item, 0) != SIZE_MAX;
        return render_step(r, container->n / 16 + 1);
    }
    if (container->type == VALUE_DICT) {
        struct value ignored;
        return dict_find(r, container->dict, item, &ignored, out);
    }
    struct iterator *it = value_iterate(r, container);
    if (!it) return false;
    struct value v;
    enum next next;
    while ((next = iterator_next(r, it, &v)) == NEXT_ITEM)
        if (!value_equal(r, &v, item, out) || *out) break;
    return next != NEXT_ERROR && !r->status;
}

// Iterators and numbers have no length, and that is an answer here, not an error: `loop.length` falls back on counting.
bool value_length(struct render *r, const struct value *v, int64_t *out) {
    switch (v->type) {
    case VALUE_STRING: *out = (int64_t)unicode_count(v->text, v->n); return render_step(r, v->n / 16);
    case VALUE_SEQUENCE: *out = (int64_t)v->sequence->n; return true;
    case VALUE_DICT: *out = (int64_t)v->dict->n; return true;
    case VALUE_UNDEFINED: *out = 0; return true;
    default: return false;
    }
}

bool value_is_iterable(const struct value *v) {
    return v->type == VALUE_UNDEFINED || (v->type >= VALUE_STRING && v->type <= VALUE_ITERATOR) ||
           v->type == VALUE_LOOP;
}
