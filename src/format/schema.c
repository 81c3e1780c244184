// One schema after another: which keywords it has, references, alternatives, types.
#include "format/schema.h"
#include "format/schema_internal.h"
#include <stdlib.h>
#include <string.h>

#define PENDING_MAX  8192
#define FOLLOWED_MAX 64    // references that lead to references
#define WORK_MAX     65536 // states of the automata of all patterns, before what is dead is left out

// What a keyword is to us. Those that are not in the table are refused.
enum keyword_kind {
    ANNOTATION, // says nothing about which values are valid
    ALONE,      // says all: beside it, annotations only
    LISTED,     // enum and const: beside them, type and annotations
    TYPED,      // for values of `types`
    TYPE,
};

static const struct keyword {
    const char *name;
    enum keyword_kind kind;
    unsigned types;
} keywords[] = {
    {"title", ANNOTATION, 0},
    {"description", ANNOTATION, 0},
    {"default", ANNOTATION, 0},
    {"examples", ANNOTATION, 0},
    {"example", ANNOTATION, 0},
    {"deprecated", ANNOTATION, 0},
    {"readOnly", ANNOTATION, 0},
    {"writeOnly", ANNOTATION, 0},
    {"$schema", ANNOTATION, 0},
    {"$id", ANNOTATION, 0},
    {"$comment", ANNOTATION, 0},
    {"$defs", ANNOTATION, 0},
    {"definitions", ANNOTATION, 0},
    {"$ref", ALONE, 0},
    {"anyOf", ALONE, 0},
    {"oneOf", ALONE, 0},
    {"allOf", ALONE, 0},
    {"enum", LISTED, 0},
    {"const", LISTED, 0},
    {"type", TYPE, 0},
    {"nullable", TYPE, 0},
    {"properties", TYPED, VALUE_OBJECT},
    {"required", TYPED, VALUE_OBJECT},
    {"additionalProperties", TYPED, VALUE_OBJECT},
    {"items", TYPED, VALUE_ARRAY},
    {"minItems", TYPED, VALUE_ARRAY},
    {"maxItems", TYPED, VALUE_ARRAY},
    {"minLength", TYPED, VALUE_STRING},
    {"maxLength", TYPED, VALUE_STRING},
    {"pattern", TYPED, VALUE_STRING},
    {"format", TYPED, VALUE_STRING},
    {"minimum", TYPED, VALUE_NUMBER | VALUE_INTEGER},
    {"maximum", TYPED, VALUE_NUMBER | VALUE_INTEGER},
    {"exclusiveMinimum", TYPED, VALUE_NUMBER | VALUE_INTEGER},
    {"exclusiveMaximum", TYPED, VALUE_NUMBER | VALUE_INTEGER},
};

#define KEYWORD_STEPS 16 // of finding one

static const struct keyword *find_keyword(const char *name) {
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (strcmp(keywords[i].name, name) == 0) return &keywords[i];
    return NULL;
}

enum status schema_refuse_value(const struct json_view *schema, const char *keyword, const char *why, struct error *e) {
    return error_set(e, STATUS_UNSUPPORTED, "%s/%.60s %s", schema->path, keyword, why);
}

enum status schema_refuse(const struct json_view *schema, const char *keyword, struct error *e) {
    return schema_refuse_value(schema, keyword, "is not supported (docs/structured-output.md lists what is)", e);
}

enum status schema_count(struct schema_compiler *c, const struct json_view *schema, size_t n, struct error *e) {
    c->n_steps += (int64_t)n;
    if (c->n_steps <= SCHEMA_STEPS_MAX) return STATUS_OK;
    return error_set(e, STATUS_LIMIT, "%s is where compiling the schema takes more work than it may", schema->path);
}

// ---- the compiler ----

enum status schema_compiler_create(struct grammar *g, struct schema_compiler **out, struct error *e) {
    struct schema_compiler *c = calloc(1, sizeof *c);
    if (c == NULL) return error_memory(e);
    c->g = g;
    enum status status = schema_prepare(c, e);
    if (status != STATUS_OK) {
        schema_compiler_free(c);
        return status;
    }
    *out = c;
    return STATUS_OK;
}

