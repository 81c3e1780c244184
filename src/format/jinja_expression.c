// Expressions, by recursive descent in the order of precedence that Jinja has: ** binds to the left, and a sign binds
// tighter than a filter.
#include "format/jinja_parser.h"

static struct node *parse_or(struct parser *p);
static struct node *parse_unary(struct parser *p, bool with_filters);

static struct node *constant(struct parser *p, enum constant_type type) {
    struct node *node = parser_node(p, NODE_CONSTANT, p->now.line);
    if (node) node->constant = type;
    return node;
}

// Adjacent strings are one.
static struct node *parse_string(struct parser *p) {
    struct node *node = constant(p, CONSTANT_STRING);
    if (!node) return NULL;
    node->text = p->now.text;
    node->n = p->now.n;
    for (parser_advance(p); !p->status && p->now.type == TOKEN_STRING; parser_advance(p)) {
        char *joined = parser_alloc(p, node->n + p->now.n + 1, 1);
        if (!joined) return NULL;
        memcpy(joined, node->text, node->n);
        memcpy(joined + node->n, p->now.text, p->now.n);
        node->text = joined;
        node->n += p->now.n;
    }
    return p->status ? NULL : node;
}

static struct node *parse_number(struct parser *p) {
    struct node *node = constant(p, p->now.type == TOKEN_REAL ? CONSTANT_REAL : CONSTANT_INTEGER);
    if (!node) return NULL;
    node->integer = p->now.integer;
    node->real = p->now.real;
    parser_advance(p);
    return node;
}

static struct node *parse_word(struct parser *p) {
    static const struct {
        const char *name;
        enum constant_type type;
        bool boolean;
    } words[] = {{"true", CONSTANT_BOOL, true},   {"True", CONSTANT_BOOL, true},  {"false", CONSTANT_BOOL, false},
                 {"False", CONSTANT_BOOL, false}, {"none", CONSTANT_NONE, false}, {"None", CONSTANT_NONE, false}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (!token_is_name(&p->now, words[i].name)) continue;
        struct node *node = constant(p, words[i].type);
        if (node) node->boolean = words[i].boolean;
        parser_advance(p);
        return node;
    }
    // Names that mean something of their own in Jinja, and that chat templates have no use for.
    bool in_macro =
        token_is_name(&p->now, "caller") || token_is_name(&p->now, "varargs") || token_is_name(&p->now, "kwargs");
    if ((in_macro && p->macros) || token_is_name(&p->now, "self") || token_is_name(&p->now, "super"))
        return parser_fail(p, STATUS_UNSUPPORTED, p->now.line, "the name '%.*s' is not supported here", (int)p->now.n,
                           p->now.text);
    struct node *node = parser_node(p, NODE_NAME, p->now.line);
    if (!node || (node->name = parser_intern(p, p->now.text, p->now.n)) < 0) return NULL;
    p->t->names[node->name].read = true;
    parser_advance(p);
    return node;
}

// Items up to `close`, with a comma allowed at the end; pairs are "key: value".
static struct node *parse_items(struct parser *p, enum node_kind kind, char close, bool pairs) {
    struct node *node = parser_node(p, kind, p->now.line);
    struct node_list kids = {0};
    parser_advance(p);
    while (!p->status && !token_is_op(&p->now, close)) {
        if (kids.n && !parser_expect_op(p, ',')) return NULL;
        if (token_is_op(&p->now, close)) break;
        if (!parser_push(p, &kids, parse_expression(p, true))) return NULL;
        if (pairs && (!parser_expect_op(p, ':') || !parser_push(p, &kids, parse_expression(p, true)))) return NULL;
    }
    if (!parser_expect_op(p, close)) return NULL;
    return parser_finish(p, node, &kids);
}

