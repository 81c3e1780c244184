// Owns the HTTP server: one thread a connection, the routes of docs/api.md, and nothing of the model. It refuses at
// start what it cannot listen on or a key file that others can read; afterwards every bad request gets a JSON error and
// harms no other. start, drain and stop belong to one thread.
#ifndef TF_SERVER_SERVER_H
#define TF_SERVER_SERVER_H

#include "base/status.h"
#include "engine/engine.h"
#include "format/chat.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Zero in a field means the default beside it.
struct server_limits {
    size_t body_bytes;     // 32 MiB
    size_t header_bytes;   // 16 KiB: request line and headers
    int32_t connections;   // 1,024
    int64_t receive_ns;    // 60 s: from a request's first line to its last byte
    int64_t idle_ns;       // 120 s: a connection between two requests
    int64_t send_ns;       // 120 s: a client that reads nothing of what is sent
    int64_t request_ns;    // 3,600 s: queue, prompt and reply
    int64_t keep_alive_ns; // 10 s: the longest silence of a stream
};

struct server_options {
    struct engine *engine;            // outlives the server
    const struct chat_template *chat; // NULL: the model has no chat template
    struct chat_options chat_defaults;
    struct draw_params sampling; // what a request draws with when it says nothing
    bool has_seed;               // sampling.seed is the seed of requests that name none

    const char *host;           // name or address
    int port;                   // 0: any free one
    const char *name;           // the model's name for clients
    const char *const *aliases; // [n_aliases]
    size_t n_aliases;

    const char *const *api_keys; // [n_api_keys]; no key and no file: everybody may ask
    size_t n_api_keys;
    const char *api_key_file; // keys, one a line; NULL: none

    bool share_per_key;    // no prompt goes on from one that another API key sent
    const char *overrides; // registered settings that differ from what they are when unset, for /props; NULL: none

    struct server_limits limits;
    bool log_requests;
};

struct server;

// Listens and serves from then on. Everything that options points to must outlive the server. Errors: INVALID (a host,
// name or key that cannot be used), IO (the address is taken, ...), MEMORY.
enum status server_start(const struct server_options *options, struct server **out, struct error *e);

int server_port(const struct server *s);
bool server_has_keys(const struct server *s);
bool server_is_loopback(const struct server *s); // only this machine can reach it

// Takes no new connections; what runs goes on. server_idle: no request is being received, worked on or sent.
void server_drain(struct server *s);
bool server_idle(struct server *s);

// Cancels what still runs, closes every connection and frees the server. NULL is fine.
void server_stop(struct server *s);

#endif
