// Expressions.
#include "format/jinja_render.h"
#include <math.h>
#include <string.h>

static bool integer_overflow(struct render *r) {
    return render_fail(r, STATUS_UNSUPPORTED, "an integer does not fit into 64 bits");
}

static bool wrong_operands(struct render *r, int op, const struct value *a, const struct value *b) {
    const struct value *undefined = a->type == VALUE_UNDEFINED ? a : b->type == VALUE_UNDEFINED ? b : NULL;
    if (undefined) return render_fail(r, STATUS_INVALID, "%s", undefined->hint);
    return render_fail(r, STATUS_INVALID, "'%c%.*s' does not work between a %s and a %s", op & 0xff, op >> 8 ? 1 : 0,
                       (char[]){(char)(op >> 8), '\0'}, value_type_name(a), value_type_name(b));
}

// By multiplication, so that a result outside 64 bits is noticed and not rounded.
static bool integer_power(struct render *r, int64_t base, int64_t exponent, bool trusted, struct value *out) {
    int64_t result = 1;
    if (exponent < 0) {
        if (!base) return render_fail(r, STATUS_INVALID, "0 cannot be raised to a negative power");
        *out = value_real(pow((double)base, (double)exponent), trusted);
        return true;
    }
    if (base >= -1 && base <= 1) exponent = exponent > 2 ? 2 + exponent % 2 : exponent; // so that the loop is short
    for (; exponent; exponent--)
        if (__builtin_mul_overflow(result, base, &result)) return integer_overflow(r);
    *out = value_integer(result, trusted);
    return true;
}

// Division rounds down, and the remainder has the divisor's sign, as in Python.
static bool integer_arithmetic(struct render *r, int op, int64_t a, int64_t b, bool trusted, struct value *out) {
    int64_t result;
    bool overflow = false;
    switch (op) {
    case '+': overflow = __builtin_add_overflow(a, b, &result); break;
    case '-': overflow = __builtin_sub_overflow(a, b, &result); break;
    case '*': overflow = __builtin_mul_overflow(a, b, &result); break;
    case OPERATOR2('*', '*'): return integer_power(r, a, b, trusted, out);
    default:
        if (!b) return render_fail(r, STATUS_INVALID, "division by zero");
        if (op == '/') {
            *out = value_real((double)((long double)a / (long double)b), trusted);
            return true;
        }
        if (b == -1) { // the one quotient that can overflow
            overflow = op != '%' && __builtin_sub_overflow(INT64_C(0), a, &result);
            if (op == '%') result = 0;
            break;
        }
        result = op == '%' ? a % b : a / b;
        if (a % b && (a % b < 0) != (b < 0)) result = op == '%' ? result + b : result - 1;
    }
    if (overflow) return integer_overflow(r);
    *out = value_integer(result, trusted);
    return true;
}

// Floor division and remainder as in CPython, signs of zeros included.
static bool real_arithmetic(struct render *r, int op, double a, double b, bool trusted, struct value *out) {
    double result, remainder;
    switch (op) {
    case '+': result = a + b; break;
    case '-': result = a - b; break;
    case '*': result = a * b; break;
    case OPERATOR2('*', '*'):
        result = pow(a, b);
        if (a == 0 && b < 0) return render_fail(r, STATUS_INVALID, "0 cannot be raised to a negative power");
        if (a < 0 && isfinite(b) && b != floor(b))
            return render_fail(r, STATUS_UNSUPPORTED, "complex numbers are not supported");
        if (isinf(result) && isfinite(a) && isfinite(b)) return render_fail(r, STATUS_INVALID, "a power is too large");
        break;
    default:
        if (b == 0) return render_fail(r, STATUS_INVALID, "division by zero");
        if (op == '/') {
            result = a / b;
            break;
        }
        remainder = fmod(a, b);
        result = (a - remainder) / b;
        if (remainder && (b < 0) != (remainder < 0)) {
            remainder += b;
            result -= 1;
        }
        if (op == '%') {
            result = remainder ? remainder : copysign(0.0, b);
        } else if (result) {
            double whole = floor(result);
            result = result - whole > 0.5 ? whole + 1 : whole;
        } else {
            result = copysign(0.0, a / b);
        }
    }
    *out = value_real(result, trusted);
    return true;
}

