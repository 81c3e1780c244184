// Attributes, subscripts and slices, as Jinja's immutable sandbox over Python's types gives them.
#include "format/jinja_render.h"
#include "format/unicode.h"
#include <string.h>

// What Python's types have besides items. A template that names one of them without calling it gets a method there,
// which is defined and true, even where a mapping has an item of the same name. Those in brackets would change the
// object and are refused by the sandbox.
static const char dict_names[] = " copy fromkeys get items keys values [clear] [pop] [popitem] [setdefault] [update] ";
static const char list_names[] =
    " copy count index [append] [clear] [extend] [insert] [pop] [remove] [reverse] [sort] ";
static const char tuple_names[] = " count index ";
static const char view_names[] = " isdisjoint mapping ";
static const char values_names[] = " mapping ";
static const char integer_names[] = " as_integer_ratio bit_count bit_length conjugate from_bytes to_bytes ";
static const char real_names[] = " as_integer_ratio conjugate fromhex hex is_integer ";
static const char text_names[] =
    " capitalize casefold center count encode endswith expandtabs find format format_map index isalnum isalpha isascii"
    " isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower lstrip"
    " maketrans partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split "
    "splitlines"
    " startswith strip swapcase title translate upper zfill ";

static bool is_word_of(const char *words, const char *name, size_t n, char before, char after) {
    for (size_t i = 0; i < n; i++)
        if ((name[i] < 'a' || name[i] > 'z') && name[i] != '_') return false;
    for (const char *p = words; (p = strchr(p, before)) != NULL; p++)
        if (!strncmp(p + 1, name, n) && p[1 + n] == after) return true;
    return false;
}

static const char *attribute_names(const struct value *v) {
    if (v->type == VALUE_DICT) return dict_names;
    if (v->type == VALUE_STRING) return text_names;
    if (v->type == VALUE_INTEGER || v->type == VALUE_BOOL) return integer_names;
    if (v->type == VALUE_REAL) return real_names;
    if (v->type != VALUE_SEQUENCE) return "";
    switch (v->sequence->kind) {
    case SEQUENCE_LIST: return list_names;
    case SEQUENCE_KEYS:
    case SEQUENCE_ITEMS: return view_names;
    case SEQUENCE_VALUES: return values_names;
    default: return tuple_names;
    }
}

static bool is_name(const char *name, size_t n, const char *word) {
    return n == strlen(word) && !memcmp(name, word, n);
}

static bool number_attribute(const struct value *v, const char *name, size_t n, struct value *out) {
    if (!value_is_number(v)) return false;
    struct value zero = v->type == VALUE_REAL ? value_real(0, true) : value_integer(0, true);
    if (is_name(name, n, "real") || (v->type != VALUE_REAL && is_name(name, n, "numerator"))) {
        *out = v->type == VALUE_REAL ? *v : value_integer(value_as_integer(v), v->trusted);
    } else if (is_name(name, n, "imag")) {
        *out = zero;
    } else if (v->type != VALUE_REAL && is_name(name, n, "denominator")) {
        *out = value_integer(1, true);
    } else {
        return false;
    }
    return true;
}

static bool range_attribute(const struct value *v, const char *name, size_t n, struct value *out) {
    const struct sequence *s = v->type == VALUE_SEQUENCE ? v->sequence : NULL;
    if (!s || s->kind != SEQUENCE_RANGE) return false;
    if (is_name(name, n, "start"))
        *out = value_integer(s->start, true);
    else if (is_name(name, n, "stop"))
        *out = value_integer(s->stop, true);
    else if (is_name(name, n, "step"))
        *out = value_integer(s->step, true);
    else
        return false;
    return true;
}

// The number of items of a loop; the rest of a generator is read for it, as Jinja does.
static bool loop_length(struct render *r, struct loop *loop, int64_t *out) {
    if (!loop->has_length && !value_length(r, &loop->iterated, &loop->length)) {
        if (r->status) return false;
        struct value rest = value_iterator(loop->iterator), list;
        const struct value *items;
        size_t n;
        if (!value_collect(r, &rest, &items, &n) || !value_list(r, SEQUENCE_LIST, items, n, &list)) return false;
        if (!(loop->iterator = value_iterate(r, &list))) return false;
        loop->length = (int64_t)n + loop->index0 + 1 + loop->has_after;
    }
    loop->has_length = true;
    *out = loop->length;
    return true;
}

static bool loop_peek(struct render *r, struct loop *loop) {
    if (!loop->has_after) loop->has_after = iterator_next(r, loop->iterator, &loop->after) == NEXT_ITEM;
    return !r->status;
}

