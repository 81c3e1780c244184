// Owns the little of HTTP that the gates need to ask a server on this machine: one request a connection. Any thread.
#ifndef TF_GATE_HTTP_H
#define TF_GATE_HTTP_H

#include "base/buffer.h"
#include "base/status.h"

// body NULL: GET. *status is the response's, *out its body (initialised here, the caller's to free).
enum status http_ask(int port, const char *path, const char *body, int *status, struct buffer *out, struct error *e);

// Sends a POST whose answer is a stream, and closes the connection once n_events have come, or the stream has ended.
enum status http_leave(int port, const char *path, const char *body, int n_events, struct error *e);

#endif
