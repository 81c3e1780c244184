// Statements, and the tools of both halves of the parser. Recursion is bounded by parser_enter, and the height of the
// tree by parser_finish, so that no later walk over it needs a bound of its own.
#include "format/jinja_parser.h"
#include <stdarg.h>
#include <stdio.h>

struct node *parser_fail(struct parser *p, enum status code, uint32_t line, const char *format, ...) {
    if (p->status) return NULL;
    char text[ERROR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    p->status = error_set(p->error, code, "line %u: %s", line, text);
    return NULL;
}

void *parser_alloc(struct parser *p, size_t n, size_t size) {
    void *memory = arena_alloc_zero(p->t->memory, n, size);
    if (!memory && !p->status) p->status = error_memory(p->error);
    return memory;
}

void parser_advance(struct parser *p) {
    p->now = p->ahead;
    if (p->now.type != TOKEN_END) lexer_next(&p->lexer, &p->ahead);
    if (p->now.type == TOKEN_BAD && !p->status) p->status = p->lexer.status;
}

bool parser_push(struct parser *p, struct node_list *list, struct node *node) {
    if (p->status || !node) return false;
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 8;
        struct node **items = parser_alloc(p, capacity, sizeof *items);
        if (!items) return false;
        if (list->n) memcpy(items, list->items, list->n * sizeof *items);
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->n++] = node;
    return true;
}

struct node *parser_node(struct parser *p, enum node_kind kind, uint32_t line) {
    struct node *node = p->status ? NULL : parser_alloc(p, 1, sizeof *node);
    if (node) *node = (struct node){.kind = kind, .line = line, .name = -1, .height = 1};
    return node;
}

struct node *parser_finish(struct parser *p, struct node *node, const struct node_list *kids) {
    if (p->status || !node) return NULL;
    node->kids = kids->items;
    node->n_kids = (uint32_t)kids->n;
    for (size_t i = 0; i < kids->n; i++)
        if (kids->items[i] && kids->items[i]->height >= node->height) node->height = kids->items[i]->height + 1;
    if (node->height > JINJA_TREE_MAX)
        return parser_fail(p, STATUS_LIMIT, node->line, "the template is nested too deeply");
    return node;
}

static struct node *finish_array(struct parser *p, struct node *node, struct node *const *kids, size_t n) {
    struct node_list list = {parser_alloc(p, n, sizeof *kids), n, n};
    if (!list.items) return NULL;
    memcpy(list.items, kids, n * sizeof *kids);
    return parser_finish(p, node, &list);
}

struct node *parser_finish1(struct parser *p, struct node *node, struct node *kid) {
    return finish_array(p, node, &kid, 1);
}

struct node *parser_finish2(struct parser *p, struct node *node, struct node *a, struct node *b) {
    return finish_array(p, node, (struct node *[]){a, b}, 2);
}

int parser_intern(struct parser *p, const char *text, size_t n) {
    struct jinja_template *t = p->t;
    for (int i = 0; i < t->n_names; i++)
        if (t->names[i].n == n && !memcmp(t->names[i].text, text, n)) return i;
    if (t->n_names == JINJA_NAMES_MAX) {
        parser_fail(p, STATUS_LIMIT, p->now.line, "more than %d different names", JINJA_NAMES_MAX);
        return -1;
    }
    char *copy = arena_copy(t->memory, text, n);
    if (!copy) {
        p->status = error_memory(p->error);
        return -1;
    }
    t->names[t->n_names] = (struct name){.text = copy, .n = n};
    return t->n_names++;
}

bool parser_enter(struct parser *p) {
    if (p->nesting++ >= JINJA_NESTING_MAX)
        parser_fail(p, STATUS_LIMIT, p->now.line, "more than %d blocks and brackets inside each other",
                    JINJA_NESTING_MAX);
    return !p->status;
}

void parser_leave(struct parser *p) { p->nesting--; }

bool parser_skip_op(struct parser *p, int op) {
    if (!token_is_op(&p->now, op)) return false;
    parser_advance(p);
    return true;
}

bool parser_skip_name(struct parser *p, const char *name) {
    if (!token_is_name(&p->now, name)) return false;
    parser_advance(p);
    return true;
}

