// Methods of strings, mappings, lists and the loop.
#include "format/jinja_render.h"
#include "format/unicode.h"
#include <string.h>

static bool no_method(struct render *r, const struct value *v, const char *name) {
    if (v->type == VALUE_UNDEFINED) return render_fail(r, STATUS_INVALID, "%s", v->hint);
    return render_fail(r, STATUS_INVALID, "%s%s has no method '%s'", v->type == VALUE_NONE ? "" : "a ",
                       value_type_name(v), name);
}

static bool need_text(struct render *r, const struct value *v, const char *name) {
    return v->type == VALUE_STRING || no_method(r, v, name);
}

static bool is_none(const struct value *v) { return v->type == VALUE_MISSING || v->type == VALUE_NONE; }

// Methods of markup give markup.
static bool keep_markup(const struct value *text, bool ok, struct value *out) {
    if (ok) out->markup = text->markup;
    return ok;
}

// ---- splitting ----

struct pieces {
    struct value *items;
    size_t n, capacity;
};

static bool add_piece(struct render *r, struct pieces *p, const struct value *text, size_t start, size_t end) {
    if (p->n == p->capacity) {
        size_t capacity = p->capacity ? p->capacity * 2 : 4;
        struct value *items = render_alloc(r, capacity, sizeof *items);
        if (!items) return false;
        if (p->n) memcpy(items, p->items, p->n * sizeof *items);
        p->items = items;
        p->capacity = capacity;
    }
    p->items[p->n++] = value_part(text, start, end);
    return render_step(r, 1);
}

static size_t skip(const struct value *text, size_t at, bool space, bool backwards) {
    while (backwards ? at > 0 : at < text->n) {
        size_t next = at;
        uint32_t cp = backwards ? unicode_previous(text->text, &next) : unicode_next(text->text, text->n, &next);
        if (unicode_is_space(cp) != space) break;
        at = next;
    }
    return at;
}

// Words between white space; the rest after `limit` splits keeps its inner and far white space.
static bool split_words(struct render *r, const struct value *text, int64_t limit, bool backwards, struct pieces *p) {
    size_t at = skip(text, backwards ? text->n : 0, true, backwards), end_of_text = backwards ? 0 : text->n;
    while (at != end_of_text) {
        size_t end = limit == 0 ? end_of_text : skip(text, at, false, backwards);
        if (!add_piece(r, p, text, backwards ? end : at, backwards ? at : end)) return false;
        at = skip(text, end, true, backwards);
        limit -= limit > 0;
    }
    return true;
}

static bool split_at(struct render *r, const struct value *text, const struct value *separator, int64_t limit,
                     struct pieces *p) {
    size_t start = 0, found;
    while (limit && (found = text_find(text, separator, start)) != SIZE_MAX) {
        if (!add_piece(r, p, text, start, found)) return false;
        start = found + separator->n;
        limit -= limit > 0;
    }
    return add_piece(r, p, text, start, text->n);
}

// The last place of part in text[start..end). Callers have paid for the worst case in steps.
static size_t find_last(const struct value *text, const struct value *part, size_t start, size_t end) {
    if (part->n > end - start) return SIZE_MAX;
    for (size_t at = end - part->n + 1; at-- > start;)
        if (!memcmp(text->text + at, part->text, part->n)) return at;
    return SIZE_MAX;
}

static bool split_at_right(struct render *r, const struct value *text, const struct value *separator, int64_t limit,
                           struct pieces *p) {
    size_t end = text->n, found;
    while (limit && (found = find_last(text, separator, 0, end)) != SIZE_MAX) {
        if (!add_piece(r, p, text, found + separator->n, end)) return false;
        end = found;
        limit -= limit > 0;
    }
    return add_piece(r, p, text, 0, end);
}

static bool split(struct render *r, const struct value *args, bool backwards, struct value *out) {
    struct pieces p = {0};
    int64_t limit = -1;
    uint64_t work = (args->n / 16 + 1) * (args[1].n / 16 + 1);
    if (!need_text(r, args, "split") || !arg_integer(r, &args[2], "maxsplit", &limit) || !render_step(r, work))
        return false;
    if (limit < 0) limit = -1;
    if (is_none(&args[1])) {
        if (!split_words(r, args, limit, backwards, &p)) return false;
    } else {
        if (!arg_text(r, &args[1], "a separator")) return false;
        if (!args[1].n) return render_fail(r, STATUS_INVALID, "an empty separator");
        if (!(backwards ? split_at_right(r, args, &args[1], limit, &p) : split_at(r, args, &args[1], limit, &p)))
            return false;
    }
    for (size_t i = 0; backwards && i < p.n / 2; i++) {
        struct value swap = p.items[i];
        p.items[i] = p.items[p.n - 1 - i];
        p.items[p.n - 1 - i] = swap;
    }
    return value_list(r, SEQUENCE_LIST, p.items, p.n, out);
}

