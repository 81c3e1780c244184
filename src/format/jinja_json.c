// The tojson filter of Hugging Face: Python's json.dumps with ensure_ascii=False. What it writes is never trusted.
#include "format/jinja_render.h"
#include "format/unicode.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

struct writer {
    struct render *r;
    struct builder out;
    bool ensure_ascii, sort_keys, has_indent;
    struct value indent, item_separator, key_separator;
    unsigned level;
};

static bool put(struct writer *w, const char *text) { return builder_append(w->r, &w->out, text, strlen(text), false); }

static bool put_text(struct writer *w, const struct value *text) {
    return builder_append(w->r, &w->out, text->text, text->n, false);
}

// Escapes what json.dumps escapes, and copies the stretches between as they are.
static bool put_string(struct writer *w, const struct value *text) {
    static const char names[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt";
    size_t kept = 0; // text up to here is written
    if (!put(w, "\"")) return false;
    for (size_t at = 0, start; at < text->n;) {
        char escape[16];
        start = at;
        uint32_t cp = unicode_next(text->text, text->n, &at);
        const char *named = cp && cp < 0x80 ? strchr(names, (int)cp) : NULL;
        if (named)
            snprintf(escape, sizeof escape, "\\%c", letters[named - names]);
        else if (cp < 0x20 || (w->ensure_ascii && cp >= 0x7f && cp < 0x10000))
            snprintf(escape, sizeof escape, "\\u%04x", cp);
        else if (w->ensure_ascii && cp >= 0x10000)
            snprintf(escape, sizeof escape, "\\u%04x\\u%04x", 0xd7c0 + (cp >> 10), 0xdc00 + (cp & 0x3ff));
        else
            continue;
        struct value before = value_part(text, kept, start);
        if (!put_text(w, &before) || !put(w, escape) || !render_step(w->r, 1)) return false;
        kept = at;
    }
    struct value rest = value_part(text, kept, text->n);
    return put_text(w, &rest) && put(w, "\"") && render_step(w->r, text->n / 16);
}

static bool put_scalar(struct writer *w, const struct value *v) {
    struct value text;
    if (v->type == VALUE_NONE) return put(w, "null");
    if (v->type == VALUE_BOOL) return put(w, v->boolean ? "true" : "false");
    if (v->type == VALUE_REAL && !isfinite(v->real))
        return put(w, isnan(v->real) ? "NaN" : v->real > 0 ? "Infinity" : "-Infinity");
    return value_to_text(w->r, v, &text) && put_text(w, &text);
}

static bool put_newline(struct writer *w) {
    if (!w->has_indent) return true;
    if (!put(w, "\n")) return false;
    for (unsigned i = 0; i < w->level; i++)
        if (!put_text(w, &w->indent)) return false;
    return true;
}

static bool put_value(struct writer *w, const struct value *v);

// Keys that are not strings become strings, as in json.dumps; None is "null".
static bool put_key(struct writer *w, const struct value *key) {
    if (key->type == VALUE_STRING) return put_string(w, key);
    if (key->type != VALUE_NONE && !value_is_number(key))
        return render_fail(w->r, STATUS_INVALID, "'tojson' cannot write a %s as a key", value_type_name(key));
    return put(w, "\"") && put_scalar(w, key) && put(w, "\"");
}

static bool put_dict(struct writer *w, const struct dict *d) {
    const struct value *keys, *values;
    struct value order;
    if (!d->n) return put(w, "{}");
    if (!dict_arrays(w->r, d, &keys, &values)) return false;
    if (w->sort_keys) {
        struct value *index = render_alloc(w->r, d->n, sizeof *index);
        for (size_t i = 0; index && i < d->n; i++) index[i] = value_integer((int64_t)i, true);
        if (!index || !value_sort(w->r, index, keys, d->n, false, &order)) return false;
    }
    w->level++;
    if (!put(w, "{") || !put_newline(w)) return false;
    for (size_t i = 0; i < d->n; i++) {
        size_t at = w->sort_keys ? (size_t)order.sequence->items[i].integer : i;
        if (i && (!put_text(w, &w->item_separator) || !put_newline(w))) return false;
        if (!put_key(w, &keys[at]) || !put_text(w, &w->key_separator) || !put_value(w, &values[at])) return false;
    }
    w->level--;
    return put_newline(w) && put(w, "}");
}

static bool put_list(struct writer *w, const struct sequence *s) {
    if (!s->n) return put(w, "[]");
    w->level++;
    if (!put(w, "[") || !put_newline(w)) return false;
    for (size_t i = 0; i < s->n; i++) {
        struct value item;
        if (i && (!put_text(w, &w->item_separator) || !put_newline(w))) return false;
        if (!sequence_item(w->r, s, i, &item) || !put_value(w, &item)) return false;
    }
    w->level--;
    return put_newline(w) && put(w, "]");
}

static bool put_value(struct writer *w, const struct value *v) {
    bool ok;
    if (!render_enter(w->r)) return false;
    if (v->type == VALUE_STRING)
        ok = put_string(w, v);
    else if (v->type == VALUE_NONE || value_is_number(v))
        ok = put_scalar(w, v);
    else if (v->type == VALUE_DICT)
        ok = put_dict(w, v->dict);
    else if (v->type == VALUE_SEQUENCE && v->sequence->kind <= SEQUENCE_TUPLE)
        ok = put_list(w, v->sequence);
    else if (v->type == VALUE_UNDEFINED)
        ok = render_fail(w->r, STATUS_INVALID, "'tojson' of nothing: %s", v->hint);
    else
        ok = render_fail(w->r, STATUS_INVALID, "'tojson' cannot write a %s", value_type_name(v));
    render_leave(w->r);
    return ok;
}

// args: the value, ensure_ascii, indent, separators, sort_keys.
bool value_to_json(struct render *r, const struct value *args, struct value *out) {
    struct writer w = {.r = r, .item_separator = value_text(", ", 2, true), .key_separator = value_text(": ", 2, true)};
    w.ensure_ascii = value_given(&args[1]) && value_truth(&args[1]);
    w.sort_keys = value_given(&args[4]) && value_truth(&args[4]);
    if (value_given(&args[2]) && args[2].type != VALUE_NONE) {
        int64_t width = 0;
        w.has_indent = true;
        w.indent = args[2];
        w.item_separator.n = 1;
        if (args[2].type != VALUE_STRING) {
            struct value space = value_text(" ", 1, true), times;
            if (!arg_integer(r, &args[2], "the indent", &width)) return false;
            times = value_integer(width, true);
            if (!render_arithmetic(r, '*', &space, &times, &w.indent)) return false;
        }
    }
    if (value_given(&args[3]) && args[3].type != VALUE_NONE) {
        const struct value *v = &args[3];
        bool pair = v->type == VALUE_SEQUENCE && v->sequence->kind <= SEQUENCE_TUPLE && v->sequence->n == 2;
        if (!pair) return render_fail(r, STATUS_INVALID, "the separators of 'tojson' are a pair of strings");
        if (!sequence_item(r, v->sequence, 0, &w.item_separator) ||
            !sequence_item(r, v->sequence, 1, &w.key_separator) || !arg_text(r, &w.item_separator, "a separator") ||
            !arg_text(r, &w.key_separator, "a separator"))
            return false;
    }
    if (!put_value(&w, args)) return false;
    *out = builder_finish(&w.out);
    return true;
}
