#include "server/fields.h"
#include <float.h>
#include <stdlib.h>
#include <string.h>

enum kind {
    SWITCH,     // bool
    INTEGER,    // int64_t, low..high
    REAL,       // double, min..max
    OBJECT,     // struct json_view
    ARRAY,      // struct json_view
    VALUE,      // struct json_view, of any type
    CUSTOM,     // read
    IGNORED,    // it changes nothing in a reply
    OTHER_FORM, // as other servers name the form of a reply; refused with the route's own name of it
    REFUSED,    // only `accepts` is taken, since it asks for what is the case; `why` refuses the rest
};

// Values that a refused field may have.
enum accepts { NOTHING = 0, FALSE = 1, TRUE = 2, ZERO = 4, ONE = 8, EMPTY = 16 };

struct field {
    const char *name;
    enum kind kind;
    unsigned routes;
    size_t at; // of its place in struct request_fields
    int64_t low, high;
    double min, max;
    field_reader *read;
    unsigned accepts;
    const char *why;
};

#define AT(member)     offsetof(struct request_fields, member)
#define OPENAI         (ROUTE_CHAT | ROUTE_COMPLETIONS)
#define GENERATE       (OPENAI | ROUTE_RESPONSES | ROUTE_MESSAGES)
#define TEMPLATE       (ROUTE_CHAT | ROUTE_TOKENIZE | ROUTE_RESPONSES | ROUTE_MESSAGES)
#define NOT_BUILT      "is not built yet"
#define REPETITION_MIN 0.01
#define REPETITION_MAX 10

