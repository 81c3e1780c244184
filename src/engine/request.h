// Owns one request as its client sees it: what it asks for, and what it has produced so far, an append-only list that
// any one thread reads while the engine writes.
#ifndef TF_ENGINE_REQUEST_H
#define TF_ENGINE_REQUEST_H

#include "base/status.h"
#include "format/masker.h"
#include "ops/draw.h"
#include <stdbool.h>
#include <stdint.h>

struct request;

struct request_params {
    const int32_t *prompt; // ids, all < vocabulary; copied
    int32_t n_prompt;      // >= 1
    // Where later prompts are likely to part from this one, as positions in the prompt; 0: not known. They decide what
    // is kept, never what is computed.
    int32_t system_end;      // other conversations begin with the same system message and tools
    int32_t last_turn;       // start of the last message, which may be edited
    int32_t history_end;     // before what the template puts there for the reply
    uint64_t salt;           // prompts of different salts never share anything kept
    int64_t max_tokens;      // < 0: none named: min(the engine's default, the room left)
    struct draw_params draw; // temperature ... top_k, n_top and bias are read (bias copied); seed only if has_seed
    bool has_seed;           // else the seed is derived from the prompt's ids
    bool ignore_eos;
    bool draft;              // false: its rounds are plain
    const char *const *stop; // [n_stop] non-empty strings, copied; their end ends the stream
    int32_t n_stop;
    struct masker *masker;   // which tokens the reply may have; taken; NULL: all
    int32_t priority;        // 0 foreground, 1 background
    int64_t deadline_ns;     // clock_ns() after which it is ended with FINISH_DEADLINE; 0: none
    const int32_t *expected; // tests and gates: the reply that is expected, copied (draft_options.expected); NULL: none
    int32_t n_expected;
};

enum finish {
    FINISH_NONE,
    FINISH_STOP /* eos or stop string */,
    FINISH_LENGTH,
    FINISH_CANCELLED,
    FINISH_DEADLINE,
    FINISH_ERROR
};
enum request_state { REQUEST_WAITING, REQUEST_PROMPT, REQUEST_RUNNING, REQUEST_DONE };

struct request_token { // n_top alternatives lie in request_tops
    int32_t id;
    float logprob; // if asked for
};

struct request_view { // a consistent snapshot
    enum request_state state;
    enum finish finish;
    int32_t n_tokens;      // reply tokens so far, a terminator included
    int32_t n_prompt_done; // prompt rows computed or resumed
    int32_t n_cached;      // resumed position
    bool ended_by_eos;     // the last token is a terminator, which is not part of the text
    int32_t n_rounds, n_drafted, n_accepted;
    int64_t queue_ns, prompt_ns, decode_ns;
    const char *waiting_for; // "lanes busy", ...; static text; NULL unless waiting
    struct error error;      // with FINISH_ERROR
};

// Waits until there are more than n_seen tokens, or the state is no longer `seen`, or timeout_ns has passed (< 0:
// however long it takes).
void request_wait(struct request *r, int32_t n_seen, enum request_state seen, int64_t timeout_ns,
                  struct request_view *out);

// The reply's tokens; the first view.n_tokens may be read while the request runs. tops: [max_tokens][n_top].
const struct request_token *request_tokens(const struct request *r);
const struct draw_top *request_tops(const struct request *r);
const uint8_t *
request_kept(const struct request *r); // of the window behind each token; NULL but with draft_options.taught
int32_t request_max_tokens(const struct request *r); // what was claimed
int64_t request_number(const struct request *r);     // 1 for the engine's first
uint64_t request_seed(const struct request *r);

void request_cancel(struct request *r); // its lane is free within one round
void request_free(struct request *r);   // NULL is fine; cancels it if it still runs

#endif