struct node *parser_unexpected(struct parser *p, const char *expected) {
    const struct token *t = &p->now;
    char what[64] = "the end of the template";
    if (t->type == TOKEN_NAME)
        snprintf(what, sizeof what, "'%.*s'", (int)(t->n > 40 ? 40 : t->n), t->text);
    else if (t->type == TOKEN_OPERATOR)
        snprintf(what, sizeof what, "'%c%c'", t->op & 0xff, t->op >> 8 ? t->op >> 8 : ' ');
    else if (t->type != TOKEN_END)
        strcpy(what, t->type == TOKEN_STRING                             ? "a string"
                     : t->type == TOKEN_INTEGER || t->type == TOKEN_REAL ? "a number"
                                                                         : "a tag's end");
    return parser_fail(p, STATUS_INVALID, t->line, "expected %s, found %s", expected, what);
}

bool parser_expect_op(struct parser *p, int op) {
    if (parser_skip_op(p, op)) return !p->status;
    parser_unexpected(p, (char[]){'\'', (char)op, '\'', '\0'});
    return false;
}

// Every tag ends here, so that what a statement leaves unread is an error.
static bool expect_block_end(struct parser *p) {
    if (p->now.type != TOKEN_BLOCK_END) return parser_unexpected(p, "the end of the tag"), false;
    parser_advance(p);
    return !p->status;
}

static struct node *parse_statement(struct parser *p);

static bool is_one_of(const struct token *t, const char *const *words) {
    for (; words && *words; words++)
        if (token_is_name(t, *words)) return true;
    return false;
}

// Reads statements until a tag that begins with one of `ends` (p->now is then that word), or the template's end.
static struct node *parse_body(struct parser *p, const char *const *ends) {
    struct node *body = parser_node(p, NODE_BODY, p->now.line);
    struct node_list list = {0};
    if (!parser_enter(p)) return NULL;
    while (!p->status && p->now.type != TOKEN_END) {
        uint32_t line = p->now.line;
        struct node *node = NULL;
        if (p->now.type == TOKEN_DATA) {
            node = parser_node(p, NODE_DATA, line);
            if (!node) break;
            node->text = p->now.text;
            node->n = p->now.n;
            parser_advance(p);
        } else if (p->now.type == TOKEN_PRINT_BEGIN) {
            parser_advance(p);
            struct node *value = parse_tuple(p, true);
            if (!value) break;
            if (p->now.type != TOKEN_PRINT_END) return parser_unexpected(p, "'}}'");
            parser_advance(p);
            node = parser_finish1(p, parser_node(p, NODE_PRINT, line), value);
        } else {
            parser_advance(p); // {%
            if (is_one_of(&p->now, ends)) {
                parser_leave(p);
                return parser_finish(p, body, &list);
            }
            node = parse_statement(p);
            if (!node || !expect_block_end(p)) break;
        }
        if (!parser_push(p, &list, node)) break;
    }
    parser_leave(p);
    if (!p->status && ends) parser_fail(p, STATUS_INVALID, p->now.line, "the template ends before {%% %s %%}", ends[0]);
    return p->status ? NULL : parser_finish(p, body, &list);
}

// The body behind the tag that p stands at the end of, up to one of `ends`.
static struct node *parse_block(struct parser *p, const char *const *ends) {
    parser_skip_op(p, ':');
    if (p->status || !expect_block_end(p)) return NULL;
    return parse_body(p, ends);
}

static struct node *parse_if(struct parser *p) {
    static const char *const ends[] = {"endif", "elif", "else", NULL}, *const end[] = {"endif", NULL};
    struct node *node = parser_node(p, NODE_IF, p->now.line);
    struct node_list kids = {0};
    do {
        parser_advance(p); // if, elif
        if (!parser_push(p, &kids, parse_tuple(p, false)) || !parser_push(p, &kids, parse_block(p, ends))) return NULL;
    } while (token_is_name(&p->now, "elif"));
    if (parser_skip_name(p, "else") && !parser_push(p, &kids, parse_block(p, end))) return NULL;
    parser_advance(p); // endif
    return parser_finish(p, node, &kids);
}