static const struct field table[] = {
    {"model", CUSTOM, GENERATE | ROUTE_TOKENIZE | ROUTE_DETOKENIZE, .read = fields_read_model},
    {"stream", SWITCH, GENERATE, .at = AT(stream)},
    {"stream_options", CUSTOM, GENERATE, .read = fields_read_stream_options},
    {"max_tokens", INTEGER, OPENAI | ROUTE_MESSAGES, .at = AT(max_tokens), 1, INT64_MAX},
    {"max_completion_tokens", INTEGER, ROUTE_CHAT, .at = AT(max_completion_tokens), 1, INT64_MAX},
    {"max_output_tokens", INTEGER, ROUTE_RESPONSES, .at = AT(max_tokens), 1, INT64_MAX},
    {"temperature", REAL, GENERATE, .at = AT(temperature), .min = 0, .max = 2},
    {"top_p", REAL, GENERATE, .at = AT(top_p), .min = 0, .max = 1},
    {"top_k", INTEGER, GENERATE, .at = AT(top_k), -1, INT32_MAX},
    {"min_p", REAL, GENERATE, .at = AT(min_p), .min = 0, .max = 1},
    {"repetition_penalty", REAL, GENERATE, .at = AT(repetition), .min = REPETITION_MIN, .max = REPETITION_MAX},
    {"presence_penalty", REAL, GENERATE, .at = AT(presence), .min = -2, .max = 2},
    {"frequency_penalty", REAL, GENERATE, .at = AT(frequency), .min = -2, .max = 2},
    {"logit_bias", CUSTOM, GENERATE, .read = fields_read_logit_bias},
    {"seed", INTEGER, GENERATE, .at = AT(seed), 0, INT64_MAX},
    {"stop", CUSTOM, OPENAI | ROUTE_RESPONSES, .read = fields_read_stop},
    {"stop_sequences", CUSTOM, ROUTE_MESSAGES, .read = fields_read_stop},
    {"logprobs", SWITCH, ROUTE_CHAT, .at = AT(logprobs)},
    {"top_logprobs", INTEGER, ROUTE_CHAT, .at = AT(top_logprobs), 0, DRAW_MAX_TOP},
    {"logprobs", INTEGER, ROUTE_COMPLETIONS, .at = AT(n_logprobs), 0, DRAW_MAX_TOP},
    {"ignore_eos", SWITCH, GENERATE, .at = AT(ignore_eos)},
    {"draft", SWITCH, GENERATE, .at = AT(draft)},
    {"return_token_ids", SWITCH, GENERATE, .at = AT(return_token_ids)},
    {"priority", INTEGER, GENERATE, .at = AT(priority), 0, 1},

    {"messages", ARRAY, ROUTE_CHAT | ROUTE_TOKENIZE | ROUTE_MESSAGES, .at = AT(messages)},
    {"tools", ARRAY, TEMPLATE, .at = AT(tools)},
    {"tool_choice", VALUE, TEMPLATE, .at = AT(tool_choice)},
    {"parallel_tool_calls", SWITCH, ROUTE_CHAT | ROUTE_RESPONSES, .at = AT(parallel_calls)},
    {"chat_template_kwargs", OBJECT, TEMPLATE, .at = AT(kwargs)},
    {"reasoning_effort", CUSTOM, ROUTE_CHAT | ROUTE_TOKENIZE, .read = fields_read_effort},
    {"add_generation_prompt", SWITCH, ROUTE_TOKENIZE, .at = AT(add_generation_prompt)},

    {"input", VALUE, ROUTE_RESPONSES, .at = AT(input)},
    {"instructions", VALUE, ROUTE_RESPONSES, .at = AT(instructions)},
    {"reasoning", OBJECT, ROUTE_RESPONSES, .at = AT(reasoning)},
    {"text", OBJECT, ROUTE_RESPONSES, .at = AT(text)},
    {"include", ARRAY, ROUTE_RESPONSES, .at = AT(include)},
    {"metadata", OBJECT, ROUTE_RESPONSES, .at = AT(metadata)},
    {"system", VALUE, ROUTE_MESSAGES, .at = AT(system)},
    {"thinking", OBJECT, ROUTE_MESSAGES, .at = AT(thinking_config)},
    {"output_config", OBJECT, ROUTE_MESSAGES, .at = AT(output_config)},
    {"context_management", CUSTOM, ROUTE_MESSAGES, .read = fields_read_context_management},

    {"prompt", VALUE, ROUTE_COMPLETIONS | ROUTE_TOKENIZE, .at = AT(prompt)},
    {"content", VALUE, ROUTE_TOKENIZE, .at = AT(prompt)},
    {"parse_special", SWITCH, ROUTE_COMPLETIONS | ROUTE_TOKENIZE, .at = AT(parse_special)},
    {"tokens", ARRAY, ROUTE_DETOKENIZE, .at = AT(tokens)},
    {"skip_special_tokens", SWITCH, ROUTE_DETOKENIZE, .at = AT(skip_special)},

    {"user", IGNORED, .routes = GENERATE},
    {"metadata", IGNORED, .routes = OPENAI | ROUTE_MESSAGES},
    {"store", IGNORED, .routes = GENERATE},
    {"service_tier", IGNORED, .routes = GENERATE},
    {"safety_identifier", IGNORED, .routes = GENERATE},
    {"prompt_cache_key", IGNORED, .routes = GENERATE},
    {"prompt_cache_retention", IGNORED, .routes = GENERATE},
    {"prediction", IGNORED, .routes = GENERATE}, // it may only make a reply come sooner

    {"max_tool_calls", IGNORED, .routes = ROUTE_RESPONSES}, // it counts calls of built-in tools, and there are none
    {"inference_geo", IGNORED, .routes = ROUTE_MESSAGES},

    {"n", REFUSED, GENERATE, .accepts = ONE, .why = "must be 1: several choices are not built yet"},
    {"best_of", REFUSED, GENERATE, .accepts = ONE, .why = "must be 1: several choices are not built yet"},
    {"echo", REFUSED, GENERATE, .accepts = FALSE, .why = "must be false: echo is unsupported"},
    {"suffix", REFUSED, GENERATE, .accepts = EMPTY, .why = NOT_BUILT},
    {"response_format", CUSTOM, GENERATE, .read = fields_read_response_format},
    {"modalities", CUSTOM, GENERATE, .read = fields_read_modalities},
    {"audio", REFUSED, GENERATE, .why = "is unsupported: this model writes text only"},
    {"functions", REFUSED, GENERATE, .accepts = EMPTY, .why = "is unsupported: use tools"},
    {"function_call", REFUSED, GENERATE, .why = "is unsupported: use tool_choice"},
    {"web_search_options", REFUSED, GENERATE, .why = "is unsupported"},
    {"verbosity", REFUSED, GENERATE, .why = "is unsupported: say it in a message"},
    {"previous_response_id", REFUSED, ROUTE_RESPONSES,
     .why = "is unsupported: replies are not stored, so send the input whole"},
    {"conversation", REFUSED, ROUTE_RESPONSES,
     .why = "is unsupported: replies are not stored, so send the input whole"},
    {"prompt", REFUSED, ROUTE_RESPONSES, .why = "is unsupported: this server stores no prompts"},
    {"background", REFUSED, ROUTE_RESPONSES, .accepts = FALSE, .why = "must be false: replies are not stored"},
    {"truncation", CUSTOM, ROUTE_RESPONSES, .read = fields_read_truncation},
    {"top_logprobs", REFUSED, ROUTE_RESPONSES, .accepts = ZERO, .why = "is not built yet on this route"},
    {"container", REFUSED, ROUTE_MESSAGES, .why = "is unsupported: this server runs no code"},
    {"mcp_servers", REFUSED, ROUTE_MESSAGES, .accepts = EMPTY, .why = "is unsupported: this server calls no others"},
    {"output_format", CUSTOM, ROUTE_MESSAGES, .read = fields_read_output_format},
    {"guided_json", OTHER_FORM, .routes = GENERATE},
    {"guided_regex", OTHER_FORM, .routes = GENERATE},
    {"guided_choice", OTHER_FORM, .routes = GENERATE},
    {"guided_grammar", OTHER_FORM, .routes = GENERATE},
    {"structured_outputs", OTHER_FORM, .routes = GENERATE},
    {"json_schema", OTHER_FORM, .routes = GENERATE},
    {"grammar", OTHER_FORM, .routes = GENERATE},
};

