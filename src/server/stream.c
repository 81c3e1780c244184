// Server-sent events: the HTTP library asks for bytes, and waits here until there are some.
#include "base/clock.h"
#include "server/internal.h"
#include <string.h>

// How often a client that left is looked for while nothing comes from the engine; with every token it is looked for
// anyway.
#define LOOK_NS ((int64_t)50000000)

static void write_new(struct exchange *x) {
    struct generation *g = x->generation;
    if (g->failed) {
        g->wire->write_failure(&x->out, g, &g->error, &x->progress);
        x->outcome = g->error.code;
    } else {
        g->wire->write_deltas(&x->out, g, &x->progress);
        if (g->finish_reason != NULL) g->wire->write_ending(&x->out, g, &x->progress);
        x->outcome = g->finish_reason;
    }
    x->n_reply = generation_count_ids(g);
    x->ended = generation_is_over(g);
}

// Comment lines keep proxies and clients from taking a long queue or prompt for a dead connection.
static void write_keep_alive(struct exchange *x) {
    if (clock_ns() - x->last_byte_ns >= x->server->options.limits.keep_alive_ns)
        buffer_append_text(&x->out, ": keep-alive\n\n");
}

static ssize_t give(struct exchange *x, char *out, size_t capacity) {
    size_t n = x->out.n - x->n_sent;
    if (n > capacity) n = capacity;
    memcpy(out, x->out.data + x->n_sent, n);
    x->n_sent += n;
    x->last_byte_ns = clock_ns();
    return (ssize_t)n;
}

ssize_t stream_read(void *exchange, uint64_t position, char *out, size_t capacity) {
    struct exchange *x = exchange;
    (void)position;
    connection_set_phase(x->server, x->connection, PHASE_WORK);
    while (x->n_sent == x->out.n) {
        buffer_clear(&x->out);
        x->n_sent = 0;
        if (x->ended) return MHD_CONTENT_READER_END_OF_STREAM;
        if (!x->opened) {
            x->opened = true;
            x->generation->wire->write_opening(&x->out, x->generation, &x->progress);
        } else {
            generation_wait(x->generation, LOOK_NS);
            if (exchange_is_gone(x)) {
                generation_cancel(x->generation);
                x->outcome = "client left";
                return MHD_CONTENT_READER_END_WITH_ERROR;
            }
            write_new(x);
            if (x->out.n == 0) write_keep_alive(x);
        }
        if (x->out.failed) return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    connection_set_phase(x->server, x->connection, PHASE_SEND);
    return give(x, out, capacity);
}
