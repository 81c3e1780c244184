// The server's own parts; nothing outside src/server includes this.
#ifndef TF_SERVER_INTERNAL_H
#define TF_SERVER_INTERNAL_H

#include "server/auth.h"
#include "server/exchange.h"
#include "server/server.h"
#include "server/service.h"
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

// What a connection is doing; how long it may do so is the keeper's to watch.
enum phase {
    PHASE_IDLE,    // between requests, and before the first
    PHASE_HEAD,    // from a request's first line to its last header
    PHASE_RECEIVE, // and from there to its last byte; its time counts from the first line
    PHASE_WORK,    // no limit here: the engine has the request's deadline
    PHASE_SEND,    // bytes are ready and the client does not take them
};

struct connection {
    struct connection *next, *previous;
    int fd;
    enum phase phase;
    int64_t since_ns;
    bool closed;               // by us; the library has yet to notice
    bool surplus;              // there were as many as may be when it came
    struct exchange *exchange; // that has begun and not ended; its thread's own
};

struct server {
    struct server_options options; // with the defaults of its limits filled in
    struct service service;
    struct auth *auth;
    struct MHD_Daemon *daemon;
    int listen_fd, port;
    bool loopback;

    atomic_bool stopping, draining;
    atomic_int n_exchanges;     // being received, worked on or sent
    atomic_size_t n_body_bytes; // of all bodies in memory

    pthread_mutex_t lock; // guards the connections
    pthread_cond_t wake;
    struct connection *connections;
    int32_t n_open; // of them, those that are not closed
    pthread_t keeper;
    bool keeper_runs;
};

// ---- listen.c ----
enum status listen_open(const char *host, int port, int *fd, int *bound_port, bool *loopback, struct error *e);

// ---- http.c ----
enum status http_start(struct server *s, struct error *e);
void exchange_end(struct exchange *x); // frees it, with what it has begun

// ---- connections.c: the registry, and the thread that ends what takes too long ----
enum status keeper_start(struct server *s, struct error *e);
void keeper_stop(struct server *s);
void connections_notify(void *server, struct MHD_Connection *http, void **slot,
                        enum MHD_ConnectionNotificationCode code);
void connection_set_phase(struct server *s, struct connection *c, enum phase phase); // c may be NULL
// x begins, or with NULL the last one has ended; c may be NULL.
void connection_begin(struct server *s, struct connection *c, struct exchange *x);
void connection_take_head(struct server *s, struct connection *c); // PHASE_HEAD to PHASE_RECEIVE; c may be NULL
// It came when there was no room, and there still is none. c may be NULL.
bool connection_is_surplus(struct server *s, const struct connection *c);
bool connection_refuse_crowd(const struct server *s, struct api_error *e); // false
// Writes a whole response past the HTTP library, which cannot answer in the middle of a body, and ends the connection.
void connection_cut_off(struct server *s, struct connection *c, const struct api_error *e);

// ---- stream.c ----
ssize_t stream_read(void *exchange, uint64_t position, char *out, size_t capacity);

// ---- routes.c ----
typedef void route_fn(struct exchange *x);
struct route {
    const char *path;
    const char *method; // "GET", which serves HEAD too, or "POST"
    route_fn *handle;
    bool open; // needs no key
};
// Collapses repeated and trailing slashes; malloc'd.
char *routes_normalise(const char *path);
// Sets x->route by x->path and x->method; false: *e says why there is none.
bool routes_find(struct exchange *x, struct api_error *e);

bool route_is_messages(const struct route *r); // its errors have the shape of Anthropic's; r may be NULL

// ---- what routes do ----

// Answers with the JSON that `work` writes, or with its error; `work` takes its turn at the service's gate.
void route_answer(struct exchange *x, bool (*work)(struct exchange *, struct buffer *, struct api_error *));
route_fn route_page, route_page_css, route_page_js;
route_fn route_chat, route_completions, route_responses, route_messages, route_count_tokens, route_tokenize,
    route_detokenize, route_models, route_model, route_health, route_metrics, route_props, route_state, route_options;

#endif
