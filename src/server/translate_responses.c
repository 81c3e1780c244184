// The body of OpenAI's /v1/responses.
#include "server/structured.h"
#include "server/translate.h"
#include "server/turns.h"
#include <string.h>

#define METADATA_MAX 16 // as the OpenAI API has it

static bool is(const char *text, const char *word) { return strcmp(text, word) == 0; }

static bool must_be_object(const struct json_view *v, struct api_error *e) {
    struct error error;
    return json_must_be(v, JSON_OBJECT, &error) == STATUS_OK || api_refuse_error(e, &error);
}

// ---- items ----

static bool read_message(const struct json_view *item, struct turns *t, struct api_error *e) {
    const char *role;
    size_t n;
    struct json_view content;
    struct buffer text;
    if (!translate_text(item, "role", JSON_REQUIRED, &role, &n, e)) return false;
    if (!is(role, "user") && !is(role, "assistant") && !is(role, "system") && !is(role, "developer"))
        return api_refuse(e, 400, NULL, "%s/role must be user, assistant, system or developer", item->path);
    buffer_init(&text, 0);
    bool ok = !json_find(item, "content", &content) ||
              translate_content(&content, "input_text|output_text|text|refusal", "", &text, e);
    if (ok && is(role, "assistant")) {
        if (t->text.n > 0 || t->calls != NULL) turns_close(t); // that was another message
        turns_add_text(t, text.data, text.n);
    } else if (ok) {
        turns_add(t, is(role, "developer") ? "system" : role, text.data, text.n);
    }
    buffer_free(&text);
    return ok;
}

// The reasoning of the turn that it begins. What only another server could decipher says nothing here.
static bool read_reasoning(const struct json_view *item, struct turns *t, struct api_error *e) {
    struct json_view content, summary;
    struct error error;
    struct buffer text;
    if (json_get_view(item, "content", JSON_OPTIONAL, JSON_ARRAY, &content, &error) != STATUS_OK ||
        json_get_view(item, "summary", JSON_OPTIONAL, JSON_ARRAY, &summary, &error) != STATUS_OK)
        return api_refuse_error(e, &error);
    buffer_init(&text, 0);
    bool ok = json_length(&content) > 0
                  ? translate_content(&content, "reasoning_text|text", "", &text, e)
                  : summary.value == NULL || translate_content(&summary, "summary_text", "\n\n", &text, e);
    if (ok && (t->text.n > 0 || t->calls != NULL)) turns_close(t);
    if (ok) turns_add_thought(t, text.data, text.n);
    buffer_free(&text);
    return ok;
}

static bool read_call(const struct json_view *item, struct turns *t, struct api_error *e) {
    const char *id, *name;
    size_t n;
    struct json_view arguments = {0};
    if (!translate_text(item, "call_id", JSON_REQUIRED, &id, &n, e) ||
        !translate_text(item, "name", JSON_REQUIRED, &name, &n, e))
        return false;
    if (n == 0) return api_refuse(e, 400, NULL, "%s/name must not be empty", item->path);
    if (json_find(item, "arguments", &arguments) && !json_is_object(arguments.value) &&
        !json_is_string(arguments.value))
        return api_refuse(e, 400, NULL, "%s must be a string that holds JSON", arguments.path);
    turns_add_call(t, id, name, arguments.value);
    return true;
}

static bool read_result(const struct json_view *item, struct turns *t, struct api_error *e) {
    const char *id;
    size_t n;
    struct json_view output;
    struct buffer text;
    if (!translate_text(item, "call_id", JSON_REQUIRED, &id, &n, e)) return false;
    buffer_init(&text, 0);
    bool ok =
        !json_find(item, "output", &output) || translate_content(&output, "input_text|output_text|text", "", &text, e);
    if (ok) turns_add_result(t, id, text.data, text.n);
    buffer_free(&text);
    return ok;
}

static bool read_item(const struct json_view *item, struct turns *t, struct api_error *e) {
    const char *type;
    size_t n;
    if (!must_be_object(item, e) || !translate_text(item, "type", JSON_OPTIONAL, &type, &n, e)) return false;
    if (n == 0 || is(type, "message")) return read_message(item, t, e);
    if (is(type, "reasoning")) return read_reasoning(item, t, e);
    if (is(type, "function_call")) return read_call(item, t, e);
    if (is(type, "function_call_output")) return read_result(item, t, e);
    return api_refuse(e, 400, "unsupported",
                      "%s/type must be \"message\", \"reasoning\", \"function_call\" or \"function_call_output\"",
                      item->path);
}

static bool read_input(const struct request_fields *f, struct turns *t, struct api_error *e) {
    const struct json_view *v = &f->input, *instructions = &f->instructions;
    if (instructions->value != NULL) {
        if (!json_is_string(instructions->value)) return api_refuse(e, 400, NULL, "/instructions must be a string");
        turns_add(t, "system", json_string_value(instructions->value), json_string_length(instructions->value));
    }
    if (json_is_string(v->value)) {
        turns_add(t, "user", json_string_value(v->value), json_string_length(v->value));
        return true;
    }
    if (!json_is_array(v->value)) return api_refuse(e, 400, NULL, "/input must be text or an array of items");
    if (json_length(v) == 0) return api_refuse(e, 400, NULL, "/input must not be empty");
    if (json_length(v) > CHAT_MESSAGES_MAX)
        return api_refuse(e, 400, "limit_exceeded", "/input has more than %d items", CHAT_MESSAGES_MAX);
    for (size_t i = 0; i < json_length(v); i++) {
        struct json_view item;
        if (!translate_element(v, i, &item, e) || !read_item(&item, t, e)) return false;
    }
    return true;
}

