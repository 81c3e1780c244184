// Filters. Each takes its value and its arguments in the order of the parameters in the table at the end.
#include "format/jinja_render.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

bool arg_integer(struct render *r, const struct value *v, const char *what, int64_t *out) {
    if (!value_given(v)) return true;
    if (!value_is_integer(v))
        return render_fail(r, STATUS_INVALID, "%s must be an integer, not a %s", what, value_type_name(v));
    *out = value_as_integer(v);
    return true;
}

bool arg_text(struct render *r, const struct value *v, const char *what) {
    if (v->type == VALUE_STRING) return true;
    if (v->type == VALUE_UNDEFINED) return render_fail(r, STATUS_INVALID, "%s", v->hint);
    return render_fail(r, STATUS_INVALID, "%s must be a str, not a %s", what, value_type_name(v));
}

static bool arg_flag(const struct value *v) { return value_given(v) && value_truth(v); }

static bool filter_abs(struct render *r, const struct value *args, struct value *out) {
    struct value zero = value_integer(0, args->trusted);
    if (args->type == VALUE_REAL) {
        *out = value_real(fabs(args->real), args->trusted);
        return true;
    }
    if (!value_is_integer(args))
        return render_fail(r, STATUS_INVALID, "'abs' needs a number, not a %s", value_type_name(args));
    return render_arithmetic(r, value_as_integer(args) < 0 ? '-' : '+', &zero, args, out);
}

// The value as a string; one that is markup stays so.
static bool soft_text(struct render *r, const struct value *v, struct value *out) {
    bool markup = v->type == VALUE_STRING && v->markup;
    if (!value_to_text(r, v, out)) return false;
    out->markup = markup;
    return true;
}

static bool change_case(struct render *r, const struct value *v, enum text_case how, struct value *out) {
    struct value text;
    if (!soft_text(r, v, &text) || !text_case(r, &text, how, out)) return false;
    out->markup = text.markup && how != CASE_JINJA_TITLE; // which joins its words anew
    return true;
}

static bool filter_upper(struct render *r, const struct value *args, struct value *out) {
    return change_case(r, args, CASE_UPPER, out);
}

static bool filter_lower(struct render *r, const struct value *args, struct value *out) {
    return change_case(r, args, CASE_LOWER, out);
}

static bool filter_capitalize(struct render *r, const struct value *args, struct value *out) {
    return change_case(r, args, CASE_CAPITALIZE, out);
}

static bool filter_title(struct render *r, const struct value *args, struct value *out) {
    return change_case(r, args, CASE_JINJA_TITLE, out);
}

// The length of request data is request data too, so that not even a digit of it is trusted.
static bool filter_length(struct render *r, const struct value *args, struct value *out) {
    int64_t n;
    if (!value_length(r, args, &n)) return render_fail(r, STATUS_INVALID, "a %s has no length", value_type_name(args));
    bool trusted = args->type == VALUE_STRING && args->trusted && !args->trust;
    *out = value_integer(n, trusted);
    return true;
}

static bool filter_default(struct render *r, const struct value *args, struct value *out) {
    bool replace = args->type == VALUE_UNDEFINED || (arg_flag(&args[2]) && !value_truth(args));
    *out = !replace ? *args : value_given(&args[1]) ? args[1] : value_text("", 0, true);
    return !r->status;
}

static bool filter_first(struct render *r, const struct value *args, struct value *out) {
    struct iterator *it = value_iterate(r, args);
    enum next next = it ? iterator_next(r, it, out) : NEXT_ERROR;
    if (next == NEXT_END) *out = value_undefined(r, "No first item, sequence was empty.");
    return next != NEXT_ERROR && !r->status;
}

