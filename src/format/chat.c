#include "format/chat.h"
#include "base/mapped_file.h"
#include "format/chat_messages.h"
#include "format/json.h"
#include "format/unicode.h"
#include <stdlib.h>
#include <string.h>

#define CONFIG_BYTES_MAX ((size_t)64 << 20)

struct chat_template {
    struct jinja_template *usual, *with_tools; // with_tools NULL: the usual one serves both
    json_t *special;                           // bos_token and its kin
    struct chat_traits traits;
};

// Stands behind the text of a message that is to be continued, so that its end can be found in what the template made
// of it. Noncharacters, which no text is meant to hold.
static const char end_mark[] = "\xef\xb7\x90"
                               "end of the text to continue"
                               "\xef\xb7\x91";

void chat_template_free(struct chat_template *t) {
    if (!t) return;
    jinja_free(t->usual);
    jinja_free(t->with_tools);
    json_decref(t->special);
    free(t);
}

const struct chat_traits *chat_template_traits(const struct chat_template *t) { return &t->traits; }

// ---- rendering ----

// The variables of a render: kwargs first, so that nothing in them replaces what follows. NULL: out of memory.
static json_t *make_variables(const json_t *messages, const json_t *tools, const struct chat_options *o,
                              bool generate) {
    json_t *data = o->kwargs ? chat_copy_object(o->kwargs) : json_object();
    json_t *no_tools = tools ? NULL : json_null();
    bool ok = data && !json_object_set(data, "messages", (json_t *)messages) &&
              !json_object_set(data, "tools", tools ? (json_t *)tools : no_tools) &&
              !json_object_set_new(data, "documents", json_null()) &&
              !json_object_set_new(data, "add_generation_prompt", json_boolean(generate));
    if (ok && o->enable_thinking)
        ok = !json_object_set_new(data, "enable_thinking", json_boolean(o->enable_thinking == CHAT_ON));
    if (ok && o->reasoning_effort)
        ok = !json_object_set_new(data, "reasoning_effort", json_string(o->reasoning_effort));
    if (ok) return data;
    json_decref(data);
    return NULL;
}

static enum status render(const struct chat_template *t, const json_t *messages, const json_t *tools,
                          const struct chat_options *o, bool generate, struct jinja_output *out, struct error *e) {
    json_t *data = make_variables(messages, tools, o, generate);
    if (!data) return error_memory(e);
    struct jinja_inputs in = {.data = data, .trusted = t->special, .now_s = o->now_s, .limits = o->limits};
    enum status status = jinja_render(tools && t->with_tools ? t->with_tools : t->usual, &in, out, e);
    json_decref(data);
    return status;
}

// Puts an empty user turn behind the leading system message.
static enum status add_user(json_t *list, struct error *e) {
    const char *first = json_string_value(json_object_get(json_array_get(list, 0), "role"));
    json_t *turn = json_pack("{s:s, s:s}", "role", "user", "content", "");
    if (!turn || json_array_insert_new(list, !strcmp(first, "system"), turn)) return error_memory(e);
    return STATUS_OK;
}

static enum status mark_end(json_t *list, struct error *e) {
    json_t *last = json_array_get(list, json_array_size(list) - 1), *content = json_object_get(last, "content");
    struct buffer text;
    buffer_init(&text, 0);
    buffer_append(&text, json_string_value(content), json_string_length(content));
    buffer_append_text(&text, end_mark);
    json_t *marked = text.failed ? NULL : json_stringn_nocheck(text.data, text.n);
    buffer_free(&text);
    return marked && !json_object_set_new(last, "content", marked) ? STATUS_OK : error_memory(e);
}

// Cuts the text before the last mark. False: it is not there.
static bool cut_at_mark(struct jinja_output *out) {
    const size_t n = sizeof end_mark - 1;
    struct text_span *spans = (struct text_span *)out->spans; // in the output's own memory
    for (size_t i = out->n_spans, after = 0; i-- > 0; after += spans[i].n) {
        if (spans[i].trusted) continue;
        for (size_t at = spans[i].n; at-- >= n;) {
            if (memcmp(spans[i].text + at + 1 - n, end_mark, n)) continue;
            out->n_bytes -= after + spans[i].n - (at + 1 - n);
            spans[i].n = at + 1 - n;
            out->n_spans = spans[i].n ? i + 1 : i;
            return true;
        }
    }
    return false;
}

