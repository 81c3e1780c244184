// Owns the JSON of replies, whole and as server-sent events, in the shapes of OpenAI's chat completions, completions
// and responses, and of Anthropic's messages. A whole reply and the events of a stream say the same. Pure functions; a
// failed append shows in b->failed.
#ifndef TF_SERVER_WIRE_H
#define TF_SERVER_WIRE_H

#include "base/buffer.h"
#include "server/generation.h"
#include "server/wire_blocks.h"

// Where a stream stands between two calls.
struct wire_progress {
    int32_t n_logprobs, n_ids; // ids whose log probabilities, and which themselves, have been written
    int64_t n_events;
    struct wire_blocks blocks; // owned: what has been streamed, in the formats that need it again
};

// A format of replies.
struct wire {
    // Events: the first ones, when nothing is known yet; what is new; the last ones.
    void (*write_opening)(struct buffer *b, const struct generation *g, struct wire_progress *p);
    void (*write_deltas)(struct buffer *b, const struct generation *g, struct wire_progress *p);
    void (*write_ending)(struct buffer *b, const struct generation *g, struct wire_progress *p);
    void (*write_failure)(struct buffer *b, const struct generation *g, const struct api_error *e,
                          struct wire_progress *p);
    void (*write_whole)(struct buffer *b, const struct generation *g, const struct wire_blocks *w);
};
extern const struct wire wire_openai, wire_messages, wire_responses;

// The format of a route's replies.
const struct wire *wire_of(enum route_id route);

// What a response object repeats of its request: members, each with a comma before it. For g->echo.
void wire_responses_write_echo(struct buffer *b, const struct request_fields *f);

// Parts of several formats (wire_blocks.c, wire_logprobs.c, wire_usage.c).
void wire_write_text(struct buffer *b, const char *text, size_t n); // a JSON string
// `,"logprobs":...` for ids first..last-1; null when they were not asked for, or there are none.
void wire_write_logprobs(struct buffer *b, const struct generation *g, int32_t first, int32_t last);
void wire_write_usage(struct buffer *b, const struct generation *g);                            // {"prompt_tokens":...}
void wire_write_tokenfold(struct buffer *b, const struct generation *g);                        // {"token_sha256":...}
void wire_write_ids(struct buffer *b, const struct generation *g, int32_t first, int32_t last); // [1,2,3]
void wire_write_prompt_ids(struct buffer *b, const struct generation *g);

#endif
