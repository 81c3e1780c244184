#include "format/chat_messages.h"
#include "format/json.h"
#include <string.h>

#define ARGUMENTS_BYTES_MAX ((size_t)32 << 20) // of one call in the history; more is passed on unparsed

struct reader {
    const struct chat_traits *traits;
    struct error *error;
    json_t *list;
    bool has_user;
    bool leading; // only system messages so far
};

static enum status invalid(struct reader *r, const struct json_view *v, const char *what) {
    return error_set(r->error, STATUS_INVALID, "%s %s", v->path, what);
}

// json_copy leaves members out when memory runs out in between.
json_t *chat_copy_object(const json_t *object) {
    json_t *copy = json_copy((json_t *)object);
    if (!copy || json_object_size(copy) == json_object_size(object)) return copy;
    json_decref(copy);
    return NULL;
}

static bool is_role(const char *role, const char *name) { return !strcmp(role, name); }

// ---- content ----

static enum status append_part(struct reader *r, const struct json_view *part, struct buffer *text) {
    const char *type = NULL, *words = NULL;
    size_t n = 0;
    enum status status = json_must_be(part, JSON_OBJECT, r->error);
    if (!status) status = json_get_string(part, "type", JSON_REQUIRED, &type, NULL, r->error);
    if (!status && strcmp(type, "text"))
        status =
            error_set(r->error, STATUS_INVALID, "%s/type must be \"text\": this model reads text only", part->path);
    if (!status) status = json_get_string(part, "text", JSON_REQUIRED, &words, &n, r->error);
    if (!status && !buffer_append(text, words, n)) status = error_memory(r->error);
    return status;
}

// The content of a message as one string: a new reference.
static enum status read_content(struct reader *r, const struct json_view *message, json_t **out) {
    struct json_view content, part;
    enum status status = STATUS_OK;
    if (!json_find(message, "content", &content)) {
        *out = json_string("");
        return *out ? STATUS_OK : error_memory(r->error);
    }
    if (json_is_string(content.value)) {
        *out = json_incref((json_t *)content.value);
        return STATUS_OK;
    }
    if (!json_is_array(content.value)) return invalid(r, &content, "must be a string or an array of text parts");
    struct buffer text;
    buffer_init(&text, 0);
    for (size_t i = 0; i < json_length(&content) && !status; i++) {
        if (json_element(&content, i, &part))
            status = append_part(r, &part, &text);
        else
            status = error_set(r->error, STATUS_INVALID, "%s/%zu must not be null", content.path, i);
    }
    json_t *joined = status ? NULL : json_stringn_nocheck(text.data ? text.data : "", text.n);
    buffer_free(&text);
    if (!status && !joined) status = error_memory(r->error);
    if (!status) *out = joined;
    return status;
}

// ---- tool calls ----

// The arguments as an object, where they are one; otherwise the raw text in the form that the template takes.
static enum status read_arguments(struct reader *r, const struct json_view *function, json_t **out) {
    struct json_view v;
    json_t *parsed = NULL;
    if (!json_find(function, "arguments", &v)) {
        *out = json_object();
        return *out ? STATUS_OK : error_memory(r->error);
    }
    if (json_is_object(v.value)) {
        *out = json_incref((json_t *)v.value);
        return STATUS_OK;
    }
    if (!json_is_string(v.value)) return invalid(r, &v, "must be a string that holds JSON, or an object");
    const char *text = json_string_value(v.value);
    size_t n = json_string_length(v.value);
    enum status status = STATUS_OK;
    if (n) status = json_parse(text, n, ARGUMENTS_BYTES_MAX, JSON_PARSE_DUPLICATES | JSON_PARSE_NUL, &parsed, NULL);
    if (status == STATUS_MEMORY) return error_memory(r->error);
    if (!n) {
        parsed = json_object();
    } else if (!json_is_object(parsed)) {
        json_decref(parsed);
        parsed = r->traits->raw_arguments ? json_incref((json_t *)v.value)
                                          : json_pack("{s:O}", CHAT_RAW_ARGUMENTS, (json_t *)v.value);
    }
    if (!parsed) return error_memory(r->error);
    *out = parsed;
    return STATUS_OK;
}

