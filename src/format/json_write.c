#include "format/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REAL_DIGITS 17 // enough for every double (DBL_DECIMAL_DIG)

// The shortest digits that read back as x (finite, not 0), without trailing zeros; x = 0.d1d2d3... * 10^(*point).
// snprintf's separator depends on the locale, so only digits are taken from its text.
static int shortest_digits(double x, char digits[REAL_DIGITS + 1], int *point) {
    // 15 digits survive the way into a normal double and back, so shorter forms show as trailing zeros; a subnormal
    // holds less, and every length is tried.
    int precision = fabs(x) < 2.2250738585072014e-308 ? 0 : 14;
    char text[48];
    for (;; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, fabs(x));
        if (precision == REAL_DIGITS - 1 || strtod(text, NULL) == fabs(x)) break;
    }
    int n = 0;
    const char *p = text;
    for (; *p != 'e'; p++)
        if (*p >= '0' && *p <= '9') digits[n++] = *p;
    *point = (int)strtol(p + 1, NULL, 10) + 1;
    while (n > 1 && digits[n - 1] == '0') n--;
    digits[n] = '\0';
    return n;
}

bool json_write_real(struct buffer *b, double x) {
    if (!isfinite(x)) return buffer_append(b, "null", 4);
    if (x == 0) return buffer_append_text(b, signbit(x) ? "-0.0" : "0.0");
    char digits[REAL_DIGITS + 1], out[48];
    int point, n = shortest_digits(x, digits, &point), m = 0;
    if (x < 0) out[m++] = '-';
    if (point > 16 || point < -3) {
        m += snprintf(out + m, sizeof out - (size_t)m, n > 1 ? "%c.%se%+03d" : "%c%se%+03d", digits[0], digits + 1,
                      point - 1);
    } else if (point <= 0) {
        m += snprintf(out + m, sizeof out - (size_t)m, "0.%.*s%s", -point, "000", digits);
    } else {
        for (int i = 0; i < point; i++) out[m++] = i < n ? digits[i] : '0';
        out[m++] = '.';
        m += snprintf(out + m, sizeof out - (size_t)m, "%s", n > point ? digits + point : "0");
    }
    return buffer_append(b, out, (size_t)m);
}

bool json_write_escaped(struct buffer *b, const char *text, size_t n) {
    static const char escapes[] = "\"\"\\\\\bb\ff\nn\rr\tt"; // pairs: the character, its letter
    size_t start = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        buffer_append(b, text + start, i - start);
        start = i + 1;
        const char *pair = escapes;
        while (*pair && (unsigned char)*pair != c) pair += 2;
        if (*pair && c)
            buffer_append(b, (char[]){'\\', pair[1]}, 2);
        else
            buffer_printf(b, "\\u%04x", c);
    }
    return buffer_append(b, text + start, n - start);
}

bool json_write_string(struct buffer *b, const char *text, size_t n) {
    buffer_append(b, "\"", 1);
    json_write_escaped(b, text, n);
    return buffer_append(b, "\"", 1);
}

static bool write_scalar(struct buffer *b, const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_STRING: return json_write_string(b, json_string_value(value), json_string_length(value));
    case JSON_INTEGER: return buffer_printf(b, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
    case JSON_REAL: return json_write_real(b, json_real_value(value));
    case JSON_TRUE: return buffer_append(b, "true", 4);
    case JSON_FALSE: return buffer_append(b, "false", 5);
    default: return buffer_append(b, "null", 4);
    }
}

static bool write_break(struct buffer *b, enum json_style style, int depth) {
    if (style != JSON_STYLE_INDENT) return true;
    buffer_append(b, "\n", 1);
    for (int i = 0; i < depth; i++) buffer_append(b, "  ", 2);
    return !b->failed;
}

struct write_frame {
    json_t *container; // jansson's iterators take no const
    void *iterator;    // in an object: the next member
    size_t index;      // members already begun
};

static size_t frame_length(const struct write_frame *f) {
    return json_is_object(f->container) ? json_object_size(f->container) : json_array_size(f->container);
}

// Begins the next member of f: separator, line break, and key. Returns its value.
static const json_t *write_member_start(struct buffer *b, struct write_frame *f, enum json_style style, int depth) {
    if (f->index) buffer_append_text(b, style == JSON_STYLE_SPACED ? ", " : ",");
    write_break(b, style, depth);
    if (json_is_array(f->container)) return json_array_get(f->container, f->index++);
    f->index++;
    const json_t *value = json_object_iter_value(f->iterator);
    const char *key = json_object_iter_key(f->iterator);
    json_write_string(b, key, strlen(key));
    buffer_append_text(b, style == JSON_STYLE_COMPACT ? ":" : ": ");
    f->iterator = json_object_iter_next(f->container, f->iterator);
    return value;
}

bool json_write(struct buffer *b, const json_t *value, enum json_style style) {
    struct write_frame frames[JSON_DEPTH_MAX];
    int depth = 0;
    while (!b->failed) {
        if (json_is_object(value) || json_is_array(value)) {
            if (depth == JSON_DEPTH_MAX) {
                b->failed = true;
                break;
            }
            json_t *container = (json_t *)value;
            frames[depth++] = (struct write_frame){container, json_object_iter(container), 0};
            buffer_append(b, json_is_object(value) ? "{" : "[", 1);
        } else {
            write_scalar(b, value);
        }
        // Close what is complete, then begin the next member of what is not.
        while (depth && frames[depth - 1].index == frame_length(&frames[depth - 1])) {
            struct write_frame *f = &frames[--depth];
            if (f->index) write_break(b, style, depth);
            buffer_append(b, json_is_object(f->container) ? "}" : "]", 1);
        }
        if (!depth) break;
        value = write_member_start(b, &frames[depth - 1], style, depth);
    }
    return !b->failed;
}
