// Owns the little of HTTP/1.1 that a measuring client needs: one request a connection, and its answer's lines as they
// arrive, each with the time at which its last byte was read. Plain http only. Any thread.
#ifndef TF_MEASURE_STREAM_H
#define TF_MEASURE_STREAM_H

#include "base/buffer.h"
#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

struct stream_place {
    char host[256], port[8];
    char path[256]; // before /completions: "/v1"; no slash at its end
};

// http://HOST[:PORT][/PATH]; a path that is missing is /v1.
enum status stream_read_url(const char *url, struct stream_place *out, struct error *e);

// Without its line end; false ends the reading. text may be changed.
typedef bool stream_line_fn(void *context, char *text, size_t n, int64_t time_ns);

// POSTs a JSON body to path + route and hands over the answer's lines until it ends. `key` NULL: none. *start_ns is
// when the request was sent. STATUS_IO: no answer, one that breaks off or is none of HTTP, or a status other than 200,
// with what the server said.
enum status stream_post(const struct stream_place *at, const char *route, const char *key, const char *body,
                        stream_line_fn *on_line, void *context, int64_t *start_ns, struct error *e);

#endif