// reversed(v): an iterator over a sequence from its end.
static bool reversed(struct render *r, const struct value *v, struct iterator **out) {
    struct value sequence = *v;
    const struct value *items;
    size_t n;
    bool listed = v->type == VALUE_STRING || v->type == VALUE_DICT || v->type == VALUE_UNDEFINED;
    if (listed && (!value_collect(r, v, &items, &n) || !value_list(r, SEQUENCE_LIST, items, n, &sequence)))
        return false;
    if (v->type == VALUE_STRING && v->markup)
        return render_fail(r, STATUS_UNSUPPORTED, "the last character of what went through 'safe' is not supported");
    if (sequence.type != VALUE_SEQUENCE)
        return render_fail(r, STATUS_INVALID, "a %s cannot be reversed", value_type_name(v));
    *out = render_alloc(r, 1, sizeof **out);
    if (*out) **out = (struct iterator){.kind = ITERATE_REVERSED, .over = sequence};
    return *out;
}

static bool filter_last(struct render *r, const struct value *args, struct value *out) {
    struct iterator *it;
    if (!reversed(r, args, &it)) return false;
    enum next next = iterator_next(r, it, out);
    if (next == NEXT_END) *out = value_undefined(r, "No last item, sequence was empty.");
    return next != NEXT_ERROR && !r->status;
}

static bool filter_reverse(struct render *r, const struct value *args, struct value *out) {
    struct iterator *it;
    if (args->type == VALUE_STRING)
        return value_slice(r, args, (struct value[3]){{0}, {0}, value_integer(-1, true)}, out);
    if (args->type != VALUE_ITERATOR) {
        if (!reversed(r, args, &it)) return false;
        *out = value_iterator(it);
        return true;
    }
    const struct value *items;
    size_t n;
    if (!value_collect(r, args, &items, &n)) return false;
    struct value *list = render_alloc(r, n + 1, sizeof *list);
    for (size_t i = 0; list && i < n; i++) list[i] = items[n - 1 - i];
    return list && value_list(r, SEQUENCE_LIST, list, n, out);
}

// Without the white space at its ends. Python's numbers do not take the separators U+001C..U+001F for white space.
static bool strip_number(struct render *r, const struct value *text, struct value *out) {
    static const char spaces[] =
        " \t\n\v\f\r\xc2\x85\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009"
        "\u200a\u2028\u2029\u202f\u205f\u3000";
    struct value chars = value_text(spaces, sizeof spaces - 1, true);
    return text_strip(r, text, &chars, true, true, out);
}

// Python's float() of a string, written without the underscores that it allows between digits. False: not a number.
static bool parse_real(struct render *r, const struct value *text, double *out) {
    struct value v;
    if (!strip_number(r, text, &v)) return false;
    char *digits = render_alloc(r, v.n + 1, 1);
    if (!digits) return false;
    size_t n = 0;
    for (size_t i = 0; i < v.n; i++) {
        char c = v.text[i], before = i ? v.text[i - 1] : '\0', after = i + 1 < v.n ? v.text[i + 1] : '\0';
        bool between = before >= '0' && before <= '9' && after >= '0' && after <= '9';
        if (c == '_' && !between) return false;
        if (c <= ' ' || c == 'x' || c == 'X' || c == '(') return false; // strtod knows more than Python
        if (c != '_') digits[n++] = c;
    }
    digits[n] = '\0';
    char *end;
    *out = strtod(digits, &end);
    return n && !*end;
}

// Python's int() of a string in base 10. False without an error: not a number.
static bool parse_integer(struct render *r, const struct value *text, int64_t *out) {
    struct value v;
    if (!strip_number(r, text, &v) || !v.n) return false;
    size_t i = v.text[0] == '+' || v.text[0] == '-';
    bool negative = v.text[0] == '-', digit = false;
    *out = 0;
    for (; i < v.n; i++) {
        char c = v.text[i];
        if (c == '_' && digit) {
            digit = false;
            continue;
        }
        digit = c >= '0' && c <= '9';
        if (!digit) return false;
        if (__builtin_mul_overflow(*out, INT64_C(10), out) ||
            __builtin_add_overflow(*out, negative ? '0' - c : c - '0', out))
            return render_fail(r, STATUS_UNSUPPORTED, "an integer does not fit into 64 bits");
    }
    return digit;
}