static enum status read_call(struct reader *r, const struct json_view *call, json_t *calls) {
    struct json_view function;
    const char *name, *type = "function";
    json_t *arguments = NULL;
    size_t n;
    enum status status = json_must_be(call, JSON_OBJECT, r->error);
    if (!status) status = json_get_string(call, "type", JSON_OPTIONAL, &type, NULL, r->error);
    if (!status && strcmp(type, "function"))
        status = error_set(r->error, STATUS_INVALID, "%s/type must be \"function\"", call->path);
    if (!status) status = json_get_view(call, "function", JSON_REQUIRED, JSON_OBJECT, &function, r->error);
    if (!status) status = json_get_string(&function, "name", JSON_REQUIRED, &name, &n, r->error);
    if (!status) status = read_arguments(r, &function, &arguments);
    if (status) return status;
    json_t *copy = chat_copy_object(call->value), *inner = chat_copy_object(function.value);
    bool ok = copy && inner && !json_object_set(inner, "arguments", arguments) &&
              !json_object_set(copy, "function", inner) && !json_array_append(calls, copy);
    json_decref(copy);
    json_decref(inner);
    json_decref(arguments);
    return ok ? STATUS_OK : error_memory(r->error);
}

// Puts the calls of an assistant message into its copy; none are left out.
static enum status read_calls(struct reader *r, const struct json_view *message, json_t *copy) {
    struct json_view calls, call;
    json_object_del(copy, "tool_calls");
    enum status status = json_get_view(message, "tool_calls", JSON_OPTIONAL, JSON_ARRAY, &calls, r->error);
    if (status || !calls.value || !json_length(&calls)) return status;
    json_t *list = json_array();
    if (!list) return error_memory(r->error);
    for (size_t i = 0; i < json_length(&calls) && !status; i++) {
        if (json_element(&calls, i, &call))
            status = read_call(r, &call, list);
        else
            status = error_set(r->error, STATUS_INVALID, "%s/%zu must not be null", calls.path, i);
    }
    if (!status && json_object_set(copy, "tool_calls", list)) status = error_memory(r->error);
    json_decref(list);
    return status;
}

// reasoning_content, which some clients call reasoning, is a string or absent.
static enum status read_reasoning(struct reader *r, const struct json_view *message, json_t *copy) {
    static const char *const names[] = {"reasoning_content", "reasoning"};
    for (size_t i = 0; i < 2; i++) {
        struct json_view v;
        if (!json_find(message, names[i], &v)) continue;
        if (!json_is_string(v.value)) return invalid(r, &v, "must be a string");
        return json_object_set(copy, "reasoning_content", (json_t *)v.value) ? error_memory(r->error) : STATUS_OK;
    }
    json_object_del(copy, "reasoning_content"); // it may be null
    return STATUS_OK;
}

// ---- messages ----

// Joins a further leading system message to the first.
static enum status merge_system(struct reader *r, json_t *content) {
    json_t *first = json_array_get(r->list, 0), *before = json_object_get(first, "content");
    size_t n = json_string_length(before), m = json_string_length(content);
    if (!m) return STATUS_OK;
    struct buffer text;
    buffer_init(&text, 0);
    buffer_append(&text, json_string_value(before), n);
    if (n) buffer_append(&text, "\n\n", 2);
    buffer_append(&text, json_string_value(content), m);
    json_t *joined = text.failed ? NULL : json_stringn_nocheck(text.data, text.n);
    buffer_free(&text);
    bool ok = joined && !json_object_set(first, "content", joined);
    json_decref(joined);
    return ok ? STATUS_OK : error_memory(r->error);
}

static enum status read_role(struct reader *r, const struct json_view *message, const char **out) {
    static const char *const roles[][2] = {{"system", "system"},       {"developer", "system"}, {"user", "user"},
                                           {"assistant", "assistant"}, {"tool", "tool"},        {"function", "tool"}};
    const char *role;
    enum status status = json_get_string(message, "role", JSON_REQUIRED, &role, NULL, r->error);
    for (size_t i = 0; !status && i < sizeof roles / sizeof *roles; i++) {
        if (!is_role(role, roles[i][0])) continue;
        *out = roles[i][1];
        return STATUS_OK;
    }
    if (status) return status;
    return error_set(r->error, STATUS_INVALID, "%s/role must be system, developer, user, assistant or tool",
                     message->path);
}

// Appends a copy of the message in its normal form; content is taken over.
static enum status append_message(struct reader *r, const struct json_view *message, const char *role,
                                  json_t *content) {
    enum status status = STATUS_OK;
    json_t *copy = chat_copy_object(message->value), *name = json_string(role);
    if (!copy || !name || json_object_set(copy, "role", name) || json_object_set(copy, "content", content))
        status = error_memory(r->error);
    if (!status && is_role(role, "assistant")) {
        status = read_calls(r, message, copy);
        if (!status) status = read_reasoning(r, message, copy);
    }
    if (!status && json_array_append(r->list, copy)) status = error_memory(r->error);
    json_decref(copy);
    json_decref(name);
    return status;
}