// A string or list so many times.
static bool repeat(struct render *r, const struct value *v, int64_t times, struct value *out) {
    int64_t n = times > 0 ? times : 0;
    if (v->type == VALUE_STRING) {
        struct builder b = {.trusted = v->trusted};
        for (int64_t i = 0; v->n && i < n; i++)
            if (!builder_append_value(r, &b, v) || !render_step(r, 1)) return false;
        *out = builder_finish(&b);
        out->markup = v->markup;
        return true;
    }
    const struct value *items;
    size_t n_items, total;
    if (!value_collect(r, v, &items, &n_items)) return false;
    if (__builtin_mul_overflow(n_items, (size_t)n, &total)) return render_fail(r, STATUS_LIMIT, "a list is too long");
    struct value *all = render_step(r, total) ? render_alloc(r, total + 1, sizeof *all) : NULL;
    if (!all) return false;
    for (size_t i = 0; i < total; i++) all[i] = items[i % n_items];
    return value_list(r, v->sequence->kind, all, total, out);
}

static bool join_lists(struct render *r, const struct value *a, const struct value *b, struct value *out) {
    const struct value *x, *y;
    size_t n, m;
    if (!value_collect(r, a, &x, &n) || !value_collect(r, b, &y, &m)) return false;
    struct value *all = render_step(r, n + m) ? render_alloc(r, n + m + 1, sizeof *all) : NULL;
    if (!all) return false;
    if (n) memcpy(all, x, n * sizeof *all);
    if (m) memcpy(all + n, y, m * sizeof *all);
    return value_list(r, a->sequence->kind, all, n + m, out);
}

// Where one of two strings is markup, the other is escaped first.
static bool add_text(struct render *r, const struct value *a, const struct value *b, struct value *out) {
    struct value left = *a, right = *b;
    bool markup = a->markup || b->markup;
    if (markup && (!text_escape(r, a, &left) || !text_escape(r, b, &right))) return false;
    if (!value_concat(r, &left, &right, out)) return false;
    out->markup = markup;
    return true;
}

static bool is_list_or_tuple(const struct value *v) {
    return v->type == VALUE_SEQUENCE && v->sequence->kind <= SEQUENCE_TUPLE;
}

bool render_arithmetic(struct render *r, int op, const struct value *a, const struct value *b, struct value *out) {
    bool trusted = a->trusted && b->trusted;
    if (value_is_integer(a) && value_is_integer(b))
        return integer_arithmetic(r, op, value_as_integer(a), value_as_integer(b), trusted, out);
    if (value_is_number(a) && value_is_number(b))
        return real_arithmetic(r, op, value_as_real(a), value_as_real(b), trusted, out);
    if (op == '+' && a->type == VALUE_STRING && b->type == VALUE_STRING) return add_text(r, a, b, out);
    if (op == '+' && is_list_or_tuple(a) && is_list_or_tuple(b) && a->sequence->kind == b->sequence->kind)
        return join_lists(r, a, b, out);
    if (op == '*' && (a->type == VALUE_STRING || is_list_or_tuple(a)) && value_is_integer(b))
        return repeat(r, a, value_as_integer(b), out);
    if (op == '*' && (b->type == VALUE_STRING || is_list_or_tuple(b)) && value_is_integer(a))
        return repeat(r, b, value_as_integer(a), out);
    if (op == '%' && a->type == VALUE_STRING) return render_printf(r, a, b, out);
    return wrong_operands(r, op, a, b);
}

bool render_compare(struct render *r, int op, const struct value *a, const struct value *b, bool *out) {
    bool holds,
        negate = op == OP_NOT_IN || op == OPERATOR2('!', '=') || op == OPERATOR2('<', '=') || op == OPERATOR2('>', '=');
    bool ok = op == OP_IN || op == OP_NOT_IN                           ? value_contains(r, b, a, &holds)
              : op == OPERATOR2('=', '=') || op == OPERATOR2('!', '=') ? value_equal(r, a, b, &holds)
              : op == '<' || op == OPERATOR2('>', '=') ? value_less(r, a, b, op == '<' ? "<" : ">=", &holds)
                                                       : value_less(r, b, a, op == '>' ? ">" : "<=", &holds);
    if (!ok) return false;
    *out = holds != negate;
    bool ordered = op == OPERATOR2('<', '=') || op == OPERATOR2('>', '=');
    if (ordered && value_is_number(a) && value_is_number(b) && (isnan(value_as_real(a)) || isnan(value_as_real(b))))
        *out = false;
    return true;
}