static struct node *parse_primary(struct parser *p) {
    struct node *node;
    if (!parser_enter(p)) return NULL;
    if (p->now.type == TOKEN_NAME) {
        node = parse_word(p);
    } else if (p->now.type == TOKEN_STRING) {
        node = parse_string(p);
    } else if (p->now.type == TOKEN_INTEGER || p->now.type == TOKEN_REAL) {
        node = parse_number(p);
    } else if (parser_skip_op(p, '(')) {
        node = token_is_op(&p->now, ')') ? parser_node(p, NODE_TUPLE, p->now.line) : parse_tuple(p, true);
        if (node && !parser_expect_op(p, ')')) node = NULL;
    } else if (token_is_op(&p->now, '[')) {
        node = parse_items(p, NODE_LIST, ']', false);
    } else if (token_is_op(&p->now, '{')) {
        node = parse_items(p, NODE_DICT, '}', true);
    } else {
        node = parser_unexpected(p, "an expression");
    }
    parser_leave(p);
    return p->status ? NULL : node;
}

static bool at_tuple_end(const struct parser *p) {
    return p->now.type == TOKEN_PRINT_END || p->now.type == TOKEN_BLOCK_END || token_is_op(&p->now, ')');
}

// One value, or several with commas between them, which are a tuple.
static struct node *parse_listed(struct parser *p, struct node *(*parse_one)(struct parser *, bool), bool option) {
    uint32_t line = p->now.line;
    struct node_list kids = {0};
    bool comma = false;
    while (!p->status) {
        if (kids.n && !parser_expect_op(p, ',')) return NULL;
        if (kids.n && at_tuple_end(p)) break;
        if (!parser_push(p, &kids, parse_one(p, option))) return NULL;
        if (!token_is_op(&p->now, ',')) break;
        comma = true;
    }
    if (p->status) return NULL;
    return comma ? parser_finish(p, parser_node(p, NODE_TUPLE, line), &kids) : kids.items[0];
}

struct node *parse_tuple(struct parser *p, bool with_conditional) {
    return parse_listed(p, parse_expression, with_conditional);
}

// The words of the language cannot be names, and `loop` is the interpreter's.
static struct node *check_assignable(struct parser *p, const char *name, size_t n, uint32_t line) {
    static const char *const words[] = {"true", "True", "false", "False", "none", "None", NULL};
    for (const char *const *w = words; *w; w++)
        if (n == strlen(*w) && !memcmp(name, *w, n))
            return parser_fail(p, STATUS_INVALID, line, "cannot assign to '%s'", *w);
    if (n == 4 && !memcmp(name, "loop", 4)) return parser_fail(p, STATUS_UNSUPPORTED, line, "cannot assign to 'loop'");
    struct node *node = parser_node(p, NODE_NAME, line);
    if (!node || (node->name = parser_intern(p, name, n)) < 0) return NULL;
    p->t->names[node->name].written = true;
    return node;
}

struct node *parse_name_target(struct parser *p) {
    if (p->now.type != TOKEN_NAME) return parser_unexpected(p, "a name");
    struct node *node = check_assignable(p, p->now.text, p->now.n, p->now.line);
    parser_advance(p);
    return p->status ? NULL : node;
}

static struct node *parse_single_target(struct parser *p, bool with_namespace) {
    if (token_is_op(&p->now, '(')) {
        if (!parser_enter(p)) return NULL;
        parser_advance(p);
        struct node *node = parse_target(p, with_namespace);
        parser_leave(p);
        return node && parser_expect_op(p, ')') ? node : NULL;
    }
    if (!with_namespace || p->now.type != TOKEN_NAME || !token_is_op(&p->ahead, '.')) return parse_name_target(p);
    struct node *node = parser_node(p, NODE_NAMESPACE_TARGET, p->now.line);
    if (!node || (node->name = parser_intern(p, p->now.text, p->now.n)) < 0) return NULL;
    p->t->names[node->name].read = true;
    parser_advance(p);
    parser_advance(p);
    if (p->now.type != TOKEN_NAME) return parser_unexpected(p, "an attribute name");
    node->text = p->now.text;
    node->n = p->now.n;
    parser_advance(p);
    return p->status ? NULL : node;
}

