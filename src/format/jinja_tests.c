// Tests ("is defined"), and finding filters, tests and methods by name.
#include "format/jinja_render.h"
#include <math.h>
#include <string.h>

static bool answer(struct value *out, bool yes) {
    *out = value_bool(yes);
    return true;
}

static bool test_remainder(struct render *r, const struct value *v, const struct value *by, int64_t expected,
                           struct value *out) {
    struct value remainder, want = value_integer(expected, true);
    bool same;
    if (!render_arithmetic(r, '%', v, by, &remainder) || !value_equal(r, &remainder, &want, &same)) return false;
    return answer(out, same);
}

static bool test_odd(struct render *r, const struct value *args, struct value *out) {
    struct value two = value_integer(2, true);
    return test_remainder(r, args, &two, 1, out);
}

static bool test_even(struct render *r, const struct value *args, struct value *out) {
    struct value two = value_integer(2, true);
    return test_remainder(r, args, &two, 0, out);
}

static bool test_divisibleby(struct render *r, const struct value *args, struct value *out) {
    return test_remainder(r, args, &args[1], 0, out);
}

// The tests that only look at one value's type.
#define TYPE_TEST(name, condition)                                                                                     \
    static bool test_##name(struct render *r, const struct value *v, struct value *out) {                              \
        (void)r;                                                                                                       \
        return answer(out, condition);                                                                                 \
    }
TYPE_TEST(defined, v->type != VALUE_UNDEFINED)
TYPE_TEST(undefined, v->type == VALUE_UNDEFINED)
TYPE_TEST(none, v->type == VALUE_NONE)
TYPE_TEST(boolean, v->type == VALUE_BOOL)
TYPE_TEST(true, v->type == VALUE_BOOL && v->boolean)
TYPE_TEST(false, v->type == VALUE_BOOL && !v->boolean)
TYPE_TEST(integer, v->type == VALUE_INTEGER)
TYPE_TEST(float, v->type == VALUE_REAL)
TYPE_TEST(number, value_is_number(v))
TYPE_TEST(string, v->type == VALUE_STRING)
TYPE_TEST(mapping, v->type == VALUE_DICT)
TYPE_TEST(iterable, value_is_iterable(v))
TYPE_TEST(callable, v->type == VALUE_UNDEFINED || v->type >= VALUE_MACRO)

// What has a length and can be subscripted; undefined has both.
static bool test_sequence(struct render *r, const struct value *v, struct value *out) {
    bool sequence = v->type == VALUE_SEQUENCE && v->sequence->kind < SEQUENCE_KEYS;
    (void)r;
    return answer(out, sequence || v->type == VALUE_STRING || v->type == VALUE_DICT || v->type == VALUE_UNDEFINED);
}

static bool test_sameas(struct render *r, const struct value *args, struct value *out) {
    (void)r; // the compiler lets only true, false and none be the other one
    bool same_type = args[0].type == args[1].type;
    return answer(out, same_type && (args[0].type == VALUE_NONE || args[0].boolean == args[1].boolean));
}

static bool test_case(struct render *r, const struct value *v, const char *property, struct value *out) {
    struct value text;
    return value_to_text(r, v, &text) && render_step(r, text.n / 4) && answer(out, text_is(&text, property));
}

static bool test_lower(struct render *r, const struct value *args, struct value *out) {
    return test_case(r, args, "lower", out);
}

static bool test_upper(struct render *r, const struct value *args, struct value *out) {
    return test_case(r, args, "upper", out);
}

#define COMPARISON_TEST(name, op)                                                                                      \
    static bool test_##name(struct render *r, const struct value *args, struct value *out) {                           \
        bool holds;                                                                                                    \
        return render_compare(r, op, &args[0], &args[1], &holds) && answer(out, holds);                                \
    }
COMPARISON_TEST(in, OP_IN)
COMPARISON_TEST(eq, OPERATOR2('=', '='))
COMPARISON_TEST(ne, OPERATOR2('!', '='))
COMPARISON_TEST(lt, '<')
COMPARISON_TEST(le, OPERATOR2('<', '='))
COMPARISON_TEST(gt, '>')
COMPARISON_TEST(ge, OPERATOR2('>', '='))

const struct builtin jinja_tests[] = {
    {"boolean", test_boolean, ""},
    {"callable", test_callable, ""},
    {"defined", test_defined, ""},
    {"divisibleby", test_divisibleby, "num!"},
    {"even", test_even, ""},
    {"false", test_false, ""},
    {"float", test_float, ""},
    {"in", test_in, "seq!"},
    {"integer", test_integer, ""},
    {"iterable", test_iterable, ""},
    {"lower", test_lower, ""},
    {"mapping", test_mapping, ""},
    {"none", test_none, ""},
    {"number", test_number, ""},
    {"odd", test_odd, ""},
    {"sameas", test_sameas, "other!"},
    {"sequence", test_sequence, ""},
    {"string", test_string, ""},
    {"true", test_true, ""},
    {"undefined", test_undefined, ""},
    {"upper", test_upper, ""},
    {"==", test_eq, "/ 1!"},
    {"eq", test_eq, "/ 1!"},
    {"equalto", test_eq, "/ 1!"},
    {"!=", test_ne, "/ 1!"},
    {"ne", test_ne, "/ 1!"},
    {"<", test_lt, "/ 1!"},
    {"lt", test_lt, "/ 1!"},
    {"lessthan", test_lt, "/ 1!"},
    {"<=", test_le, "/ 1!"},
    {"le", test_le, "/ 1!"},
    {">", test_gt, "/ 1!"},
    {"gt", test_gt, "/ 1!"},
    {"greaterthan", test_gt, "/ 1!"},
    {">=", test_ge, "/ 1!"},
    {"ge", test_ge, "/ 1!"},
    {NULL, NULL, NULL},
};

const struct builtin *builtin_find(enum builtin_kind kind, const char *name, size_t n) {
    const struct builtin *b = kind == BUILTIN_FILTER ? jinja_filters
                              : kind == BUILTIN_TEST ? jinja_tests
                                                     : jinja_methods;
    if (kind == BUILTIN_FILTER && n == 3 && !memcmp(name, "map", 3)) return &jinja_filter_map;
    for (; b->name; b++)
        if (strlen(b->name) == n && !memcmp(b->name, name, n)) return b;
    return NULL;
}

bool builtin_is_selection(const struct builtin *b) {
    return !b->run && (!strncmp(b->name, "select", 6) || !strncmp(b->name, "reject", 6));
}
