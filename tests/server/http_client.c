#include "tests/server/http_client.h"
#include "base/clock.h"
#include "base/status.h"
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#define PATIENCE_MS 30000

int http_connect(int port) {
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    return fd;
}

void http_send(int fd, const char *data, size_t n) {
    while (n > 0) {
        ssize_t sent = send(fd, data, n, MSG_NOSIGNAL);
        if (sent <= 0) return; // the server may hang up on what it refuses
        data += sent;
        n -= (size_t)sent;
    }
}

// False at the end of the connection.
static bool read_more(int fd, struct buffer *b) {
    char data[16384];
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, PATIENCE_MS) <= 0) must_failed("the server says nothing", __FILE__, __LINE__);
    ssize_t n = recv(fd, data, sizeof data, 0);
    if (n <= 0) return false;
    must(buffer_append(b, data, (size_t)n));
    return true;
}

bool http_read_until(int fd, struct buffer *b, const char *text) {
    while (b->data == NULL || strstr(b->data, text) == NULL)
        if (!read_more(fd, b)) return false;
    return true;
}

// One byte at a time up to the blank line, so that nothing of a following response is taken.
static bool read_head(int fd, struct http_reply *r) {
    size_t n = 0;
    while (n < 4 || memcmp(r->head + n - 4, "\r\n\r\n", 4) != 0) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        must(n + 1 < sizeof r->head);
        if (poll(&p, 1, PATIENCE_MS) <= 0) must_failed("the server says nothing", __FILE__, __LINE__);
        if (recv(fd, r->head + n, 1, 0) <= 0) return false;
        if (n++ == 0) r->first_ns = clock_ns();
    }
    r->head[n] = 0;
    return sscanf(r->head, "HTTP/1.1 %d", &r->status) == 1;
}

static bool read_exactly(int fd, struct buffer *b, size_t n) {
    while (n > 0) {
        char data[16384];
        struct pollfd p = {.fd = fd, .events = POLLIN};
        if (poll(&p, 1, PATIENCE_MS) <= 0) must_failed("the server says nothing", __FILE__, __LINE__);
        ssize_t got = recv(fd, data, n < sizeof data ? n : sizeof data, 0);
        if (got <= 0) return false;
        must(buffer_append(b, data, (size_t)got));
        n -= (size_t)got;
    }
    return true;
}

static bool read_chunks(int fd, struct buffer *body) {
    for (;;) {
        struct buffer line;
        buffer_init(&line, 0);
        while (line.n < 2 || memcmp(line.data + line.n - 2, "\r\n", 2) != 0)
            if (!read_exactly(fd, &line, 1)) {
                buffer_free(&line);
                return false;
            }
        size_t n = strtoul(line.data, NULL, 16);
        buffer_clear(&line);
        bool ok = read_exactly(fd, body, n) && read_exactly(fd, &line, 2);
        buffer_free(&line);
        if (!ok) return false;
        if (n == 0) return true;
    }
}

const char *http_header(const struct http_reply *r, const char *name) {
    static _Thread_local char value[1024];
    for (const char *line = strstr(r->head, "\r\n"); line != NULL; line = strstr(line + 2, "\r\n")) {
        const char *at = line + 2;
        size_t n = strlen(name);
        if (strncasecmp(at, name, n) != 0 || at[n] != ':') continue;
        at += n + 1 + strspn(at + n + 1, " ");
        snprintf(value, sizeof value, "%.*s", (int)strcspn(at, "\r"), at);
        return value;
    }
    return NULL;
}

void http_read(int fd, struct http_reply *r) {
    *r = (struct http_reply){0};
    buffer_init(&r->body, 0);
    if (!read_head(fd, r)) return;
    const char *length = http_header(r, "Content-Length");
    if (length != NULL) {
        r->truncated = !read_exactly(fd, &r->body, strtoul(length, NULL, 10));
    } else if (http_header(r, "Transfer-Encoding") != NULL) {
        r->truncated = !read_chunks(fd, &r->body);
    } else if (r->status >= 200 && r->status != 204) {
        while (read_more(fd, &r->body)) continue;
    }
    r->last_ns = clock_ns();
    if (r->body.n > 0) r->json = json_loadb(r->body.data, r->body.n, 0, NULL);
}

void http_reply_free(struct http_reply *r) {
    buffer_free(&r->body);
    json_decref(r->json);
    *r = (struct http_reply){0};
}

void http_request(int port, const char *method, const char *path, const char *headers, const char *body,
                  struct http_reply *r) {
    struct buffer b;
    buffer_init(&b, 0);
    buffer_printf(&b, "%s %s HTTP/1.1\r\nHost: test\r\n%s", method, path, headers != NULL ? headers : "");
    if (body != NULL) buffer_printf(&b, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body));
    buffer_append_text(&b, "\r\n");
    if (body != NULL) buffer_append_text(&b, body);
    must(!b.failed);
    int fd = http_connect(port);
    http_send(fd, b.data, b.n);
    http_read(fd, r);
    close(fd);
    buffer_free(&b);
}

void http_post(int port, const char *path, const char *body, struct http_reply *r) {
    http_request(port, "POST", path, NULL, body, r);
}

void http_events(const struct http_reply *r, struct http_events *out) {
    *out = (struct http_events){.list = json_array()};
    for (const char *at = r->body.n > 0 ? r->body.data : ""; *at != 0;) {
        const char *end = strstr(at, "\n\n");
        must(end != NULL && !out->done);
        if (*at == ':') {
            out->n_comments++;
        } else {
            must(strncmp(at, "data: ", 6) == 0 && memchr(at, '\n', (size_t)(end - at)) == NULL);
            out->done = strncmp(at + 6, "[DONE]", 6) == 0;
            json_t *data = out->done ? NULL : json_loadb(at + 6, (size_t)(end - at - 6), 0, NULL);
            must(out->done || data != NULL);
            if (data != NULL) json_array_append_new(out->list, data);
        }
        at = end + 2;
    }
}

void http_events_free(struct http_events *e) { json_decref(e->list); }

const json_t *json_at(const json_t *value, const char *path) {
    while (value != NULL && *path != 0) {
        char step[64];
        size_t n = strcspn(path, ".");
        snprintf(step, sizeof step, "%.*s", (int)n, path);
        value = json_is_array(value) ? json_array_get(value, strtoul(step, NULL, 10)) : json_object_get(value, step);
        path += n + (path[n] == '.');
    }
    return value;
}

const char *text_at(const json_t *value, const char *path) {
    const char *text = json_string_value(json_at(value, path));
    return text != NULL ? text : "";
}

int64_t int_at(const json_t *value, const char *path) {
    const json_t *found = json_at(value, path);
    return json_is_integer(found) ? json_integer_value(found) : -1;
}
