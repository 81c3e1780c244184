// Owns how cells are measured from outside: a client of any server that speaks OpenAI's completions with streaming.
// Prompts are token ids, so that their length is exact. Main thread; a thread a stream of its own.
#ifndef TF_MEASURE_CLIENT_H
#define TF_MEASURE_CLIENT_H

#include "measure/cells.h"
#include "measure/stream.h"

struct client {
    struct stream_place at;
    const char *model; // as the server calls it; NULL: "default"
    const char *key;   // NULL: none
};

// Prompt and warm turn: from when the request was sent to the reply's first token. Decode: tokens a second between
// events of the streams. A token is counted where the server sends ids (return_token_ids, which some know), else the
// reply's number of tokens is spread evenly over its events.
enum status client_measure(const struct client *c, const struct cell *cell, uint64_t key, struct sample *out,
                           struct error *e);

#endif
