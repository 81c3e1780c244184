#include "server/structured.h"
#include "format/schema.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define CALLS_MAX    16 // that a reply must or may make, in one form
#define NEWLINES_MAX 2  // between a thought and what follows

// ---- the vocabulary ----

struct vocabulary_slot {
    pthread_mutex_t lock;
    struct vocabulary *vocabulary;
};

struct vocabulary_slot *vocabulary_slot_create(void) {
    struct vocabulary_slot *slot = calloc(1, sizeof *slot);
    if (slot != NULL) pthread_mutex_init(&slot->lock, NULL);
    return slot;
}

void vocabulary_slot_free(struct vocabulary_slot *slot) {
    if (slot == NULL) return;
    vocabulary_free(slot->vocabulary);
    pthread_mutex_destroy(&slot->lock);
    free(slot);
}

static enum status get_vocabulary(const struct service *s, const struct vocabulary **out, struct error *e) {
    struct vocabulary_slot *slot = s->vocabulary;
    enum status status = STATUS_OK;
    pthread_mutex_lock(&slot->lock);
    if (slot->vocabulary == NULL) status = vocabulary_create(s->info->tokenizer, s->n_vocab, &slot->vocabulary, e);
    *out = slot->vocabulary;
    pthread_mutex_unlock(&slot->lock);
    return status;
}

// ---- fields ----

static bool has_only(const struct json_view *v, const char *const *names, struct api_error *e) {
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)v->value, name, value) {
        bool known = false;
        for (const char *const *n = names; *n != NULL; n++) known |= strcmp(*n, name) == 0;
        if (!known)
            return api_refuse(e, 400, "unknown_field", "%s/%.60s is not a field that this route knows", v->path, name);
    }
    return true;
}

// The schema, and what stands beside it. Its name and description are for people; strict or not, every schema is kept
// to.
static bool read_schema(const struct json_view *v, struct request_fields *f, struct api_error *e) {
    struct error error;
    bool strict;
    const char *text;
    if (json_get_view(v, "schema", JSON_REQUIRED, JSON_OBJECT, &f->schema, &error) != STATUS_OK ||
        json_get_bool(v, "strict", JSON_OPTIONAL, &strict, &error) != STATUS_OK ||
        json_get_string(v, "name", JSON_OPTIONAL, &text, NULL, &error) != STATUS_OK ||
        json_get_string(v, "description", JSON_OPTIONAL, &text, NULL, &error) != STATUS_OK)
        return api_refuse_error(e, &error);
    if (json_object_size(f->schema.value) == 0)
        return api_refuse(e, 400, NULL, "%s says nothing: for any JSON object, ask for \"json_object\"",
                          f->schema.path);
    return true;
}

bool structured_read_format(const struct json_view *v, bool wraps, struct request_fields *f, struct api_error *e) {
    static const char *const bare[] = {"type", NULL}, *const wrapped[] = {"type", "json_schema", NULL},
                             *const inner[] = {"name", "description", "schema", "strict", NULL},
                             *const flat[] = {"type", "name", "description", "schema", "strict", NULL};
    struct error error;
    const char *type = "";
    if (json_must_be(v, JSON_OBJECT, &error) != STATUS_OK ||
        json_get_string(v, "type", JSON_REQUIRED, &type, NULL, &error) != STATUS_OK)
        return api_refuse_error(e, &error);
    f->format = FORMAT_TEXT;
    if (strcmp(type, "text") == 0) return has_only(v, bare, e);
    if (strcmp(type, "json_object") == 0) {
        f->format = FORMAT_OBJECT;
        return has_only(v, bare, e);
    }
    if (strcmp(type, "json_schema") != 0)
        return api_refuse(e, 400, NULL, "%s/type must be \"text\", \"json_object\" or \"json_schema\"", v->path);
    f->format = FORMAT_SCHEMA;
    if (!wraps) return has_only(v, flat, e) && read_schema(v, f, e);
    struct json_view own;
    if (!has_only(v, wrapped, e)) return false;
    if (json_get_view(v, "json_schema", JSON_REQUIRED, JSON_OBJECT, &own, &error) != STATUS_OK)
        return api_refuse_error(e, &error);
    return has_only(&own, inner, e) && read_schema(&own, f, e);
}

