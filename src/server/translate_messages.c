// The body of Anthropic's /v1/messages.
#include "server/structured.h"
#include "server/translate.h"
#include "server/turns.h"
#include <string.h>

static bool is(const char *text, const char *word) { return strcmp(text, word) == 0; }

// Content and its kind are checked, so that what the chat template refuses later is the template's own business.
static bool must_be_object(const struct json_view *v, struct api_error *e) {
    struct error error;
    return json_must_be(v, JSON_OBJECT, &error) == STATUS_OK || api_refuse_error(e, &error);
}

// ---- an assistant's blocks ----

static bool read_tool_use(const struct json_view *block, struct turns *t, struct api_error *e) {
    const char *id, *name;
    size_t n_id, n_name;
    struct json_view input = {0};
    if (!translate_text(block, "id", JSON_OPTIONAL, &id, &n_id, e) ||
        !translate_text(block, "name", JSON_REQUIRED, &name, &n_name, e))
        return false;
    if (n_name == 0) return api_refuse(e, 400, NULL, "%s/name must not be empty", block->path);
    if (json_find(block, "input", &input) && !json_is_object(input.value) && !json_is_string(input.value))
        return api_refuse(e, 400, NULL, "%s must be an object", input.path);
    turns_add_call(t, id, name, input.value);
    return true;
}

static bool read_assistant_block(const struct json_view *block, struct turns *t, struct api_error *e) {
    const char *type, *text;
    size_t n;
    if (!must_be_object(block, e) || !translate_text(block, "type", JSON_REQUIRED, &type, &n, e)) return false;
    if (is(type, "text")) {
        if (!translate_text(block, "text", JSON_REQUIRED, &text, &n, e)) return false;
        turns_add_text(t, text, n);
        return true;
    }
    if (is(type, "thinking")) {
        if (!translate_text(block, "thinking", JSON_REQUIRED, &text, &n, e)) return false;
        turns_add_thought(t, text, n);
        return true;
    }
    if (is(type, "redacted_thinking")) return true; // another model's, and unreadable
    if (is(type, "tool_use")) return read_tool_use(block, t, e);
    return api_refuse(e, 400, "unsupported", "%s/type must be \"text\", \"thinking\" or \"tool_use\"", block->path);
}

static bool read_assistant(const struct json_view *content, struct turns *t, struct api_error *e) {
    turns_open(t);
    if (json_is_string(content->value)) {
        turns_add_text(t, json_string_value(content->value), json_string_length(content->value));
        return true;
    }
    for (size_t i = 0; i < json_length(content); i++) {
        struct json_view block;
        if (!translate_element(content, i, &block, e) || !read_assistant_block(&block, t, e)) return false;
    }
    return true;
}

// ---- a user's blocks ----

// Templates have no place for "is_error": the result's text says it.
static bool read_tool_result(const struct json_view *block, struct turns *t, struct api_error *e) {
    const char *id;
    size_t n;
    bool failed = false;
    struct json_view content;
    struct buffer text;
    struct error error;
    buffer_init(&text, 0);
    if (!translate_text(block, "tool_use_id", JSON_REQUIRED, &id, &n, e)) return false;
    if (json_get_bool(block, "is_error", JSON_OPTIONAL, &failed, &error) != STATUS_OK)
        return api_refuse_error(e, &error);
    if (failed) buffer_append_text(&text, "Error: ");
    bool ok = !json_find(block, "content", &content) || translate_content(&content, "text", "", &text, e);
    if (ok) turns_add_result(t, id, text.data, text.n);
    buffer_free(&text);
    return ok;
}

// Text of neighbouring blocks is one message; *said tells that `text` holds some.
static bool read_user_block(const struct json_view *block, struct turns *t, struct buffer *text, bool *said,
                            struct api_error *e) {
    const char *type, *words;
    size_t n;
    if (!must_be_object(block, e) || !translate_text(block, "type", JSON_REQUIRED, &type, &n, e)) return false;
    if (is(type, "text")) {
        if (!translate_text(block, "text", JSON_REQUIRED, &words, &n, e)) return false;
        *said = true;
        return buffer_append(text, words, n) || translate_memory(e);
    }
    if (!is(type, "tool_result"))
        return api_refuse(e, 400, "unsupported",
                          "%s/type must be \"text\" or \"tool_result\": this model reads text only", block->path);
    if (*said) turns_add(t, "user", text->data, text->n);
    *said = false;
    buffer_clear(text);
    return read_tool_result(block, t, e);
}