struct node *parse_target(struct parser *p, bool with_namespace) {
    return parse_listed(p, parse_single_target, with_namespace);
}

// ---- calls: what stands in parentheses, and its binding to the parameters of a filter, test or method ----

struct call_args {
    struct node_list positional, named;
    int names[64];
};

// Reads "(...)".
static bool parse_args(struct parser *p, struct call_args *args) {
    bool first = true;
    parser_advance(p); // (
    while (!p->status && !token_is_op(&p->now, ')')) {
        if (!first && !parser_expect_op(p, ',')) return false;
        first = false;
        if (token_is_op(&p->now, ')')) break;
        if (token_is_op(&p->now, '*') || token_is_op(&p->now, OPERATOR2('*', '*')))
            return parser_fail(p, STATUS_UNSUPPORTED, p->now.line, "arguments with * or ** are not supported"), false;
        if (p->now.type == TOKEN_NAME && token_is_op(&p->ahead, '=')) {
            if (args->named.n == 64) return parser_fail(p, STATUS_LIMIT, p->now.line, "too many arguments"), false;
            int name = parser_intern(p, p->now.text, p->now.n);
            for (size_t i = 0; i < args->named.n; i++)
                if (args->names[i] == name)
                    return parser_fail(p, STATUS_INVALID, p->now.line, "an argument is given twice"), false;
            args->names[args->named.n] = name;
            parser_advance(p);
            parser_advance(p);
            if (!parser_push(p, &args->named, parse_expression(p, true))) return false;
        } else {
            if (args->named.n)
                return parser_fail(p, STATUS_INVALID, p->now.line, "an argument without a name after one with"), false;
            if (!parser_push(p, &args->positional, parse_expression(p, true))) return false;
        }
    }
    parser_advance(p); // )
    return !p->status;
}

// The next word of a parameter list; false at its end.
static bool next_param(const char **params, const char **name, size_t *n, bool *needed) {
    while (**params == ' ' || **params == '/') ++*params;
    *name = *params;
    *n = strcspn(*params, " !");
    *params += *n;
    *needed = **params == '!';
    *params += *needed;
    return *n > 0;
}

// Orders arguments as b's parameters stand; kids already holds what the call applies to.
static bool bind_args(struct parser *p, const struct builtin *b, const struct call_args *args, size_t skip,
                      uint32_t line, struct node_list *kids) {
    const char *params = b->params, *name;
    bool needed, keywords = *params != '/';
    size_t n, at = skip, n_bound = 0;
    while (next_param(&params, &name, &n, &needed)) {
        struct node *value = at < args->positional.n ? args->positional.items[at++] : NULL;
        for (size_t i = 0; keywords && i < args->named.n; i++) {
            const struct name *keyword = &p->t->names[args->names[i]];
            if (keyword->n != n || memcmp(keyword->text, name, n)) continue;
            if (value)
                return parser_fail(p, STATUS_INVALID, line, "'%s' is given the argument '%s' twice", b->name,
                                   keyword->text),
                       false;
            value = args->named.items[i];
            n_bound++;
        }
        if (!value && needed)
            return parser_fail(p, STATUS_INVALID, line, "'%s' needs the argument '%.*s'", b->name, (int)n, name), false;
        if (!parser_push(p, kids, kids->items[0])) return false;
        kids->items[kids->n - 1] = value; // NULL, which push refuses, means: not given
    }
    if (at < args->positional.n || n_bound < args->named.n)
        return parser_fail(p, STATUS_UNSUPPORTED, line, "'%s' does not take these arguments", b->name), false;
    return true;
}