static bool evaluate_constant(const struct node *node, struct value *out) {
    switch (node->constant) {
    case CONSTANT_NONE: *out = value_none(); break;
    case CONSTANT_BOOL: *out = value_bool(node->boolean); break;
    case CONSTANT_INTEGER: *out = value_integer(node->integer, true); break;
    case CONSTANT_REAL: *out = value_real(node->real, true); break;
    case CONSTANT_STRING: *out = value_text(node->text, node->n, true); break;
    }
    return true;
}

// From the innermost scope outwards; jinja_scope.c explains why that is what Jinja resolves when it compiles.
bool render_name(struct render *r, int name, struct value *out) {
    const struct value *v = NULL;
    for (const struct scope *s = r->scope; s && !v; s = s->outer)
        for (size_t i = s->n; i-- > 0 && !v;)
            if (s->bindings[i].name == name) v = &s->bindings[i].value;
    if (!v) v = &r->globals[name];
    if (v->type != VALUE_MISSING)
        *out = *v;
    else
        *out = value_undefined(r, "'%s' is undefined", r->t->names[name].text);
    return !r->status;
}

static bool evaluate_items(struct render *r, const struct node *node, struct value *out) {
    struct value *items = render_alloc(r, node->n_kids + 1, sizeof *items);
    if (!items) return false;
    for (uint32_t i = 0; i < node->n_kids; i++)
        if (!render_expression(r, node->kids[i], &items[i])) return false;
    return value_list(r, node->kind == NODE_TUPLE ? SEQUENCE_TUPLE : SEQUENCE_LIST, items, node->n_kids, out);
}

static bool evaluate_dict(struct render *r, const struct node *node, struct value *out) {
    size_t n = 0;
    struct value *keys = render_alloc(r, node->n_kids + 1, sizeof *keys),
                 *values = render_alloc(r, node->n_kids + 1, sizeof *keys);
    if (!keys || !values) return false;
    for (uint32_t i = 0; i < node->n_kids; i += 2) {
        struct value key, value, other;
        if (!render_expression(r, node->kids[i], &key) || !render_expression(r, node->kids[i + 1], &value))
            return false;
        struct dict so_far = {.n = n, .keys = keys, .values = values};
        bool found;
        if (!dict_find(r, &so_far, &key, &other, &found)) return false;
        size_t at = n;
        for (size_t k = 0; found && k < n; k++) { // a repeated key keeps its place and takes the new value
            bool same;
            if (!value_equal(r, &keys[k], &key, &same)) return false;
            if (same) at = k;
        }
        if (!found) keys[n++] = key;
        values[at] = value;
    }
    return value_dict(r, keys, values, n, out);
}

static bool evaluate_arithmetic(struct render *r, const struct node *node, struct value *out) {
    struct value left, right;
    if (!render_expression(r, node->kids[0], &left)) return false;
    for (uint32_t i = 1; i < node->n_kids; i++) {
        if (!render_expression(r, node->kids[i], &right)) return false;
        r->line = node->line;
        if (!render_arithmetic(r, node->ops[i - 1], &left, &right, out)) return false;
        left = *out;
    }
    return true;
}

static bool evaluate_comparison(struct render *r, const struct node *node, struct value *out) {
    struct value left, right;
    bool holds = true;
    if (!render_expression(r, node->kids[0], &left)) return false;
    for (uint32_t i = 1; i < node->n_kids && holds; i++) {
        if (!render_expression(r, node->kids[i], &right)) return false;
        r->line = node->line;
        if (!render_compare(r, node->ops[i - 1], &left, &right, &holds)) return false;
        left = right;
    }
    *out = value_bool(holds);
    return true;
}

static bool evaluate_concat(struct render *r, const struct node *node, struct value *out) {
    struct value text = value_text("", 0, true), part;
    for (uint32_t i = 0; i < node->n_kids; i++)
        if (!render_expression(r, node->kids[i], &part) || !value_to_text(r, &part, &part) ||
            !value_concat(r, &text, &part, &text))
            return false;
    *out = text;
    return true;
}

// `and` and `or` give one of their operands, as in Python.
static bool evaluate_logic(struct render *r, const struct node *node, struct value *out) {
    for (uint32_t i = 0; i < node->n_kids; i++) {
        if (!render_expression(r, node->kids[i], out)) return false;
        if (value_truth(out) == (node->kind == NODE_OR)) break;
    }
    return true;
}