static bool read_user(const struct json_view *content, struct turns *t, const char *role, struct api_error *e) {
    if (json_is_string(content->value)) {
        turns_add(t, role, json_string_value(content->value), json_string_length(content->value));
        return true;
    }
    struct buffer text;
    buffer_init(&text, 0);
    bool said = json_length(content) == 0, ok = true;
    for (size_t i = 0; ok && i < json_length(content); i++) {
        struct json_view block;
        ok = translate_element(content, i, &block, e) && read_user_block(&block, t, &text, &said, e);
    }
    if (ok && said) turns_add(t, role, text.data, text.n);
    buffer_free(&text);
    return ok;
}

// ---- messages ----

static bool read_message(const struct json_view *message, struct turns *t, struct api_error *e) {
    const char *role;
    size_t n;
    struct json_view content = {.value = NULL};
    if (!must_be_object(message, e) || !translate_text(message, "role", JSON_REQUIRED, &role, &n, e)) return false;
    if (json_find(message, "content", &content) && !json_is_string(content.value) && !json_is_array(content.value))
        return api_refuse(e, 400, NULL, "%s must be text or an array of blocks", content.path);
    if (is(role, "assistant")) {
        turns_close(t); // two of them in a row stay two
        return read_assistant(&content, t, e);
    }
    if (is(role, "user") || is(role, "system")) return read_user(&content, t, role, e);
    return api_refuse(e, 400, NULL, "%s/role must be \"user\" or \"assistant\"", message->path);
}

static bool read_system(const struct json_view *system, struct turns *t, struct api_error *e) {
    struct buffer text;
    buffer_init(&text, 0);
    bool ok = translate_content(system, "text", "\n\n", &text, e);
    if (ok && text.n > 0) turns_add(t, "system", text.data, text.n);
    buffer_free(&text);
    return ok;
}

static bool read_messages(const struct request_fields *f, struct turns *t, struct api_error *e) {
    if (json_length(&f->messages) == 0) return api_refuse(e, 400, NULL, "/messages must not be empty");
    if (json_length(&f->messages) > CHAT_MESSAGES_MAX)
        return api_refuse(e, 400, "limit_exceeded", "/messages has more than %d messages", CHAT_MESSAGES_MAX);
    if (f->system.value != NULL && !read_system(&f->system, t, e)) return false;
    for (size_t i = 0; i < json_length(&f->messages); i++) {
        struct json_view message;
        if (!translate_element(&f->messages, i, &message, e) || !read_message(&message, t, e)) return false;
    }
    return true;
}

// ---- tools ----

static bool read_tool(const struct json_view *tool, json_t *tools, struct api_error *e) {
    const char *type, *name, *description;
    size_t n, n_name;
    struct json_view schema;
    struct error error;
    if (!must_be_object(tool, e) || !translate_text(tool, "type", JSON_OPTIONAL, &type, &n, e)) return false;
    if (n > 0 && !is(type, "custom"))
        return api_refuse(e, 400, "unsupported",
                          "%s/type must be \"custom\" or left out: this server has no tools of its own", tool->path);
    if (!translate_text(tool, "name", JSON_REQUIRED, &name, &n_name, e) ||
        !translate_text(tool, "description", JSON_OPTIONAL, &description, &n, e))
        return false;
    if (n_name == 0) return api_refuse(e, 400, NULL, "%s/name must not be empty", tool->path);
    if (json_get_view(tool, "input_schema", JSON_OPTIONAL, JSON_OBJECT, &schema, &error) != STATUS_OK)
        return api_refuse_error(e, &error);
    return translate_tool(tools, name, description, schema.value, e);
}