static struct node *parse_for(struct parser *p) {
    static const char *const ends[] = {"endfor", "else", NULL}, *const end[] = {"endfor", NULL};
    struct node *node = parser_node(p, NODE_FOR, p->now.line), *kids[5] = {NULL};
    parser_advance(p);
    kids[0] = parse_target(p, false);
    if (!kids[0]) return NULL;
    if (!parser_skip_name(p, "in")) return parser_unexpected(p, "'in'");
    if (!(kids[1] = parse_tuple(p, false))) return NULL;
    if (parser_skip_name(p, "if") && !(kids[2] = parse_expression(p, true))) return NULL;
    if (token_is_name(&p->now, "recursive"))
        return parser_fail(p, STATUS_UNSUPPORTED, p->now.line, "recursive loops are not supported");
    p->loops++;
    kids[3] = parse_block(p, ends);
    p->loops--;
    if (!kids[3]) return NULL;
    if (parser_skip_name(p, "else") && !(kids[4] = parse_block(p, end))) return NULL;
    parser_advance(p); // endfor
    return finish_array(p, node, kids, 5);
}

static struct node *parse_set(struct parser *p) {
    static const char *const end[] = {"endset", NULL};
    uint32_t line = p->now.line;
    parser_advance(p);
    struct node *kids[3] = {parse_target(p, true), NULL, NULL};
    if (!kids[0]) return NULL;
    if (parser_skip_op(p, '=')) {
        kids[1] = parse_tuple(p, true);
        return kids[1] ? finish_array(p, parser_node(p, NODE_SET, line), kids, 2) : NULL;
    }
    if (token_is_op(&p->now, '|')) {
        kids[1] = parse_filters(p, parser_node(p, NODE_CAPTURED, line), false);
        if (!kids[1]) return NULL;
    }
    if (!(kids[2] = parse_block(p, end))) return NULL;
    parser_advance(p);
    return finish_array(p, parser_node(p, NODE_SET_BLOCK, line), kids, 3);
}

// Parameters and defaults, behind '('. names gets the parameters, kids one default or NULL each.
static bool parse_signature(struct parser *p, struct node *node, struct node_list *kids) {
    int names[64];
    bool defaults = false;
    while (!p->status && !token_is_op(&p->now, ')')) {
        if (node->n_names && !parser_expect_op(p, ',')) return false;
        if (node->n_names == 64)
            return parser_fail(p, STATUS_LIMIT, p->now.line, "a macro has too many parameters"), false;
        struct node *target = parse_name_target(p), *value = NULL;
        if (!target) return false;
        for (uint32_t i = 0; i < node->n_names; i++)
            if (names[i] == target->name)
                return parser_fail(p, STATUS_INVALID, target->line, "a macro has two parameters of the same name"),
                       false;
        names[node->n_names++] = target->name;
        if (parser_skip_op(p, '='))
            value = parse_expression(p, true);
        else if (defaults)
            return parser_fail(p, STATUS_INVALID, p->now.line, "a parameter without default after one with"), false;
        defaults = defaults || value;
        if (p->status || !parser_push(p, kids, target)) return false;
        kids->items[kids->n - 1] = value; // may be NULL, which push refuses
    }
    int *copy = parser_alloc(p, node->n_names + 1, sizeof *copy);
    if (!copy) return false;
    memcpy(copy, names, node->n_names * sizeof *copy);
    node->names = copy;
    parser_advance(p); // )
    return !p->status;
}

static struct node *parse_macro(struct parser *p) {
    static const char *const end[] = {"endmacro", NULL};
    struct node *node = parser_node(p, NODE_MACRO, p->now.line);
    struct node_list kids = {0};
    parser_advance(p);
    struct node *name = parse_name_target(p);
    if (!node || !name || !parser_push(p, &kids, name) || !parser_expect_op(p, '(')) return NULL;
    node->name = name->name;
    p->t->names[name->name].is_macro = true;
    unsigned loops = p->loops;
    p->loops = 0;
    p->macros++;
    if (!parse_signature(p, node, &kids) || !(kids.items[0] = parse_block(p, end))) return NULL;
    p->macros--;
    p->loops = loops;
    parser_advance(p);
    return parser_finish(p, node, &kids);
}