static bool loop_attribute(struct render *r, struct loop *loop, const char *name, size_t n, struct value *out) {
    int64_t length;
    if (is_name(name, n, "index0")) {
        *out = value_integer(loop->index0, true);
    } else if (is_name(name, n, "index")) {
        *out = value_integer(loop->index0 + 1, true);
    } else if (is_name(name, n, "first")) {
        *out = value_bool(loop->index0 == 0);
    } else if (is_name(name, n, "last")) {
        if (!loop_peek(r, loop)) return false;
        *out = value_bool(!loop->has_after);
    } else if (is_name(name, n, "length") || is_name(name, n, "revindex") || is_name(name, n, "revindex0")) {
        if (!loop_length(r, loop, &length)) return false;
        *out = value_integer(n == 6 ? length : length - loop->index0 - (n == 9), true);
    } else if (is_name(name, n, "previtem")) {
        *out = loop->has_before ? loop->before : value_undefined(r, "there is no previous item");
    } else if (is_name(name, n, "nextitem")) {
        if (!loop_peek(r, loop)) return false;
        *out = loop->has_after ? loop->after : value_undefined(r, "there is no next item");
    } else if (is_name(name, n, "depth") || is_name(name, n, "depth0")) {
        *out = value_integer(n == 5, true);
    } else if (is_name(name, n, "changed") || is_name(name, n, "cycle")) {
        *out = (struct value){.type = VALUE_METHOD, .trusted = true};
    } else {
        *out = value_undefined(r, "loop has no attribute '%.*s'", (int)(n > 60 ? 60 : n), name);
    }
    return !r->status;
}

static bool space_attribute(struct render *r, const struct space *space, const struct value *name, struct value *out) {
    for (size_t i = 0; i < space->n; i++) {
        bool same;
        if (!value_equal(r, &space->names[i], name, &same)) return false;
        if (!same) continue;
        *out = space->values[i];
        return true;
    }
    *out = value_undefined(r, "the namespace has no attribute '%.*s'", (int)(name->n > 60 ? 60 : name->n), name->text);
    return !r->status;
}

// getattr(v, name), without the items of a mapping. *found is false where Python's object has no such attribute.
static bool own_attribute(struct render *r, const struct value *v, const char *name, size_t n, struct value *out,
                          bool *found) {
    struct value key = value_text(name, n, true);
    *found = true;
    if (v->type == VALUE_UNDEFINED) return render_fail(r, STATUS_INVALID, "%s", v->hint);
    if (v->type == VALUE_LOOP) return loop_attribute(r, v->loop, name, n, out);
    if (v->type == VALUE_NAMESPACE) return space_attribute(r, v->space, &key, out);
    if (v->type == VALUE_MACRO || v->type == VALUE_FUNCTION || v->type == VALUE_METHOD || v->type == VALUE_ITERATOR)
        return render_fail(r, STATUS_UNSUPPORTED, "attributes of a %s are not supported", value_type_name(v));
    if (number_attribute(v, name, n, out) || range_attribute(v, name, n, out)) return true;
    const char *names = attribute_names(v);
    if (is_word_of(names, name, n, '[', ']')) {
        *out = value_undefined(r, "access to '%.*s' of a %s is not safe", (int)n, name, value_type_name(v));
        return !r->status;
    }
    *found = is_word_of(names, name, n, ' ', ' ');
    if (*found) *out = (struct value){.type = VALUE_METHOD, .trusted = true};
    return true;
}

static bool no_attribute(struct render *r, const struct value *v, const char *name, size_t n, struct value *out) {
    *out = value_undefined(r, "%s%s has no attribute '%.*s'", v->type == VALUE_NONE ? "" : "a ", value_type_name(v),
                           (int)(n > 60 ? 60 : n), name);
    return !r->status;
}

bool value_attribute(struct render *r, const struct value *v, const char *name, size_t n, struct value *out) {
    bool found;
    if (!own_attribute(r, v, name, n, out, &found)) return false;
    if (found) return true;
    if (v->type == VALUE_DICT) {
        struct value key = value_text(name, n, true);
        if (!dict_find(r, v->dict, &key, out, &found)) return false;
    }
    return found || no_attribute(r, v, name, n, out);
}

static size_t text_offset(const struct value *text, size_t index) {
    size_t at = 0;
    while (index-- && at < text->n) unicode_next(text->text, text->n, &at);
    return at;
}

// v[index] of strings and sequences; *found is false outside.
static bool indexed(struct render *r, const struct value *v, int64_t index, struct value *out, bool *found) {
    int64_t n;
    *found = false;
    if (v->type == VALUE_SEQUENCE && v->sequence->kind >= SEQUENCE_KEYS) return true;
    if (!value_length(r, v, &n)) return !r->status;
    if (index < 0) index += n;
    if (index < 0 || index >= n) return true;
    *found = true;
    if (v->type == VALUE_SEQUENCE) return sequence_item(r, v->sequence, (size_t)index, out);
    size_t start = text_offset(v, (size_t)index), end = start;
    unicode_next(v->text, v->n, &end);
    *out = value_part(v, start, end);
    return true;
}

