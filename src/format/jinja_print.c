// str() and repr() of values as Python has them.
#include "format/jinja_render.h"
#include "format/json.h"
#include "format/unicode.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

// str.isprintable: all but controls, unassigned code points and separators other than the blank.
static bool is_printable(uint32_t cp) {
    utf8proc_category_t c = utf8proc_category((int32_t)cp);
    return cp == ' ' || (c != UTF8PROC_CATEGORY_CN && c < UTF8PROC_CATEGORY_ZS);
}

// A string in quotes. The result is never trusted: it stands in the repr of a structure.
static bool append_quoted(struct render *r, struct builder *b, const struct value *text) {
    bool has_single = memchr(text->text, '\'', text->n), has_double = memchr(text->text, '"', text->n);
    char quote = has_single && !has_double ? '"' : '\'', escape[16];
    if (text->markup && !builder_append(r, b, "Markup(", 7, false)) return false;
    if (!builder_append(r, b, &quote, 1, false)) return false;
    for (size_t at = 0, end; at < text->n; at = end) {
        end = at;
        uint32_t cp = unicode_next(text->text, text->n, &end);
        const char *shown = text->text + at;
        size_t n = end - at;
        if (cp == (uint32_t)quote || cp == '\\')
            n = (size_t)snprintf(escape, sizeof escape, "\\%c", (char)cp);
        else if (cp == '\n' || cp == '\r' || cp == '\t')
            n = (size_t)snprintf(escape, sizeof escape, "\\%c", cp == '\n' ? 'n' : cp == '\r' ? 'r' : 't');
        else if (is_printable(cp))
            escape[0] = '\0';
        else
            n = (size_t)snprintf(escape, sizeof escape,
                                 cp < 0x100     ? "\\x%02x"
                                 : cp < 0x10000 ? "\\u%04x"
                                                : "\\U%08x",
                                 cp);
        if (!is_printable(cp) || cp == (uint32_t)quote || cp == '\\') shown = escape;
        if (!builder_append(r, b, shown, n, false) || !render_step(r, 1)) return false;
    }
    return builder_append(r, b, &quote, 1, false) && (!text->markup || builder_append(r, b, ")", 1, false));
}

static bool append_word(struct render *r, struct builder *b, const char *word) {
    return builder_append(r, b, word, strlen(word), false);
}

static bool append_pairs(struct render *r, struct builder *b, size_t n, const struct value *keys,
                         const struct value *values) {
    if (!append_word(r, b, "{")) return false;
    for (size_t i = 0; i < n; i++)
        if ((i && !append_word(r, b, ", ")) || !value_append_repr(r, b, &keys[i]) || !append_word(r, b, ": ") ||
            !value_append_repr(r, b, &values[i]))
            return false;
    return append_word(r, b, "}");
}

static bool append_sequence(struct render *r, struct builder *b, const struct sequence *s) {
    static const char *const open[] = {"[", "(", "", "dict_keys([", "dict_values([", "dict_items(["};
    static const char *const close[] = {"]", ")", "", "])", "])", "])"};
    if (s->kind == SEQUENCE_RANGE) {
        char text[96];
        snprintf(text, sizeof text,
                 s->step == 1 ? "range(%" PRId64 ", %" PRId64 ")" : "range(%" PRId64 ", %" PRId64 ", %" PRId64 ")",
                 s->start, s->stop, s->step);
        return append_word(r, b, text);
    }
    if (!append_word(r, b, open[s->kind])) return false;
    for (size_t i = 0; i < s->n; i++) {
        struct value item;
        if ((i && !append_word(r, b, ", ")) || !sequence_item(r, s, i, &item) || !value_append_repr(r, b, &item))
            return false;
    }
    if (s->kind == SEQUENCE_TUPLE && s->n == 1 && !append_word(r, b, ",")) return false;
    return append_word(r, b, close[s->kind]);
}

static bool append_loop(struct render *r, struct builder *b, const struct value *v) {
    struct value length;
    char text[64];
    if (!value_attribute(r, v, "length", 6, &length)) return false;
    snprintf(text, sizeof text, "<LoopContext %" PRId64 "/%" PRId64 ">", v->loop->index0 + 1, length.integer);
    return append_word(r, b, text);
}

static bool append_structure(struct render *r, struct builder *b, const struct value *v) {
    const struct value *keys, *values;
    const struct name *name;
    switch (v->type) {
    case VALUE_UNDEFINED: return append_word(r, b, "Undefined");
    case VALUE_SEQUENCE: return append_sequence(r, b, v->sequence);
    case VALUE_DICT: return dict_arrays(r, v->dict, &keys, &values) && append_pairs(r, b, v->dict->n, keys, values);
    case VALUE_NAMESPACE:
        return append_word(r, b, "<Namespace ") && append_pairs(r, b, v->space->n, v->space->names, v->space->values) &&
               append_word(r, b, ">");
    case VALUE_MACRO:
        name = &r->t->names[v->macro->node->name];
        return append_word(r, b, "<Macro '") && builder_append(r, b, name->text, name->n, false) &&
               append_word(r, b, "'>");
    case VALUE_LOOP: return append_loop(r, b, v);
    default: return render_fail(r, STATUS_UNSUPPORTED, "a %s cannot be printed", value_type_name(v));
    }
}

bool value_append_repr(struct render *r, struct builder *b, const struct value *v) {
    struct value text;
    bool ok;
    if (!render_enter(r)) return false;
    if (v->type == VALUE_STRING)
        ok = append_quoted(r, b, v);
    else if (v->type == VALUE_NONE || value_is_number(v))
        ok = value_to_text(r, v, &text) && builder_append(r, b, text.text, text.n, false);
    else
        ok = append_structure(r, b, v);
    render_leave(r);
    return ok;
}

// Reals are written with the fewest digits that read back as the same number, which is Python's repr.
static bool number_text(struct render *r, const struct value *v, struct value *out) {
    buffer_clear(&r->scratch);
    if (v->type == VALUE_INTEGER)
        buffer_printf(&r->scratch, "%" PRId64, v->integer);
    else if (isnan(v->real))
        buffer_append_text(&r->scratch, "nan");
    else if (isinf(v->real))
        buffer_append_text(&r->scratch, v->real > 0 ? "inf" : "-inf");
    else
        json_write_real(&r->scratch, v->real);
    if (r->scratch.failed) {
        r->status = error_memory(r->error);
        return false;
    }
    char *text = render_alloc(r, r->scratch.n, 1);
    if (!text) return false;
    memcpy(text, r->scratch.data, r->scratch.n);
    *out = value_text(text, r->scratch.n, v->trusted);
    return true;
}

bool value_to_text(struct render *r, const struct value *v, struct value *out) {
    struct builder b = {.trusted = false};
    switch (v->type) {
    case VALUE_STRING:
        *out = *v;
        out->markup = false;
        return true;
    case VALUE_UNDEFINED: *out = value_text("", 0, true); return true;
    case VALUE_NONE: *out = value_text("None", 4, v->trusted); return true;
    case VALUE_BOOL:
        *out = v->boolean ? value_text("True", 4, v->trusted) : value_text("False", 5, v->trusted);
        return true;
    case VALUE_INTEGER:
    case VALUE_REAL: return number_text(r, v, out);
    default:
        if (!value_append_repr(r, &b, v)) return false;
        *out = builder_finish(&b);
        return true;
    }
}
