#include "format/toolcall_schema.h"
#include "format/json.h"
#include <math.h>
#include <string.h>

#define SCHEMA_DEPTH_MAX 16 // $ref, anyOf and the like inside each other
#define SCHEMA_PARTS_MAX                                                                                               \
    4096 // looked at in all for one parameter, each with its listed values: references may multiply

const json_t *toolcall_find_function(const json_t *tools, const char *name, size_t n) {
    size_t i;
    json_t *tool;
    json_array_foreach((json_t *)tools, i, tool) {
        const json_t *function = json_object_get(tool, "function");
        const json_t *own = json_object_get(function, "name");
        if (!json_is_string(own) || json_string_length(own) != n || memcmp(json_string_value(own), name, n) != 0)
            continue;
        const json_t *parameters = json_object_get(function, "parameters");
        return json_is_object(parameters) ? parameters : function;
    }
    return NULL;
}

unsigned toolcall_type_bits(const char *name) {
    static const struct {
        const char *name;
        unsigned bits;
    } types[] = {{"string", VALUE_STRING},   {"number", VALUE_NUMBER | VALUE_INTEGER},
                 {"integer", VALUE_INTEGER}, {"boolean", VALUE_BOOLEAN},
                 {"null", VALUE_NULL},       {"object", VALUE_OBJECT},
                 {"array", VALUE_ARRAY}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].name, name) == 0) return types[i].bits;
    return 0;
}

static unsigned bits_of_type(const json_t *name) {
    unsigned bits = toolcall_type_bits(json_string_value(name));
    return bits != 0 ? bits : VALUE_STRING; // a name of its own: text
}

static unsigned bits_of_value(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_STRING: return VALUE_STRING;
    case JSON_INTEGER: return VALUE_INTEGER;
    case JSON_REAL:
        return trunc(json_real_value(v)) == json_real_value(v) ? VALUE_NUMBER | VALUE_INTEGER : VALUE_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE: return VALUE_BOOLEAN;
    case JSON_NULL: return VALUE_NULL;
    case JSON_OBJECT: return VALUE_OBJECT;
    default: return VALUE_ARRAY;
    }
}

// "#/$defs/place" inside the parameters' own schema.
static const json_t *follow_reference(const json_t *root, const char *reference) {
    if (reference[0] != '#') return NULL;
    struct json_view view = json_root(root);
    return json_find_pointer(&view, reference + 1, &view) ? view.value : NULL;
}

static unsigned types_of(const json_t *root, const json_t *schema, int depth, int *n_parts);

// The bits of a list of schemas: of any of them, or of those common to all. 0 without such a list.
static unsigned types_of_list(const json_t *root, const json_t *list, bool all, int depth, int *n_parts) {
    unsigned bits = all && json_array_size(list) > 0 ? VALUE_ANY : 0, part;
    for (size_t i = 0; i < json_array_size(list) && *n_parts <= SCHEMA_PARTS_MAX; i++) {
        part = types_of(root, json_array_get(list, i), depth + 1, n_parts);
        bits = all ? bits & part : bits | part;
    }
    return bits;
}

// Recursion is bounded by SCHEMA_DEPTH_MAX.
static unsigned types_of(const json_t *root, const json_t *schema, int depth, int *n_parts) {
    const json_t *type = json_object_get(schema, "type"), *list = json_object_get(schema, "enum"), *v;
    *n_parts += 16 + (int)((json_array_size(type) + json_array_size(list)) / 8);
    if (depth > SCHEMA_DEPTH_MAX || *n_parts > SCHEMA_PARTS_MAX) return VALUE_ANY;
    unsigned bits = json_is_string(type) ? bits_of_type(type) : 0;
    for (size_t i = 0; i < json_array_size(type); i++) {
        v = json_array_get(type, i);
        if (json_is_string(v)) bits |= bits_of_type(v);
    }
    const char *reference = json_string_value(json_object_get(schema, "$ref"));
    if (bits == 0 && reference != NULL) bits = types_of(root, follow_reference(root, reference), depth + 1, n_parts);
    if (bits == 0) bits = types_of_list(root, json_object_get(schema, "anyOf"), false, depth, n_parts);
    if (bits == 0) bits = types_of_list(root, json_object_get(schema, "oneOf"), false, depth, n_parts);
    if (bits == 0) bits = types_of_list(root, json_object_get(schema, "allOf"), true, depth, n_parts);
    if (bits != 0) return bits;
    for (size_t i = 0; i < json_array_size(list); i++) bits |= bits_of_value(json_array_get(list, i));
    v = json_object_get(schema, "const");
    if (v != NULL) bits |= bits_of_value(v);
    return bits != 0 ? bits : VALUE_ANY;
}

