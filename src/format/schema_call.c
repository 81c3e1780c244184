// Calls of functions in the form of the models' templates, as format/toolcall.h reads them.
#include "format/schema_internal.h"
#include "format/toolcall.h"
#include <stdlib.h>
#include <string.h>

#define TOOLS_MAX 256

struct call_parts {
    struct buffer text; // keys, and names; one after another
    struct grammar_member members[GRAMMAR_MEMBERS_MAX];
    size_t places[GRAMMAR_MEMBERS_MAX];
    size_t n;
    struct schema_names required;
};

// Whether a name comes back as it is from between "=" and ">".
static bool is_plain_name(const char *name) {
    size_t n = strlen(name);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == '<' || name[i] == '>') return false;
    return n > 0 && n < TOOLCALL_NAME_BYTES_MAX;
}

static enum status add_parameter(struct schema_compiler *c, const struct json_view *parameters, const char *key,
                                 const struct json_view *schema, bool required, int32_t end, struct call_parts *p,
                                 struct error *e) {
    unsigned types;
    int32_t parts[2] = {0, end}, node;
    if (!is_plain_name(key))
        return error_set(e, STATUS_UNSUPPORTED, "%s has a name that cannot be written in a call", schema->path);
    if (p->n == GRAMMAR_MEMBERS_MAX)
        return error_set(e, STATUS_LIMIT, "%s has more than %d properties", parameters->path, GRAMMAR_MEMBERS_MAX);
    toolcall_find_parameter(parameters->value, key, strlen(key), &types, &c->n_steps);
    enum status status = schema_add_parameter(c, parameters, schema, types, &parts[0], e);
    if (status == STATUS_OK) status = grammar_reserve(c->g, &node, e);
    if (status == STATUS_OK) status = grammar_set_sequence(c->g, node, parts, 2, e);
    if (status != STATUS_OK) return status;
    p->places[p->n] = p->text.n;
    p->members[p->n++] = (struct grammar_member){.value = node, .required = required};
    return buffer_printf(&p->text, "<parameter=%s>\n", key) ? STATUS_OK : error_memory(e);
}

// Of a function's parameters: an object with properties, and with nothing that says more about them together.
static enum status check_parameters(const struct json_view *parameters, struct error *e) {
    static const char *const known[] = {"type",        "properties", "required", "additionalProperties", "$defs",
                                        "definitions", "title",      "$schema",  "description",          "$id"};
    const char *name;
    json_t *value;
    unsigned types = VALUE_OBJECT;
    json_object_foreach((json_t *)parameters->value, name, value) {
        bool found = strncmp(name, "x-", 2) == 0;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++) found |= strcmp(known[i], name) == 0;
        if (!found) return schema_refuse(parameters, name, e);
    }
    enum status status = schema_read_types(parameters, &types, e);
    if (status == STATUS_OK && (types & VALUE_OBJECT) == 0)
        return schema_refuse_value(parameters, "type", "must be \"object\"", e);
    return status;
}

static enum status check_required(const struct json_view *parameters, const struct schema_names *required,
                                  struct error *e) {
    const json_t *properties = json_object_get(parameters->value, "properties");
    for (size_t i = 0; i < required->n; i++)
        if (json_object_get(properties, required->sorted[i].text) == NULL)
            return error_set(e, STATUS_UNSUPPORTED, "%s/required/%zu names a parameter that is not described",
                             parameters->path, required->sorted[i].at);
    return STATUS_OK;
}

