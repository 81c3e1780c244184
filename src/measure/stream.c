#include "measure/stream.h"
#include "base/clock.h"
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define LINE_MAX_BYTES ((size_t)64 << 20)
#define PORT_MOST      65535
#define SILENCE_S      600 // a server that says nothing for so long is given up

enum status stream_read_url(const char *url, struct stream_place *out, struct error *e) {
    static const char scheme[] = "http://";
    struct stream_place p = {.port = "80", .path = "/v1"};
    const char *at = url + sizeof scheme - 1;
    if (strncmp(url, "https://", 8) == 0)
        return error_set(e, STATUS_UNSUPPORTED, "%s: only http is measured; let a proxy on this machine speak TLS",
                         url);
    if (strncmp(url, scheme, sizeof scheme - 1) != 0)
        return error_set(e, STATUS_INVALID, "--url must be http://HOST[:PORT][/PATH], not \"%s\"", url);
    bool bracket = *at == '[';
    size_t n = bracket ? strcspn(at, "]") : strcspn(at, ":/");
    size_t skip = bracket ? 1 : 0, after = n + skip;
    if (n <= skip || n - skip >= sizeof p.host || (bracket && at[n] != ']') || strcspn(at, " \r\n@?#") < strlen(at))
        return error_set(e, STATUS_INVALID, "--url must be http://HOST[:PORT][/PATH], not \"%s\"", url);
    memcpy(p.host, at + skip, n - skip);
    at += after;
    if (*at != 0 && *at != ':' && *at != '/')
        return error_set(e, STATUS_INVALID, "--url must be http://HOST[:PORT][/PATH], not \"%s\"", url);
    if (*at == ':') {
        size_t digits = strspn(at + 1, "0123456789");
        if (digits < 1 || digits > 5 || (at[1 + digits] != 0 && at[1 + digits] != '/') || atoi(at + 1) > PORT_MOST)
            return error_set(e, STATUS_INVALID, "--url %s: the port must be a number up to %d", url, PORT_MOST);
        snprintf(p.port, sizeof p.port, "%.*s", (int)digits, at + 1);
        at += 1 + digits;
    }
    size_t path = strlen(at);
    while (path > 0 && at[path - 1] == '/') path--;
    if (path >= sizeof p.path) return error_set(e, STATUS_INVALID, "--url %s: the path is too long", url);
    if (path > 0) snprintf(p.path, sizeof p.path, "%.*s", (int)path, at);
    *out = p;
    return STATUS_OK;
}

// ---- a connection ----

struct connection {
    const struct stream_place *at;
    int fd;
    char block[65536];
    size_t used, n; // of the block
};

// HOST:PORT as in a URL, where addresses with colons stand in brackets.
struct authority {
    char text[sizeof(struct stream_place)];
};

static struct authority authority_of(const struct stream_place *at) {
    struct authority a;
    bool bracket = strchr(at->host, ':') != NULL;
    snprintf(a.text, sizeof a.text, bracket ? "[%s]:%s" : "%s:%s", at->host, at->port);
    return a;
}

static enum status failed(const struct connection *c, const char *what, const char *why, struct error *e) {
    return error_set(e, STATUS_IO, "%s http://%s: %s", what, authority_of(c->at).text, why);
}

static enum status connect_to(struct connection *c, struct error *e) {
    struct addrinfo want = {.ai_socktype = SOCK_STREAM}, *found;
    int code = getaddrinfo(c->at->host, c->at->port, &want, &found), on = 1;
    if (code != 0) return failed(c, "cannot find", gai_strerror(code), e);
    c->fd = -1;
    for (const struct addrinfo *a = found; a != NULL && c->fd < 0; a = a->ai_next) {
        c->fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (c->fd < 0 || connect(c->fd, a->ai_addr, a->ai_addrlen) == 0) continue;
        close(c->fd);
        c->fd = -1;
    }
    freeaddrinfo(found);
    if (c->fd < 0) return failed(c, "cannot reach", strerror(errno), e);
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = SILENCE_S}, sizeof(struct timeval));
    return STATUS_OK;
}

static enum status send_all(struct connection *c, const char *data, size_t n, struct error *e) {
    for (size_t sent = 0; sent < n;) {
        ssize_t got = send(c->fd, data + sent, n - sent, MSG_NOSIGNAL);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return failed(c, "cannot write to", strerror(errno), e);
        sent += (size_t)got;
    }
    return STATUS_OK;
}

// The next byte; -1 at the end, with *e set if it is an error.
static int next_byte(struct connection *c, enum status *s, struct error *e) {
    if (c->used < c->n) return (unsigned char)c->block[c->used++];
    ssize_t got;
    do got = recv(c->fd, c->block, sizeof c->block, 0);
    while (got < 0 && errno == EINTR);
    if (got < 0) *s = failed(c, "cannot read from", errno == EAGAIN ? "it has fallen silent" : strerror(errno), e);
    c->used = 0;
    c->n = got > 0 ? (size_t)got : 0;
    return c->n > 0 ? (unsigned char)c->block[c->used++] : -1;
}

static enum status broken_off(const struct connection *c, enum status s, struct error *e) {
    return s != STATUS_OK ? s : failed(c, "cannot read from", "its answer breaks off", e);
}

