// Values that a schema lists: "enum" and "const", and whether the alternatives of a "oneOf" keep apart by them.
#include "format/schema_internal.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define VALUES_MAX 4096

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

// A number for a value: the same for equal ones, whatever the order of members and the spelling of numbers. Values that
// differ have the same once in 2^64, and are then held to be equal. Recursion is bounded by JSON_DEPTH_MAX.
static uint64_t hash_value(struct schema_compiler *c, const json_t *v, int depth) {
    uint64_t hash = XXH3_64bits(&(int){json_typeof(v)}, sizeof(int));
    c->n_steps += 4;
    if (json_is_number(v)) {
        double x = json_number_value(v);
        return XXH3_64bits_withSeed(&(double){x == 0 ? 0 : x}, sizeof x, 1);
    }
    if (json_is_string(v)) {
        c->n_steps += (int64_t)json_string_length(v) / 64;
        return XXH3_64bits_withSeed(json_string_value(v), json_string_length(v), hash);
    }
    if (depth == JSON_DEPTH_MAX || c->n_steps > SCHEMA_STEPS_MAX) return hash;
    for (size_t i = 0; i < json_array_size(v); i++) {
        uint64_t pair[2] = {hash, hash_value(c, json_array_get(v, i), depth + 1)};
        hash = XXH3_64bits(pair, sizeof pair);
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)v, key, value) hash +=
        XXH3_64bits_withSeed(key, strlen(key), hash_value(c, value, depth + 1));
    return hash;
}

// The values that a schema lists: its const as a list of one.
static size_t count_listed(const json_t *schema) {
    return json_object_get(schema, "const") != NULL ? 1 : json_array_size(json_object_get(schema, "enum"));
}

static const json_t *listed(const json_t *schema, size_t i) {
    const json_t *only = json_object_get(schema, "const");
    return only != NULL ? only : json_array_get(json_object_get(schema, "enum"), i);
}

static int compare_hashes(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

struct hashes {
    uint64_t values[VALUES_MAX];
    size_t n;
};

// Sorted. False: none is listed, or more than can be compiled.
static bool hash_listed(struct schema_compiler *c, const json_t *schema, struct hashes *out) {
    out->n = count_listed(schema);
    if (out->n == 0 || out->n > VALUES_MAX) return false;
    for (size_t i = 0; i < out->n; i++) out->values[i] = hash_value(c, listed(schema, i), 0);
    qsort(out->values, out->n, sizeof *out->values, compare_hashes);
    c->n_steps += 8 * (int64_t)out->n;
    return true;
}

// Two alternatives, and room to compare what they list.
struct comparison {
    struct schema_compiler *c;
    struct hashes a, b;
};

static bool lists_differ(struct comparison *x, const json_t *a, const json_t *b) {
    if (!hash_listed(x->c, a, &x->a) || !hash_listed(x->c, b, &x->b)) return false;
    size_t i = 0, k = 0;
    while (i < x->a.n && k < x->b.n) {
        if (x->a.values[i] == x->b.values[k]) return false;
        if (x->a.values[i] < x->b.values[k])
            i++;
        else
            k++;
    }
    return true;
}

static bool is_required(struct schema_compiler *c, const json_t *schema, const char *key) {
    const json_t *required = json_object_get(schema, "required");
    c->n_steps += (int64_t)json_array_size(required);
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
static bool members_differ(struct comparison *x, const json_t *a, const json_t *b) {
    const json_t *others = json_object_get(b, "properties");
    const char *key;
    json_t *schema;
    if (is_large(a) || is_large(b)) return false;
    json_object_foreach(json_object_get(a, "properties"), key, schema) {
        const json_t *other = json_object_get(others, key);
        x->c->n_steps += 4;
        if (count_listed(schema) == 0 || count_listed(other) == 0 || x->c->n_steps > SCHEMA_STEPS_MAX) continue;
        if (is_required(x->c, a, key) && is_required(x->c, b, key) && lists_differ(x, schema, other)) return true;
    }
    return false;
}

// The types of a schema's values, as far as it says so itself.
static unsigned types_of(struct schema_compiler *c, const struct json_view *schema) {
    unsigned types = VALUE_ANY, bits = 0;
    size_t n = count_listed(schema->value);
    c->n_steps += 16 + (int64_t)n;
    if (schema_read_types(schema, &types, NULL) != STATUS_OK) return VALUE_ANY;
    for (size_t i = 0; i < n; i++) bits |= schema_bits_of_value(listed(schema->value, i));
    return bits != 0 ? types & bits : types;
}

struct alternatives {
    struct json_view views[GRAMMAR_CHOICES_MAX];
    unsigned types[GRAMMAR_CHOICES_MAX];
    struct comparison comparison;
};

// Whether the alternative `last` keeps apart from those before it.
static enum status check_last(struct schema_compiler *c, const struct json_view *list, struct alternatives *x,
                              size_t last, struct error *e) {
    for (size_t i = 0; i < last; i++) {
        const json_t *a = x->views[i].value, *b = x->views[last].value;
        unsigned both = x->types[i] & x->types[last];
        bool apart = both == 0 || lists_differ(&x->comparison, a, b) ||
                     (both == VALUE_OBJECT && members_differ(&x->comparison, a, b));
        enum status status = schema_count(c, list, 16, e);
        if (status != STATUS_OK) return status;
        if (!apart)
            return error_set(e, STATUS_UNSUPPORTED,
                             "%s is supported only where its alternatives differ in type or in a required constant "
                             "member, and alternatives %zu and %zu do not: use anyOf",
                             list->path, i, last);
    }
    return STATUS_OK;
}

enum status schema_check_apart(struct schema_compiler *c, const struct json_view *list, struct error *e) {
    size_t n = json_length(list);
    enum status status = STATUS_OK;
    if (n > GRAMMAR_CHOICES_MAX)
        return error_set(e, STATUS_LIMIT, "%s has more than %d alternatives", list->path, GRAMMAR_CHOICES_MAX);
    struct alternatives *x = malloc(sizeof *x);
    if (x == NULL) return error_memory(e);
    x->comparison.c = c;
    for (size_t i = 0; status == STATUS_OK && i < n; i++) {
        struct json_view own;
        if (json_element(list, i, &own))
            status = schema_follow(c, &own, &x->views[i], e);
        else
            status = error_set(e, STATUS_INVALID, "%s/%zu must be a schema", list->path, i);
        if (status != STATUS_OK) break;
        x->types[i] = types_of(c, &x->views[i]);
        status = check_last(c, list, x, i, e);
    }
    free(x);
    return status;
}
