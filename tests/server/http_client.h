// A small HTTP/1.1 client for tests, on raw sockets so that malformed requests can be sent too. One thread a
// connection.
#ifndef TF_TESTS_HTTP_CLIENT_H
#define TF_TESTS_HTTP_CLIENT_H

#include "base/buffer.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http_reply {
    int status;                // 0: the connection ended without a response
    char head[8192];           // status line and headers
    struct buffer body;        // without chunk framing
    bool truncated;            // the connection ended inside the body
    int64_t first_ns, last_ns; // when the first byte of the head and the last of all came
    json_t *json;              // of the body, when it is JSON; else NULL
};

int http_connect(int port); // dies on failure
void http_send(int fd, const char *data, size_t n);
// Reads one response; waits at most 30 s.
void http_read(int fd, struct http_reply *r);
// Reads until `text` has come (everything read lands in b); false when the connection ended first.
bool http_read_until(int fd, struct buffer *b, const char *text);
void http_reply_free(struct http_reply *r);

// One request on a connection of its own. headers: extra lines, each with "\r\n", or NULL. body NULL: none.
void http_request(int port, const char *method, const char *path, const char *headers, const char *body,
                  struct http_reply *r);
void http_post(int port, const char *path, const char *body, struct http_reply *r);
// The value of a header, or NULL; valid until the next call.
const char *http_header(const struct http_reply *r, const char *name);

// The events of a stream: each data as JSON, comments and "[DONE]" counted. Dies on what is not an event stream.
struct http_events {
    json_t *list; // array
    int n_comments;
    bool done;
};
void http_events(const struct http_reply *r, struct http_events *out);
void http_events_free(struct http_events *e);

// A member by path: "choices.0.delta.content"; NULL when there is none.
const json_t *json_at(const json_t *value, const char *path);
const char *text_at(const json_t *value, const char *path); // "" when there is none or it is not text
int64_t int_at(const json_t *value, const char *path);      // -1 when there is none

#endif