static bool read_choice(struct request_fields *f, struct api_error *e) {
    const struct json_view *v = &f->given_choice;
    const char *type, *name;
    size_t n;
    bool single = false;
    struct error error;
    if (v->value == NULL) return true;
    if (!must_be_object(v, e) || !translate_text(v, "type", JSON_REQUIRED, &type, &n, e)) return false;
    if (json_get_bool(v, "disable_parallel_tool_use", JSON_OPTIONAL, &single, &error) != STATUS_OK)
        return api_refuse_error(e, &error);
    f->parallel_calls = !single;
    if (is(type, "tool")) {
        if (!translate_text(v, "name", JSON_REQUIRED, &name, &n, e)) return false;
        if (!translate_has_tool(f->owned_tools, name))
            return api_refuse(e, 400, NULL, "/tool_choice/name is not the name of one of the tools");
        f->owned_choice = json_pack("{s:s,s:{s:s}}", "type", "function", "function", "name", name);
    } else if (is(type, "auto") || is(type, "none")) {
        f->owned_choice = json_string(type);
    } else if (is(type, "any")) {
        f->owned_choice = json_string("required");
    } else {
        return api_refuse(e, 400, NULL, "/tool_choice/type must be \"auto\", \"any\", \"tool\" or \"none\"");
    }
    return f->owned_choice != NULL || translate_memory(e);
}

// ---- thinking ----

static bool read_thinking(const struct service *s, struct request_fields *f, struct api_error *e) {
    const char *type, *display;
    size_t n;
    int64_t budget;
    struct error error;
    if (f->thinking_config.value == NULL) { // off, as these clients expect, unless the server was told otherwise
        if (s->options->chat_defaults.enable_thinking == CHAT_UNSET) f->thinking = CHAT_OFF;
        return true;
    }
    if (!translate_text(&f->thinking_config, "type", JSON_REQUIRED, &type, &n, e)) return false;
    if (json_get_int(&f->thinking_config, "budget_tokens", JSON_OPTIONAL, 1, INT64_MAX, &budget, &error) != STATUS_OK)
        return api_refuse_error(e, &error);
    if (!translate_text(&f->thinking_config, "display", JSON_OPTIONAL, &display, &n, e)) return false;
    if (n > 0 && !is(display, "summarized"))
        return api_refuse(e, 400, "unsupported", "/thinking/display must be left out: thoughts are always shown");
    if (!is(type, "enabled") && !is(type, "disabled") && !is(type, "adaptive"))
        return api_refuse(e, 400, NULL, "/thinking/type must be \"enabled\", \"adaptive\" or \"disabled\"");
    f->thinking = is(type, "disabled") ? CHAT_OFF : CHAT_ON;
    return true;
}

static bool read_output(const struct service *s, struct request_fields *f, struct api_error *e) {
    static const char *const words[] = {"low", "medium", "high", "xhigh"};
    struct json_view format;
    const char *effort;
    size_t n;
    if (f->output_config.value == NULL) return true;
    if (json_find(&f->output_config, "format", &format) && !structured_read_format(&format, false, f, e)) return false;
    if (!translate_text(&f->output_config, "effort", JSON_OPTIONAL, &effort, &n, e)) return false;
    if (n == 0) return true;
    if (is(effort, "max")) effort = "xhigh"; // the templates' word for it
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (!is(effort, words[i])) continue;
        enum chat_toggle thinking = f->thinking; // effort says how much to think, not whether to
        translate_effort(s, words[i], f);
        f->thinking = thinking;
        return true;
    }
    return api_refuse(e, 400, NULL, "/output_config/effort must be one of low, medium, high, xhigh and max");
}

bool translate_messages(const struct service *s, struct request_fields *f, struct api_error *e) {
    if (!read_thinking(s, f, e) || !read_output(s, f, e) || !translate_tools(f, read_tool, e) || !read_choice(f, e))
        return false;
    struct turns turns;
    turns_init(&turns);
    bool ok = read_messages(f, &turns, e);
    if (ok) f->owned_messages = turns_take(&turns);
    turns_free(&turns);
    return ok && (f->owned_messages != NULL || translate_memory(e));
}