// True when the text ends, white space aside, with a "<think>" that the template wrote.
static bool ends_in_think(const struct jinja_output *out) {
    static const char opener[] = "<think>";
    for (size_t i = out->n_spans; i-- > 0;) {
        const char *text = out->spans[i].text;
        size_t n = out->spans[i].n;
        unicode_strip(&text, &n);
        if (!n) continue;
        return out->spans[i].trusted && n >= sizeof opener - 1 &&
               !memcmp(text + n - (sizeof opener - 1), opener, sizeof opener - 1);
    }
    return false;
}

static enum status check_options(const struct chat_template *t, const struct chat_options *o, struct error *e) {
    static const char *const own[] = {"messages", "tools", "documents", "add_generation_prompt"};
    if (o->reasoning_effort && !t->traits.reasoning_effort)
        return error_set(e, STATUS_INVALID, "/reasoning_effort is not supported by this model's chat template");
    if (!o->kwargs) return STATUS_OK;
    if (!json_is_object(o->kwargs)) return error_set(e, STATUS_INVALID, "/chat_template_kwargs must be an object");
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (json_object_get(o->kwargs, own[i]))
            return error_set(e, STATUS_INVALID, "/chat_template_kwargs/%s cannot be given there", own[i]);
    return STATUS_OK;
}

// A template may insist on a user turn. Where there is none and it refuses, it is asked again with an empty one; if
// that does not help, its first word, on what was really sent, stands.
static enum status render_with_user(const struct chat_template *t, const struct chat_messages *m, const json_t *tools,
                                    const struct chat_options *o, struct jinja_output *out, struct error *e) {
    bool generate = !o->no_generation_prompt && !m->continues;
    enum status status = render(t, m->list, tools, o, generate, out, e);
    if (status != STATUS_INVALID || m->has_user) return status;
    if (add_user(m->list, e)) return STATUS_MEMORY;
    enum status again = render(t, m->list, tools, o, generate, out, NULL);
    return again == STATUS_MEMORY ? error_memory(e) : again ? status : STATUS_OK;
}

enum status chat_render(const struct chat_template *t, const json_t *messages, const json_t *tools,
                        const struct chat_options *options, struct chat_prompt *out, struct error *e) {
    struct chat_messages m;
    struct jinja_output text = {0};
    bool may_continue = !options->no_generation_prompt && !options->no_continue_final;
    enum status status = check_options(t, options, e);
    if (!status) status = chat_tools_check(tools, &tools, e);
    if (!status) status = chat_messages_read(messages, &t->traits, may_continue, &m, e);
    if (status) return status;
    if (m.continues) status = mark_end(m.list, e);
    if (!status) status = render_with_user(t, &m, tools, options, &text, e);
    json_decref(m.list);
    if (!status && m.continues && !cut_at_mark(&text)) {
        jinja_output_free(&text);
        status = error_set(e, STATUS_INVALID,
                           "/messages ends with an assistant message, which this model's chat template "
                           "cannot continue");
    }
    if (!status) *out = (struct chat_prompt){text, ends_in_think(&text), m.continues};
    return status;
}

void chat_prompt_free(struct chat_prompt *p) {
    jinja_output_free(&p->text);
    *p = (struct chat_prompt){0};
}

// ---- probing ----

struct probe {
    char *text; // NULL: the template refuses the conversation
    size_t n;
    bool in_think; // it ends in a think block
};

// Renders a conversation with variables, both as JSON. Of errors only MEMORY is one; others are an answer.
static enum status ask(const struct chat_template *t, const char *messages, const char *variables, struct probe *out) {
    struct jinja_output rendered = {0};
    json_t *list = NULL, *kwargs = NULL;
    *out = (struct probe){0};
    enum status status = json_parse(messages, strlen(messages), SIZE_MAX, 0, &list, NULL);
    if (!status) status = json_parse(variables, strlen(variables), SIZE_MAX, 0, &kwargs, NULL);
    struct chat_options o = {.kwargs = kwargs, .now_s = 1};
    if (!status) status = render(t, list, json_object_get(kwargs, "tools"), &o, true, &rendered, NULL);
    if (!status) {
        struct buffer text;
        buffer_init(&text, 0);
        for (size_t i = 0; i < rendered.n_spans; i++) buffer_append(&text, rendered.spans[i].text, rendered.spans[i].n);
        out->text = buffer_take(&text, &out->n);
        out->in_think = ends_in_think(&rendered);
        if (!out->text) status = STATUS_MEMORY;
    }
    jinja_output_free(&rendered);
    json_decref(list);
    json_decref(kwargs);
    return status == STATUS_MEMORY ? STATUS_MEMORY : STATUS_OK;
}

