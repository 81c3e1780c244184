// Owns HTTP towards a hub: GET of small answers and of ranges of files. It follows redirects over HTTP and HTTPS only,
// and never from the second to the first; sends the token to the hub alone, and never unencrypted to another machine;
// and bounds what an answer may hold and how long it may be silent. One thread at a time.
#ifndef TF_HUB_TRANSFER_H
#define TF_HUB_TRANSFER_H

#include "base/buffer.h"
#include "base/status.h"
#include <stdint.h>

struct transfer;

struct transfer_options {
    const char *endpoint; // "https://huggingface.co"
    const char *token;    // NULL: none
    int64_t stall_s;      // the longest silence
};

// Errors: INVALID (an endpoint or token that cannot be used), MEMORY.
enum status transfer_create(const struct transfer_options *options, struct transfer **out, struct error *e);
void transfer_free(struct transfer *t); // NULL is fine

// Appends a part of a URL to b, with everything but letters, digits and ".-_~" escaped.
void transfer_escape(struct buffer *b, const char *text);

// Errors of both: IO and BUSY when the network or the hub failed and another try may help; otherwise NOT_FOUND, LIMIT,
// UNSUPPORTED (the hub wants another token, its certificate is wrong, it redirects without end) or INVALID (it sends
// what it must not).

// path begins with '/'. The whole answer, of at most `limit` bytes.
enum status transfer_get(struct transfer *t, const char *path, size_t limit, struct buffer *out, struct error *e);

// Where a file's bytes go. `at` of `size` bytes are there already. Both functions may fail, which ends the transfer.
struct transfer_sink {
    int64_t at, size;
    enum status (*write)(struct transfer_sink *sink, const void *data, size_t n, struct error *e); // advances `at`
    enum status (*restart)(struct transfer_sink *sink, struct error *e); // the whole file comes: `at` becomes 0
};

// Brings the bytes from sink->at on. STATUS_OK when all are there.
enum status transfer_file(struct transfer *t, const char *path, struct transfer_sink *sink, struct error *e);

#endif
