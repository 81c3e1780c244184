// A server over the scripted engine, on a free port of the loopback, and what tests ask of it again and again.
#ifndef TF_TESTS_STAGE_H
#define TF_TESTS_STAGE_H

#include "tests/server/http_client.h"
#include "tests/server/scripted_engine.h"
#include "server/server.h"

struct stage {
    struct engine *engine;
    struct chat_template *chat;
    struct server *server;
    int port;
};

// Defaults where options are zero; `limits` and keys may be set by the caller in *options first, which may be NULL.
void stage_open(struct stage *s, const struct scripted_options *engine, const struct server_options *options,
                bool thinks);
void stage_close(struct stage *s);

// The next replies: text (added tokens by name) and <|im_end|>.
void stage_say(struct stage *s, const char *text);

// Asks for a chat with extra members (", \"max_tokens\": 5" or ""), whole and streamed, and checks that both say the
// same. What was said lands in *out: the whole reply's JSON (the caller decrefs).
json_t *stage_chat_both(struct stage *s, const char *extra);

// Waits until nothing runs or waits any more; dies after 5 s.
void stage_wait_idle(struct stage *s);
// Waits until exactly that many run and wait; dies after 5 s.
void stage_wait_counts(struct stage *s, int n_running, int n_waiting);

#endif