// Python reads the digits of all scripts; to take them for text would give another number without a word.
static bool has_foreign_digits(const struct value *text) {
    for (size_t at = 0; at < text->n;) {
        int32_t cp;
        at += (size_t)utf8proc_iterate((const uint8_t *)text->text + at, (utf8proc_ssize_t)(text->n - at), &cp);
        if (cp >= 0x80 && utf8proc_category(cp) == UTF8PROC_CATEGORY_ND) return true;
    }
    return false;
}

// The value as a number if it is or spells one. *found tells; false is an error.
static bool to_number(struct render *r, const struct value *v, bool integers, struct value *out, bool *found) {
    double x = 0;
    *found = true;
    if (v->type == VALUE_UNDEFINED) return render_fail(r, STATUS_INVALID, "%s", v->hint);
    if (value_is_integer(v)) {
        *out = integers ? value_integer(value_as_integer(v), v->trusted)
                        : value_real((double)value_as_integer(v), v->trusted);
        return true;
    }
    if (v->type == VALUE_REAL) {
        *out = *v;
        return true;
    }
    *found = false;
    if (v->type != VALUE_STRING) return true;
    if (has_foreign_digits(v)) return render_fail(r, STATUS_UNSUPPORTED, "digits outside ASCII are not supported");
    int64_t i;
    bool trusted = v->trusted && !v->trust;
    if (integers && parse_integer(r, v, &i)) {
        *out = value_integer(i, trusted);
        return *found = true;
    }
    if (r->status) return false;
    *found = parse_real(r, v, &x);
    *out = value_real(x, trusted);
    return !r->status;
}

static bool filter_int(struct render *r, const struct value *args, struct value *out) {
    bool found;
    int64_t base = 10;
    if (!arg_integer(r, &args[2], "the base", &base)) return false;
    if (base != 10) return render_fail(r, STATUS_UNSUPPORTED, "'int' is supported for base 10 only");
    if (!to_number(r, args, true, out, &found)) return false;
    if (found && out->type == VALUE_REAL) {
        // A number that is infinite is an error, a string that spells one is not a number.
        if (isinf(out->real) && args->type == VALUE_REAL)
            return render_fail(r, STATUS_INVALID, "infinity is not an integer");
        found = isfinite(out->real);
        if (found && fabs(out->real) >= 0x1p63)
            return render_fail(r, STATUS_UNSUPPORTED, "an integer does not fit into 64 bits");
        if (found) *out = value_integer((int64_t)out->real, out->trusted);
    }
    if (!found) *out = value_given(&args[1]) ? args[1] : value_integer(0, true);
    return true;
}

static bool filter_float(struct render *r, const struct value *args, struct value *out) {
    bool found;
    if (!to_number(r, args, false, out, &found)) return false;
    if (!found) *out = value_given(&args[1]) ? args[1] : value_real(0, true);
    return true;
}

static bool filter_round(struct render *r, const struct value *args, struct value *out) {
    int64_t precision = 0;
    char text[400];
    if (!arg_integer(r, &args[1], "the precision", &precision)) return false;
    if (value_given(&args[2]) && !arg_text(r, &args[2], "the method")) return false;
    if (!value_is_number(args))
        return render_fail(r, STATUS_INVALID, "'round' needs a number, not a %s", value_type_name(args));
    if (precision < 0 || precision > 15)
        return render_fail(r, STATUS_UNSUPPORTED, "'round' is supported for 0 to 15 digits");
    const struct value *how = &args[2];
    bool common = !value_given(how) || (how->n == 6 && !memcmp(how->text, "common", 6));
    bool ceiling = !common && how->n == 4 && !memcmp(how->text, "ceil", 4);
    if (!common && !ceiling && (how->n != 5 || memcmp(how->text, "floor", 5)))
        return render_fail(r, STATUS_INVALID, "'round' knows common, ceil and floor");
    double x = value_as_real(args), scale = pow(10, (double)precision);
    if (common && args->type != VALUE_REAL) {
        *out = value_integer(value_as_integer(args), args->trusted);
        return true;
    }
    if (!isfinite(x) && !common) return render_fail(r, STATUS_INVALID, "'round' needs a finite number");
    if (common && isfinite(x)) {
        snprintf(text, sizeof text, "%.*f", (int)precision, x); // correctly rounded, as Python does it
        x = strtod(text, NULL);
    } else if (!common) {
        x = (ceiling ? ceil(x * scale) : floor(x * scale)) / scale;
        if (x == 0) x = 0; // Python's ceil is an integer, which has no -0
    }
    *out = value_real(x, args->trusted);
    return true;
}

