// Owns the way from a request's fields to the ids of its prompt, and what the prompt says about how the reply begins.
// Text from messages never becomes a control token; text of a raw prompt only when parse_special asks for it. Any
// thread.
#ifndef TF_SERVER_PROMPT_H
#define TF_SERVER_PROMPT_H

#include "server/fields.h"

struct prompt {
    struct token_list ids;           // owned
    uint64_t salt;                   // of the key that asked, where keys share no prefixes; else 0
    const json_t *tools;             // that the model may call: borrows from the body; NULL: none
    bool starts_in_think, may_think; // as in struct toolcall_options
    bool continues;                  // the reply goes on with the last message
};

// From /messages through the chat template, for ROUTE_CHAT and ROUTE_TOKENIZE.
bool prompt_from_messages(const struct service *s, const struct request_fields *f, struct prompt *out,
                          struct api_error *e);
// From /prompt: text, or ids, or a list of one of these.
bool prompt_from_text(const struct service *s, const struct request_fields *f, struct prompt *out, struct api_error *e);
// From an array of ids, which may be empty.
bool prompt_from_ids(const struct service *s, const struct json_view *v, struct prompt *out, struct api_error *e);
void prompt_free(struct prompt *p);

#endif
