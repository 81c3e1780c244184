// The fields whose values are more than a number, a switch or a word.
#include "server/fields.h"
#include "server/structured.h"
#include <stdlib.h>
#include <string.h>

#define BIASES_MAX 1024
#define BIAS_MAX   100.0 // as the OpenAI API has it

bool fields_read_model(const struct service *s, const struct json_view *v, struct request_fields *f,
                       struct api_error *e) {
    (void)f;
    struct error error;
    const char *name;
    if (json_as_string(v, &name, NULL, &error) != STATUS_OK) return api_refuse_error(e, &error);
    if (*name == 0) return api_refuse(e, 400, NULL, "/model must not be empty");
    if (service_has_model(s, name)) return true;
    return api_refuse(e, 404, "model_not_found", "this server has no model of that name; it serves \"%s\"",
                      s->options->name);
}

bool fields_read_stream_options(const struct service *s, const struct json_view *v, struct request_fields *f,
                                struct api_error *e) {
    (void)s;
    struct error error;
    if (json_must_be(v, JSON_OBJECT, &error) != STATUS_OK) return api_refuse_error(e, &error);
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)v->value, name, value) {
        struct json_view member;
        bool known = strcmp(name, "include_usage") == 0, obfuscation = strcmp(name, "include_obfuscation") == 0,
             on = false;
        if (!known && !obfuscation)
            return api_refuse(e, 400, "unknown_field", "/stream_options/%.60s is not a field that this route knows",
                              name);
        if (!json_find(v, name, &member)) continue;
        if (json_as_bool(&member, &on, &error) != STATUS_OK) return api_refuse_error(e, &error);
        if (known) f->include_usage = on; // padding against listeners is the transport's work, on or off
    }
    f->has_stream_options = true;
    return true;
}

bool fields_read_stop(const struct service *s, const struct json_view *v, struct request_fields *f,
                      struct api_error *e) {
    (void)s;
    struct error error;
    struct stopper *stopper; // it knows what may be a stop string
    if (stopper_create(v, &stopper, &error) != STATUS_OK) return api_refuse_error(e, &error);
    stopper_free(stopper);
    f->stop = *v;
    f->n_stops = 0;
    if (json_is_string(v->value)) f->stops[f->n_stops++] = json_string_value(v->value);
    for (size_t i = 0; i < json_array_size(v->value); i++)
        f->stops[f->n_stops++] = json_string_value(json_array_get(v->value, i));
    return true;
}

// An id is written in decimal without a sign or leading zeros, so that no two keys mean the same token.
static bool parse_id(const char *text, int32_t n_ids, int32_t *id) {
    size_t n = strlen(text);
    if (n == 0 || n > 9 || strspn(text, "0123456789") != n || (n > 1 && text[0] == '0')) return false;
    *id = (int32_t)strtol(text, NULL, 10);
    return *id < n_ids;
}

bool fields_read_logit_bias(const struct service *s, const struct json_view *v, struct request_fields *f,
                            struct api_error *e) {
    struct error error;
    if (json_must_be(v, JSON_OBJECT, &error) != STATUS_OK) return api_refuse_error(e, &error);
    const struct tokenizer *t = s->info->tokenizer;
    int32_t n_ids = t != NULL ? tokenizer_count_ids(t) : s->n_vocab;
    size_t n = json_object_size(v->value);
    if (n > BIASES_MAX)
        return api_refuse(e, 400, "limit_exceeded", "/logit_bias may name at most %d tokens", BIASES_MAX);
    if (n == 0) return true;
    f->bias = malloc(n * sizeof *f->bias);
    if (f->bias == NULL) {
        error_memory(&error);
        return api_refuse_error(e, &error);
    }
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)v->value, name, value) {
        struct json_view member;
        int32_t id;
        double bias;
        if (!parse_id(name, n_ids, &id))
            return api_refuse(e, 400, NULL, "/logit_bias must have token ids from 0 to %d as its keys", n_ids - 1);
        if (!json_find(v, name, &member))
            return api_refuse(e, 400, NULL, "/logit_bias/%d must be a number, not null", id);
        if (json_as_real(&member, -BIAS_MAX, BIAS_MAX, &bias, &error) != STATUS_OK) return api_refuse_error(e, &error);
        f->bias[f->n_bias++] = (struct draw_bias){.id = id, .bias = (float)bias};
    }
    return true;
}

bool fields_read_response_format(const struct service *s, const struct json_view *v, struct request_fields *f,
                                 struct api_error *e) {
    (void)s;
    return structured_read_format(v, true, f, e);
}