static enum status read_message(struct reader *r, const struct json_view *message) {
    struct json_view old;
    const char *role = NULL;
    json_t *content = NULL;
    enum status status = json_must_be(message, JSON_OBJECT, r->error);
    if (!status && json_find(message, "function_call", &old))
        status = invalid(r, &old, "is not supported: use tool_calls");
    if (!status) status = read_role(r, message, &role);
    if (!status) status = read_content(r, message, &content);
    if (status) return status;
    bool system = is_role(role, "system");
    if (system && r->leading && json_array_size(r->list)) {
        status = merge_system(r, content);
    } else {
        if (system && !r->leading && !r->traits->late_system) role = "user";
        r->leading = r->leading && system;
        r->has_user = r->has_user || is_role(role, "user");
        status = append_message(r, message, role, content);
    }
    json_decref(content);
    return status;
}

static bool has_text(const json_t *message, const char *key) {
    return json_string_length(json_object_get(message, key)) > 0;
}

// Drops empty assistant messages at the end; true when the last one is to be continued.
static bool trim_end(json_t *list) {
    for (size_t n; (n = json_array_size(list)) > 0; json_array_remove(list, n - 1)) {
        const json_t *last = json_array_get(list, n - 1);
        const char *role = json_string_value(json_object_get(last, "role"));
        if (!is_role(role, "assistant") || json_object_get(last, "tool_calls")) return false;
        if (has_text(last, "content") || has_text(last, "reasoning_content")) return true;
    }
    return false;
}

enum status chat_messages_read(const json_t *messages, const struct chat_traits *traits, bool may_continue,
                               struct chat_messages *out, struct error *e) {
    struct json_view root = {.value = messages, .path = "/messages"}, message;
    if (!json_is_array(messages)) return error_set(e, STATUS_INVALID, "/messages must be an array");
    size_t n = json_length(&root);
    if (!n) return error_set(e, STATUS_INVALID, "/messages must not be empty");
    if (n > CHAT_MESSAGES_MAX)
        return error_set(e, STATUS_LIMIT, "/messages has more than %d messages", CHAT_MESSAGES_MAX);
    struct reader r = {.traits = traits, .error = e, .list = json_array(), .leading = true};
    if (!r.list) return error_memory(e);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < n && !status; i++) {
        if (json_element(&root, i, &message))
            status = read_message(&r, &message);
        else
            status = error_set(e, STATUS_INVALID, "/messages/%zu must not be null", i);
    }
    bool continues = !status && may_continue && trim_end(r.list);
    if (!status && !json_array_size(r.list)) status = error_set(e, STATUS_INVALID, "/messages holds no text");
    if (status)
        json_decref(r.list);
    else
        *out = (struct chat_messages){r.list, r.has_user, continues};
    return status;
}

static enum status check_tool(const struct json_view *tool, struct error *e) {
    struct json_view function, parameters;
    const char *type, *name;
    size_t n;
    enum status status = json_must_be(tool, JSON_OBJECT, e);
    if (!status) status = json_get_string(tool, "type", JSON_REQUIRED, &type, NULL, e);
    if (!status && strcmp(type, "function"))
        status = error_set(e, STATUS_INVALID, "%s/type must be \"function\"", tool->path);
    if (!status) status = json_get_view(tool, "function", JSON_REQUIRED, JSON_OBJECT, &function, e);
    if (!status) status = json_get_string(&function, "name", JSON_REQUIRED, &name, &n, e);
    if (!status && !n) status = error_set(e, STATUS_INVALID, "%s/name must not be empty", function.path);
    if (!status) status = json_get_view(&function, "parameters", JSON_OPTIONAL, JSON_OBJECT, &parameters, e);
    return status;
}

enum status chat_tools_check(const json_t *tools, const json_t **out, struct error *e) {
    struct json_view root = {.value = tools, .path = "/tools"}, tool;
    *out = NULL;
    if (!tools || json_is_null(tools)) return STATUS_OK;
    if (!json_is_array(tools)) return error_set(e, STATUS_INVALID, "/tools must be an array");
    for (size_t i = 0; i < json_length(&root); i++) {
        if (!json_element(&root, i, &tool)) return error_set(e, STATUS_INVALID, "/tools/%zu must not be null", i);
        enum status status = check_tool(&tool, e);
        if (status) return status;
    }
    if (json_length(&root)) *out = tools;
    return STATUS_OK;
}