// Whether a tool asks that its arguments are kept to its schema even where the model chooses to call it. The routes
// that translate their tools have the word on the tool itself.
static bool find_strict(const struct request_fields *f, bool *strict, struct api_error *e) {
    const struct json_view *tools = f->given_tools.value != NULL ? &f->given_tools : &f->tools;
    *strict = false;
    for (size_t i = 0; i < json_length(tools); i++) {
        struct json_view tool;
        struct error error;
        bool own = false;
        if (!json_element(tools, i, &tool)) continue;
        if (f->given_tools.value == NULL && !json_find(&tool, "function", &tool)) continue;
        if (json_get_bool(&tool, "strict", JSON_OPTIONAL, &own, &error) != STATUS_OK)
            return api_refuse_error(e, &error);
        *strict |= own;
    }
    return true;
}

// ---- the grammar ----

struct reply_form {
    enum format_kind format;
    bool calls; // the reply may make calls, of `only` if that is not NULL
    bool forced, free_text;
    const char *only;
    int32_t most; // calls
};

static enum status add_calls(struct grammar *g, struct schema_compiler *c, const struct json_view *tools,
                             const struct reply_form *form, uint32_t least, int32_t *node, struct error *e) {
    struct grammar_frame_words words = {DFA_NONE, DFA_NONE, DFA_NONE};
    struct dfa_word newline = {.text = "\n", .n = 1, .tag = 0};
    int32_t call;
    enum status status = schema_add_call(c, tools, form->only, &call, e);
    if (status == STATUS_OK) status = dfa_add_words(grammar_dfa(g), &newline, 1, &words.separator, e);
    if (status == STATUS_OK) status = grammar_reserve(g, node, e);
    if (status == STATUS_OK) grammar_set_list(g, *node, &words, call, least, (uint32_t)form->most);
    return status;
}

// Any text, and calls behind it.
static enum status add_free_text(struct grammar *g, struct schema_compiler *c, const struct json_view *tools,
                                 const struct reply_form *form, int32_t *node, struct error *e) {
    const struct grammar_text text = {.max = GRAMMAR_UNBOUNDED, .stops = {"<tool_call>", "<function="}};
    int32_t parts[2];
    enum status status = grammar_reserve(g, &parts[0], e);
    if (status == STATUS_OK) grammar_set_text(g, parts[0], &text);
    if (status == STATUS_OK) status = add_calls(g, c, tools, form, 0, &parts[1], e);
    if (status == STATUS_OK) status = grammar_reserve(g, node, e);
    return status == STATUS_OK ? grammar_set_sequence(g, *node, parts, 2, e) : status;
}

// What the reply consists of behind its thought.
static enum status add_body(struct grammar *g, struct schema_compiler *c, const struct request_fields *f,
                            const struct reply_form *form, int32_t *node, struct error *e) {
    int32_t parts[2];
    size_t n = 0;
    enum status status = STATUS_OK;
    if (form->free_text) return add_free_text(g, c, &f->tools, form, node, e);
    if (form->format == FORMAT_OBJECT) status = schema_add_object(c, &parts[n++], e);
    if (form->format == FORMAT_SCHEMA) status = schema_add_value(c, &f->schema, &parts[n++], e);
    if (status == STATUS_OK && form->calls) status = add_calls(g, c, &f->tools, form, 1, &parts[n++], e);
    if (status != STATUS_OK) return status;
    *node = parts[0];
    if (n == 1) return STATUS_OK;
    status = grammar_reserve(g, node, e);
    return status == STATUS_OK ? grammar_set_choice(g, *node, parts, n, e) : status;
}

// A thought up to its end, and the body; with `opens`, from its opening tag on.
static enum status add_thought(struct grammar *g, struct schema_compiler *c, bool opens, int32_t body, int32_t *node,
                               struct error *e) {
    const struct grammar_text text = {.max = GRAMMAR_UNBOUNDED, .stops = {"</think>", NULL}};
    int32_t parts[5] = {0, 0, 0, 0, body};
    enum status status = opens ? schema_add_words(c, "<think>", &parts[0], e) : STATUS_OK;
    if (status == STATUS_OK) status = grammar_reserve(g, &parts[1], e);
    if (status == STATUS_OK) grammar_set_text(g, parts[1], &text);
    if (status == STATUS_OK) status = schema_add_words(c, "</think>", &parts[2], e);
    if (status == STATUS_OK) status = schema_add_newlines(c, NEWLINES_MAX, &parts[3], e);
    if (status == STATUS_OK) status = grammar_reserve(g, node, e);
    return status == STATUS_OK ? grammar_set_sequence(g, *node, parts + !opens, 5 - !opens, e) : status;
}