static const struct builtin *named_builtin(struct parser *p, enum builtin_kind kind, const struct node *node) {
    if (node->kind != NODE_CONSTANT || node->constant != CONSTANT_STRING) {
        parser_fail(p, STATUS_UNSUPPORTED, node->line, "the name of a filter or test must be written out");
        return NULL;
    }
    const struct builtin *b = builtin_find(kind, node->text, node->n);
    if (!b || !b->run) {
        parser_fail(p, STATUS_UNSUPPORTED, node->line, "the %s '%.*s' is not known here",
                    kind == BUILTIN_FILTER ? "filter" : "test", (int)(node->n > 40 ? 40 : node->n), node->text);
        return NULL;
    }
    return b;
}

// map('filter', ...), map(attribute=...), select('test', ...), selectattr('name', 'test', ...)
static bool bind_sequence_filter(struct parser *p, struct node *node, struct call_args *args, struct node_list *kids) {
    bool map = node->builtin == &jinja_filter_map;
    size_t skip = strstr(node->builtin->name, "attr") ? 1 : 0;
    if (map && !args->positional.n) return bind_args(p, node->builtin, args, 0, node->line, kids);
    if (args->positional.n < skip)
        return parser_fail(p, STATUS_INVALID, node->line, "'%s' needs an attribute", node->builtin->name), false;
    if (skip && !parser_push(p, kids, args->positional.items[0])) return false;
    if (args->positional.n == skip) {
        if (args->named.n)
            parser_fail(p, STATUS_UNSUPPORTED, node->line, "'%s' does not take these arguments", node->builtin->name);
        return !p->status;
    }
    node->inner = named_builtin(p, map ? BUILTIN_FILTER : BUILTIN_TEST, args->positional.items[skip]);
    return node->inner && bind_args(p, node->inner, args, skip + 1, node->line, kids);
}

static struct node *parse_filter(struct parser *p, struct node *on) {
    if (p->now.type != TOKEN_NAME) return parser_unexpected(p, "the name of a filter");
    struct node *node = parser_node(p, NODE_FILTER, p->now.line);
    struct node_list kids = {0};
    if (!node || !parser_push(p, &kids, on)) return NULL;
    node->builtin = builtin_find(BUILTIN_FILTER, p->now.text, p->now.n);
    if (!node->builtin)
        return parser_fail(p, STATUS_UNSUPPORTED, p->now.line, "the filter '%.*s' is not known",
                           (int)(p->now.n > 40 ? 40 : p->now.n), p->now.text);
    parser_advance(p);
    struct call_args args = {0};
    if (token_is_op(&p->now, '(') && !parse_args(p, &args)) return NULL;
    bool sequence = node->builtin == &jinja_filter_map || builtin_is_selection(node->builtin);
    if (!(sequence ? bind_sequence_filter(p, node, &args, &kids)
                   : bind_args(p, node->builtin, &args, 0, node->line, &kids)))
        return NULL;
    return parser_finish(p, node, &kids);
}

struct node *parse_filters(struct parser *p, struct node *on, bool first_is_inline) {
    while (on && !p->status && (first_is_inline || token_is_op(&p->now, '|'))) {
        if (!first_is_inline) parser_advance(p);
        first_is_inline = false;
        on = parse_filter(p, on);
    }
    return p->status ? NULL : on;
}

