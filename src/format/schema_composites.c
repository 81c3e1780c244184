// Arrays and objects.
#include "format/schema_internal.h"
#include <stdlib.h>
#include <string.h>

#define COUNT_MAX 1000000

enum status schema_read_count(const struct json_view *schema, const char *keyword, uint32_t *out, struct error *e) {
    int64_t count = *out;
    enum status status = json_get_int(schema, keyword, JSON_OPTIONAL, 0, COUNT_MAX, &count, e);
    if (status == STATUS_OK) *out = (uint32_t)count;
    return status;
}

static enum schema_form form_within(enum schema_form form) { return form == FORM_JSON ? FORM_JSON : FORM_IN_TAGS; }

// The node of a schema that may be absent, for which any value will do. *none: the schema is false.
static enum status add_schema(const struct schema_context *x, const char *keyword, int32_t *node, bool *none,
                              struct error *e) {
    struct json_view v;
    *none = false;
    if (!json_find(x->schema, keyword, &v)) return schema_any(x->c, form_within(x->form), node, e);
    *none = json_is_false(v.value);
    return *none ? STATUS_OK : schema_node(x->c, &v, form_within(x->form), VALUE_ANY, node, e);
}

enum status schema_set_array(const struct schema_context *x, int32_t node, struct error *e) {
    uint32_t min = 0, max = GRAMMAR_UNBOUNDED;
    int32_t element = 0;
    bool none = false;
    enum status status = schema_read_count(x->schema, "minItems", &min, e);
    if (status == STATUS_OK) status = schema_read_count(x->schema, "maxItems", &max, e);
    if (status != STATUS_OK) return status;
    if (max < min) return schema_refuse_value(x->schema, "maxItems", "is below minItems", e);
    status = add_schema(x, "items", &element, &none, e);
    if (status == STATUS_OK && none && min > 0)
        return schema_refuse_value(x->schema, "minItems", "asks for elements that items forbids", e);
    if (status == STATUS_OK && none) { // an element is needed for its place only
        max = 0;
        status = schema_any(x->c, form_within(x->form), &element, e);
    }
    return status == STATUS_OK ? schema_list(x->c, element, min, max, node) : status;
}

// ---- objects ----

static int compare_names(const void *a, const void *b) {
    const struct schema_name *x = a, *y = b;
    int order = strcmp(x->text, y->text);
    return order != 0 ? order : x->at < y->at ? -1 : x->at > y->at;
}

enum status schema_read_names(struct schema_compiler *c, const struct json_view *schema, struct schema_names *out,
                              struct error *e) {
    struct json_view v, name;
    enum status status = json_get_view(schema, "required", JSON_OPTIONAL, JSON_ARRAY, &v, e);
    out->n = 0;
    if (status != STATUS_OK) return status;
    if (json_length(&v) > SCHEMA_NAMES_MAX)
        return error_set(e, STATUS_LIMIT, "%s has more than %d names", v.path, SCHEMA_NAMES_MAX);
    for (size_t i = 0; i < json_length(&v); i++) {
        if (!json_element(&v, i, &name) || !json_is_string(name.value))
            return error_set(e, STATUS_INVALID, "%s/%zu must be a string", v.path, i);
        out->sorted[out->n++] = (struct schema_name){.text = json_string_value(name.value), .at = i};
    }
    qsort(out->sorted, out->n, sizeof *out->sorted, compare_names);
    return schema_count(c, schema, 48 * out->n, e);
}