bool toolcall_find_parameter(const json_t *parameters, const char *key, size_t n, unsigned *types, int64_t *n_steps) {
    const json_t *schema = json_object_getn(json_object_get(parameters, "properties"), key, n);
    int n_parts = 0;
    *types = schema == NULL ? VALUE_STRING : types_of(parameters, schema, 0, &n_parts);
    if (n_steps != NULL) *n_steps += n_parts;
    return schema != NULL;
}

static bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

// The JSON that text[0..n) stands for if that is one of the types; otherwise *json is NULL.
static enum status find_json(unsigned types, const char *text, size_t n, const char **json, size_t *n_json) {
    static const struct {
        const char *python, *json;
        unsigned bits;
    } words[] = {{"True", "true", VALUE_BOOLEAN}, {"False", "false", VALUE_BOOLEAN}, {"None", "null", VALUE_NULL}};
    *json = NULL;
    for (size_t i = 0; i < 3; i++) {
        if ((types & words[i].bits) == 0 || strlen(words[i].python) != n || memcmp(words[i].python, text, n) != 0)
            continue;
        *json = words[i].json;
        *n_json = strlen(words[i].json);
        return STATUS_OK;
    }
    json_t *v;
    enum status status = json_parse(text, n, n, JSON_PARSE_ANY | JSON_PARSE_DUPLICATES | JSON_PARSE_NUL, &v, NULL);
    if (status != STATUS_OK) return status == STATUS_MEMORY ? status : STATUS_OK;
    if ((types & bits_of_value(v)) != 0) {
        *json = text;
        *n_json = n;
    }
    json_decref(v);
    return STATUS_OK;
}

bool toolcall_append_value(struct buffer *out, unsigned types, const char *text, size_t n) {
    const char *trimmed = text, *json = NULL;
    size_t m = n;
    while (m > 0 && is_space(*trimmed)) trimmed++, m--;
    while (m > 0 && is_space(trimmed[m - 1])) m--;
    // Beside a string, "12" and "true" stay the text that they are; a null, object or array is hardly meant as text.
    unsigned others =
        types & (types == VALUE_ANY || (types & VALUE_STRING) == 0 ? VALUE_ANY & ~VALUE_STRING
                                                                   : VALUE_NULL | VALUE_OBJECT | VALUE_ARRAY);
    if (others != 0 && m > 0 && find_json(others, trimmed, m, &json, &m) != STATUS_OK) return false;
    return json != NULL ? buffer_append(out, json, m) : json_write_string(out, text, n);
}

// The end of the JSON value at `at`, in text that parses.
static size_t skip_value(const char *text, size_t n, size_t at) {
    int depth = 0;
    bool quoted = false;
    for (; at < n; at++) {
        char c = text[at];
        if (quoted) {
            if (c == '\\') at++;
            if (c == '"') quoted = false;
        } else if (c == '"') {
            quoted = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (c == '}' || c == ']' || c == ',') {
            if (depth == 0) break;
            if (c != ',') depth--;
        }
    }
    return at;
}

bool toolcall_find_member(const char *text, size_t n, const char *key, size_t *from, size_t *length) {
    size_t at = 0, n_key = strlen(key);
    while (at < n && text[at] != '{') at++;
    for (at++; at < n; at++) {
        while (at < n && (is_space(text[at]) || text[at] == ',')) at++;
        if (at >= n || text[at] != '"') return false;
        size_t name = at + 1;
        for (at = name; at < n && text[at] != '"'; at++)
            if (text[at] == '\\') at++;
        bool found = at - name == n_key && memcmp(text + name, key, n_key) == 0;
        for (at++; at < n && (is_space(text[at]) || text[at] == ':');) at++;
        size_t end = skip_value(text, n, at);
        if (found) {
            while (end > at && is_space(text[end - 1])) end--;
            *from = at;
            *length = end - at;
            return true;
        }
        at = end;
    }
    return false;
}