static bool filter_string(struct render *r, const struct value *args, struct value *out) {
    return soft_text(r, args, out);
}

static bool filter_safe(struct render *r, const struct value *args, struct value *out) {
    if (!value_to_text(r, args, out)) return false;
    out->markup = true;
    return true;
}

static bool filter_escape(struct render *r, const struct value *args, struct value *out) {
    struct value text;
    return soft_text(r, args, &text) && text_escape(r, &text, out);
}

static bool filter_list(struct render *r, const struct value *args, struct value *out) {
    const struct value *items;
    size_t n;
    return value_collect(r, args, &items, &n) && value_list(r, SEQUENCE_LIST, items, n, out);
}

static bool filter_items(struct render *r, const struct value *args, struct value *out) {
    struct value view = *args;
    if (args->type != VALUE_DICT && args->type != VALUE_UNDEFINED)
        return render_fail(r, STATUS_INVALID, "'items' needs a mapping, not a %s", value_type_name(args));
    if (args->type == VALUE_DICT && !dict_view(r, args->dict, SEQUENCE_ITEMS, &view)) return false;
    struct iterator *it = value_iterate(r, &view);
    if (it) *out = value_iterator(it);
    return it;
}

static bool filter_join(struct render *r, const struct value *args, struct value *out) {
    struct value separator = value_text("", 0, true), items = args[0];
    if (value_given(&args[1]) && !value_to_text(r, &args[1], &separator)) return false;
    if (value_given(&args[2]) && args[2].type != VALUE_NONE) {
        const struct value *from;
        size_t n;
        if (!value_collect(r, args, &from, &n)) return false;
        struct value *list = render_alloc(r, n + 1, sizeof *list);
        if (!list) return false;
        for (size_t i = 0; i < n; i++) {
            list[i] = from[i];
            if (!value_attribute_path(r, &args[2], &list[i])) return false;
        }
        if (!value_list(r, SEQUENCE_LIST, list, n, &items)) return false;
    }
    return value_join(r, &separator, &items, true, out);
}

static bool filter_replace(struct render *r, const struct value *args, struct value *out) {
    struct value text, old, with;
    int64_t count = -1;
    if (args[3].type != VALUE_NONE && !arg_integer(r, &args[3], "the count", &count)) return false;
    return value_to_text(r, &args[0], &text) && value_to_text(r, &args[1], &old) && value_to_text(r, &args[2], &with) &&
           text_replace(r, &text, &old, &with, count, out);
}

static bool filter_trim(struct render *r, const struct value *args, struct value *out) {
    struct value text;
    bool given = value_given(&args[1]) && args[1].type != VALUE_NONE;
    if (given && !arg_text(r, &args[1], "what 'trim' removes")) return false;
    return soft_text(r, args, &text) && text_strip(r, &text, given ? &args[1] : NULL, true, true, out);
}

