// Owns what the two halves of the parser share: jinja_parser.c (statements) and jinja_expression.c.
#ifndef TF_FORMAT_JINJA_PARSER_H
#define TF_FORMAT_JINJA_PARSER_H

#include "format/jinja_ast.h"
#include <string.h>

struct parser {
    struct lexer lexer;
    struct token now, ahead;
    struct jinja_template *t;
    struct error *error;
    enum status status;
    unsigned nesting;
    unsigned loops;  // for loops around this place, macros being walls
    unsigned macros; // macros around this place
};

// Nodes while their number is not known; grows in the template's arena.
struct node_list {
    struct node **items;
    size_t n, capacity;
};

// All functions below that return a node return NULL after an error, which is then in p->status.
struct node *parser_fail(struct parser *p, enum status code, uint32_t line, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
void *parser_alloc(struct parser *p, size_t n, size_t size); // zeroed
void parser_advance(struct parser *p);
bool parser_push(struct parser *p, struct node_list *list, struct node *node); // false also when node is NULL
struct node *parser_node(struct parser *p, enum node_kind kind, uint32_t line);
// Gives the node its kids and its height; the tree's height is bounded.
struct node *parser_finish(struct parser *p, struct node *node, const struct node_list *kids);
struct node *parser_finish1(struct parser *p, struct node *node, struct node *kid);
struct node *parser_finish2(struct parser *p, struct node *node, struct node *a, struct node *b);
int parser_intern(struct parser *p, const char *text, size_t n); // -1 after an error
bool parser_enter(struct parser *p);                             // one level deeper; false after an error
void parser_leave(struct parser *p);

static inline bool token_is_op(const struct token *t, int op) { return t->type == TOKEN_OPERATOR && t->op == op; }
static inline bool token_is_name(const struct token *t, const char *name) {
    return t->type == TOKEN_NAME && t->n == strlen(name) && !memcmp(t->text, name, t->n);
}
bool parser_skip_op(struct parser *p, int op);
bool parser_skip_name(struct parser *p, const char *name);
bool parser_expect_op(struct parser *p, int op); // false after an error
struct node *parser_unexpected(struct parser *p, const char *expected);

struct node *parse_expression(struct parser *p, bool with_conditional);
// Values with commas between them are a tuple. A comma at the end needs a bracket or the tag's end behind it.
struct node *parse_tuple(struct parser *p, bool with_conditional);
struct node *parse_target(struct parser *p, bool with_namespace);
struct node *parse_name_target(struct parser *p);
struct node *parse_filters(struct parser *p, struct node *on, bool first_is_inline);

#endif
