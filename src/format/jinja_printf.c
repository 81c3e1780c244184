// Python's "%": "%s has %d" % (name, n).
#include "format/jinja_render.h"
#include "format/unicode.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define FIELD_MAX 200 // width and precision

struct conversion {
    bool left, plus, space, zero, alternate;
    int width, precision; // precision -1: not given
    char type;
};

struct printer {
    struct render *r;
    const struct value *format;
    size_t at;
    const struct value *args; // a tuple's items, or the one argument
    const struct dict *mapping;
    size_t n_args, used;
    struct builder out;
};

static bool malformed(struct printer *p) {
    return render_fail(p->r, STATUS_INVALID, "the format string of '%%' is malformed");
}

static char peek(const struct printer *p) { return p->at < p->format->n ? p->format->text[p->at] : '\0'; }

static bool read_number(struct printer *p, int *out) {
    for (*out = 0; peek(p) >= '0' && peek(p) <= '9'; p->at++) {
        *out = *out * 10 + (peek(p) - '0');
        if (*out > FIELD_MAX)
            return render_fail(p->r, STATUS_UNSUPPORTED, "'%%' is supported for widths up to %d", FIELD_MAX);
    }
    return true;
}

// "(key)" of a mapping, or the next argument.
static bool next_argument(struct printer *p, bool named, const struct value *key, struct value *out) {
    bool found;
    if (!named) {
        if (p->used == p->n_args)
            return render_fail(p->r, STATUS_INVALID, "not enough arguments for the format string");
        *out = p->args[p->used++];
        return true;
    }
    if (!p->mapping) return render_fail(p->r, STATUS_INVALID, "the format string needs a mapping");
    if (!dict_find(p->r, p->mapping, key, out, &found)) return false;
    p->used = p->n_args;
    return found || render_fail(p->r, STATUS_INVALID, "the format string names a key that the mapping lacks");
}

static bool read_conversion(struct printer *p, struct conversion *c) {
    *c = (struct conversion){.precision = -1};
    for (;; p->at++) {
        char f = peek(p);
        if (f == '-')
            c->left = true;
        else if (f == '+')
            c->plus = true;
        else if (f == ' ')
            c->space = true;
        else if (f == '0')
            c->zero = true;
        else if (f == '#')
            c->alternate = true;
        else
            break;
    }
    if (!read_number(p, &c->width)) return false;
    if (peek(p) == '.') {
        p->at++;
        if (!read_number(p, &c->precision)) return false;
    }
    if (peek(p) == '*') return render_fail(p->r, STATUS_UNSUPPORTED, "'*' in a format string is not supported");
    while (peek(p) == 'h' || peek(p) == 'l' || peek(p) == 'L') p->at++;
    c->type = peek(p);
    p->at++;
    return c->type || malformed(p);
}

static bool fill(struct printer *p, char with, int64_t n) {
    for (; n > 0; n--)
        if (!builder_append(p->r, &p->out, &with, 1, true)) return false;
    return true;
}

// The text in a field: the sign and prefix stand before zeros, and behind blanks.
static bool put_field(struct printer *p, const struct conversion *c, const char *prefix, const struct value *text) {
    int64_t n = (int64_t)unicode_count(text->text, text->n) + (int64_t)strlen(prefix), pad = c->width - n;
    bool zeros = c->zero && !c->left && c->type != 's' && c->type != 'r' && c->type != 'c';
    return (c->left || zeros || fill(p, ' ', pad)) &&
           builder_append(p->r, &p->out, prefix, strlen(prefix), text->trusted) && (!zeros || fill(p, '0', pad)) &&
           builder_append_value(p->r, &p->out, text) && (!c->left || fill(p, ' ', pad)) &&
           render_step(p->r, text->n / 16);
}

static const char *sign(const struct conversion *c, bool negative) {
    return negative ? "-" : c->plus ? "+" : c->space ? " " : "";
}

// The sign is written apart from the digits, because Python writes -ff where C writes a complement.
static bool put_integer(struct printer *p, const struct conversion *c, const struct value *v) {
    char digits[FIELD_MAX + 32], prefix[8];
    bool decimal = strchr("diu", c->type);
    if (!value_is_integer(v) && !(decimal && v->type == VALUE_REAL)) {
        if (v->type == VALUE_UNDEFINED) return render_fail(p->r, STATUS_INVALID, "%s", v->hint);
        return render_fail(p->r, STATUS_INVALID, "'%%%c' needs a number, not a %s", c->type, value_type_name(v));
    }
    if (v->type == VALUE_REAL && !(fabs(v->real) < 0x1p63))
        return render_fail(p->r, STATUS_UNSUPPORTED, "an integer does not fit into 64 bits");
    int64_t i = v->type == VALUE_REAL ? (int64_t)v->real : value_as_integer(v);
    uint64_t magnitude = i < 0 ? -(uint64_t)i : (uint64_t)i;
    int least = c->precision < 0 ? 1 : c->precision;
    const char *form = decimal          ? "%.*" PRIu64
                       : c->type == 'o' ? "%.*" PRIo64
                       : c->type == 'x' ? "%.*" PRIx64
                                        : "%.*" PRIX64;
    if (!magnitude && !least) least = 1;
    snprintf(digits, sizeof digits, form, least, magnitude);
    const char *base = !c->alternate || decimal ? "" : c->type == 'o' ? "0o" : c->type == 'x' ? "0x" : "0X";
    snprintf(prefix, sizeof prefix, "%s%s", sign(c, i < 0), base);
    struct value text = value_text(digits, strlen(digits), v->trusted);
    return put_field(p, c, prefix, &text);
}