// "is not name", "is name arg", "is name(args)"; p stands at `is`.
static struct node *parse_test(struct parser *p, struct node *on) {
    struct node *node = parser_node(p, NODE_TEST, p->now.line);
    struct node_list kids = {0};
    struct call_args args = {0};
    parser_advance(p);
    bool negated = parser_skip_name(p, "not");
    if (p->now.type != TOKEN_NAME) return parser_unexpected(p, "the name of a test");
    if (!node || !parser_push(p, &kids, on)) return NULL;
    node->negated = negated;
    node->builtin = builtin_find(BUILTIN_TEST, p->now.text, p->now.n);
    if (!node->builtin)
        return parser_fail(p, STATUS_UNSUPPORTED, p->now.line, "the test '%.*s' is not known",
                           (int)(p->now.n > 40 ? 40 : p->now.n), p->now.text);
    parser_advance(p);
    static const char *const not_args[] = {"else", "or", "and", "is", NULL};
    bool word = p->now.type == TOKEN_NAME;
    for (const char *const *w = not_args; word && *w; w++) word = !token_is_name(&p->now, *w);
    if (token_is_op(&p->now, '(')) {
        if (!parse_args(p, &args)) return NULL;
    } else if (word || p->now.type == TOKEN_STRING || p->now.type == TOKEN_INTEGER || p->now.type == TOKEN_REAL ||
               token_is_op(&p->now, '[') || token_is_op(&p->now, '{')) {
        struct node *arg = parse_unary(p, false);
        if (!parser_push(p, &args.positional, arg)) return NULL;
    } else if (token_is_name(&p->now, "is")) {
        return parser_fail(p, STATUS_INVALID, p->now.line, "tests cannot be chained");
    }
    if (!bind_args(p, node->builtin, &args, 0, node->line, &kids)) return NULL;
    if (!strcmp(node->builtin->name, "sameas") &&
        (kids.items[1]->kind != NODE_CONSTANT || kids.items[1]->constant > CONSTANT_BOOL))
        return parser_fail(p, STATUS_UNSUPPORTED, node->line, "'sameas' is supported only for true, false and none");
    return parser_finish(p, node, &kids);
}

// ---- what follows a value: attributes, subscripts, calls ----

static struct node *parse_method(struct parser *p, struct node *on, const struct token *name) {
    struct node *node = parser_node(p, NODE_METHOD, name->line);
    struct node_list kids = {0};
    struct call_args args = {0};
    if (!node || !parser_push(p, &kids, on)) return NULL;
    node->builtin = builtin_find(BUILTIN_METHOD, name->text, name->n);
    if (!node->builtin)
        return parser_fail(p, STATUS_UNSUPPORTED, name->line, "the method '%.*s' is not known",
                           (int)(name->n > 40 ? 40 : name->n), name->text);
    if (!parse_args(p, &args) || !bind_args(p, node->builtin, &args, 0, name->line, &kids)) return NULL;
    return parser_finish(p, node, &kids);
}

static struct node *parse_attribute(struct parser *p, struct node *on) {
    struct token name = p->ahead;
    uint32_t line = p->now.line;
    parser_advance(p); // .
    if (name.type == TOKEN_INTEGER) {
        struct node *index = parse_number(p);
        return index ? parser_finish2(p, parser_node(p, NODE_SUBSCRIPT, line), on, index) : NULL;
    }
    if (name.type != TOKEN_NAME) return parser_unexpected(p, "an attribute name");
    if (name.n >= 2 && name.text[0] == '_' && name.text[1] == '_')
        return parser_fail(p, STATUS_UNSUPPORTED, name.line, "attributes that begin with '__' are not supported");
    parser_advance(p);
    if (token_is_op(&p->now, '(')) return parse_method(p, on, &name);
    struct node *node = parser_node(p, NODE_ATTRIBUTE, line);
    if (!node) return NULL;
    node->text = name.text;
    node->n = name.n;
    return parser_finish1(p, node, on);
}

static struct node *parse_subscript(struct parser *p, struct node *on) {
    struct node *kids[4] = {on, NULL, NULL, NULL};
    uint32_t line = p->now.line;
    int colons = 0;
    parser_advance(p); // [
    while (!p->status && !token_is_op(&p->now, ']')) {
        if (token_is_op(&p->now, ':') && colons < 2) {
            colons++;
            parser_advance(p);
        } else if (!kids[colons + 1]) {
            if (!(kids[colons + 1] = parse_expression(p, true))) return NULL;
        } else {
            return parser_fail(p, STATUS_UNSUPPORTED, p->now.line, "a subscript that is not one value or a slice");
        }
    }
    parser_advance(p);
    if (!colons && !kids[1]) return parser_fail(p, STATUS_UNSUPPORTED, line, "an empty subscript");
    struct node_list list = {parser_alloc(p, 4, sizeof *kids), colons ? 4 : 2, 4};
    if (!list.items) return NULL;
    memcpy(list.items, kids, sizeof kids);
    return parser_finish(p, parser_node(p, colons ? NODE_SLICE : NODE_SUBSCRIPT, line), &list);
}