void schema_compiler_free(struct schema_compiler *c) {
    if (c == NULL) return;
    free(c->known);
    free(c->pending);
    free(c);
}

static struct known_schema *find_known(const struct schema_compiler *c, const json_t *schema, enum schema_form form,
                                       unsigned types) {
    size_t mask = c->known_capacity - 1, i = ((uintptr_t)schema >> 4) * 0x9e3779b97f4a7c15u >> 40 & mask;
    while (c->known[i].schema != NULL &&
           !(c->known[i].schema == schema && c->known[i].form == form && c->known[i].types == types))
        i = (i + 1) & mask;
    return &c->known[i];
}

static bool grow_known(struct schema_compiler *c) {
    if (2 * (c->n_known + 1) <= c->known_capacity) return true;
    struct known_schema *old = c->known;
    size_t n = c->known_capacity, capacity = n > 0 ? 2 * n : 64;
    struct known_schema *grown = calloc(capacity, sizeof *grown);
    if (grown == NULL) return false;
    c->known = grown;
    c->known_capacity = capacity;
    for (size_t i = 0; i < n; i++)
        if (old[i].schema != NULL) *find_known(c, old[i].schema, old[i].form, old[i].types) = old[i];
    free(old);
    return true;
}

static enum status grow_pending(struct schema_compiler *c, const struct json_view *schema, struct error *e) {
    if (c->n_pending == PENDING_MAX)
        return error_set(e, STATUS_LIMIT, "%s is one of more than %d schemas", schema->path, PENDING_MAX);
    if (c->n_pending < c->pending_capacity) return STATUS_OK;
    size_t capacity = c->pending_capacity > 0 ? 2 * c->pending_capacity : 16;
    struct pending *grown = realloc(c->pending, capacity * sizeof *grown);
    if (grown == NULL) return error_memory(e);
    c->pending = grown;
    c->pending_capacity = capacity;
    return STATUS_OK;
}

// ---- references ----

static enum status find_reference(const struct schema_compiler *c, const struct json_view *schema,
                                  struct json_view *out, struct error *e) {
    const char *reference;
    enum status status = json_get_string(schema, "$ref", JSON_REQUIRED, &reference, NULL, e);
    if (status != STATUS_OK) return status;
    if (reference[0] != '#' || (reference[1] != 0 && reference[1] != '/'))
        return schema_refuse_value(schema, "$ref", "must be \"#\" or begin with \"#/\"", e);
    if (json_find_pointer(&c->root, reference + 1, out)) return STATUS_OK;
    return schema_refuse_value(schema, "$ref", "leads nowhere", e);
}

static enum status check_alone(struct schema_compiler *c, const struct json_view *schema, const char *alone,
                               struct error *e);

enum status schema_follow(struct schema_compiler *c, const struct json_view *schema, struct json_view *out,
                          struct error *e) {
    struct json_view v = *schema;
    for (int i = 0; i < FOLLOWED_MAX; i++) {
        enum status status = STATUS_OK;
        const json_t *all = json_object_get(v.value, "allOf");
        if (json_object_get(v.value, "$ref") != NULL) {
            status = check_alone(c, &v, "$ref", e);
            if (status == STATUS_OK) status = find_reference(c, &v, &v, e);
        } else if (all != NULL) {
            struct json_view list;
            status = check_alone(c, &v, "allOf", e);
            if (status == STATUS_OK && (json_array_size(all) != 1 || !json_find(&v, "allOf", &list)))
                status = schema_refuse_value(&v, "allOf", "is supported with one schema only", e);
            if (status == STATUS_OK && !json_element(&list, 0, &v))
                status = schema_refuse_value(&v, "allOf", "must have a schema", e);
        } else {
            *out = v;
            return STATUS_OK;
        }
        if (status != STATUS_OK) return status;
    }
    return schema_refuse_value(schema, "$ref", "leads to too many others", e);
}

