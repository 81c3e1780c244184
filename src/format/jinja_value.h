// Owns the values that a render computes with. Private to the jinja files. Values are immutable (namespaces aside) and
// live until the render's memory is freed. Functions that return bool have written an error, in r->status, when they
// return false.
#ifndef TF_FORMAT_JINJA_VALUE_H
#define TF_FORMAT_JINJA_VALUE_H

#include "format/jinja_ast.h"

enum value_type {
    VALUE_MISSING, // an argument that was not given, a name that is not set; never the result of an expression
    VALUE_UNDEFINED,
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INTEGER,
    VALUE_REAL,
    VALUE_STRING,
    VALUE_SEQUENCE,
    VALUE_DICT,
    VALUE_ITERATOR,
    VALUE_NAMESPACE,
    VALUE_MACRO,
    VALUE_FUNCTION,
    VALUE_METHOD, // a method that was named and not called
    VALUE_LOOP,
};

enum function_id { FUNCTION_RANGE, FUNCTION_NAMESPACE, FUNCTION_DICT, FUNCTION_RAISE, FUNCTION_STRFTIME };

struct value {
    enum value_type type;
    bool trusted;               // scalars, and strings without `trust`
    bool markup;                // STRING: went through `safe`: text that joins it by + is escaped as HTML, as in Python
    size_t n;                   // STRING: bytes
    const unsigned char *trust; // STRING: 1 for each trusted byte, or NULL when all are as `trusted` says
    union {
        bool boolean;
        int64_t integer;
        double real;
        const char *text; // STRING: UTF-8
        const char *hint; // UNDEFINED: the sentence that using it gives
        struct sequence *sequence;
        struct dict *dict;
        struct iterator *iterator;
        struct space *space;
        struct macro *macro;
        struct loop *loop;
        enum function_id function;
    };
};

// Lists and what is like them. Items come from values, from a JSON array, or from a range.
enum sequence_kind { SEQUENCE_LIST, SEQUENCE_TUPLE, SEQUENCE_RANGE, SEQUENCE_KEYS, SEQUENCE_VALUES, SEQUENCE_ITEMS };
struct sequence {
    enum sequence_kind kind;
    bool trusted; // JSON
    size_t n;
    const struct value *items;
    const json_t *json;
    int64_t start, stop, step; // RANGE
};

// Mappings: pairs of values, or a JSON object.
struct dict {
    bool trusted; // JSON
    size_t n;
    const struct value *keys, *values;
    const json_t *json;
};

struct space { // a namespace
    size_t n, capacity;
    struct value *names, *values;
};

// ---- making values ----
struct value value_undefined(struct render *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static inline struct value value_none(void) { return (struct value){.type = VALUE_NONE, .trusted = true}; }
static inline struct value value_bool(bool b) {
    return (struct value){.type = VALUE_BOOL, .trusted = true, .boolean = b};
}
static inline struct value value_integer(int64_t i, bool trusted) {
    return (struct value){.type = VALUE_INTEGER, .trusted = trusted, .integer = i};
}
static inline struct value value_real(double x, bool trusted) {
    return (struct value){.type = VALUE_REAL, .trusted = trusted, .real = x};
}
static inline struct value value_text(const char *text, size_t n, bool trusted) {
    return (struct value){.type = VALUE_STRING, .trusted = trusted, .text = text, .n = n};
}
struct value value_part(const struct value *text, size_t start, size_t end); // bytes start..end of a string
struct value value_json(struct render *r, const json_t *json, bool trusted); // MISSING after an error
bool value_list(struct render *r, enum sequence_kind kind, const struct value *items, size_t n, struct value *out);
bool value_dict(struct render *r, const struct value *keys, const struct value *values, size_t n, struct value *out);

// ---- asking values ----
static inline bool value_given(const struct value *v) { return v->type != VALUE_MISSING; }
const char *value_type_name(const struct value *v); // as Python calls it
bool value_truth(const struct value *v);
bool value_equal(struct render *r, const struct value *a, const struct value *b, bool *out);
bool value_less(struct render *r, const struct value *a, const struct value *b, const char *op, bool *out);
bool value_contains(struct render *r, const struct value *container, const struct value *item, bool *out);
bool value_length(struct render *r, const struct value *v, int64_t *out); // false: it has none
bool value_is_iterable(const struct value *v);
static inline bool value_is_integer(const struct value *v) { return v->type == VALUE_INTEGER || v->type == VALUE_BOOL; }
static inline int64_t value_as_integer(const struct value *v) {
    return v->type == VALUE_BOOL ? v->boolean : v->integer;
}
static inline bool value_is_number(const struct value *v) { return value_is_integer(v) || v->type == VALUE_REAL; }
static inline double value_as_real(const struct value *v) {
    return v->type == VALUE_REAL ? v->real : (double)value_as_integer(v);
}
// v[key] and v.name as Jinja's sandbox looks them up: undefined when there is no such thing.
bool value_subscript(struct render *r, const struct value *v, const struct value *key, struct value *out);
bool value_attribute(struct render *r, const struct value *v, const char *name, size_t n, struct value *out);
bool value_slice(struct render *r, const struct value *v, const struct value bounds[3], struct value *out);
bool sequence_item(struct render *r, const struct sequence *s, size_t i, struct value *out);
bool dict_find(struct render *r, const struct dict *d, const struct value *key, struct value *out, bool *found);
bool dict_pair(struct render *r, const struct dict *d, size_t i, struct value *key, struct value *value);
// All keys and values at once: walking a JSON object by index is slow.
bool dict_arrays(struct render *r, const struct dict *d, const struct value **keys, const struct value **values);

#endif