static struct node *parse_call(struct parser *p, struct node *on) {
    if (on->kind != NODE_NAME)
        return parser_fail(p, STATUS_UNSUPPORTED, p->now.line, "only names and methods can be called");
    struct node *node = parser_node(p, NODE_CALL, p->now.line);
    struct call_args args = {0};
    if (!node || !parse_args(p, &args)) return NULL;
    node->name = on->name;
    struct name *name = &p->t->names[on->name];
    if (!name->call_line) name->call_line = node->line;
    int *names = parser_alloc(p, args.named.n + 1, sizeof *names);
    if (!names) return NULL;
    memcpy(names, args.names, args.named.n * sizeof *names);
    node->names = names;
    node->n_names = (uint32_t)args.named.n;
    for (size_t i = 0; i < args.named.n; i++)
        if (!parser_push(p, &args.positional, args.named.items[i])) return NULL;
    return parser_finish(p, node, &args.positional);
}

static struct node *parse_postfix(struct parser *p, struct node *node) {
    while (node && !p->status) {
        if (token_is_op(&p->now, '.'))
            node = parse_attribute(p, node);
        else if (token_is_op(&p->now, '['))
            node = parse_subscript(p, node);
        else if (token_is_op(&p->now, '('))
            node = parse_call(p, node);
        else
            return node;
    }
    return NULL;
}

static struct node *parse_unary(struct parser *p, bool with_filters) {
    struct node *node;
    if (!parser_enter(p)) return NULL;
    if (token_is_op(&p->now, '-') || token_is_op(&p->now, '+')) {
        enum node_kind kind = p->now.op == '-' ? NODE_NEGATE : NODE_PLUS;
        uint32_t line = p->now.line;
        parser_advance(p);
        struct node *kid = parse_unary(p, false);
        node = kid ? parser_finish1(p, parser_node(p, kind, line), kid) : NULL;
    } else {
        node = parse_primary(p);
    }
    parser_leave(p);
    node = node ? parse_postfix(p, node) : NULL;
    while (with_filters && node && !p->status) {
        if (token_is_op(&p->now, '|'))
            node = parse_filters(p, node, false);
        else if (token_is_name(&p->now, "is"))
            node = parse_test(p, node);
        else if (token_is_op(&p->now, '('))
            node = parse_call(p, node);
        else
            break;
    }
    return p->status ? NULL : node;
}

// ---- operators, from the tightest to the loosest ----

// Operands of `next` joined by any of `ops` (ends with 0), flat, so that long sums are not deep.
static struct node *parse_chain(struct parser *p, enum node_kind kind, const int *ops,
                                struct node *(*next)(struct parser *p)) {
    uint32_t line = p->now.line;
    struct node_list kids = {0};
    int found[256];
    if (!parser_push(p, &kids, next(p))) return NULL;
    for (;;) {
        const int *op = ops;
        while (*op && !token_is_op(&p->now, *op)) op++;
        if (!*op) break;
        if (kids.n == 256) return parser_fail(p, STATUS_LIMIT, p->now.line, "an expression has too many operands");
        found[kids.n - 1] = *op;
        parser_advance(p);
        if (!parser_push(p, &kids, next(p))) return NULL;
    }
    if (kids.n == 1) return kids.items[0];
    struct node *node = parser_node(p, kind, line);
    int *copy = parser_alloc(p, kids.n, sizeof *copy);
    if (!node || !copy) return NULL;
    memcpy(copy, found, (kids.n - 1) * sizeof *copy);
    node->ops = copy;
    return parser_finish(p, node, &kids);
}

static struct node *parse_operand(struct parser *p) { return parse_unary(p, true); }