enum status schema_node(struct schema_compiler *c, const struct json_view *schema, enum schema_form form,
                        unsigned types, int32_t *node, struct error *e) {
    struct json_view v;
    enum status status = schema_follow(c, schema, &v, e);
    if (status != STATUS_OK) return status;
    if (json_is_true(v.value) && form != FORM_PARAMETER) return schema_any(c, form, node, e);
    if (!json_is_object(v.value)) return error_set(e, STATUS_INVALID, "%s must be a schema, an object", v.path);
    if (!grow_known(c)) return error_memory(e);
    struct known_schema *known = find_known(c, v.value, form, types);
    if (known->schema != NULL) {
        *node = known->node;
        return STATUS_OK;
    }
    status = grow_pending(c, &v, e);
    if (status == STATUS_OK) status = grammar_reserve(c->g, node, e);
    if (status == STATUS_LIMIT) return error_set(e, status, "%s is one of too many schemas", v.path);
    if (status != STATUS_OK) return status;
    *known = (struct known_schema){.schema = v.value, .form = form, .types = types, .node = *node};
    c->n_known++;
    c->pending[c->n_pending++] =
        (struct pending){.view = v, .root = c->root, .form = form, .types = types, .node = *node};
    return STATUS_OK;
}

// ---- one schema ----

static enum status check_alone(struct schema_compiler *c, const struct json_view *schema, const char *alone,
                               struct error *e) {
    const char *name;
    json_t *value;
    enum status status = schema_count(c, schema, 16 + KEYWORD_STEPS * json_length(schema), e);
    if (status != STATUS_OK) return status;
    json_object_foreach((json_t *)schema->value, name, value) {
        const struct keyword *k = find_keyword(name);
        if (strcmp(name, alone) == 0 || strncmp(name, "x-", 2) == 0 || (k != NULL && k->kind == ANNOTATION)) continue;
        if (k == NULL) return schema_refuse(schema, name, e);
        return error_set(e, STATUS_UNSUPPORTED, "%s/%.60s is not supported beside %s", schema->path, name, alone);
    }
    return STATUS_OK;
}

static const char unknown_type[] =
    "must be string, number, integer, boolean, null, object or array, or an array of these";

enum status schema_read_types(const struct json_view *schema, unsigned *types, struct error *e) {
    const json_t *type = json_object_get(schema->value, "type");
    bool nullable = json_is_true(json_object_get(schema->value, "nullable"));
    if (type == NULL) return STATUS_OK;
    *types = json_is_string(type) ? toolcall_type_bits(json_string_value(type)) : 0;
    for (size_t i = 0; i < json_array_size(type); i++) {
        const char *name = json_string_value(json_array_get(type, i));
        unsigned bits = name != NULL ? toolcall_type_bits(name) : 0;
        if (bits == 0) return schema_refuse_value(schema, "type", unknown_type, e);
        *types |= bits;
    }
    if (*types == 0) return schema_refuse_value(schema, "type", unknown_type, e);
    if (nullable) *types |= VALUE_NULL; // as OpenAPI means it
    return STATUS_OK;
}

// What a schema consists of. Without a type, the keywords tell which one is meant.
static enum status survey(struct schema_compiler *c, const struct json_view *schema, unsigned *types,
                          const struct keyword **alone, bool *is_listed, struct error *e) {
    unsigned told = 0;
    const char *name;
    json_t *value;
    *alone = NULL;
    *is_listed = false;
    enum status status = schema_count(c, schema, 64 + 2 * KEYWORD_STEPS * json_length(schema), e); // and says_nothing
    if (status != STATUS_OK) return status;
    json_object_foreach((json_t *)schema->value, name, value) {
        const struct keyword *k = find_keyword(name);
        if (k == NULL && strncmp(name, "x-", 2) == 0) continue;
        if (k == NULL && strcmp(name, "uniqueItems") == 0 && json_is_false(value)) continue;
        if (k == NULL) return schema_refuse(schema, name, e);
        if (k->kind == ALONE) *alone = k;
        if (k->kind == LISTED) *is_listed = true;
        if (k->kind == TYPED) told |= k->types;
        if (strcmp(name, "nullable") == 0 && !json_is_boolean(value))
            return schema_refuse_value(schema, name, "must be true or false", e);
        if (k->kind >= LISTED && json_is_null(value) && strcmp(name, "const") != 0)
            return schema_refuse_value(schema, name, "must not be null", e);
    }
    if (*alone != NULL) return check_alone(c, schema, (*alone)->name, e);
    bool both = json_object_get(schema->value, "enum") != NULL && json_object_get(schema->value, "const") != NULL;
    if (*is_listed && (told != 0 || both))
        return schema_refuse_value(schema, json_object_get(schema->value, "enum") != NULL ? "enum" : "const",
                                   "is supported beside type only", e);
    *types = told != 0 ? told : VALUE_ANY;
    return schema_read_types(schema, types, e);
}