static bool evaluate_sign(struct render *r, const struct node *node, struct value *out) {
    struct value v, zero = value_integer(0, true);
    if (!render_expression(r, node->kids[0], &v)) return false;
    r->line = node->line;
    if (v.type == VALUE_REAL) {
        *out = value_real(node->kind == NODE_NEGATE ? -v.real : v.real, v.trusted);
        return true;
    }
    if (!value_is_integer(&v)) {
        if (v.type == VALUE_UNDEFINED) return render_fail(r, STATUS_INVALID, "%s", v.hint);
        return render_fail(r, STATUS_INVALID, "a %s has no sign", value_type_name(&v));
    }
    return render_arithmetic(r, node->kind == NODE_NEGATE ? '-' : '+', &zero, &v, out);
}

// Without an else, a false condition gives undefined, which prints as nothing.
static bool evaluate_conditional(struct render *r, const struct node *node, struct value *out) {
    struct value test;
    if (!render_expression(r, node->kids[0], &test)) return false;
    const struct node *chosen = node->kids[value_truth(&test) ? 1 : 2];
    if (chosen) return render_expression(r, chosen, out);
    *out = value_undefined(r, "the inline if on line %u is false and has no else", node->line);
    return !r->status;
}

static bool evaluate_slice(struct render *r, const struct node *node, struct value *out) {
    struct value v, bounds[3] = {0};
    if (!render_expression(r, node->kids[0], &v)) return false;
    for (int i = 0; i < 3; i++)
        if (node->kids[i + 1] && !render_expression(r, node->kids[i + 1], &bounds[i])) return false;
    r->line = node->line;
    return value_slice(r, &v, bounds, out);
}

// A filter, test or method: the value, then its arguments in the order of the parameters.
static bool evaluate_builtin(struct render *r, const struct node *node, struct value *out) {
    struct value args[JINJA_ARGS_MAX] = {0};
    for (uint32_t i = 0; i < node->n_kids; i++)
        if (node->kids[i] && !render_expression(r, node->kids[i], &args[i])) return false;
    r->line = node->line;
    if (!node->builtin->run) { // a stage
        struct iterator *it = render_alloc(r, 1, sizeof *it);
        struct value *kept = render_alloc(r, JINJA_ARGS_MAX, sizeof *kept);
        if (!it || !kept) return false;
        memcpy(kept, args, sizeof args);
        *it = (struct iterator){.kind = ITERATE_FILTER, .over = args[0], .node = node, .args = kept};
        *out = value_iterator(it);
        return true;
    }
    if (!node->builtin->run(r, args, out)) return false;
    if (node->kind == NODE_TEST && node->negated) *out = value_bool(!value_truth(out));
    return true;
}

static bool evaluate(struct render *r, const struct node *node, struct value *out) {
    struct value v, key;
    switch (node->kind) {
    case NODE_CONSTANT: return evaluate_constant(node, out);
    case NODE_CAPTURED: *out = r->captured; return true;
    case NODE_NAME: return render_name(r, node->name, out);
    case NODE_ATTRIBUTE:
        if (!render_expression(r, node->kids[0], &v)) return false;
        r->line = node->line;
        return value_attribute(r, &v, node->text, node->n, out);
    case NODE_SUBSCRIPT:
        if (!render_expression(r, node->kids[0], &v) || !render_expression(r, node->kids[1], &key)) return false;
        r->line = node->line;
        return value_subscript(r, &v, &key, out);
    case NODE_SLICE: return evaluate_slice(r, node, out);
    case NODE_LIST:
    case NODE_TUPLE: return evaluate_items(r, node, out);
    case NODE_DICT: return evaluate_dict(r, node, out);
    case NODE_NOT:
        if (!render_expression(r, node->kids[0], &v)) return false;
        *out = value_bool(!value_truth(&v));
        return true;
    case NODE_NEGATE:
    case NODE_PLUS: return evaluate_sign(r, node, out);
    case NODE_AND:
    case NODE_OR: return evaluate_logic(r, node, out);
    case NODE_ARITHMETIC: return evaluate_arithmetic(r, node, out);
    case NODE_COMPARE: return evaluate_comparison(r, node, out);
    case NODE_CONCAT: return evaluate_concat(r, node, out);
    case NODE_CONDITIONAL: return evaluate_conditional(r, node, out);
    case NODE_FILTER:
    case NODE_TEST:
    case NODE_METHOD: return evaluate_builtin(r, node, out);
    case NODE_CALL: return render_call(r, node, out);
    default: must(!"a statement is not an expression"); return false;
    }
}

bool render_expression(struct render *r, const struct node *node, struct value *out) {
    if (!render_enter(r)) return false;
    r->line = node->line;
    bool ok = evaluate(r, node, out);
    render_leave(r);
    return ok;
}
