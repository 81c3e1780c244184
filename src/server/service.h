// Owns what every request needs and none changes: the engine, the chat template, the model's names, the defaults, and a
// gate that bounds how many requests are parsed and tokenised at once. Immutable after creation but for the gate; any
// thread.
#ifndef TF_SERVER_SERVICE_H
#define TF_SERVER_SERVICE_H

#include "engine/engine.h"
#include "format/chat_turns.h"
#include "server/api_error.h"
#include "server/server.h"
#include <pthread.h>

#define SERVICE_FINGERPRINT_BYTES 16

struct service {
    const struct server_options *options;
    const struct engine_info *info;
    int32_t turn_token; // that opens every turn of a chat, or CHAT_NO_TURN_TOKEN
    int32_t n_vocab;    // ids that a client may name are below this
    int64_t created;    // Unix seconds, of the start
    char fingerprint[SERVICE_FINGERPRINT_BYTES];

    struct vocabulary_slot *vocabulary; // owned; structured.h

    pthread_mutex_t lock;
    pthread_cond_t opened;
    int n_free; // places at the gate
};

// Borrows options, which must outlive it.
enum status service_init(struct service *s, const struct server_options *options, struct error *e);
void service_destroy(struct service *s);

// Whether a request may name this model: the name, an alias, or "default".
bool service_has_model(const struct service *s, const char *name);

// Parsing, rendering and tokenising may take many times the body's size in memory, and the cores that the engine
// computes on; this many requests at once do it, the others wait here.
void service_enter_gate(struct service *s);
void service_leave_gate(struct service *s);

#endif