static enum status set_alternatives(const struct schema_context *x, const char *keyword, int32_t node,
                                    struct error *e) {
    struct json_view list, alternative;
    int32_t parts[GRAMMAR_CHOICES_MAX];
    size_t n_parts = 0;
    enum status status = json_get_view(x->schema, keyword, JSON_REQUIRED, JSON_ARRAY, &list, e);
    if (status == STATUS_OK && json_length(&list) == 0) return schema_refuse_value(x->schema, keyword, "is empty", e);
    if (status == STATUS_OK && json_length(&list) > GRAMMAR_CHOICES_MAX)
        return error_set(e, STATUS_LIMIT, "%s has more than %d alternatives", list.path, GRAMMAR_CHOICES_MAX);
    if (status == STATUS_OK && strcmp(keyword, "oneOf") == 0) status = schema_check_apart(x->c, &list, e);
    for (size_t i = 0; status == STATUS_OK && i < json_length(&list); i++) {
        if (!json_element(&list, i, &alternative))
            return error_set(e, STATUS_INVALID, "%s/%zu must be a schema", list.path, i);
        status = schema_node(x->c, &alternative, x->form, x->types, &parts[n_parts++], e);
    }
    if (status == STATUS_OK) status = grammar_set_choice(x->c->g, node, parts, n_parts, e);
    return status;
}

// A node for the values of one type.
static enum status set_type(const struct schema_context *x, unsigned type, int32_t node, struct error *e) {
    int32_t start = DFA_NONE;
    enum status status;
    switch (type) {
    case VALUE_STRING: return schema_set_string(x, node, e);
    case VALUE_INTEGER: return schema_set_number(x, true, node, e);
    case VALUE_NUMBER: return schema_set_number(x, false, node, e);
    case VALUE_ARRAY: return schema_set_array(x, node, e);
    case VALUE_OBJECT: return schema_set_object(x, node, e);
    default:
        status = schema_regex(x->c, type == VALUE_NULL ? "^null$" : "^(true|false)$", &start, e);
        if (status == STATUS_OK) grammar_set_dfa(x->c->g, node, start);
        return status;
    }
}

// In a parameter beside strings, text stands for a number or a truth value never (toolcall_schema.h): as the text that
// it is, it would be a string.
static unsigned written_types(const struct schema_context *x, unsigned types) {
    if (types & VALUE_NUMBER) types &= ~(unsigned)VALUE_INTEGER;
    bool hidden = x->form == FORM_PARAMETER && (x->types & VALUE_STRING) != 0;
    return hidden ? types & ~(unsigned)(VALUE_NUMBER | VALUE_INTEGER | VALUE_BOOLEAN) : types;
}

enum status schema_leave_unwritten(struct schema_compiler *c) {
    c->pending[c->next - 1].unwritten = true;
    return STATUS_OK;
}

static enum status set_types(const struct schema_context *x, unsigned types, int32_t node, struct error *e) {
    int32_t parts[8];
    size_t n = 0;
    enum status status = STATUS_OK;
    types = written_types(x, types);
    if (types == 0) return schema_leave_unwritten(x->c);
    if ((types & (types - 1)) == 0) return set_type(x, types, node, e);
    for (unsigned type = 1; status == STATUS_OK && type < VALUE_ANY; type *= 2) {
        if ((types & type) == 0) continue;
        status = grammar_reserve(x->c->g, &parts[n++], e);
        if (status == STATUS_OK) status = set_type(x, type, parts[n - 1], e);
    }
    return status == STATUS_OK ? grammar_set_choice(x->c->g, node, parts, n, e) : status;
}

