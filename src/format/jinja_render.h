// Owns the state of a render, and what the parts of the interpreter do for each other. Private to the jinja files. As
// in jinja_value.h, false (or NULL) means that an error has been written.
#ifndef TF_FORMAT_JINJA_RENDER_H
#define TF_FORMAT_JINJA_RENDER_H

#include "base/buffer.h"
#include "format/jinja_value.h"

struct scope;
struct macro {
    const struct node *node;
    struct scope *scope; // where it was defined
};

// A pass over something, lazily: filters such as map and select are stages that pull from their source.
enum iterator_kind { ITERATE_SEQUENCE, ITERATE_REVERSED, ITERATE_TEXT, ITERATE_FILTER, ITERATE_CONDITION };
struct iterator {
    enum iterator_kind kind;
    size_t at;
    struct value over;        // SEQUENCE, TEXT
    struct iterator *source;  // FILTER, CONDITION
    const struct node *node;  // FILTER: map, select, ...; CONDITION: the for loop
    const struct value *args; // FILTER: args[0] is free for the item
    struct scope *scope;      // CONDITION: around the loop
    struct value *seen;       // unique
    size_t n_seen;
};

struct loop {
    struct iterator *iterator;
    struct value iterated;
    int64_t index0;
    bool has_after, has_before, has_length;
    int64_t length;
    struct value before, current, after;
};

struct binding {
    int name;
    struct value value;
};
struct scope {
    struct scope *outer; // NULL: the outermost scope, whose names are in render.globals and which has no struct
    struct binding *bindings;
    size_t n, capacity;
};

// Text that grows in the render's memory; the trust map exists once both kinds of text are in it.
struct builder {
    char *text;
    unsigned char *trust;
    size_t n, capacity;
    bool trusted; // of everything so far, while there is no map
};

struct render {
    const struct jinja_template *t;
    struct arena *memory;
    char *chunk; // small allocations are cut from it
    size_t chunk_left;
    struct jinja_limits limits;
    uint64_t steps;
    unsigned depth;
    uint32_t line;         // of the node that runs
    struct value *globals; // by name
    struct scope *scope;   // NULL: the outermost
    struct builder *out;
    struct builder tail;   // the newest concatenation, which the next one may extend in place
    struct value captured; // NODE_CAPTURED
    int64_t now_s;
    struct buffer scratch; // for numbers as text
    enum status status;
    struct error *error;
    bool jump_break, jump_continue; // on the way out of the loop's body
};

// ---- errors and limits ----
bool render_fail(struct render *r, enum status code, const char *format, ...) __attribute__((format(printf, 3, 4)));
bool render_step(struct render *r, uint64_t n);
bool render_enter(struct render *r);
void render_leave(struct render *r);
void *render_alloc(struct render *r, size_t n, size_t size); // not zeroed, 16-byte aligned; NULL after an error

// ---- iterating ----
struct iterator *value_iterate(struct render *r, const struct value *v); // NULL after an error
enum next { NEXT_ERROR, NEXT_ITEM, NEXT_END };
enum next iterator_next(struct render *r, struct iterator *it, struct value *out);
bool value_collect(struct render *r, const struct value *v, const struct value **items, size_t *n); // list(v)
struct value value_iterator(struct iterator *it);
bool value_attribute_path(struct render *r, const struct value *path, struct value *item); // *item = item.a.b for "a.b"

// ---- text ----
bool builder_append(struct render *r, struct builder *b, const char *text, size_t n, bool trusted);
bool builder_append_value(struct render *r, struct builder *b, const struct value *text); // a string
struct value builder_finish(struct builder *b);
bool value_concat(struct render *r, const struct value *a, const struct value *b, struct value *out); // strings
bool value_to_text(struct render *r, const struct value *v, struct value *out);                       // str(v)
bool value_append_repr(struct render *r, struct builder *b, const struct value *v);                   // repr(v)
size_t text_find(const struct value *text, const struct value *part, size_t from); // SIZE_MAX: not there

// ---- calling ----
bool render_expression(struct render *r, const struct node *node, struct value *out);
bool render_name(struct render *r, int name, struct value *out); // undefined when it is not set
bool render_call(struct render *r, const struct node *node, struct value *out);
bool render_body(struct render *r, const struct node *body);
bool render_capture(struct render *r, const struct node *body, struct value *out);
bool render_assign(struct render *r, const struct node *target, const struct value *v);
bool scope_set(struct render *r, struct scope *s, int name, const struct value *v);
bool scope_enter(struct render *r, struct scope *s, struct scope *outer, const struct node *body);
bool render_arithmetic(struct render *r, int op, const struct value *a, const struct value *b, struct value *out);
bool render_compare(struct render *r, int op, const struct value *a, const struct value *b, bool *out);
bool render_printf(struct render *r, const struct value *format, const struct value *args, struct value *out);

// ---- pieces shared by filters, tests and methods ----
// An integer argument (*out stays when it was not given), a string argument; else an error that names `what`.
bool arg_integer(struct render *r, const struct value *v, const char *what, int64_t *out);
bool arg_text(struct render *r, const struct value *v, const char *what);
bool dict_view(struct render *r, const struct dict *d, enum sequence_kind kind, struct value *out);
// Sorts items by keys, stably; the order is that of Python's sorted().
bool value_sort(struct render *r, const struct value *items, const struct value *keys, size_t n, bool reverse,
                struct value *out);
bool value_to_json(struct render *r, const struct value *args, struct value *out); // the tojson filter
bool text_strip(struct render *r, const struct value *text, const struct value *chars, bool left, bool right,
                struct value *out);
bool text_replace(struct render *r, const struct value *text, const struct value *old, const struct value *with,
                  int64_t limit, struct value *out);
enum text_case { CASE_UPPER, CASE_LOWER, CASE_CAPITALIZE, CASE_TITLE, CASE_JINJA_TITLE };
bool text_case(struct render *r, const struct value *text, enum text_case how, struct value *out);
bool text_split_lines(struct render *r, const struct value *text, bool keep_ends, struct value *out);
bool text_escape(struct render *r, const struct value *text, struct value *out); // HTML; what is markup stays
bool text_is(const struct value *text, const char *property); // "space", "upper", "lower", "alpha", "digit"
bool value_join(struct render *r, const struct value *separator, const struct value *items, bool convert,
                struct value *out);

#endif