static bool put_real(struct printer *p, const struct conversion *c, const struct value *v) {
    char digits[FIELD_MAX + 400], form[8];
    if (!value_is_number(v)) {
        if (v->type == VALUE_UNDEFINED) return render_fail(p->r, STATUS_INVALID, "%s", v->hint);
        return render_fail(p->r, STATUS_INVALID, "'%%%c' needs a number, not a %s", c->type, value_type_name(v));
    }
    double x = value_as_real(v);
    if (!isfinite(x) && c->zero)
        return render_fail(p->r, STATUS_UNSUPPORTED, "zeros before a number that is not finite");
    snprintf(form, sizeof form, c->alternate ? "%%#.*%c" : "%%.*%c", c->type);
    snprintf(digits, sizeof digits, form, c->precision < 0 ? 6 : c->precision, fabs(x));
    struct value text = value_text(digits, strlen(digits), v->trusted);
    return put_field(p, c, sign(c, signbit(x) && !isnan(x)), &text);
}

static bool put_text(struct printer *p, const struct conversion *c, const struct value *v) {
    struct value text;
    struct builder repr = {.trusted = false};
    if (c->type == 'r') {
        if (!value_append_repr(p->r, &repr, v)) return false;
        text = builder_finish(&repr);
    } else if (!value_to_text(p->r, v, &text)) {
        return false;
    }
    if (c->precision >= 0) {
        struct value to = value_integer(c->precision, true);
        if (!value_slice(p->r, &text, (struct value[3]){{0}, to, {0}}, &text)) return false;
    }
    return put_field(p, c, "", &text);
}

static bool put_conversion(struct printer *p) {
    struct conversion c;
    struct value key = {0}, v;
    bool named = peek(p) == '(';
    if (named) {
        size_t start = ++p->at, nested = 1;
        for (; p->at < p->format->n; p->at++) {
            nested += peek(p) == '(';
            nested -= peek(p) == ')';
            if (!nested) break;
        }
        if (nested) return malformed(p);
        key = value_part(p->format, start, p->at++);
    }
    if (!read_conversion(p, &c)) return false;
    if (c.type == '%') {
        struct value percent = value_part(p->format, p->at - 1, p->at);
        return builder_append_value(p->r, &p->out, &percent);
    }
    if (!next_argument(p, named, &key, &v)) return false;
    if (strchr("diuoxX", c.type)) return put_integer(p, &c, &v);
    if (strchr("eEfFgG", c.type)) return put_real(p, &c, &v);
    if (c.type == 's' || c.type == 'r') return put_text(p, &c, &v);
    return render_fail(p->r, STATUS_UNSUPPORTED, "a conversion of the format string is not supported");
}

bool render_printf(struct render *r, const struct value *format, const struct value *args, struct value *out) {
    if (format->markup) return render_fail(r, STATUS_UNSUPPORTED, "'%%' is not supported for what went through 'safe'");
    struct printer p = {.r = r, .format = format, .args = args, .n_args = 1, .out = {.trusted = true}};
    if (args->type == VALUE_DICT) p.mapping = args->dict;
    if (args->type == VALUE_SEQUENCE && args->sequence->kind == SEQUENCE_TUPLE) {
        p.args = args->sequence->items;
        p.n_args = args->sequence->n;
    }
    while (p.at < format->n) {
        const char *percent = memchr(format->text + p.at, '%', format->n - p.at);
        size_t end = percent ? (size_t)(percent - format->text) : format->n;
        struct value literal = value_part(format, p.at, end);
        if (!builder_append_value(r, &p.out, &literal)) return false;
        p.at = end + 1;
        if (percent && !put_conversion(&p)) return false;
    }
    // What can be subscripted counts as a mapping, of which the format string need not use anything.
    bool open_ended = args->type == VALUE_DICT || args->type == VALUE_UNDEFINED ||
                      (args->type == VALUE_SEQUENCE && args->sequence->kind != SEQUENCE_TUPLE &&
                       args->sequence->kind < SEQUENCE_KEYS);
    if (p.used < p.n_args && !open_ended)
        return render_fail(r, STATUS_INVALID, "more arguments than the format string takes");
    *out = builder_finish(&p.out);
    return true;
}
