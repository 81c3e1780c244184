// Owns one reply in the making: the engine's request, the reply's text, and what the wire formats say about both. It is
// the same for streamed and whole replies. One thread at a time.
#ifndef TF_SERVER_GENERATION_H
#define TF_SERVER_GENERATION_H

#include "server/prompt.h"
#include "server/reply.h"

struct wire;

#define GENERATION_NONCE_BYTES 25 // 24 hexadecimal digits and NUL

struct generation {
    const struct service *service;
    enum route_id route;
    const struct wire *wire; // the format of its replies
    struct buffer echo;      // owned: what a response object repeats of its request
    bool stream, include_usage, return_token_ids;
    int32_t n_top;                      // alternatives a token; -1: no log probabilities
    int64_t created;                    // Unix seconds
    char nonce[GENERATION_NONCE_BYTES]; // the unique part of the reply's and its calls' ids

    int32_t *prompt; // [n_prompt], only with return_token_ids
    int32_t n_prompt;
    json_t *tools; // held for the parser; NULL: none
    struct reply *reply;
    struct request *request;
    int64_t deadline_ns;

    struct request_view view;     // the last one seen
    struct reply_totals totals;   // of the ids fed so far
    bool ignores_eos, terminated; // terminated: an end-of-text id follows the n_fed ones
    const char *finish_reason;    // "stop", "length" or "tool_calls" once the reply is complete; NULL before
    bool failed;
    struct api_error error; // when failed
};

// Checks and submits. All that can be refused is refused here, before a stream opens. The caller frees.
bool generation_start(const struct service *s, enum route_id route, const struct request_fields *f,
                      const struct prompt *prompt, int64_t received_ns, struct generation **out, struct api_error *e);

// Waits at most timeout_ns for something new and takes it in: then the reply has new deltas, or finish_reason is set,
// or failed is. Once either is set it returns at once.
void generation_wait(struct generation *g, int64_t timeout_ns);
bool generation_is_over(const struct generation *g);

void generation_cancel(struct generation *g); // its lane is free within one round
void generation_free(struct generation *g);   // NULL is fine; cancels it if it still runs

int32_t generation_count_ids(const struct generation *g); // of the reply so far, a terminator included
const struct request_token *generation_token(const struct generation *g, int32_t i);

#endif
