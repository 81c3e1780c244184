// Owns the fields of every JSON route: one table of name, type, range and routes. A bad value gives the same 400 on
// each route that has the field, and what is not in the table, or would change a reply's meaning and is not built, is
// refused by name. Fields are checked in the order of the body. Pure; any thread.
#ifndef TF_SERVER_FIELDS_H
#define TF_SERVER_FIELDS_H

#include "format/stopper.h"
#include "server/service.h"

enum route_id {
    ROUTE_CHAT = 1,
    ROUTE_COMPLETIONS = 2,
    ROUTE_TOKENIZE = 4,
    ROUTE_DETOKENIZE = 8,
    ROUTE_RESPONSES = 16,
    ROUTE_MESSAGES = 32, // Anthropic's; counting their tokens takes the same body
};

enum format_kind { FORMAT_TEXT, FORMAT_OBJECT, FORMAT_SCHEMA };
enum tool_mode { TOOLS_AUTO, TOOLS_NONE, TOOLS_REQUIRED, TOOLS_NAMED };

// What a body says, after defaults. json values, text and views borrow from the body; what is owned is said so.
struct request_fields {
    bool stream, has_stream_options, include_usage;
    int64_t max_tokens, max_completion_tokens; // -1: not named
    double temperature, top_p, min_p, repetition, presence, frequency;
    int64_t top_k, seed;    // seed -1: not named
    struct draw_bias *bias; // owned
    int32_t n_bias;
    struct json_view stop; // value NULL: none
    const char *stops[STOPPER_STRINGS_MAX];
    int32_t n_stops;
    bool logprobs;        // chat
    int64_t top_logprobs; // chat: -1 not named
    int64_t n_logprobs;   // completions: -1 none
    bool ignore_eos, draft, return_token_ids;
    int64_t priority;

    struct json_view messages, tools, tool_choice, kwargs; // value NULL: not given
    bool parallel_calls;
    enum format_kind format;
    struct json_view schema;      // of FORMAT_SCHEMA
    const char *reasoning_effort; // NULL: not given
    enum chat_toggle thinking;    // CHAT_UNSET: not said
    bool add_generation_prompt;   // tokenize

    // Of responses and messages; translate.h makes messages, tools and tool_choice of them.
    struct json_view input, instructions, reasoning, text, include, metadata;
    struct json_view system, thinking_config, output_config;
    struct json_view given_tools, given_choice; // as the body has them
    json_t *owned_messages, *owned_tools, *owned_choice;

    struct json_view prompt, tokens;
    bool parse_special, skip_special;
};

// Reads body, whatever JSON it is. On success the caller frees with fields_free.
bool fields_read(const struct service *s, enum route_id route, const json_t *body, struct request_fields *out,
                 struct api_error *e);
void fields_free(struct request_fields *f);

// tool_choice, once the tools are known. *name: of the one tool that must be called with TOOLS_NAMED, else NULL.
bool fields_read_tool_choice(const struct request_fields *f, enum tool_mode *mode, const char **name,
                             struct api_error *e);

// Alternatives to report for each token: -1 for no log probabilities at all.
int32_t fields_n_top(const struct request_fields *f, enum route_id route);

// The readers of fields whose values are more than a number, a switch or a word (fields_custom.c).
typedef bool field_reader(const struct service *s, const struct json_view *v, struct request_fields *f,
                          struct api_error *e);
field_reader fields_read_model, fields_read_stream_options, fields_read_stop, fields_read_logit_bias,
    fields_read_response_format, fields_read_output_format, fields_read_modalities, fields_read_effort,
    fields_read_context_management, fields_read_truncation;

#endif