static const struct field *find(const char *name, enum route_id route) {
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if ((table[i].routes & route) && strcmp(table[i].name, name) == 0) return &table[i];
    return NULL;
}

static bool is_accepted(unsigned accepts, const json_t *value) {
    if (json_is_false(value)) return accepts & FALSE;
    if (json_is_true(value)) return accepts & TRUE;
    if (json_is_integer(value))
        return (accepts & ZERO && json_integer_value(value) == 0) || (accepts & ONE && json_integer_value(value) == 1);
    if (json_is_string(value)) return accepts & EMPTY && json_string_length(value) == 0;
    return accepts & EMPTY && (json_is_array(value) || json_is_object(value)) && json_array_size(value) == 0 &&
           json_object_size(value) == 0;
}

static bool refuse_form(enum route_id route, const struct json_view *v, struct api_error *e) {
    const char *own = route == ROUTE_RESPONSES  ? "text.format"
                      : route == ROUTE_MESSAGES ? "output_config.format"
                                                : "response_format";
    return api_refuse(e, 400, "unsupported", "%s is unsupported: use %s", v->path, own);
}

static bool read_field(const struct service *s, enum route_id route, const struct field *field,
                       const struct json_view *v, struct request_fields *f, struct api_error *e) {
    void *place = (char *)f + field->at;
    struct error error = {0};
    enum status status = STATUS_OK;
    switch (field->kind) {
    case SWITCH: status = json_as_bool(v, place, &error); break;
    case INTEGER: status = json_as_int(v, field->low, field->high, place, &error); break;
    case REAL: status = json_as_real(v, field->min, field->max, place, &error); break;
    case OBJECT:
    case ARRAY:
        status = json_must_be(v, field->kind == OBJECT ? JSON_OBJECT : JSON_ARRAY, &error);
        if (status == STATUS_OK) *(struct json_view *)place = *v;
        break;
    case VALUE: *(struct json_view *)place = *v; break;
    case CUSTOM: return field->read(s, v, f, e);
    case IGNORED: break;
    case OTHER_FORM: return refuse_form(route, v, e);
    case REFUSED:
        return is_accepted(field->accepts, v->value) || api_refuse(e, 400, "unsupported", "%s %s", v->path, field->why);
    }
    return status == STATUS_OK || api_refuse_error(e, &error);
}

