#include "server/server.h"
#include "base/log.h"
#include "server/internal.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define SECOND     ((int64_t)1000000000)
#define NAME_BYTES 256

static void fill_limits(struct server_limits *l) {
    if (l->body_bytes == 0) l->body_bytes = (size_t)32 << 20;
    if (l->header_bytes == 0) l->header_bytes = (size_t)16 << 10;
    if (l->connections == 0) l->connections = 1024;
    if (l->receive_ns == 0) l->receive_ns = 60 * SECOND;
    if (l->idle_ns == 0) l->idle_ns = 120 * SECOND;
    if (l->send_ns == 0) l->send_ns = 120 * SECOND;
    if (l->request_ns == 0) l->request_ns = 3600 * SECOND;
    if (l->keep_alive_ns == 0) l->keep_alive_ns = 10 * SECOND;
}

static enum status check_name(const char *name, struct error *e) {
    size_t n = strlen(name);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || (unsigned char)name[i] >= 0x7f)
            return error_set(e, STATUS_INVALID, "a model's name must be printable ASCII");
    if (n == 0 || n > NAME_BYTES)
        return error_set(e, STATUS_INVALID, "a model's name must have 1 to %d characters", NAME_BYTES);
    return STATUS_OK;
}

static enum status check_names(const struct server_options *o, struct error *e) {
    enum status status = check_name(o->name, e);
    for (size_t i = 0; i < o->n_aliases && status == STATUS_OK; i++) status = check_name(o->aliases[i], e);
    return status;
}

// Every connection is a descriptor, and so are the model's files.
static void raise_descriptors(int32_t n_connections) {
    struct rlimit limit;
    rlim_t wanted = (rlim_t)n_connections + 512;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
    limit.rlim_cur = limit.rlim_max == RLIM_INFINITY || limit.rlim_max > wanted ? wanted : limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur < wanted)
        log_line(LOG_WARN, "this process may open %llu files, too few for %d connections",
                 (unsigned long long)limit.rlim_cur, (int)n_connections);
}

static void init_locks(struct server *s) {
    pthread_condattr_t attr;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&s->wake, &attr);
    pthread_condattr_destroy(&attr);
}

static enum status start(struct server *s, struct error *e) {
    const struct server_options *o = &s->options;
    enum status status = check_names(o, e);
    if (status == STATUS_OK) status = auth_create(o->api_keys, o->n_api_keys, o->api_key_file, &s->auth, e);
    if (status == STATUS_OK) status = listen_open(o->host, o->port, &s->listen_fd, &s->port, &s->loopback, e);
    if (status == STATUS_OK) status = keeper_start(s, e);
    return status == STATUS_OK ? http_start(s, e) : status;
}

enum status server_start(const struct server_options *options, struct server **out, struct error *e) {
    struct server *s = calloc(1, sizeof *s);
    if (s == NULL) return error_memory(e);
    s->options = *options;
    s->listen_fd = -1;
    fill_limits(&s->options.limits);
    enum status status = service_init(&s->service, &s->options, e);
    if (status != STATUS_OK) {
        free(s);
        return status;
    }
    init_locks(s);
    json_object_seed(0);      // before threads would race to
    signal(SIGPIPE, SIG_IGN); // a client that left must not end the process
    raise_descriptors(s->options.limits.connections);
    status = start(s, e);
    if (status != STATUS_OK) {
        server_stop(s);
        return status;
    }
    *out = s;
    return STATUS_OK;
}

int server_port(const struct server *s) { return s->port; }

bool server_has_keys(const struct server *s) { return !auth_is_open(s->auth); }

bool server_is_loopback(const struct server *s) { return s->loopback; }

void server_drain(struct server *s) {
    if (atomic_exchange(&s->draining, true)) return;
    s->listen_fd = MHD_quiesce_daemon(s->daemon);
    // New clients are turned away at once instead of waiting for a server that will not answer.
    if (s->listen_fd >= 0) shutdown(s->listen_fd, SHUT_RDWR);
}

bool server_idle(struct server *s) { return atomic_load(&s->n_exchanges) == 0; }

void server_stop(struct server *s) {
    if (s == NULL) return;
    atomic_store(&s->stopping, true);
    keeper_stop(s);
    if (s->daemon != NULL) MHD_stop_daemon(s->daemon);
    if (s->listen_fd >= 0) close(s->listen_fd);
    auth_free(s->auth);
    service_destroy(&s->service);
    pthread_cond_destroy(&s->wake);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