static bool method_split(struct render *r, const struct value *args, struct value *out) {
    return split(r, args, false, out);
}

static bool method_rsplit(struct render *r, const struct value *args, struct value *out) {
    return split(r, args, true, out);
}

static bool method_splitlines(struct render *r, const struct value *args, struct value *out) {
    int64_t keep_ends = 0;
    return need_text(r, args, "splitlines") && arg_integer(r, &args[1], "keepends", &keep_ends) &&
           text_split_lines(r, args, keep_ends != 0, out);
}

// ---- stripping, replacing, case ----

static bool strip(struct render *r, const struct value *args, bool left, bool right, struct value *out) {
    const struct value *chars = is_none(&args[1]) ? NULL : &args[1];
    if (!need_text(r, args, "strip") || (chars && !arg_text(r, chars, "what 'strip' removes"))) return false;
    return text_strip(r, args, chars, left, right, out);
}

static bool method_strip(struct render *r, const struct value *args, struct value *out) {
    return strip(r, args, true, true, out);
}

static bool method_lstrip(struct render *r, const struct value *args, struct value *out) {
    return strip(r, args, true, false, out);
}

static bool method_rstrip(struct render *r, const struct value *args, struct value *out) {
    return strip(r, args, false, true, out);
}

static bool method_replace(struct render *r, const struct value *args, struct value *out) {
    int64_t count = -1;
    struct value with = args[2];
    if (!need_text(r, args, "replace") || !arg_text(r, &args[1], "what 'replace' looks for") ||
        !arg_text(r, &with, "what 'replace' puts in") || !arg_integer(r, &args[3], "the count", &count))
        return false;
    if (args->markup && !text_escape(r, &args[2], &with)) return false;
    return keep_markup(args, text_replace(r, args, &args[1], &with, count, out), out);
}

static bool method_upper(struct render *r, const struct value *args, struct value *out) {
    return need_text(r, args, "upper") && keep_markup(args, text_case(r, args, CASE_UPPER, out), out);
}

static bool method_lower(struct render *r, const struct value *args, struct value *out) {
    return need_text(r, args, "lower") && keep_markup(args, text_case(r, args, CASE_LOWER, out), out);
}

static bool method_title(struct render *r, const struct value *args, struct value *out) {
    return need_text(r, args, "title") && keep_markup(args, text_case(r, args, CASE_TITLE, out), out);
}

static bool method_capitalize(struct render *r, const struct value *args, struct value *out) {
    return need_text(r, args, "capitalize") && keep_markup(args, text_case(r, args, CASE_CAPITALIZE, out), out);
}

static bool property(struct render *r, const struct value *args, const char *name, struct value *out) {
    if (!need_text(r, args, name) || !render_step(r, args->n / 4)) return false;
    *out = value_bool(text_is(args, name + 2)); // behind "is"
    return true;
}

#define PROPERTY_METHOD(name)                                                                                          \
    static bool method_##name(struct render *r, const struct value *args, struct value *out) {                         \
        return property(r, args, #name, out);                                                                          \
    }
PROPERTY_METHOD(isalpha)
PROPERTY_METHOD(isdigit)
PROPERTY_METHOD(islower)
PROPERTY_METHOD(isspace)
PROPERTY_METHOD(isupper)

// ---- looking for text ----

static bool has_end(const struct value *text, const struct value *part, bool at_start) {
    return part->n <= text->n && !memcmp(text->text + (at_start ? 0 : text->n - part->n), part->text, part->n);
}

// startswith and endswith take a string or a tuple of strings.
static bool has_any_end(struct render *r, const struct value *args, bool at_start, struct value *out) {
    const char *name = at_start ? "startswith" : "endswith";
    bool yes = false;
    if (!need_text(r, args, name)) return false;
    if (args[1].type == VALUE_SEQUENCE && args[1].sequence->kind == SEQUENCE_TUPLE) {
        for (size_t i = 0; i < args[1].sequence->n && !yes; i++) {
            struct value part;
            if (!sequence_item(r, args[1].sequence, i, &part) || !arg_text(r, &part, "each prefix or suffix"))
                return false;
            yes = has_end(args, &part, at_start);
        }
    } else {
        if (!arg_text(r, &args[1], "a prefix or suffix")) return false;
        yes = has_end(args, &args[1], at_start);
    }
    *out = value_bool(yes);
    return render_step(r, args[1].n / 16);
}

static bool method_startswith(struct render *r, const struct value *args, struct value *out) {
    return has_any_end(r, args, true, out);
}