static bool filter_indent(struct render *r, const struct value *args, struct value *out) {
    struct value indent = args[1], lines, text;
    struct builder b = {.trusted = true};
    int64_t width = 4;
    bool first = arg_flag(&args[2]), blank = arg_flag(&args[3]), trusted = args->trusted && !args->trust;
    if (!arg_text(r, args, "what 'indent' works on")) return false;
    if (indent.type != VALUE_STRING) {
        struct value space = value_text(" ", 1, true), times;
        if (!arg_integer(r, &args[1], "the width", &width)) return false;
        times = value_integer(width, true);
        if (!render_arithmetic(r, '*', &space, &times, &indent)) return false;
    }
    struct value newline = value_text("\n", 1, trusted); // a newline at the end makes one more line, empty or not
    if (!value_concat(r, args, &newline, &text) || !text_split_lines(r, &text, false, &lines)) return false;
    if (first && !builder_append_value(r, &b, &indent)) return false;
    for (size_t i = 0; i < lines.sequence->n; i++) {
        const struct value *line = &lines.sequence->items[i];
        if ((i && !builder_append_value(r, &b, &newline)) ||
            (i && (blank || line->n) && !builder_append_value(r, &b, &indent)) || !builder_append_value(r, &b, line))
            return false;
    }
    *out = builder_finish(&b);
    out->markup = args->markup;
    return true;
}

static bool filter_format(struct render *r, const struct value *args, struct value *out) {
    struct value text, tuple;
    size_t n = 0;
    while (n < JINJA_ARGS_MAX - 1 && value_given(&args[n + 1])) n++;
    return soft_text(r, args, &text) && value_list(r, SEQUENCE_TUPLE, args + 1, n, &tuple) &&
           render_printf(r, &text, &tuple, out);
}

// ---- order ----

// Jinja sorts and compares strings without regard to case unless told otherwise.
static bool fold_key(struct render *r, bool case_sensitive, struct value *key) {
    return case_sensitive || key->type != VALUE_STRING || text_case(r, key, CASE_LOWER, key);
}

// sorted(reverse=...) takes integers only.
static bool reverse_flag(struct render *r, const struct value *v, bool *out) {
    int64_t i = 0;
    if (!arg_integer(r, v, "reverse", &i)) return false;
    *out = i != 0;
    return true;
}

static bool filter_dictsort(struct render *r, const struct value *args, struct value *out) {
    struct value items;
    bool by_value =
        value_given(&args[2]) && args[2].type == VALUE_STRING && args[2].n == 5 && !memcmp(args[2].text, "value", 5);
    if (value_given(&args[2]) && !by_value &&
        (args[2].type != VALUE_STRING || args[2].n != 3 || memcmp(args[2].text, "key", 3)))
        return render_fail(r, STATUS_INVALID, "'dictsort' sorts by key or value");
    if (args->type != VALUE_DICT)
        return render_fail(r, STATUS_INVALID, "'dictsort' needs a mapping, not a %s", value_type_name(args));
    bool reverse;
    if (!reverse_flag(r, &args[3], &reverse) || !dict_view(r, args->dict, SEQUENCE_ITEMS, &items)) return false;
    size_t n = items.sequence->n;
    struct value *keys = render_alloc(r, n + 1, sizeof *keys);
    if (!keys) return false;
    for (size_t i = 0; i < n; i++) {
        keys[i] = items.sequence->items[i].sequence->items[by_value];
        if (!fold_key(r, arg_flag(&args[1]), &keys[i])) return false;
    }
    return value_sort(r, items.sequence->items, keys, n, reverse, out);
}

// sort(attribute="a,b.c"): the keys are lists with one value for each.
static bool filter_sort(struct render *r, const struct value *args, struct value *out) {
    const struct value *items, *path = &args[3];
    size_t n, n_parts = 1;
    bool text = path->type == VALUE_STRING, reverse;
    for (size_t i = 0; text && i < path->n; i++) n_parts += path->text[i] == ',';
    if (!reverse_flag(r, &args[1], &reverse) || !value_collect(r, args, &items, &n)) return false;
    struct value *keys = render_alloc(r, n + 1, sizeof *keys);
    for (size_t i = 0; keys && i < n; i++) {
        struct value *parts = render_alloc(r, n_parts, sizeof *parts);
        if (!parts || !value_list(r, SEQUENCE_LIST, parts, n_parts, &keys[i])) return false;
        for (size_t k = 0, start = 0, end; k < n_parts; k++, start = end + 1) {
            struct value part = *path;
            for (end = start; text && end < path->n && path->text[end] != ','; end++) {
            }
            if (text) part = value_part(path, start, end);
            parts[k] = items[i];
            if (!value_attribute_path(r, &part, &parts[k]) || !fold_key(r, arg_flag(&args[2]), &parts[k])) return false;
        }
    }
    return keys && value_sort(r, items, keys, n, reverse, out);
}