static struct node *parse_with(struct parser *p) {
    static const char *const end[] = {"endwith", NULL};
    struct node *node = parser_node(p, NODE_WITH, p->now.line), *body;
    struct node_list kids = {0};
    parser_advance(p);
    if (!parser_push(p, &kids, node)) return NULL; // the body's place
    while (!p->status && p->now.type != TOKEN_BLOCK_END) {
        if (kids.n > 1 && !parser_expect_op(p, ',')) return NULL;
        if (!parser_push(p, &kids, parse_name_target(p)) || !parser_expect_op(p, '=') ||
            !parser_push(p, &kids, parse_expression(p, true)))
            return NULL;
    }
    if (!(body = parse_block(p, end))) return NULL;
    kids.items[0] = body;
    parser_advance(p);
    return parser_finish(p, node, &kids);
}

static struct node *parse_filter_block(struct parser *p) {
    static const char *const end[] = {"endfilter", NULL};
    uint32_t line = p->now.line;
    parser_advance(p);
    struct node *filters = parse_filters(p, parser_node(p, NODE_CAPTURED, line), true);
    struct node *body = filters ? parse_block(p, end) : NULL;
    if (!body) return NULL;
    parser_advance(p);
    return parser_finish2(p, parser_node(p, NODE_FILTER_BLOCK, line), filters, body);
}

// Its body is a function in Hugging Face's environment, so that break and continue cannot leave it.
static struct node *parse_generation(struct parser *p) {
    static const char *const end[] = {"endgeneration", NULL};
    uint32_t line = p->now.line;
    parser_advance(p);
    unsigned loops = p->loops;
    p->loops = 0;
    struct node *body = parse_block(p, end);
    p->loops = loops;
    if (!body) return NULL;
    parser_advance(p);
    return parser_finish1(p, parser_node(p, NODE_GENERATION, line), body);
}

static struct node *parse_jump(struct parser *p) {
    enum node_kind kind = token_is_name(&p->now, "break") ? NODE_BREAK : NODE_CONTINUE;
    struct node *node = parser_node(p, kind, p->now.line);
    if (!p->loops) return parser_fail(p, STATUS_INVALID, p->now.line, "break or continue outside a loop");
    parser_advance(p);
    return node;
}

static struct node *parse_statement(struct parser *p) {
    static const struct {
        const char *name;
        struct node *(*parse)(struct parser *p);
    } statements[] = {
        {"if", parse_if},       {"for", parse_for},       {"set", parse_set},
        {"macro", parse_macro}, {"with", parse_with},     {"filter", parse_filter_block},
        {"break", parse_jump},  {"continue", parse_jump}, {"generation", parse_generation},
    };
    if (p->now.type != TOKEN_NAME) return parser_unexpected(p, "a statement");
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++)
        if (token_is_name(&p->now, statements[i].name)) return statements[i].parse(p);
    return parser_fail(p, STATUS_UNSUPPORTED, p->now.line, "the statement '%.*s' is not known here",
                       (int)(p->now.n > 40 ? 40 : p->now.n), p->now.text);
}

// A call of a name that can hold nothing callable would only fail when it is rendered.
static bool check_calls(struct parser *p) {
    for (int i = 0; i < p->t->n_names; i++) {
        const struct name *name = &p->t->names[i];
        if (!name->call_line || name->is_macro || name->written) continue;
        bool known = false;
        for (const char *const *f = jinja_functions; *f; f++) known = known || !strcmp(*f, name->text);
        if (!known) parser_fail(p, STATUS_UNSUPPORTED, name->call_line, "the function '%s' is not known", name->text);
    }
    return !p->status;
}

enum status jinja_parse(struct jinja_template *t, const char *source, size_t n, struct error *e) {
    struct parser p = {.t = t, .error = e};
    if (!lexer_init(&p.lexer, source, n, t->memory, e)) return p.lexer.status;
    lexer_next(&p.lexer, &p.ahead);
    parser_advance(&p);
    t->root = parse_body(&p, NULL);
    if (!p.status) check_calls(&p);
    return p.status;
}