static enum status ask_shows(const struct chat_template *t, const char *messages, const char *variables, bool *out) {
    struct probe p;
    enum status status = ask(t, messages, variables, &p);
    *out = p.text && memmem(p.text, p.n, "probe_word", 10);
    free(p.text);
    return status;
}

static enum status ask_differs(const struct chat_template *t, const char *messages, const char *one, const char *other,
                               bool *out) {
    struct probe a, b;
    enum status status = ask(t, messages, one, &a), again = ask(t, messages, other, &b);
    *out = !a.text != !b.text || (a.text && (a.n != b.n || memcmp(a.text, b.text, a.n)));
    free(a.text);
    free(b.text);
    return status ? status : again;
}

static enum status find_traits(struct chat_template *t, struct error *e) {
    static const char user[] = "[{\"role\": \"user\", \"content\": \"one\"}]";
    static const char late[] = "[{\"role\": \"user\", \"content\": \"one\"}, {\"role\": \"assistant\", \"content\": "
                               "\"two\"}, {\"role\": \"system\", \"content\": \"probe_word\"}, {\"role\": \"user\", "
                               "\"content\": \"four\"}]";
    static const char call[] =
        "[{\"role\": \"user\", \"content\": \"one\"}, {\"role\": \"assistant\", \"content\": \"\", "
        "\"tool_calls\": [{\"id\": \"a\", \"type\": \"function\", \"function\": {\"name\": \"two\", "
        "\"arguments\": \"probe_word\"}}]}, {\"role\": \"tool\", \"tool_call_id\": \"a\", "
        "\"content\": \"three\"}]";
    static const char tools[] =
        "{\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"probe_word\", "
        "\"description\": \"d\", \"parameters\": {\"type\": \"object\", \"properties\": {}}}}]}";
    struct chat_traits *traits = &t->traits;
    struct probe p;
    enum status status = ask_shows(t, user, tools, &traits->tools);
    if (!status) status = ask_shows(t, late, "{}", &traits->late_system);
    if (!status) status = ask_shows(t, call, "{}", &traits->raw_arguments);
    if (!status)
        status = ask_differs(t, user, "{\"enable_thinking\": true}", "{\"enable_thinking\": false}", &traits->thinking);
    if (!status)
        status =
            ask_differs(t, user, "{\"enable_thinking\": true, \"reasoning_effort\": \"low\"}",
                        "{\"enable_thinking\": true, \"reasoning_effort\": \"medium\"}", &traits->reasoning_effort);
    if (!status) status = ask(t, user, "{}", &p);
    if (status) return error_memory(e);
    traits->opens_think = p.in_think;
    free(p.text);
    return STATUS_OK;
}

// ---- loading ----

static enum status create(const char *usual, size_t n, const char *with_tools, size_t m, const json_t *special,
                          struct chat_template **out, struct error *e) {
    struct chat_template *t = calloc(1, sizeof *t);
    if (!t) return error_memory(e);
    enum status status = jinja_compile(usual, n, &t->usual, e);
    if (!status && with_tools) status = jinja_compile(with_tools, m, &t->with_tools, e);
    t->special = special ? json_deep_copy(special) : json_object();
    if (!status && !t->special) status = error_memory(e);
    if (!status) status = find_traits(t, e);
    if (status)
        chat_template_free(t);
    else
        *out = t;
    return status;
}

enum status chat_template_create(const char *source, size_t n, const json_t *special_tokens, struct chat_template **out,
                                 struct error *e) {
    return create(source, n, NULL, 0, special_tokens, out, e);
}

// A token of tokenizer_config.json: its text, or an object with it. NULL when it has none.
static json_t *token_text(json_t *token) {
    json_t *text = json_is_object(token) ? json_object_get(token, "content") : token;
    return json_is_string(text) ? text : NULL;
}

// The tokens that templates can name, as Hugging Face passes them. NULL: out of memory.
static json_t *special_tokens(const json_t *config) {
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    json_t *special = json_object(), *more = json_array();
    bool ok = special && more;
    for (size_t i = 0; ok && i < sizeof names / sizeof *names; i++) {
        json_t *text = token_text(json_object_get(config, names[i]));
        if (text) ok = !json_object_set(special, names[i], text);
    }
    const json_t *additional = json_object_get(config, "additional_special_tokens");
    for (size_t i = 0; ok && i < json_array_size(additional); i++) {
        json_t *text = token_text(json_array_get(additional, i));
        if (text) ok = !json_array_append(more, text);
    }
    if (ok && json_array_size(more)) ok = !json_object_set(special, "additional_special_tokens", more);
    json_decref(more);
    if (ok) return special;
    json_decref(special);
    return NULL;
}

