// Values that a schema lists: "enum" and "const", and whether the alternatives of a "oneOf" keep apart by them.
#include "format/schema_internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define VALUES_MAX   4096
#define COMPARED_MAX (1 << 22) // pairs of values, for all "oneOf" of a schema together

// ---- types ----

unsigned schema_bits_of_value(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_STRING: return VALUE_STRING;
    case JSON_INTEGER: return VALUE_INTEGER;
    case JSON_REAL: return trunc(json_real_value(v)) == json_real_value(v) ? VALUE_INTEGER : VALUE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE: return VALUE_BOOLEAN;
    case JSON_NULL: return VALUE_NULL;
    case JSON_OBJECT: return VALUE_OBJECT;
    default: return VALUE_ARRAY;
    }
}

// ---- how a listed value is written ----

struct word_list {
    struct buffer text;
    struct dfa_word words[VALUES_MAX]; // their places in `text` until all are there
    size_t n;
};

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// Whether a parameter's text would be read as this string, and not as some other value or the end of the parameter.
static bool is_read_as_string(const char *text, size_t n, unsigned types) {
    if ((types & VALUE_STRING) == 0 || types == VALUE_ANY) return false;
    if (memmem(text, n, "</parameter>", 12) != NULL || memchr(text, 0, n) != NULL) return false;
    while (n > 0 && is_space(*text)) text++, n--;
    while (n > 0 && is_space(text[n - 1])) n--;
    if (n > 0 && (types & (VALUE_OBJECT | VALUE_ARRAY)) != 0 && (*text == '{' || *text == '[')) return false;
    return (types & VALUE_NULL) == 0 || n != 4 || (memcmp(text, "null", 4) != 0 && memcmp(text, "None", 4) != 0);
}

// Beside strings, only these are taken from a parameter's text.
static bool is_read_as_value(unsigned bits, unsigned types) {
    return (types & VALUE_STRING) == 0 || (bits & (VALUE_NULL | VALUE_OBJECT | VALUE_ARRAY)) != 0;
}

static bool append_guarded(struct buffer *out, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bool tag = text[i] == '/' && i > 0 && text[i - 1] == '<'; // within a string, where "\/" is "/"
        if (!buffer_append(out, tag ? "\\/" : text + i, tag ? 2 : 1)) return false;
    }
    return true;
}

static bool append_json(struct buffer *out, enum schema_form form, const json_t *value) {
    struct buffer text;
    buffer_init(&text, 0);
    bool ok = json_write(&text, value, JSON_STYLE_SPACED);
    if (ok && form == FORM_JSON) ok = buffer_append(out, text.data, text.n);
    if (ok && form != FORM_JSON) ok = append_guarded(out, text.data, text.n);
    buffer_free(&text);
    return ok;
}

static bool add_word(const struct schema_context *x, const json_t *value, struct word_list *list) {
    unsigned bits = schema_bits_of_value(value);
    size_t start = list->text.n;
    bool ok = true;
    if (x->form == FORM_PARAMETER && bits == VALUE_STRING) {
        const char *text = json_string_value(value);
        size_t n = json_string_length(value);
        if (!is_read_as_string(text, n, x->types)) return true;
        ok = buffer_append(&list->text, text, n);
    } else {
        if (x->form == FORM_PARAMETER && !is_read_as_value(bits, x->types)) return true;
        ok = append_json(&list->text, x->form, value);
    }
    list->words[list->n++] = (struct dfa_word){.n = list->text.n - start, .tag = 0};
    return ok;
}

static enum status set_words(const struct schema_context *x, struct word_list *list, int32_t node, const char *keyword,
                             struct error *e) {
    struct error own;
    int32_t start;
    if (list->n == 0 && x->form == FORM_PARAMETER && (x->types & VALUE_STRING) != 0)
        return schema_leave_unwritten(x->c);
    if (list->n == 0) return schema_refuse_value(x->schema, keyword, "has no value that could be written here", e);
    const char *at = list->text.data;
    for (size_t i = 0; i < list->n; at += list->words[i++].n) list->words[i].text = at;
    enum status status = dfa_add_words(grammar_dfa(x->c->g), list->words, list->n, &start, &own);
    if (status == STATUS_MEMORY) return error_memory(e);
    if (status != STATUS_OK) return schema_refuse_value(x->schema, keyword, own.text, e);
    grammar_set_dfa(x->c->g, node, start);
    return STATUS_OK;
}

