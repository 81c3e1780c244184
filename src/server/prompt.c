#include "server/prompt.h"
#include "format/unicode.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// A prompt over the window is refused with its length; what is many times over need not be counted to the end.
#define COUNTED_WINDOWS 16

static size_t most_ids(const struct service *s) { return (size_t)s->info->context * COUNTED_WINDOWS; }

static bool refuse_length(const struct service *s, struct api_error *e) {
    return api_refuse(e, 400, "context_length_exceeded",
                      "the prompt has more than %zu tokens, but this model serves at most %" PRId32
                      " tokens of prompt and reply together",
                      most_ids(s), s->info->context);
}

// The tokenizer's refusal, or the window's when it stopped counting.
static bool refuse_tokens(const struct service *s, const struct error *error, struct api_error *e) {
    return error->code == STATUS_LIMIT ? refuse_length(s, e) : api_refuse_error(e, error);
}

static bool need_tokenizer(const struct service *s, struct api_error *e) {
    return s->info->tokenizer != NULL ||
           api_refuse(e, 400, "unsupported", "this model has no tokenizer: /prompt must be an array of token ids");
}

// ---- messages ----

static bool ends_with_think(const struct jinja_output *text) {
    static const char closer[] = "</think>";
    const size_t n_closer = sizeof closer - 1;
    for (size_t i = text->n_spans; i > 0; i--) {
        const char *part = text->spans[i - 1].text;
        size_t n = text->spans[i - 1].n;
        unicode_strip(&part, &n);
        if (n > 0) return n >= n_closer && memcmp(part + n - n_closer, closer, n_closer) == 0;
    }
    return false;
}

// A request's words win over the server's, and its chat_template_kwargs over both.
static struct chat_options options_of(const struct service *s, const struct request_fields *f) {
    const struct chat_traits *traits = chat_template_traits(s->options->chat);
    struct chat_options o = s->options->chat_defaults;
    o.kwargs = f->kwargs.value;
    o.no_generation_prompt = !f->add_generation_prompt;
    if (f->reasoning_effort != NULL) {
        bool none = strcmp(f->reasoning_effort, "none") == 0;
        o.reasoning_effort = none && !traits->reasoning_effort ? NULL : f->reasoning_effort;
        if (none) o.enable_thinking = CHAT_OFF;
    }
    if (f->thinking != CHAT_UNSET) o.enable_thinking = f->thinking;
    if (json_object_get(f->kwargs.value, "enable_thinking") != NULL) o.enable_thinking = CHAT_UNSET;
    if (json_object_get(f->kwargs.value, "reasoning_effort") != NULL) o.reasoning_effort = NULL;
    return o;
}

bool prompt_from_messages(const struct service *s, const struct request_fields *f, struct prompt *out,
                          struct api_error *e) {
    const struct chat_template *chat = s->options->chat;
    enum tool_mode mode;
    const char *name;
    if (!fields_read_tool_choice(f, &mode, &name, e)) return false;
    if (chat == NULL) return api_refuse(e, 400, "unsupported", "this model has no chat template: use /v1/completions");
    if (!need_tokenizer(s, e)) return false;
    struct chat_options options = options_of(s, f);
    struct chat_prompt rendered = {0};
    struct error error;
    const json_t *tools = mode == TOOLS_NONE || json_array_size(f->tools.value) == 0 ? NULL : f->tools.value;
    if (chat_render(chat, f->messages.value, tools, &options, &rendered, &error) != STATUS_OK)
        return api_refuse_error(e, &error);
    struct prompt p = {.ids.limit = most_ids(s), .tools = tools, .starts_in_think = rendered.starts_in_think};
    p.continues = rendered.continues_final;
    p.may_think = !rendered.starts_in_think && !rendered.continues_final && chat_template_traits(chat)->thinking &&
                  !ends_with_think(&rendered.text);
    enum status status =
        tokenizer_append_spans(s->info->tokenizer, rendered.text.spans, rendered.text.n_spans, &p.ids, &error);
    chat_prompt_free(&rendered);
    if (status != STATUS_OK) {
        prompt_free(&p);
        return refuse_tokens(s, &error, e);
    }
    *out = p;
    return true;
}

// ---- raw prompts ----

bool prompt_from_ids(const struct service *s, const struct json_view *v, struct prompt *out, struct api_error *e) {
    size_t n = json_array_size(v->value);
    if (n > most_ids(s)) return refuse_length(s, e);
    struct prompt p = {.ids.ids = malloc((n > 0 ? n : 1) * sizeof *p.ids.ids)};
    struct error error;
    if (p.ids.ids == NULL) {
        error_memory(&error);
        return api_refuse_error(e, &error);
    }
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(v->value, i);
        int64_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        if (id < 0 || id >= s->n_vocab) {
            prompt_free(&p);
            struct json_view bad;
            if (!json_element(v, i, &bad))
                return api_refuse(e, 400, NULL, "%s/%zu must be a token id, not null", v->path, i);
            json_as_int(&bad, 0, s->n_vocab - 1, &id, &error);
            return api_refuse_error(e, &error);
        }
        p.ids.ids[p.ids.n++] = (int32_t)id;
    }
    *out = p;
    return true;
}

bool prompt_from_text(const struct service *s, const struct request_fields *f, struct prompt *out,
                      struct api_error *e) {
    struct json_view v = f->prompt;
    if (json_is_array(v.value) &&
        !json_is_integer(json_array_get(v.value, 0))) { // a list of prompts, or of wrong things
        if (json_array_size(v.value) == 0) return api_refuse(e, 400, NULL, "%s must not be empty", v.path);
        if (!json_element(&v, 0, &v))
            return api_refuse(e, 400, NULL, "%s/0 must be text or token ids, not null", v.path);
        if (json_array_size(f->prompt.value) > 1 && (json_is_string(v.value) || json_is_array(v.value)))
            return api_refuse(e, 400, "unsupported", "%s must hold one prompt: several in a request are not built yet",
                              f->prompt.path);
    }
    struct error error;
    const char *text;
    size_t n;
    if (json_is_array(v.value)) {
        if (json_array_size(v.value) == 0) return api_refuse(e, 400, NULL, "%s must not be empty", v.path);
        return prompt_from_ids(s, &v, out, e);
    }
    if (!json_is_string(v.value)) return api_refuse(e, 400, NULL, "%s must be text or an array of token ids", v.path);
    json_as_string(&v, &text, &n, &error);
    if (!need_tokenizer(s, e)) return false;
    struct prompt p = {.ids.limit = most_ids(s)};
    if (tokenizer_append(s->info->tokenizer, text, n, f->parse_special, &p.ids, &error) != STATUS_OK) {
        prompt_free(&p);
        return refuse_tokens(s, &error, e);
    }
    *out = p;
    return true;
}

void prompt_free(struct prompt *p) {
    token_list_free(&p->ids);
    p->ids = (struct token_list){0};
}
