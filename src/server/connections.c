// The connections, what each is doing since when, and the thread that ends those that take too long.
#include "base/clock.h"
#include "server/internal.h"
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#define KEEPER_NS ((int64_t)250000000)
// What a connection has to send its request in before it may have to give way.
#define GRACE_NS ((int64_t)250000000)

// ---- the registry ----

// Under the lock.
static void cut_off(struct server *s, struct connection *c, const struct api_error *e) {
    if (c->closed) return;
    c->closed = true;
    s->n_open--;
    if (e != NULL) {
        struct buffer body, all;
        buffer_init(&body, 0);
        buffer_init(&all, 0);
        api_error_write(&body, e);
        buffer_printf(&all,
                      "HTTP/1.1 %u Refused\r\nContent-Type: application/json\r\nConnection: close\r\n"
                      "Content-Length: %zu\r\n\r\n",
                      e->http, body.n);
        if (body.n > 0) buffer_append(&all, body.data, body.n);
        // A client that does not even take this much gets nothing.
        if (!body.failed && !all.failed) (void)send(c->fd, all.data, all.n, MSG_DONTWAIT | MSG_NOSIGNAL);
        buffer_free(&body);
        buffer_free(&all);
    }
    shutdown(c->fd, SHUT_RDWR);
}

// Those that have not said what they want are many and cheap to whoever opens them: the oldest of them gives way to one
// that comes, unless it has come just now itself. Under the lock.
static void make_room(struct server *s, int64_t now) {
    struct connection *oldest = NULL;
    for (struct connection *c = s->connections; c != NULL; c = c->next) {
        if (c->closed || (c->phase != PHASE_IDLE && c->phase != PHASE_HEAD)) continue;
        if (oldest == NULL || c->since_ns < oldest->since_ns) oldest = c;
    }
    if (oldest == NULL || now - oldest->since_ns < GRACE_NS) return;
    struct api_error e;
    connection_refuse_crowd(s, &e);
    cut_off(s, oldest, oldest->phase == PHASE_HEAD ? &e : NULL);
}

bool connection_refuse_crowd(const struct server *s, struct api_error *e) {
    return api_refuse(e, 429, "too_many_connections", "this server takes at most %d connections at once",
                      (int)s->options.limits.connections);
}

bool connection_is_surplus(struct server *s, const struct connection *c) {
    pthread_mutex_lock(&s->lock);
    bool surplus = c != NULL && c->surplus && s->n_open > s->options.limits.connections;
    pthread_mutex_unlock(&s->lock);
    return surplus;
}

static void add(struct server *s, struct MHD_Connection *http, void **slot) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(http, MHD_CONNECTION_INFO_CONNECTION_FD);
    struct connection *c = calloc(1, sizeof *c);
    *slot = c;
    if (c == NULL) return; // it is served all the same, unwatched
    c->fd = info->connect_fd;
    c->since_ns = clock_ns();
    pthread_mutex_lock(&s->lock);
    c->next = s->connections;
    if (c->next != NULL) c->next->previous = c;
    s->connections = c;
    if (++s->n_open > s->options.limits.connections) make_room(s, c->since_ns);
    c->surplus = s->n_open > s->options.limits.connections;
    pthread_mutex_unlock(&s->lock);
}

static void drop(struct server *s, struct connection *c) {
    if (c == NULL) return;
    // The library forgets to tell the end of a request whose arguments it had no memory for.
    if (c->exchange != NULL) exchange_end(c->exchange);
    pthread_mutex_lock(&s->lock);
    if (c->next != NULL) c->next->previous = c->previous;
    if (c->previous != NULL) {
        c->previous->next = c->next;
    } else {
        s->connections = c->next;
    }
    if (!c->closed) s->n_open--;
    pthread_mutex_unlock(&s->lock);
    free(c);
}

// The library closes a socket only after it has told so here: under the lock a registered descriptor is a live one.
void connections_notify(void *server, struct MHD_Connection *http, void **slot,
                        enum MHD_ConnectionNotificationCode code) {
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        add(server, http, slot);
    } else {
        drop(server, *slot);
    }
}

void connection_set_phase(struct server *s, struct connection *c, enum phase phase) {
    if (c == NULL) return;
    pthread_mutex_lock(&s->lock);
    c->phase = phase;
    c->since_ns = clock_ns();
    pthread_mutex_unlock(&s->lock);
}

void connection_begin(struct server *s, struct connection *c, struct exchange *x) {
    connection_set_phase(s, c, x != NULL ? PHASE_HEAD : PHASE_IDLE);
    if (c != NULL) c->exchange = x;
}

void connection_take_head(struct server *s, struct connection *c) {
    if (c == NULL) return;
    pthread_mutex_lock(&s->lock);
    c->phase = PHASE_RECEIVE;
    pthread_mutex_unlock(&s->lock);
}

bool exchange_is_gone(const struct exchange *x) {
    if (atomic_load(&x->server->stopping)) return true;
    if (x->connection == NULL) return false;
    // A client that closed its sending half is taken for gone: most that do so have closed everything, and only that
    // half can be seen while nothing is sent to it.
    struct pollfd p = {.fd = x->connection->fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
}

// ---- the keeper ----

void connection_cut_off(struct server *s, struct connection *c, const struct api_error *e) {
    if (c == NULL) return;
    pthread_mutex_lock(&s->lock);
    cut_off(s, c, e);
    pthread_mutex_unlock(&s->lock);
}

static void check(struct server *s, struct connection *c, int64_t now) {
    const struct server_limits *l = &s->options.limits;
    int64_t age = now - c->since_ns;
    struct api_error e;
    switch (c->phase) {
    case PHASE_IDLE:
        // Not a request yet, so there is nothing to answer; one whose first line dribbles in looks the same.
        if (age > l->idle_ns || atomic_load(&s->draining)) cut_off(s, c, NULL);
        break;
    case PHASE_HEAD:
    case PHASE_RECEIVE:
        if (age <= l->receive_ns) break;
        api_refuse(&e, 408, "request_timeout", "the request was not complete after %lld s",
                   (long long)(l->receive_ns / 1000000000));
        cut_off(s, c, &e);
        break;
    case PHASE_SEND:
        if (age > l->send_ns) cut_off(s, c, NULL);
        break;
    case PHASE_WORK: break;
    }
}

static void *keep(void *server) {
    struct server *s = server;
    pthread_mutex_lock(&s->lock);
    while (!atomic_load(&s->stopping)) {
        int64_t now = clock_ns(), until = now + KEEPER_NS;
        for (struct connection *c = s->connections; c != NULL; c = c->next) check(s, c, now);
        struct timespec ts = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
        pthread_cond_timedwait(&s->wake, &s->lock, &ts);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

enum status keeper_start(struct server *s, struct error *e) {
    if (pthread_create(&s->keeper, NULL, keep, s) != 0)
        return error_set(e, STATUS_IO, "a thread of the server could not be started");
    s->keeper_runs = true;
    return STATUS_OK;
}

void keeper_stop(struct server *s) {
    if (!s->keeper_runs) return;
    pthread_mutex_lock(&s->lock);
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->keeper, NULL);
    s->keeper_runs = false;
}