// A template in JSON: a string, or a list of {"name": ..., "template": ...}.
static enum status create_from_json(const struct json_view *v, const json_t *special, struct chat_template **out,
                                    struct error *e) {
    const char *usual = NULL, *with_tools = NULL, *name, *text;
    size_t n = 0, m = 0, length;
    if (json_is_string(v->value)) {
        json_as_string(v, &usual, &n, NULL);
        return create(usual, n, NULL, 0, special, out, e);
    }
    enum status status = json_must_be(v, JSON_ARRAY, e);
    for (size_t i = 0; !status && i < json_length(v); i++) {
        struct json_view entry;
        if (!json_element(v, i, &entry)) continue;
        status = json_get_string(&entry, "name", JSON_REQUIRED, &name, NULL, e);
        if (!status) status = json_get_string(&entry, "template", JSON_REQUIRED, &text, &length, e);
        if (status) return status;
        if (!strcmp(name, "default")) usual = text, n = length;
        if (!strcmp(name, "tool_use")) with_tools = text, m = length;
    }
    if (!status && !usual) status = error_set(e, STATUS_NOT_FOUND, "%s has no template named \"default\"", v->path);
    return status ? status : create(usual, n, with_tools, m, special, out, e);
}

static enum status load_text(const char *path, const json_t *special, struct chat_template **out, struct error *e) {
    char *text = NULL;
    size_t n;
    enum status status = file_read(path, JINJA_SOURCE_BYTES_MAX, &text, &n, e);
    if (status) return status;
    status = create(text, n, NULL, 0, special, out, e);
    free(text);
    if (status) error_prefix(e, "%s", path);
    return status;
}

static enum status load_json(const char *path, const json_t *document, const json_t *special,
                             struct chat_template **out, struct error *e) {
    struct json_view root = json_root(document), v;
    if (!json_find(&root, "chat_template", &v)) return error_set(e, STATUS_NOT_FOUND, "%s has no chat_template", path);
    enum status status = create_from_json(&v, special, out, e);
    if (status) error_prefix(e, "%s", path);
    return status;
}

// Tries the places of a checkpoint in order.
static enum status load_from(const char *dir, struct buffer *path, const json_t *config, const json_t *special,
                             struct chat_template **out, struct error *e) {
    json_t *document = NULL;
    buffer_clear(path);
    if (!buffer_printf(path, "%s/chat_template.jinja", dir)) return error_memory(e);
    enum status status = load_text(path->data, special, out, e);
    if (status != STATUS_NOT_FOUND) return status;
    buffer_clear(path);
    if (!buffer_printf(path, "%s/chat_template.json", dir)) return error_memory(e);
    status = json_parse_file(path->data, CONFIG_BYTES_MAX, JSON_PARSE_DUPLICATES, &document, e);
    if (!status) status = load_json(path->data, document, special, out, e);
    json_decref(document);
    if (status != STATUS_NOT_FOUND) return status;
    buffer_clear(path);
    if (!buffer_printf(path, "%s/tokenizer_config.json", dir)) return error_memory(e);
    status = config ? load_json(path->data, config, special, out, e) : STATUS_NOT_FOUND;
    if (status != STATUS_NOT_FOUND) return status;
    return error_set(e, STATUS_NOT_FOUND,
                     "%s has no chat template: looked for chat_template.jinja, chat_template.json and the "
                     "chat_template of tokenizer_config.json",
                     dir);
}

enum status chat_template_load(const char *model_dir, const char *override_file, struct chat_template **out,
                               struct error *e) {
    struct buffer path;
    json_t *config = NULL, *special = NULL;
    buffer_init(&path, 0);
    enum status status = buffer_printf(&path, "%s/tokenizer_config.json", model_dir) ? STATUS_OK : error_memory(e);
    if (!status) status = json_parse_file(path.data, CONFIG_BYTES_MAX, JSON_PARSE_DUPLICATES, &config, e);
    if (status == STATUS_NOT_FOUND) status = STATUS_OK;
    if (!status && !(special = special_tokens(config))) status = error_memory(e);
    if (!status && override_file)
        status = load_text(override_file, special, out, e);
    else if (!status)
        status = load_from(model_dir, &path, config, special, out, e);
    json_decref(special);
    json_decref(config);
    buffer_free(&path);
    return status;
}
