// Owns the JSON of replies, in the shapes of OpenAI's chat completions and completions: whole, and as the data of
// server sent events. A whole reply and the chunks of a stream say the same. Pure functions; a failed append shows in
// b->failed.
#ifndef TF_SERVER_WIRE_H
#define TF_SERVER_WIRE_H

#include "base/buffer.h"
#include "server/generation.h"

// Where a stream stands between two calls.
struct wire_progress {
    int32_t n_logprobs, n_ids; // ids whose log probabilities, and which themselves, have been written
};

// Events, each "data: {...}\n\n".
void wire_write_opening(struct buffer *b, const struct generation *g); // the first one, when nothing is known yet
void wire_write_deltas(struct buffer *b, const struct generation *g, struct wire_progress *p);
void wire_write_ending(struct buffer *b, const struct generation *g, struct wire_progress *p); // with "[DONE]"
void wire_write_failure(struct buffer *b, const struct api_error *e);                          // with "[DONE]"

// A whole reply, gathered delta by delta.
struct wire_call {
    struct buffer name, arguments;
};
struct wire_whole {
    struct buffer content, reasoning;
    struct wire_call *calls; // [n_calls]
    size_t n_calls;
    bool failed; // out of memory
};
void wire_gather(struct wire_whole *w, const struct generation *g);
void wire_write_whole(struct buffer *b, const struct generation *g, const struct wire_whole *w);
void wire_free_whole(struct wire_whole *w);

// Parts of both (wire_logprobs.c, wire_usage.c).
void wire_write_text(struct buffer *b, const char *text, size_t n); // a JSON string
// `,"logprobs":...` for ids first..last-1; null when they were not asked for, or there are none.
void wire_write_logprobs(struct buffer *b, const struct generation *g, int32_t first, int32_t last);
void wire_write_usage(struct buffer *b, const struct generation *g);                            // {"prompt_tokens":...}
void wire_write_tokenfold(struct buffer *b, const struct generation *g);                        // {"token_sha256":...}
void wire_write_ids(struct buffer *b, const struct generation *g, int32_t first, int32_t last); // [1,2,3]
void wire_write_prompt_ids(struct buffer *b, const struct generation *g);

#endif