static struct node *parse_power(struct parser *p) {
    return parse_chain(p, NODE_ARITHMETIC, (const int[]){OPERATOR2('*', '*'), 0}, parse_operand);
}

static struct node *parse_product(struct parser *p) {
    return parse_chain(p, NODE_ARITHMETIC, (const int[]){'*', '/', OPERATOR2('/', '/'), '%', 0}, parse_power);
}

static struct node *parse_concat(struct parser *p) {
    return parse_chain(p, NODE_CONCAT, (const int[]){'~', 0}, parse_product);
}

static struct node *parse_sum(struct parser *p) {
    return parse_chain(p, NODE_ARITHMETIC, (const int[]){'+', '-', 0}, parse_concat);
}

static int comparison(struct parser *p) {
    static const int ops[] = {OPERATOR2('=', '='), OPERATOR2('!', '='), '<', '>',
                              OPERATOR2('<', '='), OPERATOR2('>', '='), 0};
    for (const int *op = ops; *op; op++)
        if (parser_skip_op(p, *op)) return *op;
    if (parser_skip_name(p, "in")) return OP_IN;
    if (!token_is_name(&p->now, "not") || !token_is_name(&p->ahead, "in")) return 0;
    parser_advance(p);
    parser_advance(p);
    return OP_NOT_IN;
}

static struct node *parse_comparison(struct parser *p) {
    struct node *node = parser_node(p, NODE_COMPARE, p->now.line);
    struct node_list kids = {0};
    int *ops = parser_alloc(p, 16, sizeof *ops), op;
    if (!node || !ops || !parser_push(p, &kids, parse_sum(p))) return NULL;
    while ((op = comparison(p)) != 0) {
        if (kids.n == 16) return parser_fail(p, STATUS_LIMIT, p->now.line, "too many comparisons in a chain");
        ops[kids.n - 1] = op;
        if (!parser_push(p, &kids, parse_sum(p))) return NULL;
    }
    if (kids.n == 1) return kids.items[0];
    node->ops = ops;
    return parser_finish(p, node, &kids);
}

static struct node *parse_not(struct parser *p) {
    if (!token_is_name(&p->now, "not")) return parse_comparison(p);
    uint32_t line = p->now.line;
    if (!parser_enter(p)) return NULL;
    parser_advance(p);
    struct node *kid = parse_not(p);
    parser_leave(p);
    return kid ? parser_finish1(p, parser_node(p, NODE_NOT, line), kid) : NULL;
}

static struct node *parse_words(struct parser *p, enum node_kind kind, const char *word,
                                struct node *(*next)(struct parser *p)) {
    uint32_t line = p->now.line;
    struct node_list kids = {0};
    do {
        if (!parser_push(p, &kids, next(p))) return NULL;
    } while (parser_skip_name(p, word));
    return kids.n == 1 ? kids.items[0] : parser_finish(p, parser_node(p, kind, line), &kids);
}

static struct node *parse_and(struct parser *p) { return parse_words(p, NODE_AND, "and", parse_not); }

static struct node *parse_or(struct parser *p) { return parse_words(p, NODE_OR, "or", parse_and); }

struct node *parse_expression(struct parser *p, bool with_conditional) {
    uint32_t line = p->now.line;
    if (!parser_enter(p)) return NULL;
    struct node *node = parse_or(p);
    while (node && with_conditional && parser_skip_name(p, "if")) {
        struct node *test = parse_or(p), *other = NULL;
        if (!test) return NULL;
        if (parser_skip_name(p, "else") && !(other = parse_expression(p, true))) return NULL;
        struct node_list kids = {parser_alloc(p, 3, sizeof node), 3, 3};
        if (!kids.items) return NULL;
        memcpy(kids.items, (struct node *[]){test, node, other}, 3 * sizeof node);
        node = parser_finish(p, parser_node(p, NODE_CONDITIONAL, line), &kids);
    }
    parser_leave(p);
    return p->status ? NULL : node;
}