// A line of the head or of the chunks' frame.
static enum status read_line(struct connection *c, char *line, size_t size, struct error *e) {
    enum status s = STATUS_OK;
    size_t n = 0;
    for (;;) {
        int byte = next_byte(c, &s, e);
        if (byte < 0) return broken_off(c, s, e);
        if (byte == '\n') break;
        if (n + 1 < size) line[n++] = (char)byte; // what is too long is of no interest
    }
    if (n > 0 && line[n - 1] == '\r') n--;
    line[n] = 0;
    return STATUS_OK;
}

// ---- an answer ----

struct answer {
    struct connection *connection;
    int status;
    bool chunked;
    int64_t left; // of the chunk, or of the whole body; -1: until the connection ends
};

static enum status read_head(struct answer *a, struct error *e) {
    char line[4096];
    enum status s = read_line(a->connection, line, sizeof line, e);
    if (s != STATUS_OK) return s;
    if (strncmp(line, "HTTP/1.", 7) != 0 || strlen(line) < 12)
        return failed(a->connection, "cannot read from", "its answer is not HTTP", e);
    a->status = atoi(line + 9);
    a->left = -1;
    for (;;) {
        s = read_line(a->connection, line, sizeof line, e);
        if (s != STATUS_OK || line[0] == 0) return s;
        if (strncasecmp(line, "content-length:", 15) == 0) a->left = strtoll(line + 15, NULL, 10);
        if (strncasecmp(line, "transfer-encoding:", 18) == 0) a->chunked = strcasestr(line, "chunked") != NULL;
        if (a->chunked) a->left = 0;
    }
}

// Begins the next chunk; *ended at the last one.
static enum status next_chunk(struct answer *a, bool first, bool *ended, struct error *e) {
    char line[64], *end;
    enum status s = STATUS_OK;
    if (!first) s = read_line(a->connection, line, sizeof line, e); // the line end behind a chunk
    if (s == STATUS_OK) s = read_line(a->connection, line, sizeof line, e);
    if (s != STATUS_OK) return s;
    a->left = strtoll(line, &end, 16);
    if (end == line || a->left < 0) return failed(a->connection, "cannot read from", "its chunks are broken", e);
    *ended = a->left == 0;
    return STATUS_OK;
}

static enum status read_body(struct answer *a, stream_line_fn *on_line, void *context, struct error *e) {
    struct buffer line;
    enum status s = STATUS_OK;
    bool ended = false, first = true;
    buffer_init(&line, LINE_MAX_BYTES);
    while (s == STATUS_OK && !ended) {
        if (a->left == 0 && a->chunked) {
            s = next_chunk(a, first, &ended, e);
            first = false;
            continue;
        }
        int byte = a->left == 0 ? -1 : next_byte(a->connection, &s, e);
        if (byte < 0 && a->left > 0) s = broken_off(a->connection, s, e);
        if (byte < 0) break;
        if (a->left > 0) a->left--;
        if (byte != '\n') {
            char c = (char)byte;
            if (!buffer_append(&line, &c, 1)) s = error_memory(e);
            continue;
        }
        if (line.n > 0 && line.data[line.n - 1] == '\r') line.data[--line.n] = 0;
        ended = line.n > 0 && !on_line(context, line.data, line.n, clock_ns());
        buffer_clear(&line);
    }
    if (s == STATUS_OK && !ended && line.n > 0) on_line(context, line.data, line.n, clock_ns());
    buffer_free(&line);
    return s;
}

static bool keep_line(void *context, char *text, size_t n, int64_t time_ns) {
    (void)time_ns;
    return buffer_append(context, text, n);
}

static enum status read_answer(struct connection *c, const char *route, stream_line_fn *on_line, void *context,
                               struct error *e) {
    struct answer a = {.connection = c};
    enum status s = read_head(&a, e);
    if (s != STATUS_OK) return s;
    if (a.status == 200) return read_body(&a, on_line, context, e);
    struct buffer said;
    buffer_init(&said, 1 << 16);
    s = read_body(&a, keep_line, &said, e);
    if (s == STATUS_OK)
        s = error_set(e, STATUS_IO, "http://%s%s%s answered %d: %.300s", authority_of(c->at).text, c->at->path, route,
                      a.status, said.data != NULL ? said.data : "");
    buffer_free(&said);
    return s;
}

enum status stream_post(const struct stream_place *at, const char *route, const char *key, const char *body,
                        stream_line_fn *on_line, void *context, int64_t *start_ns, struct error *e) {
    struct connection *c = malloc(sizeof *c);
    struct buffer request;
    if (c == NULL) return error_memory(e);
    c->at = at;
    c->used = c->n = 0;
    buffer_init(&request, 0);
    buffer_printf(&request, "POST %s%s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nAccept: text/event-stream\r\n",
                  at->path, route, authority_of(at).text);
    if (key != NULL) buffer_printf(&request, "Authorization: Bearer %s\r\n", key);
    buffer_printf(&request, "Content-Type: application/json\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
    enum status s = request.failed ? error_memory(e) : connect_to(c, e);
    if (s == STATUS_OK) {
        *start_ns = clock_ns();
        s = send_all(c, request.data, request.n, e);
        if (s == STATUS_OK) s = read_answer(c, route, on_line, context, e);
        close(c->fd);
    }
    buffer_free(&request);
    free(c);
    return s;
}