bool value_subscript(struct render *r, const struct value *v, const struct value *key, struct value *out) {
    bool found = false;
    if (v->type == VALUE_UNDEFINED) return render_fail(r, STATUS_INVALID, "%s", v->hint);
    if (v->type == VALUE_DICT) {
        bool hashable =
            key->type != VALUE_DICT && (key->type != VALUE_SEQUENCE || key->sequence->kind != SEQUENCE_LIST);
        if (hashable && !dict_find(r, v->dict, key, out, &found)) return false;
    } else if ((v->type == VALUE_STRING || v->type == VALUE_SEQUENCE) && value_is_integer(key)) {
        if (!indexed(r, v, value_as_integer(key), out, &found)) return false;
    }
    if (found) return true;
    if (key->type == VALUE_STRING) {
        if (!own_attribute(r, v, key->text, key->n, out, &found)) return false;
        return found || no_attribute(r, v, key->text, key->n, out);
    }
    if (value_is_integer(key))
        *out = value_undefined(r, "a %s has no element %lld", value_type_name(v), (long long)value_as_integer(key));
    else
        *out = value_undefined(r, "a %s has no element of that kind", value_type_name(v));
    return !r->status;
}

struct bounds {
    int64_t start, stop, step, n; // n items: start, start + step, ...
};

static bool slice_bound(struct render *r, const struct value *v, int64_t *out) {
    if (v->type == VALUE_MISSING || v->type == VALUE_NONE) return false;
    if (!value_is_integer(v))
        return render_fail(r, STATUS_INVALID, "a slice takes integers, not a %s", value_type_name(v));
    *out = value_as_integer(v);
    return true;
}

// Python's rules for start, stop and step over n items.
static bool slice_range(struct render *r, const struct value given[3], int64_t n, struct bounds *out) {
    int64_t step = 1, low = 0, high = n, at[2];
    slice_bound(r, &given[2], &step);
    if (!r->status && !step) return render_fail(r, STATUS_INVALID, "the step of a slice is 0");
    if (step < 0) {
        low = -1;
        high = n - 1;
    }
    at[0] = step > 0 ? low : high;
    at[1] = step > 0 ? high : low;
    for (int i = 0; i < 2; i++) {
        int64_t bound;
        if (!slice_bound(r, &given[i], &bound)) continue;
        if (bound < 0) bound += n;
        at[i] = bound < low ? low : bound > high ? high : bound;
    }
    if (r->status) return false;
    int64_t span = step > 0 ? at[1] - at[0] : at[0] - at[1];
    uint64_t stride = step > 0 ? (uint64_t)step : -(uint64_t)step;
    *out = (struct bounds){at[0], at[1], step, span > 0 ? (int64_t)(((uint64_t)span - 1) / stride + 1) : 0};
    return true;
}

static bool slice_text(struct render *r, const struct value *v, const struct bounds *b, struct value *out) {
    if (!b->n) {
        *out = value_part(v, 0, 0);
        return true;
    }
    if (b->step == 1) {
        size_t start = text_offset(v, (size_t)b->start);
        struct value rest = value_part(v, start, v->n);
        *out = value_part(&rest, 0, text_offset(&rest, (size_t)b->n));
        return true;
    }
    size_t count = unicode_count(v->text, v->n), at = 0;
    uint32_t *offsets = v->n < UINT32_MAX ? render_alloc(r, count + 1, sizeof *offsets) : NULL;
    if (!offsets) return r->status ? false : render_fail(r, STATUS_LIMIT, "a string is too long to slice");
    for (size_t i = 0; i < count; i++) {
        offsets[i] = (uint32_t)at;
        unicode_next(v->text, v->n, &at);
    }
    offsets[count] = (uint32_t)v->n;
    struct builder text = {.trusted = true};
    for (int64_t i = 0, index = b->start; i < b->n; i++, index = i < b->n ? index + b->step : index) {
        struct value character = value_part(v, offsets[index], offsets[index + 1]);
        if (!render_step(r, 1) || !builder_append_value(r, &text, &character)) return false;
    }
    *out = builder_finish(&text);
    out->markup = v->markup;
    return true;
}

bool value_slice(struct render *r, const struct value *v, const struct value given[3], struct value *out) {
    int64_t n;
    struct bounds b = {0};
    const struct sequence *s = v->type == VALUE_SEQUENCE ? v->sequence : NULL;
    if (v->type == VALUE_UNDEFINED) return render_fail(r, STATUS_INVALID, "%s", v->hint);
    if ((!s && v->type != VALUE_STRING) || (s && s->kind >= SEQUENCE_KEYS))
        return render_fail(r, STATUS_INVALID, "a %s cannot be sliced", value_type_name(v));
    if (!value_length(r, v, &n) || !slice_range(r, given, n, &b)) return false;
    if (!s) return slice_text(r, v, &b, out);
    if (s->kind == SEQUENCE_RANGE) {
        if (!value_list(r, SEQUENCE_RANGE, NULL, (size_t)b.n, out)) return false;
        out->sequence->start = s->start + b.start * s->step;
        out->sequence->stop = s->start + b.stop * s->step;
        return !__builtin_mul_overflow(s->step, b.step, &out->sequence->step) ||
               render_fail(r, STATUS_UNSUPPORTED, "an integer does not fit into 64 bits");
    }
    struct value *items = render_alloc(r, (size_t)b.n + 1, sizeof *items);
    if (!items || !render_step(r, (uint64_t)b.n)) return false;
    for (int64_t i = 0; i < b.n; i++)
        if (!sequence_item(r, s, (size_t)(b.start + i * b.step), &items[i])) return false;
    return value_list(r, s->kind, items, (size_t)b.n, out);
}
