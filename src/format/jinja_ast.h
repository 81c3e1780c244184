// Owns the compiled form of a template: nodes, names, and the tables of what filters, tests and methods are called.
// Private to the jinja files.
#ifndef TF_FORMAT_JINJA_AST_H
#define TF_FORMAT_JINJA_AST_H

#include "base/arena.h"
#include "format/jinja.h"
#include "format/jinja_token.h"
#include <stdbool.h>
#include <stdint.h>

#define JINJA_NAMES_MAX 1024 // distinct identifiers in one template
#define JINJA_ARGS_MAX  6    // of one call of a filter, test or method, what it applies to included
#define JINJA_TREE_MAX  300  // nodes inside each other

enum node_kind {
    // statements
    NODE_BODY,         // kids
    NODE_DATA,         // text
    NODE_PRINT,        // kids[0]
    NODE_IF,           // kids: test, body, test, body, ..., and the else body when their number is odd
    NODE_FOR,          // kids: target, iterated, condition or NULL, body, else body or NULL
    NODE_SET,          // kids: target, value
    NODE_SET_BLOCK,    // kids: target, filter chain over NODE_CAPTURED or NULL, body
    NODE_MACRO,        // name; kids: body, then a default or NULL for each of params
    NODE_FILTER_BLOCK, // kids: filter chain over NODE_CAPTURED, body
    NODE_WITH,         // kids: body, then target, value, target, value, ...
    NODE_GENERATION,   // kids[0]
    NODE_BREAK,
    NODE_CONTINUE,
    // expressions
    NODE_CONSTANT,         // a string, number, boolean or none
    NODE_CAPTURED,         // the text of the block that the filter stands on
    NODE_NAME,             // name; also a target
    NODE_NAMESPACE_TARGET, // name, text: the attribute
    NODE_ATTRIBUTE,        // kids[0], text
    NODE_SUBSCRIPT,        // kids: value, index
    NODE_SLICE,            // kids: value, start, stop, step, each but the first may be NULL
    NODE_LIST,             // kids
    NODE_TUPLE,            // kids; also a target
    NODE_DICT,             // kids: key, value, key, value, ...
    NODE_NOT,              // kids[0]
    NODE_NEGATE,           // kids[0]
    NODE_PLUS,             // kids[0]
    NODE_AND,              // kids
    NODE_OR,               // kids
    NODE_ARITHMETIC,       // kids, joined from left to right by ops
    NODE_COMPARE,          // kids, chained by ops
    NODE_CONCAT,           // kids
    NODE_CONDITIONAL,      // kids: test, then, else or NULL
    NODE_FILTER,           // builtin; kids: value, arguments (NULL: not given); for map and select see `inner`
    NODE_TEST,             // builtin; kids: value, arguments
    NODE_METHOD,           // builtin; kids: receiver, arguments
    NODE_CALL,             // name; kids: positional arguments, then one a keyword
};

enum constant_type { CONSTANT_NONE, CONSTANT_BOOL, CONSTANT_INTEGER, CONSTANT_REAL, CONSTANT_STRING };

// Comparison operators that are words.
enum { OP_IN = 1, OP_NOT_IN = 2 };

struct builtin;

struct node {
    enum node_kind kind;
    uint32_t line;
    uint16_t height; // nodes below each other, this one included
    int name;        // index into names; -1: none
    enum constant_type constant;
    bool boolean;
    bool negated; // TEST: "is not"
    int64_t integer;
    double real;
    const char *text;
    size_t n;
    const struct builtin *builtin;
    const struct builtin *inner; // the filter that map applies, or the test of select and its kin
    struct node **kids;
    uint32_t n_kids;
    const int *ops;   // ARITHMETIC, COMPARE: n_kids - 1
    const int *names; // MACRO: parameters; CALL: keywords
    uint32_t n_names;
    const int *hidden; // BODY of a scope: names unset in it until it assigns them (see jinja_scope.c)
    uint32_t n_hidden;
};

struct name {
    const char *text;
    size_t n;
    bool read, written, is_macro; // somewhere in the template
    uint32_t call_line;           // of its first call; 0: none
};

struct jinja_template {
    struct arena *memory;
    struct node *root;
    struct name names[JINJA_NAMES_MAX];
    int n_names;
    int loop_name; // index of "loop", or -1
};

// Parses the whole source into t->root. The parser is the only caller of the lexer.
enum status jinja_parse(struct jinja_template *t, const char *source, size_t n, struct error *e);

// Fills the `hidden` lists.
enum status jinja_resolve_scopes(struct jinja_template *t, struct error *e);

// ---- what filters, tests, methods and functions are called and take ----

enum builtin_kind { BUILTIN_FILTER, BUILTIN_TEST, BUILTIN_METHOD };

struct render;
struct value;
// NULL for the filters that iterators run. args[0] is what the filter, test or method applies to; an argument
// that was not given has the type VALUE_MISSING.
typedef bool (*builtin_function)(struct render *r, const struct value *args, struct value *out);

struct builtin {
    const char *name;
    builtin_function run;
    const char *params; // names by blanks; '!' after one: it must be given; "/" first: keywords are refused
};

const struct builtin *builtin_find(enum builtin_kind kind, const char *name, size_t n); // NULL: not known

extern const struct builtin jinja_filters[], jinja_tests[], jinja_methods[]; // end with a NULL name
extern const char *const jinja_functions[];                                  // names; index: enum function_id

extern const struct builtin jinja_filter_map;
bool builtin_is_selection(const struct builtin *b); // select, reject, selectattr, rejectattr

#endif
