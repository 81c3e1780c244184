// What the files of the schema compiler share.
#ifndef TF_FORMAT_SCHEMA_INTERNAL_H
#define TF_FORMAT_SCHEMA_INTERNAL_H

#include "format/pattern.h"
#include "format/schema.h"
#include "format/toolcall_schema.h"

#define SCHEMA_STEPS_MAX (1 << 21) // of some 10 ns, for all that a request may ask to be compiled

// How a value is written.
enum schema_form {
    FORM_JSON,
    FORM_IN_TAGS,   // JSON between the tags of a call: no "</" in a string
    FORM_PARAMETER, // the value of a call's parameter: JSON, but a string as it is
    FORMS,
};

// A schema whose node is known, though maybe not set yet.
struct known_schema {
    const json_t *schema;
    enum schema_form form;
    unsigned types; // of a parameter, as the parser of calls takes it
    int32_t node;
};

struct schema_compiler {
    struct grammar *g;
    struct json_view root;      // that references are relative to
    struct known_schema *known; // a hash table
    size_t n_known, known_capacity;
    struct pending {
        struct json_view view, root;
        enum schema_form form;
        unsigned types;
        int32_t node;
        bool unwritten; // an alternative that is never taken: its node is not set
    } * pending;        // [n_pending], those before `next` are set
    size_t n_pending, pending_capacity, next;
    int32_t space, any[FORMS], any_object[FORMS]; // made when first needed; 0: not yet
    int32_t plain_number[2];                      // start states of any number and any integer; DFA_NONE: not yet
    int32_t open_object, close_object, open_array, close_array, separator; // start states; DFA_NONE: not yet
    int64_t n_work;                                                        // automaton states that were made on the way
    int64_t n_steps; // all the work whose sum is bounded, in parts of some 10 ns
};

struct schema_context {
    struct schema_compiler *c;
    const struct json_view *schema;
    enum schema_form form;
    unsigned types; // with FORM_PARAMETER
};

// ---- schema.c ----
enum status schema_node(struct schema_compiler *c, const struct json_view *schema, enum schema_form form,
                        unsigned types, int32_t *node, struct error *e);
enum status schema_refuse(const struct json_view *schema, const char *keyword, struct error *e); // not supported
enum status schema_refuse_value(const struct json_view *schema, const char *keyword, const char *why, struct error *e);
// Of a parameter that has other alternatives, the one at hand cannot be written.
enum status schema_leave_unwritten(struct schema_compiler *c);
// Counts the members or elements that are gone through. LIMIT: the schema takes more work than any should.
enum status schema_count(struct schema_compiler *c, const struct json_view *schema, size_t n, struct error *e);
// Follows "$ref"s, and what else only passes on. False: *e says why not.
enum status schema_follow(struct schema_compiler *c, const struct json_view *schema, struct json_view *out,
                          struct error *e);

// The types that "type" names, as bits of toolcall_schema.h; *types stays as it is without it.
enum status schema_read_types(const struct json_view *schema, unsigned *types, struct error *e);
// A parameter of a call, of the types that the parser of calls takes it to have.
enum status schema_add_parameter(struct schema_compiler *c, const struct json_view *parameters,
                                 const struct json_view *schema, unsigned types, int32_t *node, struct error *e);

// ---- schema_parts.c: nodes that say nothing about a request ----
enum status schema_prepare(struct schema_compiler *c, struct error *e);
enum status schema_regex(struct schema_compiler *c, const char *pattern, int32_t *start, struct error *e);
enum status schema_regex_node(struct schema_compiler *c, const char *pattern, int32_t *node, struct error *e);
enum status schema_any(struct schema_compiler *c, enum schema_form form, int32_t *node, struct error *e);
enum status schema_any_object(struct schema_compiler *c, enum schema_form form, int32_t *node, struct error *e);
enum status schema_map(struct schema_compiler *c, enum schema_form form, int32_t value, int32_t node, struct error *e);
enum status schema_list(struct schema_compiler *c, int32_t element, uint32_t min, uint32_t max, int32_t node);

// ---- schema_strings.c, schema_numbers.c ----
enum status schema_set_string(const struct schema_context *x, int32_t node, struct error *e);
enum status schema_set_number(const struct schema_context *x, bool integer, int32_t node, struct error *e);

// ---- schema_values.c ----
unsigned schema_bits_of_value(const json_t *v);
enum status schema_set_enum(const struct schema_context *x, int32_t node, struct error *e);
enum status schema_check_apart(struct schema_compiler *c, const struct json_view *list, struct error *e);

// ---- schema_composites.c ----
enum status schema_set_array(const struct schema_context *x, int32_t node, struct error *e);
enum status schema_set_object(const struct schema_context *x, int32_t node, struct error *e);
// How a key is written in JSON, with its colon.
enum status schema_write_key(struct buffer *out, enum schema_form form, const char *key, size_t n, struct error *e);

// The names that "required" lists.
#define SCHEMA_NAMES_MAX (2 * GRAMMAR_MEMBERS_MAX)
struct schema_name {
    const char *text;
    size_t at; // in the list
};
struct schema_names {
    struct schema_name sorted[SCHEMA_NAMES_MAX]; // of equal ones the first first
    size_t n;
};
enum status schema_read_names(struct schema_compiler *c, const struct json_view *schema, struct schema_names *out,
                              struct error *e);
const struct schema_name *schema_find_name(const struct schema_names *names, const char *text); // NULL: it is none

// The number of elements or characters that a keyword names; *out stays as it is when it is absent.
enum status schema_read_count(const struct json_view *schema, const char *keyword, uint32_t *out, struct error *e);

#endif