// A schema that says nothing, and a parameter of it, whose text may be anything.
static enum status set_any(const struct schema_context *x, int32_t node, struct error *e) {
    int32_t any;
    if (x->form == FORM_PARAMETER) {
        const struct grammar_text text = {.max = GRAMMAR_UNBOUNDED, .stops = {"</parameter>", NULL}};
        grammar_set_text(x->c->g, node, &text);
        return STATUS_OK;
    }
    enum status status = schema_any(x->c, x->form, &any, e);
    return status == STATUS_OK ? grammar_set_choice(x->c->g, node, &any, 1, e) : status;
}

static bool says_nothing(const struct json_view *schema) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)schema->value, name, value) {
        const struct keyword *k = find_keyword(name);
        if (k != NULL && k->kind != ANNOTATION) return false;
    }
    return true;
}

static enum status set_schema(const struct schema_context *x, int32_t node, struct error *e) {
    unsigned types;
    const struct keyword *alone;
    bool is_listed;
    enum status status = survey(x->c, x->schema, &types, &alone, &is_listed, e);
    if (status != STATUS_OK) return status;
    if (alone != NULL) return set_alternatives(x, alone->name, node, e); // references are followed already
    if (says_nothing(x->schema)) return set_any(x, node, e);
    if (x->form == FORM_PARAMETER && x->types == VALUE_ANY)
        return error_set(e, STATUS_UNSUPPORTED, "%s has values of every type, which is not supported for a parameter",
                         x->schema->path);
    return is_listed ? schema_set_enum(x, node, e) : set_types(x, types, node, e);
}

// Sets what is pending, and what that leads to.
static enum status work(struct schema_compiler *c, struct error *e) {
    enum status status = STATUS_OK;
    struct json_view root = c->root;
    while (status == STATUS_OK && c->next < c->n_pending) {
        struct pending p = c->pending[c->next++]; // a copy: the array may move
        struct schema_context x = {.c = c, .schema = &p.view, .form = p.form, .types = p.types};
        c->root = p.root;
        status = set_schema(&x, p.node, e);
        if (status == STATUS_LIMIT && e != NULL && e->text[0] != '/') error_prefix(e, "%s", p.view.path);
        if (status == STATUS_OK) status = schema_count(c, &p.view, 0, e);
        if (status == STATUS_OK && c->n_work > WORK_MAX)
            status = error_set(e, STATUS_LIMIT, "%s is one of too many patterns and ranges", p.view.path);
    }
    c->root = root;
    return status;
}

enum status schema_add_value(struct schema_compiler *c, const struct json_view *schema, int32_t *node,
                             struct error *e) {
    c->root = *schema;
    enum status status = schema_node(c, schema, FORM_JSON, VALUE_ANY, node, e);
    return status == STATUS_OK ? work(c, e) : status;
}

enum status schema_add_object(struct schema_compiler *c, int32_t *node, struct error *e) {
    return schema_any_object(c, FORM_JSON, node, e);
}

enum status schema_add_parameter(struct schema_compiler *c, const struct json_view *parameters,
                                 const struct json_view *schema, unsigned types, int32_t *node, struct error *e) {
    c->root = *parameters;
    enum status status = schema_node(c, schema, FORM_PARAMETER, types, node, e);
    return status == STATUS_OK ? work(c, e) : status;
}

enum status schema_finish(struct schema_compiler *c, int32_t root, struct error *e) {
    struct error own;
    enum status status = grammar_finish(c->g, root, &own);
    if (status == STATUS_MEMORY) return error_memory(e);
    if (status != STATUS_OK) return error_set(e, status, "%s %s", c->root.path, own.text);
    for (size_t i = 0; i < c->n_pending; i++)
        if (grammar_is_endless(c->g, c->pending[i].node) && !c->pending[i].unwritten)
            return error_set(e, STATUS_UNSUPPORTED,
                             "%s can never be complete: every value of it nests too deeply, or without end",
                             c->pending[i].view.path);
    if (grammar_is_endless(c->g, root)) return error_set(e, STATUS_UNSUPPORTED, "%s nests too deeply", c->root.path);
    return STATUS_OK;
}