static enum status add_reply(struct grammar *g, struct schema_compiler *c, const struct request_fields *f,
                             const struct prompt *prompt, const struct reply_form *form, struct error *e) {
    int32_t parts[2], root;
    enum status status = add_body(g, c, f, form, &parts[0], e);
    root = parts[0];
    if (status == STATUS_OK && (prompt->starts_in_think || prompt->may_think))
        status = add_thought(g, c, !prompt->starts_in_think, parts[0], &parts[1], e);
    if (status == STATUS_OK && prompt->starts_in_think) root = parts[1];
    if (status == STATUS_OK && !prompt->starts_in_think && prompt->may_think) {
        status = grammar_reserve(g, &root, e);
        if (status == STATUS_OK) status = grammar_set_choice(g, root, parts, 2, e);
    }
    return status == STATUS_OK ? schema_finish(c, root, e) : status;
}

static enum status make_grammar(const struct request_fields *f, const struct prompt *prompt,
                                const struct reply_form *form, struct grammar **out, struct error *e) {
    struct grammar *g = NULL;
    struct schema_compiler *c = NULL;
    enum status status = grammar_create(&g, e);
    if (status == STATUS_OK) status = schema_compiler_create(g, &c, e);
    if (status == STATUS_OK) status = add_reply(g, c, f, prompt, form, e);
    schema_compiler_free(c);
    if (status == STATUS_OK)
        *out = g;
    else
        grammar_free(g);
    return status;
}

// ---- the masker ----

static bool make_form(const struct request_fields *f, const struct prompt *prompt, struct reply_form *form,
                      struct api_error *e) {
    enum tool_mode mode;
    bool strict;
    *form = (struct reply_form){.format = f->format, .most = f->parallel_calls ? CALLS_MAX : 1};
    if (!fields_read_tool_choice(f, &mode, &form->only, e) || !find_strict(f, &strict, e)) return false;
    if (mode == TOOLS_NAMED) form->most = 1;
    form->forced = mode == TOOLS_REQUIRED || mode == TOOLS_NAMED;
    if (form->forced) form->format = FORMAT_TEXT;
    form->calls = form->forced || (prompt->tools != NULL && (strict || form->format != FORMAT_TEXT));
    form->free_text = form->calls && !form->forced && form->format == FORMAT_TEXT;
    return true;
}

// The sentence's pointer as the route's own bodies have it: the compiler saw the tools as a chat has them.
static bool refuse_schema(enum route_id route, struct error *error, struct api_error *e) {
    const char *own = route == ROUTE_MESSAGES ? "/input_schema" : "/parameters", *theirs = "/function/parameters";
    char *at = route == ROUTE_CHAT ? NULL : strstr(error->text, theirs);
    if (at != NULL) {
        memmove(at + strlen(own), at + strlen(theirs), strlen(at + strlen(theirs)) + 1);
        memcpy(at, own, strlen(own));
    }
    return api_refuse_error(e, error);
}

bool structured_open(const struct service *s, enum route_id route, const struct request_fields *f,
                     const struct prompt *prompt, struct masker **out, bool *calls_first, struct api_error *e) {
    const struct model_config *config = s->info->config;
    const struct vocabulary *vocabulary;
    struct reply_form form;
    struct grammar *g;
    struct error error;
    *out = NULL;
    *calls_first = false;
    if (!make_form(f, prompt, &form, e)) return false;
    if (form.format == FORMAT_TEXT && !form.calls) return true;
    if (s->info->tokenizer == NULL)
        return api_refuse(e, 400, "unsupported", "structured output needs a tokenizer, which this model does not have");
    if (config->n_eos == 0)
        return api_refuse(e, 400, "unsupported", "structured output needs an end-of-text id, which this model lacks");
    if (prompt->continues && !form.free_text)
        return api_refuse(e, 400, "unsupported",
                          "/messages ends with an assistant's message to go on with, which does not go with structured "
                          "output");
    if (make_grammar(f, prompt, &form, &g, &error) != STATUS_OK) return refuse_schema(route, &error, e);
    if (f->ignore_eos) {
        grammar_free(g);
        return api_refuse(e, 400, NULL, "/ignore_eos does not go with structured output");
    }
    if (get_vocabulary(s, &vocabulary, &error) != STATUS_OK) {
        grammar_free(g);
        return api_refuse_error(e, &error);
    }
    if (masker_create(g, vocabulary, config->eos_ids, (int32_t)config->n_eos, out, &error) != STATUS_OK)
        return api_refuse_error(e, &error);
    *calls_first = form.calls && form.format != FORMAT_TEXT;
    return true;
}