enum status schema_set_enum(const struct schema_context *x, int32_t node, struct error *e) {
    const json_t *only = json_object_get(x->schema->value, "const"), *all = json_object_get(x->schema->value, "enum");
    const char *keyword = only != NULL ? "const" : "enum";
    size_t n = only != NULL ? 1 : json_array_size(all);
    unsigned types = VALUE_ANY;
    enum status status = schema_read_types(x->schema, &types, e);
    if (status != STATUS_OK) return status;
    if (only == NULL && !json_is_array(all)) return schema_refuse_value(x->schema, keyword, "must be an array", e);
    if (n > VALUES_MAX) return schema_refuse_value(x->schema, keyword, "has more than 4096 values", e);
    struct word_list *list = malloc(sizeof *list);
    if (list == NULL) return error_memory(e);
    list->n = 0;
    buffer_init(&list->text, DFA_STATES_MAX);
    bool ok = buffer_append(&list->text, "", 0);
    for (size_t i = 0; ok && i < n; i++) {
        const json_t *value = only != NULL ? only : json_array_get(all, i);
        if ((schema_bits_of_value(value) & types) != 0) ok = add_word(x, value, list);
    }
    bool long_text = list->text.n > DFA_STATES_MAX / 2;
    status = ok          ? set_words(x, list, node, keyword, e)
             : long_text ? schema_refuse_value(x->schema, keyword, "is too long", e)
                         : error_memory(e);
    buffer_free(&list->text);
    free(list);
    return status;
}

// ---- oneOf ----

static bool is_same(const json_t *a, const json_t *b) {
    if (json_is_number(a) && json_is_number(b)) return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

// The values that a schema lists: its const as a list of one.
static size_t count_listed(const json_t *schema) {
    return json_object_get(schema, "const") != NULL ? 1 : json_array_size(json_object_get(schema, "enum"));
}

static const json_t *listed(const json_t *schema, size_t i) {
    const json_t *only = json_object_get(schema, "const");
    return only != NULL ? only : json_array_get(json_object_get(schema, "enum"), i);
}

static bool lists_differ(struct schema_compiler *c, const json_t *a, const json_t *b) {
    size_t n = count_listed(a), m = count_listed(b);
    if (n * m > 65536 || c->n_compared > COMPARED_MAX) return false;
    c->n_compared += (int64_t)(n * m);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < m; k++)
            if (is_same(listed(a, i), listed(b, k))) return false;
    return n > 0 && m > 0;
}

static bool is_required(const json_t *schema, const char *key) {
    const json_t *required = json_object_get(schema, "required");
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *own = json_string_value(json_array_get(required, i));
        if (own != NULL && strcmp(own, key) == 0) return true;
    }
    return false;
}

// Whether an object has more members than one that can be compiled, and is not worth looking through.
static bool is_large(const json_t *schema) {
    return json_object_size(json_object_get(schema, "properties")) > GRAMMAR_MEMBERS_MAX ||
           json_array_size(json_object_get(schema, "required")) > GRAMMAR_MEMBERS_MAX;
}

// A member that both must have, with different values.
static bool members_differ(struct schema_compiler *c, const json_t *a, const json_t *b) {
    const json_t *others = json_object_get(b, "properties");
    const char *key;
    json_t *schema;
    if (is_large(a) || is_large(b)) return false;
    json_object_foreach(json_object_get(a, "properties"), key, schema) {
        if (is_required(a, key) && is_required(b, key) && lists_differ(c, schema, json_object_get(others, key)))
            return true;
    }
    return false;
}

// The types of a schema's values, as far as it says so itself.
static unsigned types_of(const struct json_view *schema) {
    unsigned types = VALUE_ANY, bits = 0;
    if (schema_read_types(schema, &types, NULL) != STATUS_OK) return VALUE_ANY;
    for (size_t i = 0; i < count_listed(schema->value); i++) bits |= schema_bits_of_value(listed(schema->value, i));
    return bits != 0 ? types & bits : types;
}

enum status schema_check_apart(struct schema_compiler *c, const struct json_view *list, struct error *e) {
    size_t n = json_length(list);
    if (n > GRAMMAR_CHOICES_MAX)
        return error_set(e, STATUS_LIMIT, "%s has more than %d alternatives", list->path, GRAMMAR_CHOICES_MAX);
    struct json_view views[GRAMMAR_CHOICES_MAX];
    for (size_t i = 0; i < n; i++) {
        struct json_view own;
        if (!json_element(list, i, &own)) return error_set(e, STATUS_INVALID, "%s/%zu must be a schema", list->path, i);
        enum status status = schema_follow(c, &own, &views[i], e);
        if (status != STATUS_OK) return status;
        for (size_t k = 0; k < i; k++) {
            const json_t *a = views[k].value, *b = views[i].value;
            unsigned both = types_of(&views[k]) & types_of(&views[i]);
            if (both == 0 || lists_differ(c, a, b) || (both == VALUE_OBJECT && members_differ(c, a, b))) continue;
            return error_set(e, STATUS_UNSUPPORTED,
                             "%s is supported only where its alternatives differ in type or in a required constant "
                             "member, and alternatives %zu and %zu do not: use anyOf",
                             list->path, k, i);
        }
    }
    return STATUS_OK;
}