static enum status add_parameters(struct schema_compiler *c, const struct json_view *parameters, int32_t end,
                                  struct call_parts *p, struct error *e) {
    struct json_view properties, v;
    const char *key;
    json_t *schema;
    enum status status = schema_count(c, parameters, 32 * json_length(parameters), e);
    if (status == STATUS_OK) status = check_parameters(parameters, e);
    if (status == STATUS_OK)
        status = json_get_view(parameters, "properties", JSON_OPTIONAL, JSON_OBJECT, &properties, e);
    if (status == STATUS_OK) status = schema_read_names(c, parameters, &p->required, e);
    if (status == STATUS_OK) status = check_required(parameters, &p->required, e);
    if (status != STATUS_OK) return status;
    json_object_foreach((json_t *)properties.value, key, schema) {
        if (!json_find(&properties, key, &v))
            return error_set(e, STATUS_INVALID, "%s/%.60s must be a schema, not null", properties.path, key);
        status = add_parameter(c, parameters, key, &v, schema_find_name(&p->required, key) != NULL, end, p, e);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

// The part of a call behind the function's name.
static enum status add_function(struct schema_compiler *c, const struct json_view *function, int32_t end,
                                struct call_parts *p, int32_t *node, struct error *e) {
    struct json_view parameters;
    struct dfa_word close = {.text = "</function>\n</tool_call>", .n = 24, .tag = 0};
    struct grammar_frame_words words = {DFA_NONE, DFA_NONE, DFA_NONE};
    struct error own;
    p->n = 0;
    buffer_clear(&p->text);
    enum status status = json_get_view(function, "parameters", JSON_OPTIONAL, JSON_OBJECT, &parameters, e);
    if (status == STATUS_OK && parameters.value != NULL) status = add_parameters(c, &parameters, end, p, e);
    if (status == STATUS_OK) status = dfa_add_words(grammar_dfa(c->g), &close, 1, &words.close, e);
    if (status == STATUS_OK) status = grammar_reserve(c->g, node, e);
    if (status != STATUS_OK) return status;
    for (size_t i = 0; i < p->n; i++) {
        p->members[i].key = p->text.data + p->places[i];
        p->members[i].n = (i + 1 < p->n ? p->places[i + 1] : p->text.n) - p->places[i];
    }
    status = grammar_set_object(c->g, *node, &words, DFA_NONE, p->members, p->n, &own);
    if (status == STATUS_MEMORY) return error_memory(e);
    return status == STATUS_OK ? status : error_set(e, status, "%s/properties %s", parameters.path, own.text);
}

struct call_list {
    struct call_parts parts;
    struct buffer names;
    struct dfa_word words[TOOLS_MAX];
    size_t places[TOOLS_MAX];
    int32_t nodes[TOOLS_MAX];
    size_t n;
};

static enum status add_tool(struct schema_compiler *c, const struct json_view *tool, const char *only, int32_t end,
                            struct call_list *list, struct error *e) {
    struct json_view function;
    const char *name;
    enum status status = json_get_view(tool, "function", JSON_REQUIRED, JSON_OBJECT, &function, e);
    if (status == STATUS_OK) status = json_get_string(&function, "name", JSON_REQUIRED, &name, NULL, e);
    if (status != STATUS_OK) return status;
    if (only != NULL && strcmp(only, name) != 0) return STATUS_OK;
    if (!is_plain_name(name))
        return error_set(e, STATUS_UNSUPPORTED, "%s/name cannot be written in a call", function.path);
    if (list->n == TOOLS_MAX) return error_set(e, STATUS_LIMIT, "%s is one of too many tools", tool->path);
    status = add_function(c, &function, end, &list->parts, &list->nodes[list->n], e);
    if (status != STATUS_OK) return status;
    list->places[list->n] = list->names.n;
    list->words[list->n] = (struct dfa_word){.tag = (int32_t)list->n};
    list->n++;
    return buffer_printf(&list->names, "<tool_call>\n<function=%s>\n", name) ? STATUS_OK : error_memory(e);
}

static enum status set_calls(struct schema_compiler *c, struct call_list *list, int32_t *node, struct error *e) {
    int32_t start;
    for (size_t i = 0; i < list->n; i++) {
        list->words[i].text = list->names.data + list->places[i];
        list->words[i].n = (i + 1 < list->n ? list->places[i + 1] : list->names.n) - list->places[i];
    }
    enum status status = dfa_add_words(grammar_dfa(c->g), list->words, list->n, &start, e);
    if (status == STATUS_OK) status = grammar_reserve(c->g, node, e);
    return status == STATUS_OK ? grammar_set_switch(c->g, *node, start, list->nodes, list->n, e) : status;
}

enum status schema_add_call(struct schema_compiler *c, const struct json_view *tools, const char *only, int32_t *node,
                            struct error *e) {
    int32_t end;
    struct call_list *list = calloc(1, sizeof *list);
    if (list == NULL) return error_memory(e);
    buffer_init(&list->names, 0);
    buffer_init(&list->parts.text, 0);
    enum status status = schema_add_words(c, "\n</parameter>\n", &end, e);
    for (size_t i = 0; status == STATUS_OK && i < json_length(tools); i++) {
        struct json_view tool;
        status = json_element(tools, i, &tool) ? add_tool(c, &tool, only, end, list, e)
                                               : error_set(e, STATUS_INVALID, "%s/%zu must be a tool", tools->path, i);
    }
    if (status == STATUS_OK && list->n == 0)
        status = error_set(e, STATUS_INVALID, "%s has no tool that could be called", tools->path);
    if (status == STATUS_OK) status = set_calls(c, list, node, e);
    buffer_free(&list->names);
    buffer_free(&list->parts.text);
    free(list);
    return status;
}