static void set_defaults(const struct service *s, struct request_fields *f) {
    const struct draw_params *d = &s->options->sampling;
    *f = (struct request_fields){
        .max_tokens = -1,
        .max_completion_tokens = -1,
        .temperature = d->temperature,
        .top_p = d->top_p,
        .min_p = d->min_p,
        .repetition = d->repetition,
        .presence = d->presence,
        .frequency = d->frequency,
        .top_k = d->top_k,
        .seed = -1,
        .top_logprobs = -1,
        .n_logprobs = -1,
        .draft = true,
        .parallel_calls = true,
        .add_generation_prompt = true,
    };
}

static bool check_together(enum route_id route, struct request_fields *f, struct api_error *e) {
    if (f->has_stream_options && !f->stream)
        return api_refuse(e, 400, NULL, "/stream_options is allowed only when /stream is true");
    if (f->max_completion_tokens > 0) {
        if (f->max_tokens > 0 && f->max_tokens != f->max_completion_tokens)
            return api_refuse(e, 400, NULL, "/max_completion_tokens and /max_tokens name different limits");
        f->max_tokens = f->max_completion_tokens;
    }
    if (f->top_logprobs >= 0 && !f->logprobs)
        return api_refuse(e, 400, NULL, "/top_logprobs is allowed only when /logprobs is true");
    if ((route & (ROUTE_CHAT | ROUTE_MESSAGES)) && f->messages.value == NULL)
        return api_refuse(e, 400, NULL, "/messages is missing");
    if (route == ROUTE_RESPONSES && f->input.value == NULL) return api_refuse(e, 400, NULL, "/input is missing");
    if (route == ROUTE_COMPLETIONS && f->prompt.value == NULL) return api_refuse(e, 400, NULL, "/prompt is missing");
    if (route == ROUTE_DETOKENIZE && f->tokens.value == NULL) return api_refuse(e, 400, NULL, "/tokens is missing");
    if (route == ROUTE_TOKENIZE && (f->prompt.value == NULL) == (f->messages.value == NULL))
        return api_refuse(e, 400, NULL, "the body must have either /prompt or /messages");
    // A draw needs some mass to draw from; 0 leaves the one likeliest token, and so does the smallest number above it.
    if (f->top_p == 0) f->top_p = DBL_MIN;
    if (f->top_k < 0) f->top_k = 0;
    return true;
}

bool fields_read(const struct service *s, enum route_id route, const json_t *body, struct request_fields *out,
                 struct api_error *e) {
    struct json_view root = json_root(body);
    struct error error;
    if (json_must_be(&root, JSON_OBJECT, &error) != STATUS_OK) return api_refuse_error(e, &error);
    struct request_fields f;
    set_defaults(s, &f);
    bool ok = true;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)body, name, value) {
        struct json_view v;
        const struct field *field = find(name, route);
        if (field == NULL) {
            ok = api_refuse(e, 400, "unknown_field", "/%.60s is not a field that this route knows", name);
        } else if (json_find(&root, name, &v)) { // null says nothing
            ok = read_field(s, route, field, &v, &f, e);
        }
        if (!ok) break;
    }
    if (ok) ok = check_together(route, &f, e);
    if (!ok) {
        fields_free(&f);
        return false;
    }
    *out = f;
    return true;
}

void fields_free(struct request_fields *f) {
    free(f->bias);
    f->bias = NULL;
    f->n_bias = 0;
    json_decref(f->owned_messages);
    json_decref(f->owned_tools);
    json_decref(f->owned_choice);
    f->owned_messages = f->owned_tools = f->owned_choice = NULL;
}

int32_t fields_n_top(const struct request_fields *f, enum route_id route) {
    if (route != ROUTE_CHAT) return (int32_t)f->n_logprobs; // -1 where the route has no such field
    return !f->logprobs ? -1 : f->top_logprobs < 0 ? 0 : (int32_t)f->top_logprobs;
}
