// Owns the checks and the normalisation of messages and tools before a template sees them; chat.h says what is changed.
// Private to the chat files.
#ifndef TF_FORMAT_CHAT_MESSAGES_H
#define TF_FORMAT_CHAT_MESSAGES_H

#include "format/chat.h"

// Messages as a template takes them. The list is new; its messages may be shared with the request's and are not
// changed.
struct chat_messages {
    json_t *list;
    bool has_user;  // a message of the role user is in it
    bool continues; // the last one is an assistant message to go on with
};

// may_continue: a trailing assistant message may be continued or dropped. Errors: INVALID with the JSON pointer, LIMIT,
// MEMORY. The caller releases out->list.
enum status chat_messages_read(const json_t *messages, const struct chat_traits *traits, bool may_continue,
                               struct chat_messages *out, struct error *e);

// Checks an array of function tools; NULL, null and [] are none. *out borrows, and is NULL for none.
enum status chat_tools_check(const json_t *tools, const json_t **out, struct error *e);

// A shallow copy; NULL when memory is out.
json_t *chat_copy_object(const json_t *object);

#endif