bool fields_read_output_format(const struct service *s, const struct json_view *v, struct request_fields *f,
                               struct api_error *e) {
    (void)s;
    return structured_read_format(v, false, f, e);
}

bool fields_read_modalities(const struct service *s, const struct json_view *v, struct request_fields *f,
                            struct api_error *e) {
    (void)s;
    (void)f;
    const json_t *only = json_array_get(v->value, 0);
    if (json_array_size(v->value) == 1 && json_is_string(only) && strcmp(json_string_value(only), "text") == 0)
        return true;
    return api_refuse(e, 400, "unsupported", "/modalities must be [\"text\"]: this model writes text only");
}

bool fields_read_effort(const struct service *s, const struct json_view *v, struct request_fields *f,
                        struct api_error *e) {
    static const char *const words[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
    (void)s;
    struct error error;
    const char *text;
    if (json_as_string(v, &text, NULL, &error) != STATUS_OK) return api_refuse_error(e, &error);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(text, words[i]) == 0) f->reasoning_effort = words[i];
    if (f->reasoning_effort != NULL) return true;
    return api_refuse(e, 400, NULL, "/reasoning_effort must be one of none, minimal, low, medium, high and xhigh");
}

// What Anthropic's clients send when nothing is to be left out of the conversation; all else would change the prompt.
bool fields_read_context_management(const struct service *s, const struct json_view *v, struct request_fields *f,
                                    struct api_error *e) {
    (void)s;
    (void)f;
    const json_t *edits = json_object_get(v->value, "edits");
    bool keeps_all = json_is_object(v->value) && json_object_size(v->value) == (edits != NULL);
    for (size_t i = 0; i < json_array_size(edits); i++) {
        const json_t *edit = json_array_get(edits, i), *keep = json_object_get(edit, "keep");
        const char *type = json_string_value(json_object_get(edit, "type"));
        keeps_all = keeps_all && type != NULL && strncmp(type, "clear_thinking", 14) == 0 && json_is_string(keep) &&
                    strcmp(json_string_value(keep), "all") == 0;
    }
    return keeps_all || api_refuse(e, 400, "unsupported", "%s is unsupported unless it keeps all", v->path);
}

bool fields_read_truncation(const struct service *s, const struct json_view *v, struct request_fields *f,
                            struct api_error *e) {
    (void)s;
    (void)f;
    if (json_is_string(v->value) && strcmp(json_string_value(v->value), "disabled") == 0) return true;
    return api_refuse(e, 400, "unsupported", "%s must be \"disabled\": this server leaves nothing out of a prompt",
                      v->path);
}

static bool offers(const struct request_fields *f, const char *name) {
    for (size_t i = 0; i < json_array_size(f->tools.value); i++) {
        const json_t *function = json_object_get(json_array_get(f->tools.value, i), "function");
        const char *offered = json_string_value(json_object_get(function, "name"));
        if (offered != NULL && strcmp(offered, name) == 0) return true;
    }
    return false;
}

bool fields_read_tool_choice(const struct request_fields *f, enum tool_mode *mode, const char **name,
                             struct api_error *e) {
    static const char *const words[] = {"auto", "none", "required"}; // in the order of the modes
    const struct json_view *v = &f->tool_choice;
    struct json_view function = {0};
    struct error error;
    const char *text = "auto", *type = "function";
    *name = NULL;
    if (v->value != NULL && json_is_object(v->value)) {
        if (json_get_string(v, "type", JSON_OPTIONAL, &type, NULL, &error) != STATUS_OK)
            return api_refuse_error(e, &error);
        if (strcmp(type, "function") != 0)
            return api_refuse(e, 400, "unsupported", "/tool_choice/type must be \"function\"");
        if (json_get_view(v, "function", JSON_REQUIRED, JSON_OBJECT, &function, &error) != STATUS_OK ||
            json_get_string(&function, "name", JSON_REQUIRED, name, NULL, &error) != STATUS_OK)
            return api_refuse_error(e, &error);
        *mode = TOOLS_NAMED;
        return offers(f, *name) ||
               api_refuse(e, 400, NULL, "/tool_choice/function/name is not the name of one of the tools");
    }
    if (v->value != NULL && json_as_string(v, &text, NULL, &error) != STATUS_OK) return api_refuse_error(e, &error);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(text, words[i]) != 0) continue;
        *mode = (enum tool_mode)i;
        return *mode != TOOLS_REQUIRED || json_array_size(f->tools.value) > 0 ||
               api_refuse(e, 400, NULL, "/tool_choice is \"required\", but there are no /tools");
    }
    return api_refuse(e, 400, NULL, "/tool_choice must be \"none\", \"auto\", \"required\" or an object");
}
