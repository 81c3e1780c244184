// Owns a conversation while it is put together in the form that a chat template takes. What an assistant said in
// several pieces (thought, text, calls) becomes one message. One thread at a time.
#ifndef TF_SERVER_TURNS_H
#define TF_SERVER_TURNS_H

#include "base/buffer.h"
#include "format/json.h"
#include <stdbool.h>
#include <stddef.h>

struct turns {
    json_t *list; // the messages so far
    bool open;    // an assistant's message is being put together, of these:
    struct buffer text, thought;
    json_t *calls; // NULL: none
    bool failed;   // out of memory
};

void turns_init(struct turns *t);
void turns_free(struct turns *t);

// A message of its own; it ends the assistant's.
void turns_add(struct turns *t, const char *role, const char *text, size_t n);
void turns_add_result(struct turns *t, const char *call_id, const char *text, size_t n);

// Parts of the assistant's message, which begins with the first of them. arguments: any value, NULL for none.
void turns_open(struct turns *t);
void turns_add_text(struct turns *t, const char *text, size_t n);
void turns_add_thought(struct turns *t, const char *text, size_t n);
void turns_add_call(struct turns *t, const char *call_id, const char *name, const json_t *arguments);
void turns_close(struct turns *t);

// Ends the assistant's message and hands the list to the caller; NULL when memory was out.
json_t *turns_take(struct turns *t);

#endif
