#include "server/translate.h"
#include <string.h>

bool translate_memory(struct api_error *e) {
    struct error error;
    error_memory(&error);
    return api_refuse_error(e, &error);
}

bool translate_element(const struct json_view *list, size_t i, struct json_view *out, struct api_error *e) {
    return json_element(list, i, out) || api_refuse(e, 400, NULL, "%s/%zu must not be null", list->path, i);
}

bool translate_text(const struct json_view *v, const char *name, enum json_need need, const char **text, size_t *n,
                    struct api_error *e) {
    struct error error;
    *text = "";
    *n = 0;
    return json_get_string(v, name, need, text, n, &error) == STATUS_OK || api_refuse_error(e, &error);
}

static bool is_one_of(const char *type, const char *types) {
    size_t n = strlen(type);
    for (const char *at = types; n > 0 && at != NULL; at = strchr(at, '|')) {
        at += *at == '|';
        if (strncmp(at, type, n) == 0 && (at[n] == '|' || at[n] == 0)) return true;
    }
    return false;
}

static bool append_part(const struct json_view *part, const char *types, struct buffer *out, struct api_error *e) {
    struct error error;
    const char *type, *text;
    size_t n;
    if (json_must_be(part, JSON_OBJECT, &error) != STATUS_OK) return api_refuse_error(e, &error);
    if (!translate_text(part, "type", JSON_REQUIRED, &type, &n, e)) return false;
    if (!is_one_of(type, types))
        return api_refuse(e, 400, "unsupported", "%s/type is not supported here: this model reads text only",
                          part->path);
    const char *member = strcmp(type, "refusal") == 0 ? "refusal" : "text";
    if (!translate_text(part, member, JSON_REQUIRED, &text, &n, e)) return false;
    return buffer_append(out, text, n) || translate_memory(e);
}

bool translate_content(const struct json_view *v, const char *types, const char *between, struct buffer *out,
                       struct api_error *e) {
    if (json_is_string(v->value))
        return buffer_append(out, json_string_value(v->value), json_string_length(v->value)) || translate_memory(e);
    if (!json_is_array(v->value)) return api_refuse(e, 400, NULL, "%s must be text or an array of text parts", v->path);
    for (size_t i = 0; i < json_length(v); i++) {
        struct json_view part;
        if (!translate_element(v, i, &part, e)) return false;
        if (i > 0 && !buffer_append_text(out, between)) return translate_memory(e);
        if (!append_part(&part, types, out, e)) return false;
    }
    return true;
}

bool translate_tool(json_t *tools, const char *name, const char *description, const json_t *parameters,
                    struct api_error *e) {
    json_t *function = json_object(), *tool = json_object();
    bool ok = json_object_set_new_nocheck(function, "name", json_string_nocheck(name)) == 0;
    if (description != NULL && *description != 0)
        ok &= json_object_set_new_nocheck(function, "description", json_string_nocheck(description)) == 0;
    if (parameters != NULL) ok &= json_object_set_nocheck(function, "parameters", (json_t *)parameters) == 0;
    ok &= json_object_set_new_nocheck(tool, "type", json_string("function")) == 0;
    ok &= json_object_set_new_nocheck(tool, "function", function) == 0;
    ok &= json_array_append_new(tools, tool) == 0;
    return ok || translate_memory(e);
}

bool translate_has_tool(const json_t *tools, const char *name) {
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        if (strcmp(json_string_value(json_object_get(function, "name")), name) == 0) return true;
    }
    return false;
}

void translate_effort(const struct service *s, const char *effort, struct request_fields *f) {
    const struct chat_template *chat = s->options->chat;
    bool none = strcmp(effort, "none") == 0;
    f->thinking = none ? CHAT_OFF : CHAT_ON;
    if (!none && chat != NULL && chat_template_traits(chat)->reasoning_effort) f->reasoning_effort = effort;
}

bool translate_fields(const struct service *s, enum route_id route, struct request_fields *f, struct api_error *e) {
    if (route != ROUTE_MESSAGES && route != ROUTE_RESPONSES) return true;
    f->given_tools = f->tools;
    f->given_choice = f->tool_choice;
    bool ok = route == ROUTE_MESSAGES ? translate_messages(s, f, e) : translate_responses(s, f, e);
    if (!ok) return false;
    struct json_view messages = {.value = f->owned_messages, .path = "/messages"};
    struct json_view tools = {.value = f->owned_tools, .path = "/tools"};
    struct json_view choice = {.value = f->owned_choice, .path = "/tool_choice"};
    f->messages = messages;
    f->tools = tools;
    f->tool_choice = choice;
    return true;
}

bool translate_tools(struct request_fields *f, translate_tool_fn *read_tool, struct api_error *e) {
    f->owned_tools = json_array();
    if (f->owned_tools == NULL) return translate_memory(e);
    for (size_t i = 0; i < json_length(&f->given_tools); i++) {
        struct json_view tool;
        if (!translate_element(&f->given_tools, i, &tool, e) || !read_tool(&tool, f->owned_tools, e)) return false;
    }
    return true;
}