const struct schema_name *schema_find_name(const struct schema_names *names, const char *text) {
    size_t low = 0, high = names->n;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (strcmp(names->sorted[middle].text, text) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    bool found = low < names->n && strcmp(names->sorted[low].text, text) == 0;
    return found ? &names->sorted[low] : NULL;
}

struct member_list {
    struct grammar_member members[GRAMMAR_MEMBERS_MAX];
    size_t places[GRAMMAR_MEMBERS_MAX]; // of their keys in `text`
    size_t n;
    struct buffer text;
    struct schema_names required;
};

enum status schema_write_key(struct buffer *out, enum schema_form form, const char *key, size_t n, struct error *e) {
    size_t start = out->n;
    if (!json_write_string(out, key, n)) return error_memory(e);
    for (size_t i = start; form != FORM_JSON && i + 1 < out->n; i++) {
        if (memcmp(out->data + i, "</", 2) != 0) continue;
        if (!buffer_append(out, "", 1)) return error_memory(e); // room for a backslash
        memmove(out->data + i + 2, out->data + i + 1, out->n - i - 2);
        out->data[i + 1] = '\\';
    }
    return buffer_append(out, ":", 1) ? STATUS_OK : error_memory(e);
}

static enum status add_member(const struct schema_context *x, struct member_list *list, const char *key, int32_t value,
                              bool required, struct error *e) {
    if (list->n == GRAMMAR_MEMBERS_MAX)
        return error_set(e, STATUS_LIMIT, "%s has more than %d members", x->schema->path, GRAMMAR_MEMBERS_MAX);
    list->places[list->n] = list->text.n;
    list->members[list->n++] = (struct grammar_member){.value = value, .required = required};
    return schema_write_key(&list->text, form_within(x->form), key, strlen(key), e);
}

static enum status add_properties(const struct schema_context *x, struct member_list *list, struct error *e) {
    struct json_view properties, v;
    enum status status = json_get_view(x->schema, "properties", JSON_OPTIONAL, JSON_OBJECT, &properties, e);
    const char *key;
    json_t *schema;
    if (status != STATUS_OK || properties.value == NULL) return status;
    status = schema_count(x->c, x->schema, 64 * json_length(&properties), e);
    if (status != STATUS_OK) return status;
    json_object_foreach((json_t *)properties.value, key, schema) {
        int32_t value;
        bool must_come = schema_find_name(&list->required, key) != NULL;
        if (!json_find(&properties, key, &v))
            return error_set(e, STATUS_INVALID, "%s/%.60s must be a schema, not null", properties.path, key);
        if (json_is_false(schema) && must_come)
            return error_set(e, STATUS_UNSUPPORTED, "%s is false, but required", v.path);
        if (json_is_false(schema)) continue;
        status = schema_node(x->c, &v, form_within(x->form), VALUE_ANY, &value, e);
        if (status == STATUS_OK) status = add_member(x, list, key, value, must_come, e);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

// What is required and not described has what additionalProperties says.
static enum status add_required(const struct schema_context *x, struct member_list *list, struct error *e) {
    const json_t *properties = json_object_get(x->schema->value, "properties");
    const json_t *required = json_object_get(x->schema->value, "required");
    for (size_t i = 0; i < json_array_size(required); i++) {
        const char *key = json_string_value(json_array_get(required, i));
        int32_t value;
        bool none;
        if (schema_find_name(&list->required, key)->at != i || json_object_get(properties, key) != NULL) continue;
        enum status status = add_schema(x, "additionalProperties", &value, &none, e);
        if (status == STATUS_OK && none)
            return error_set(e, STATUS_UNSUPPORTED, "%s/required/%zu names a property that is not allowed",
                             x->schema->path, i);
        if (status == STATUS_OK) status = add_member(x, list, key, value, true, e);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

static enum status set_members(const struct schema_context *x, struct member_list *list, int32_t node,
                               struct error *e) {
    const struct grammar_frame_words words = {x->c->open_object, x->c->separator, x->c->close_object};
    struct error own;
    for (size_t i = 0; i < list->n; i++) {
        size_t end = i + 1 < list->n ? list->places[i + 1] : list->text.n;
        list->members[i].key = list->text.data + list->places[i];
        list->members[i].n = end - list->places[i];
    }
    enum status status = grammar_set_object(x->c->g, node, &words, x->c->space, list->members, list->n, &own);
    if (status == STATUS_MEMORY) return error_memory(e);
    return status == STATUS_OK ? status : error_set(e, status, "%s/properties %s", x->schema->path, own.text);
}

enum status schema_set_object(const struct schema_context *x, int32_t node, struct error *e) {
    int32_t value = 0;
    bool none = false;
    struct member_list *list = malloc(sizeof *list);
    if (list == NULL) return error_memory(e);
    list->n = 0;
    buffer_init(&list->text, DFA_STATES_MAX);
    enum status status = schema_read_names(x->c, x->schema, &list->required, e);
    bool named = json_object_size(json_object_get(x->schema->value, "properties")) > 0 || list->required.n > 0;
    if (status == STATUS_OK) status = add_properties(x, list, e);
    if (status == STATUS_OK) status = add_required(x, list, e);
    if (status == STATUS_OK) status = add_schema(x, "additionalProperties", &value, &none, e);
    if (status == STATUS_OK)
        status = named || none ? set_members(x, list, node, e) : schema_map(x->c, form_within(x->form), value, node, e);
    buffer_free(&list->text);
    free(list);
    return status;
}
