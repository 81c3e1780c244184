// Owns the way from a reply's ids to what clients see: text, cut at stop strings, split into reasoning, content and
// tool calls. Ids go in one by one; deltas come out, the same however the ids arrive. One thread at a time.
#ifndef TF_SERVER_REPLY_H
#define TF_SERVER_REPLY_H

#include "base/status.h"
#include "format/json.h"
#include "format/tokenizer.h"
#include "format/toolcall.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum delta_kind {
    DELTA_REASONING,
    DELTA_CONTENT,
    DELTA_CALL,      // text: the function's name
    DELTA_ARGUMENTS, // text: the next piece
};

struct delta {
    enum delta_kind kind;
    size_t call; // of DELTA_CALL and DELTA_ARGUMENTS
    const char *text;
    size_t n;
};

struct reply_options {
    const struct tokenizer *tokenizer;     // NULL: the reply has no text
    const struct json_view *stop;          // as stopper_create takes it; NULL: none
    const struct toolcall_options *parser; // NULL: all text is content
    bool places;                           // reply_token_place will be asked
};

struct reply;
enum status reply_create(const struct reply_options *options, struct reply **out, struct error *e);
void reply_free(struct reply *r); // NULL is fine

// The next id; not the terminator, which has no text. Sets *ended when it completed a stop string or the one call that
// was allowed: nothing more may be fed then. Errors: MEMORY.
enum status reply_feed(struct reply *r, int32_t id, bool *ended);
// There are no more ids: what was held back is decided. Once. Errors: MEMORY.
enum status reply_finish(struct reply *r);

// What came out since the last reply_clear, neighbours of one kind joined. Valid until the next feed, finish or clear.
size_t reply_count_deltas(const struct reply *r);
struct delta reply_get_delta(const struct reply *r, size_t i);
void reply_clear(struct reply *r);

struct reply_totals {
    int32_t n_fed;
    int32_t n_shown;     // the first ids, whose text is out or never will be: their log probabilities may be shown
    int32_t n_reasoning; // ids fed before content or a call began, if there was reasoning
    size_t n_calls;
    bool truncated; // the last call is not complete
    bool stopped;   // a stop string was found: reply_get_stop
};
struct reply_totals reply_get_totals(const struct reply *r);

// The stop string that ended the reply, of *n bytes, or NULL. Valid until the reply is freed.
const char *reply_get_stop(const struct reply *r, size_t *n);

// Where the text of the i-th id begins, in characters of the text.
size_t reply_token_place(const struct reply *r, int32_t i);

#endif