// min and max: the first of equal items, as in Python.
static bool extreme(struct render *r, const struct value *args, bool largest, struct value *out) {
    struct iterator *it = value_iterate(r, args);
    struct value item, key, best_key = {0};
    enum next next = NEXT_ERROR;
    *out = value_undefined(r, "No aggregated item, sequence was empty.");
    while (it && (next = iterator_next(r, it, &item)) == NEXT_ITEM) {
        bool better = !value_given(&best_key);
        key = item;
        if (!value_attribute_path(r, &args[2], &key) || !fold_key(r, arg_flag(&args[1]), &key)) return false;
        if (!better &&
            !(largest ? value_less(r, &best_key, &key, ">", &better) : value_less(r, &key, &best_key, "<", &better)))
            return false;
        if (!better) continue;
        *out = item;
        best_key = key;
    }
    return next == NEXT_END && !r->status;
}

static bool filter_max(struct render *r, const struct value *args, struct value *out) {
    return extreme(r, args, true, out);
}
static bool filter_min(struct render *r, const struct value *args, struct value *out) {
    return extreme(r, args, false, out);
}

static bool filter_sum(struct render *r, const struct value *args, struct value *out) {
    struct iterator *it = value_iterate(r, args);
    struct value item, sum = value_given(&args[2]) ? args[2] : value_integer(0, true);
    enum next next = NEXT_ERROR;
    while (it && (next = iterator_next(r, it, &item)) == NEXT_ITEM)
        if (!value_attribute_path(r, &args[1], &item) || !render_arithmetic(r, '+', &sum, &item, &sum)) return false;
    *out = sum;
    return next == NEXT_END;
}

const struct builtin jinja_filter_map = {"map", NULL, "attribute! default"};

const struct builtin jinja_filters[] = {
    {"abs", filter_abs, ""},
    {"capitalize", filter_capitalize, ""},
    {"count", filter_length, ""},
    {"d", filter_default, "default_value boolean"},
    {"default", filter_default, "default_value boolean"},
    {"dictsort", filter_dictsort, "case_sensitive by reverse"},
    {"e", filter_escape, ""},
    {"escape", filter_escape, ""},
    {"first", filter_first, ""},
    {"float", filter_float, "default"},
    {"format", filter_format, "/ 1 2 3 4 5"},
    {"indent", filter_indent, "width first blank"},
    {"int", filter_int, "default base"},
    {"items", filter_items, ""},
    {"join", filter_join, "d attribute"},
    {"last", filter_last, ""},
    {"length", filter_length, ""},
    {"list", filter_list, ""},
    {"lower", filter_lower, ""},
    {"max", filter_max, "case_sensitive attribute"},
    {"min", filter_min, "case_sensitive attribute"},
    {"reject", NULL, ""},
    {"rejectattr", NULL, ""},
    {"replace", filter_replace, "old! new! count"},
    {"reverse", filter_reverse, ""},
    {"round", filter_round, "precision method"},
    {"safe", filter_safe, ""},
    {"select", NULL, ""},
    {"selectattr", NULL, ""},
    {"sort", filter_sort, "reverse case_sensitive attribute"},
    {"string", filter_string, ""},
    {"sum", filter_sum, "attribute start"},
    {"title", filter_title, ""},
    {"tojson", value_to_json, "ensure_ascii indent separators sort_keys"},
    {"trim", filter_trim, "chars"},
    {"unique", NULL, "case_sensitive attribute"},
    {"upper", filter_upper, ""},
    {NULL, NULL, NULL},
};