// ---- tools ----

static bool read_tool(const struct json_view *tool, json_t *tools, struct api_error *e) {
    const char *type, *name, *description;
    size_t n;
    struct json_view parameters;
    struct error error;
    if (!must_be_object(tool, e) || !translate_text(tool, "type", JSON_REQUIRED, &type, &n, e)) return false;
    if (!is(type, "function"))
        return api_refuse(e, 400, "unsupported", "%s/type must be \"function\": this server has no tools of its own",
                          tool->path);
    if (!translate_text(tool, "description", JSON_OPTIONAL, &description, &n, e) ||
        !translate_text(tool, "name", JSON_REQUIRED, &name, &n, e))
        return false;
    if (n == 0) return api_refuse(e, 400, NULL, "%s/name must not be empty", tool->path);
    if (json_get_view(tool, "parameters", JSON_OPTIONAL, JSON_OBJECT, &parameters, &error) != STATUS_OK)
        return api_refuse_error(e, &error);
    return translate_tool(tools, name, description, parameters.value, e);
}

static bool read_choice(struct request_fields *f, struct api_error *e) {
    const struct json_view *v = &f->given_choice;
    const char *type, *name;
    size_t n;
    if (v->value == NULL) return true;
    if (!json_is_object(v->value)) { // the words are those of a chat
        f->owned_choice = json_incref((json_t *)v->value);
        return true;
    }
    if (!translate_text(v, "type", JSON_REQUIRED, &type, &n, e)) return false;
    if (!is(type, "function")) return api_refuse(e, 400, "unsupported", "/tool_choice/type must be \"function\"");
    if (!translate_text(v, "name", JSON_REQUIRED, &name, &n, e)) return false;
    if (!translate_has_tool(f->owned_tools, name))
        return api_refuse(e, 400, NULL, "/tool_choice/name is not the name of one of the tools");
    f->owned_choice = json_pack("{s:s,s:{s:s}}", "type", "function", "function", "name", name);
    return f->owned_choice != NULL || translate_memory(e);
}

// ---- settings ----

static bool read_settings(const struct service *s, struct request_fields *f, struct api_error *e) {
    static const char *const words[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
    const char *effort;
    size_t n;
    if (f->reasoning.value == NULL) return true;
    if (!translate_text(&f->reasoning, "effort", JSON_OPTIONAL, &effort, &n, e)) return false;
    if (n == 0) return true;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (!is(effort, words[i])) continue;
        translate_effort(s, words[i], f);
        return true;
    }
    return api_refuse(e, 400, NULL, "/reasoning/effort must be one of none, minimal, low, medium, high and xhigh");
}

static bool read_text(struct request_fields *f, struct api_error *e) {
    struct json_view format;
    struct error error;
    const char *verbosity;
    size_t n;
    if (f->text.value == NULL) return true;
    if (json_get_view(&f->text, "format", JSON_OPTIONAL, JSON_OBJECT, &format, &error) != STATUS_OK)
        return api_refuse_error(e, &error);
    if (format.value != NULL && !structured_read_format(&format, false, f, e)) return false;
    if (!translate_text(&f->text, "verbosity", JSON_OPTIONAL, &verbosity, &n, e)) return false;
    return n == 0 || is(verbosity, "medium") ||
           api_refuse(e, 400, "unsupported", "/text/verbosity is unsupported: say it in a message");
}

// Reasoning is always given in full, so its encrypted form adds nothing and may be asked for.
static bool read_include(const struct request_fields *f, struct api_error *e) {
    for (size_t i = 0; i < json_length(&f->include); i++) {
        struct json_view v;
        struct error error;
        const char *word;
        if (!translate_element(&f->include, i, &v, e)) return false;
        if (json_as_string(&v, &word, NULL, &error) != STATUS_OK) return api_refuse_error(e, &error);
        if (!is(word, "reasoning.encrypted_content"))
            return api_refuse(e, 400, "unsupported", "%s is not something that replies of this server can include",
                              v.path);
    }
    return true;
}

static bool check_metadata(const struct request_fields *f, struct api_error *e) {
    const char *name;
    json_t *value;
    if (json_object_size(f->metadata.value) > METADATA_MAX)
        return api_refuse(e, 400, "limit_exceeded", "/metadata may have at most %d members", METADATA_MAX);
    json_object_foreach((json_t *)f->metadata.value, name, value) {
        if (!json_is_string(value))
            return api_refuse(e, 400, NULL, "/metadata must have strings as its members' values");
    }
    return true;
}

bool translate_responses(const struct service *s, struct request_fields *f, struct api_error *e) {
    if (!read_settings(s, f, e) || !check_metadata(f, e) || !read_text(f, e) || !read_include(f, e) ||
        !translate_tools(f, read_tool, e) || !read_choice(f, e))
        return false;
    struct turns turns;
    turns_init(&turns);
    bool ok = read_input(f, &turns, e);
    if (ok) f->owned_messages = turns_take(&turns);
    turns_free(&turns);
    return ok && (f->owned_messages != NULL || translate_memory(e));
}