static bool method_endswith(struct render *r, const struct value *args, struct value *out) {
    return has_any_end(r, args, false, out);
}

static bool method_removeprefix(struct render *r, const struct value *args, struct value *out) {
    if (!need_text(r, args, "removeprefix") || !arg_text(r, &args[1], "a prefix")) return false;
    *out = value_part(args, has_end(args, &args[1], true) ? args[1].n : 0, args->n);
    return true;
}

static bool method_removesuffix(struct render *r, const struct value *args, struct value *out) {
    if (!need_text(r, args, "removesuffix") || !arg_text(r, &args[1], "a suffix")) return false;
    *out = value_part(args, 0, args->n - (has_end(args, &args[1], false) ? args[1].n : 0));
    return true;
}

// find, rfind and index with Python's optional bounds, which are places of characters; -1: not there.
static bool find(struct render *r, const struct value *args, bool last, int64_t *out) {
    int64_t n, bounds[2] = {0, INT64_MAX};
    if (!arg_text(r, &args[1], "what is looked for") || !value_length(r, args, &n)) return false;
    for (int i = 0; i < 2; i++) {
        if (!is_none(&args[2 + i]) && !arg_integer(r, &args[2 + i], "a bound", &bounds[i])) return false;
        if (bounds[i] < 0) bounds[i] = bounds[i] + n < 0 ? 0 : bounds[i] + n;
    }
    if (bounds[1] > n) bounds[1] = n;
    *out = -1;
    if (bounds[0] > n || bounds[0] > bounds[1]) return true;
    struct value slice, from = value_integer(bounds[0], true), to = value_integer(bounds[1], true);
    if (!value_slice(r, args, (struct value[3]){from, to, {0}}, &slice)) return false;
    size_t at = last ? find_last(&slice, &args[1], 0, slice.n) : text_find(&slice, &args[1], 0);
    if (at != SIZE_MAX) *out = bounds[0] + (int64_t)unicode_count(slice.text, at);
    return render_step(r, (args->n / 16 + 1) * (args[1].n / 16 + 1));
}

static bool method_find(struct render *r, const struct value *args, struct value *out) {
    int64_t at;
    if (!need_text(r, args, "find") || !find(r, args, false, &at)) return false;
    *out = value_integer(at, false);
    return true;
}

static bool method_rfind(struct render *r, const struct value *args, struct value *out) {
    int64_t at;
    if (!need_text(r, args, "rfind") || !find(r, args, true, &at)) return false;
    *out = value_integer(at, false);
    return true;
}

static bool is_list_like(const struct value *v) {
    return v->type == VALUE_SEQUENCE && v->sequence->kind < SEQUENCE_KEYS;
}

static bool method_index(struct render *r, const struct value *args, struct value *out) {
    int64_t at = -1;
    if (!is_list_like(args)) {
        if (!need_text(r, args, "index") || !find(r, args, false, &at)) return false;
    } else if (value_given(&args[2]) || value_given(&args[3])) {
        return render_fail(r, STATUS_UNSUPPORTED, "'index' with bounds is supported for strings only");
    }
    for (size_t i = 0; is_list_like(args) && at < 0 && i < args->sequence->n; i++) {
        struct value item;
        bool same;
        if (!sequence_item(r, args->sequence, i, &item) || !value_equal(r, &item, &args[1], &same)) return false;
        if (same) at = (int64_t)i;
    }
    if (at < 0) return render_fail(r, STATUS_INVALID, "'index' does not find its argument");
    *out = value_integer(at, false);
    return true;
}

static bool method_count(struct render *r, const struct value *args, struct value *out) {
    int64_t n = 0;
    if (is_list_like(args)) {
        for (size_t i = 0; i < args->sequence->n; i++) {
            struct value item;
            bool same;
            if (!sequence_item(r, args->sequence, i, &item) || !value_equal(r, &item, &args[1], &same)) return false;
            n += same;
        }
    } else {
        if (!need_text(r, args, "count") || !arg_text(r, &args[1], "what is counted")) return false;
        if (!args[1].n) n = (int64_t)unicode_count(args->text, args->n) + 1;
        for (size_t at = 0; args[1].n && (at = text_find(args, &args[1], at)) != SIZE_MAX; at += args[1].n) n++;
        if (!render_step(r, args->n / 16 + (uint64_t)n)) return false;
    }
    *out = value_integer(n, false);
    return true;
}

static bool method_join(struct render *r, const struct value *args, struct value *out) {
    if (args->type == VALUE_STRING && args->markup)
        return render_fail(r, STATUS_UNSUPPORTED, "'join' is not supported for what went through 'safe'");
    return need_text(r, args, "join") && value_join(r, args, &args[1], false, out);
}

// ---- mappings and the loop ----

