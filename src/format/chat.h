// Owns the way from OpenAI-shaped messages and tools to the text of a prompt: it checks and normalises what agents
// really send, then renders the checkpoint's own chat template. Refuses content that is not text, unknown roles and
// wrong types, naming the place by its JSON pointer ("/messages/3/content/0/type"). A chat_template is immutable once
// loaded: any thread may render it, and each prompt belongs to the thread that made it.
//
// What is normalised before the template sees it (nothing else is changed, and no text is trimmed here):
// - content: absent, null, "" and [] all become ""; a list of {"type": "text"} parts becomes their concatenation.
// - role "developer" is "system", "function" is "tool". Leading system messages merge into one, joined by "\n\n", empty
//   ones left out. A later system message stays where it stands; a template that accepts it there renders it as such
//   (found out once, at load); for others, such as Qwen's, it becomes a user message of the same text, because that is
//   the one role a template must accept anywhere and whose place and words the model still sees.
// - tool results may come first. Consecutive user messages stay separate.
// - tool_calls: arguments given as an object are kept; a string that parses to an object becomes that object; "" and
//   null become {}. A string that does not parse is passed on as it is where the template prints a string (found out at
//   load), and otherwise as an object with one parameter, CHAT_RAW_ARGUMENTS, whose value is the raw text.
// - a reasoning_content that a client calls reasoning gets its usual name.
// - a trailing assistant message without text, reasoning and calls is dropped. With text or reasoning, and no calls, it
//   is continued: the prompt ends with its text and no end-of-turn. The think block, when the template has one, is
//   closed before the text, and holds the message's reasoning. Generation then starts in the content, never in a
//   thought. With calls it is an ordinary turn, and the generation prompt follows it.
// - when the messages hold no user turn and the template refuses them for that, an empty user turn is put after the
//   system message (before everything else otherwise) and the template is asked again.
#ifndef TF_FORMAT_CHAT_H
#define TF_FORMAT_CHAT_H

#include "base/status.h"
#include "format/jinja.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#define CHAT_RAW_ARGUMENTS "arguments" // the parameter that holds a history call's unparsable arguments
#define CHAT_MESSAGES_MAX  16384       // more messages in one request are refused

struct chat_template;

// Finds the template of a checkpoint: override_file if not NULL; else chat_template.jinja, chat_template.json, or the
// chat_template in tokenizer_config.json (a string, or a list of named ones, of which "default" is used, and "tool_use"
// when tools are given). Special tokens (bos_token and its kin) come from tokenizer_config.json and are trusted.
// Errors: NOT_FOUND (no template: the sentence says which files were looked for), and those of jinja_compile and
// json_parse_file, each with the path in front.
enum status chat_template_load(const char *model_dir, const char *override_file, struct chat_template **out,
                               struct error *e);

// The same from text: source[0..n) is the template; special_tokens (object of strings, may be NULL) is borrowed.
enum status chat_template_create(const char *source, size_t n, const json_t *special_tokens, struct chat_template **out,
                                 struct error *e);
void chat_template_free(struct chat_template *t); // NULL is fine

// What probing the template at load found out.
struct chat_traits {
    bool tools;            // tools change the prompt
    bool thinking;         // enable_thinking changes the prompt
    bool opens_think;      // by default the generation prompt ends inside a think block
    bool reasoning_effort; // reasoning_effort changes the prompt
    bool late_system;      // a system message after a user message is accepted as such
    bool raw_arguments;    // arguments that are a string are printed as they are
};
const struct chat_traits *chat_template_traits(const struct chat_template *t);

enum chat_toggle { CHAT_UNSET = 0, CHAT_OFF, CHAT_ON };

struct chat_options {
    bool no_generation_prompt;        // false: the prompt ends where the assistant is to go on
    bool no_continue_final;           // true: a trailing assistant message is a finished turn, never continued
    enum chat_toggle enable_thinking; // unset: the template's own default
    const char *reasoning_effort;     // NULL: the template's own default; refused when the template does not know it
    const json_t *kwargs;             // chat_template_kwargs, object or NULL; further variables. The fields above win.
    int64_t now_s;                    // as in struct jinja_inputs
    struct jinja_limits limits;
};

struct chat_prompt {
    struct jinja_output text; // the spans, and the memory that holds them
    bool starts_in_think;     // the reply's first token is inside a think block
    bool continues_final;     // the prompt ends in the text of the trailing assistant message
};

// messages: array (validated whole); tools: array or NULL, each {"type": "function", "function": {"name": ...}}.
// Both are borrowed during the call and not changed. Errors: INVALID for whatever the request is to blame for, with the
// JSON pointer, or with the template's own sentence when it raised one; LIMIT; MEMORY.
enum status chat_render(const struct chat_template *t, const json_t *messages, const json_t *tools,
                        const struct chat_options *options, struct chat_prompt *out, struct error *e);
void chat_prompt_free(struct chat_prompt *p); // an all-zero struct is fine

#endif