// keys(), values() and items() are views in Python: they have a length and can be walked again, and have no items by
// index.
bool dict_view(struct render *r, const struct dict *d, enum sequence_kind kind, struct value *out) {
    const struct value *keys, *values;
    if (!dict_arrays(r, d, &keys, &values)) return false;
    if (kind != SEQUENCE_ITEMS) return value_list(r, kind, kind == SEQUENCE_KEYS ? keys : values, d->n, out);
    struct value *pairs = render_alloc(r, d->n + 1, sizeof *pairs),
                 *items = render_alloc(r, 2 * d->n + 1, sizeof *items);
    if (!pairs || !items || !render_step(r, d->n)) return false;
    for (size_t i = 0; i < d->n; i++) {
        items[2 * i] = keys[i];
        items[2 * i + 1] = values[i];
        if (!value_list(r, SEQUENCE_TUPLE, items + 2 * i, 2, &pairs[i])) return false;
    }
    return value_list(r, SEQUENCE_ITEMS, pairs, d->n, out);
}

static bool method_items(struct render *r, const struct value *args, struct value *out) {
    return args->type == VALUE_DICT ? dict_view(r, args->dict, SEQUENCE_ITEMS, out) : no_method(r, args, "items");
}

static bool method_keys(struct render *r, const struct value *args, struct value *out) {
    return args->type == VALUE_DICT ? dict_view(r, args->dict, SEQUENCE_KEYS, out) : no_method(r, args, "keys");
}

static bool method_values(struct render *r, const struct value *args, struct value *out) {
    return args->type == VALUE_DICT ? dict_view(r, args->dict, SEQUENCE_VALUES, out) : no_method(r, args, "values");
}

static bool method_get(struct render *r, const struct value *args, struct value *out) {
    bool found;
    if (args->type != VALUE_DICT) return no_method(r, args, "get");
    if (!dict_find(r, args->dict, &args[1], out, &found)) return false;
    if (!found) *out = value_given(&args[2]) ? args[2] : value_none();
    return true;
}

static bool method_cycle(struct render *r, const struct value *args, struct value *out) {
    if (args->type != VALUE_LOOP) return no_method(r, args, "cycle");
    int64_t n = 0;
    while (n < JINJA_ARGS_MAX - 1 && value_given(&args[n + 1])) n++;
    *out = args[1 + args->loop->index0 % n];
    return true;
}

// Methods that would change a list or mapping: the sandbox knows them, and lets no template call them.
static bool method_changing(struct render *r, const struct value *args, struct value *out) {
    (void)out;
    if (args->type == VALUE_UNDEFINED) return render_fail(r, STATUS_INVALID, "%s", args->hint);
    return render_fail(r, STATUS_INVALID, "a template may not change a %s", value_type_name(args));
}

const struct builtin jinja_methods[] = {
    {"append", method_changing, "/ 1!"},
    {"capitalize", method_capitalize, ""},
    {"count", method_count, "/ sub!"},
    {"cycle", method_cycle, "/ 1! 2 3 4 5"},
    {"clear", method_changing, ""},
    {"endswith", method_endswith, "/ suffix!"},
    {"extend", method_changing, "/ 1!"},
    {"find", method_find, "/ sub! start end"},
    {"get", method_get, "/ key! default"},
    {"index", method_index, "/ sub! start end"},
    {"insert", method_changing, "/ 1! 2!"},
    {"isalpha", method_isalpha, ""},
    {"isdigit", method_isdigit, ""},
    {"islower", method_islower, ""},
    {"isspace", method_isspace, ""},
    {"isupper", method_isupper, ""},
    {"items", method_items, ""},
    {"join", method_join, "/ iterable!"},
    {"keys", method_keys, ""},
    {"lower", method_lower, ""},
    {"lstrip", method_lstrip, "/ chars"},
    {"pop", method_changing, "/ 1 2"},
    {"removeprefix", method_removeprefix, "/ prefix!"},
    {"removesuffix", method_removesuffix, "/ suffix!"},
    {"remove", method_changing, "/ 1!"},
    {"replace", method_replace, "/ old! new! count"},
    {"rfind", method_rfind, "/ sub! start end"},
    {"rsplit", method_rsplit, "sep maxsplit"},
    {"rstrip", method_rstrip, "/ chars"},
    {"setdefault", method_changing, "/ 1! 2"},
    {"split", method_split, "sep maxsplit"},
    {"splitlines", method_splitlines, "keepends"},
    {"startswith", method_startswith, "/ prefix!"},
    {"strip", method_strip, "/ chars"},
    {"title", method_title, ""},
    {"update", method_changing, "1"},
    {"upper", method_upper, ""},
    {"values", method_values, ""},
    {NULL, NULL, NULL},
};
