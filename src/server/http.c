// The HTTP library's callbacks: a request's head is checked, its body gathered or thrown away, its route called.
#include "base/clock.h"
#include "base/log.h"
#include "server/internal.h"
#include <stdlib.h>
#include <string.h>
#include <strings.h>

// The library's memory for one connection, beside the stack of its thread. Heads beyond it get the library's own 431;
// it must leave room for our limit, whose refusal is JSON, and for the header lines' bookkeeping.
#define CONNECTION_BYTES(limits) ((size_t)128 * 1024 + 4 * (limits).header_bytes)
// Templates are interpreted on a connection's thread, to a bounded depth.
#define STACK_BYTES ((size_t)4 << 20)
// Connections over the limit are accepted to be told so.
#define SPARE_CONNECTIONS 64
// Bodies in memory, all together, in units of the largest one that is allowed.
#define BODIES_AT_ONCE 16
// Arguments behind a path's question mark, none of which means anything here. The library stores each, and hangs up
// without a word when its memory for that is used up.
#define ARGUMENTS_MAX 256
// A parsed value takes some 50 bytes, however short its text is.
#define VALUES_MAX (2 << 20)
// What is thrown away of a body whose request is refused already, so that the client reads the answer and not a reset.
#define DISCARD_BYTES(limits) (4 * (limits).body_bytes)

static void refuse(struct exchange *x, bool closing) {
    x->refused = true;
    x->closing = x->closing || closing;
}

// ---- the head ----

struct head {
    size_t bytes;
    int n_lengths, n_encodings, n_hosts, n_bearers, n_keys;
    uint64_t length;
    bool bad_name, bad_value, bad_encoding, coded, expects;
};

// What another reader of the same bytes might take for the end of the line or of the text.
static bool has_control(const char *value, size_t n) {
    for (size_t i = 0; value != NULL && i < n; i++)
        if (((unsigned char)value[i] < 0x20 && value[i] != '\t') || value[i] == 0x7f) return true;
    return false;
}

// A token of the standard. The library joins a folded line to the header's name instead of its value: what began as a
// header that says how long the body is must not be overlooked for that.
static bool is_name(const char *key, size_t n) {
    static const char *const framing[] = {"Content-Length", "Transfer-Encoding"};
    static const char marks[] = "!#$%&'*+-.^_`|~";
    for (size_t i = 0; i < n; i++) {
        char c = key[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (c == 0 || (!letter && !(c >= '0' && c <= '9') && strchr(marks, c) == NULL)) return false;
    }
    for (size_t i = 0; i < sizeof framing / sizeof *framing; i++) {
        size_t m = strlen(framing[i]);
        if (n > m && strncasecmp(key, framing[i], m) == 0) return false;
    }
    return n > 0;
}

static enum MHD_Result add_header(void *cls, enum MHD_ValueKind kind, const char *key, size_t n_key, const char *value,
                                  size_t n_value) {
    struct head *h = cls;
    (void)kind;
    h->bytes += n_key + n_value + 4; // ": " and the line's end
    h->bad_name |= !is_name(key, n_key);
    h->bad_value |= has_control(value, n_value);
    if (strcasecmp(key, "Content-Length") == 0) {
        h->n_lengths++;
        h->length = value != NULL ? strtoull(value, NULL, 10) : 0; // the library refused what is not a number
    } else if (strcasecmp(key, "Transfer-Encoding") == 0) {
        h->n_encodings++;
        h->bad_encoding = value == NULL || strcasecmp(value, "chunked") != 0;
    } else if (strcasecmp(key, "Host") == 0) {
        h->n_hosts++;
    } else if (strcasecmp(key, "Content-Encoding") == 0) {
        h->coded = value != NULL && *value != 0 && strcasecmp(value, "identity") != 0;
    } else if (strcasecmp(key, "Expect") == 0) {
        h->expects = true;
    } else if (strcasecmp(key, "Authorization") == 0) {
        h->n_bearers++;
    } else if (strcasecmp(key, "X-Api-Key") == 0) {
        h->n_keys++;
    }
    return MHD_YES;
}

// Requests that two servers could cut in different places are refused, and the connection ends with them.
static bool check_framing(const struct exchange *x, const struct head *h, const char *version, struct api_error *e) {
    if (x->head_bytes > x->server->options.limits.header_bytes)
        return api_refuse(e, 431, "headers_too_large",
                          "the request's line and headers have %zu bytes; the limit is %zu", x->head_bytes,
                          x->server->options.limits.header_bytes);
    bool is_new = strcmp(version, MHD_HTTP_VERSION_1_0) != 0;
    if (x->bad_path) return api_refuse(e, 400, "bad_request", "the path holds a NUL byte");
    if (h->bad_name || h->bad_value)
        return api_refuse(e, 400, "bad_request", "a header's %s is malformed", h->bad_name ? "name" : "value");
    if (h->n_lengths + h->n_encodings > 1 || h->bad_encoding || (h->n_encodings > 0 && !is_new))
        return api_refuse(e, 400, "bad_request", "the length of the request's body is ambiguous");
    if (h->n_hosts > 1 || (h->n_hosts == 0 && is_new))
        return api_refuse(e, 400, "bad_request", "the request must have one Host header");
    if (h->n_bearers > 1 || h->n_keys > 1)
        return api_refuse(e, 400, "bad_request", "the request has several API keys of one kind");
    return true;
}

static bool check_head(struct exchange *x, const struct head *h, struct api_error *e) {
    struct server *s = x->server;
    if (connection_is_surplus(s, x->connection)) {
        x->closing = true;
        return connection_refuse_crowd(s, e);
    }
    const char *bearer = MHD_lookup_connection_value(x->http, MHD_HEADER_KIND, MHD_HTTP_HEADER_AUTHORIZATION);
    const char *key = MHD_lookup_connection_value(x->http, MHD_HEADER_KIND, "X-Api-Key"); // Anthropic's clients
    bool found = routes_find(x, e);
    if (!(found && x->route->open) && !auth_allows(s->auth, bearer) && !auth_allows_key(s->auth, key)) {
        x->allow = NULL;
        return api_refuse(e, 401, "invalid_api_key",
                          bearer == NULL && key == NULL ? "this server asks for an API key: Authorization: Bearer KEY"
                                                        : "the API key is wrong");
    }
    if (!found) return false;
    if (s->options.share_per_key && !x->route->open) x->salt = auth_salt(s->auth, bearer, key);
    if (atomic_load(&s->draining) && !x->route->open)
        return api_refuse(e, 503, "shutting_down", "the server is shutting down and takes no new requests");
    if (h->coded)
        return api_refuse(e, 415, "unsupported_encoding",
                          "Content-Encoding must be left out: bodies are read as they are");
    if (h->length > s->options.limits.body_bytes)
        return api_refuse(e, 413, "body_too_large", "the request's body has %llu bytes; the limit is %zu",
                          (unsigned long long)h->length, s->options.limits.body_bytes);
    return true;
}

static enum MHD_Result answer_refused(struct exchange *x);

static enum MHD_Result take_head(struct exchange *x, const char *path, const char *method, const char *version) {
    struct head h = {0};
    x->stage = STAGE_BODY;
    snprintf(x->method, sizeof x->method, "%s", method);
    x->path = routes_normalise(path);
    buffer_init(&x->body, x->server->options.limits.body_bytes);
    MHD_get_connection_values_n(x->http, MHD_HEADER_KIND, add_header, &h);
    connection_take_head(x->server, x->connection);
    // Where chunks end is read differently by different programs: nothing that follows them is taken for a request.
    x->closing = h.n_encodings > 0;
    x->head_bytes += h.bytes + strlen(method);
    if (x->path == NULL) {
        api_refuse(&x->error, 503, "out_of_memory", "out of memory");
        refuse(x, true);
    } else if (!check_framing(x, &h, version, &x->error)) {
        refuse(x, true);
        return answer_refused(x); // where its body ends is not known
    } else if (!check_head(x, &h, &x->error)) {
        refuse(x, false);
        bool has_body = h.length > 0 || h.n_encodings > 0;
        if (!has_body || h.expects || h.length > DISCARD_BYTES(x->server->options.limits)) return answer_refused(x);
    }
    return MHD_YES;
}

// ---- the body ----

static enum MHD_Result take_body(struct exchange *x, const char *data, size_t n) {
    struct server *s = x->server;
    const struct server_limits *l = &s->options.limits;
    x->n_received += n;
    if (x->n_received > DISCARD_BYTES(*l)) {
        if (!x->refused) api_refuse(&x->error, 413, "body_too_large", "the request's body is too large");
        connection_cut_off(s, x->connection, &x->error);
        return MHD_NO;
    }
    if (x->refused) return MHD_YES;
    if (x->n_received > l->body_bytes) {
        api_refuse(&x->error, 413, "body_too_large", "the request's body has more than %zu bytes", l->body_bytes);
        refuse(x, false);
        return MHD_YES;
    }
    if (strcmp(x->method, "POST") != 0) return MHD_YES; // a body that nobody reads
    size_t before = x->body.capacity;
    bool held = buffer_append(&x->body, data, n);
    size_t total = atomic_fetch_add(&s->n_body_bytes, x->body.capacity - before) + x->body.capacity - before;
    if (held && total <= BODIES_AT_ONCE * l->body_bytes) return MHD_YES;
    api_refuse(&x->error, held ? 429 : 503, held ? "busy" : "out_of_memory",
               held ? "other large requests are being read; try again" : "out of memory");
    refuse(x, false);
    return MHD_YES;
}

static void drop_body(struct exchange *x) {
    atomic_fetch_sub(&x->server->n_body_bytes, x->body.capacity);
    buffer_free(&x->body);
}

// An upper bound of the values in a JSON text: each but the first follows an opening bracket or a comma.
static size_t count_values(const char *text, size_t n) {
    size_t count = 1;
    bool quoted = false;
    for (size_t i = 0; i < n; i++) {
        if (quoted && text[i] == '\\') {
            i++;
        } else if (text[i] == '"') {
            quoted = !quoted;
        } else if (!quoted) {
            count += text[i] == ',' || text[i] == '[' || text[i] == '{';
        }
    }
    return count;
}

bool exchange_parse(struct exchange *x, json_t **out, struct api_error *e) {
    struct error error;
    if (x->body.n == 0) return api_refuse(e, 400, NULL, "the request has no body; a JSON object is needed");
    if (count_values(x->body.data, x->body.n) > VALUES_MAX)
        return api_refuse(e, 400, "limit_exceeded", "the request's body has more than %d JSON values", VALUES_MAX);
    enum status status = json_parse(x->body.data, x->body.n, x->body.n, JSON_PARSE_DEFAULT, out, &error);
    drop_body(x);
    return status == STATUS_OK || api_refuse_error(e, &error);
}

// ---- answers ----

static void send_response(struct exchange *x, unsigned status, struct MHD_Response *response) {
    if (response == NULL) return; // no memory: the connection is closed without an answer
    if (x->closing || atomic_load(&x->server->draining))
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    if (x->allow != NULL) MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, x->allow);
    connection_set_phase(x->server, x->connection, PHASE_SEND);
    if (MHD_queue_response(x->http, status, response) == MHD_YES) {
        x->stage = STAGE_ANSWERED;
        x->status = status;
    }
    MHD_destroy_response(response);
}

static struct MHD_Response *text_response(struct buffer *b, const char *type) {
    size_t n;
    char *text = buffer_take(b, &n);
    if (text == NULL) return NULL;
    struct MHD_Response *response = MHD_create_response_from_buffer(n, text, MHD_RESPMEM_MUST_FREE);
    if (response == NULL) {
        free(text);
        return NULL;
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    return response;
}

static struct MHD_Response *json_response(struct buffer *json) { return text_response(json, "application/json"); }

void exchange_send_error(struct exchange *x, const struct api_error *e) {
    if (x->stage == STAGE_ANSWERED) return;
    struct buffer json;
    buffer_init(&json, 0);
    if (route_is_messages(x->route)) {
        api_error_write_messages(&json, e);
    } else {
        api_error_write(&json, e);
    }
    struct MHD_Response *response = json_response(&json);
    if (response != NULL && e->retry_after_s > 0) {
        char seconds[16];
        snprintf(seconds, sizeof seconds, "%d", e->retry_after_s);
        MHD_add_response_header(response, MHD_HTTP_HEADER_RETRY_AFTER, seconds);
    }
    if (response != NULL && e->http == 401)
        MHD_add_response_header(response, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    x->outcome = e->code;
    send_response(x, e->http, response);
}

static void send_text(struct exchange *x, unsigned status, struct buffer *text, const char *type) {
    if (x->stage == STAGE_ANSWERED || text->failed) {
        struct api_error e;
        api_refuse(&e, 503, "out_of_memory", "out of memory");
        exchange_send_error(x, &e);
    } else {
        send_response(x, status, text_response(text, type));
    }
    buffer_free(text);
}

void exchange_send_json(struct exchange *x, unsigned status, struct buffer *json) {
    send_text(x, status, json, "application/json");
}

void exchange_send_text(struct exchange *x, struct buffer *text, const char *type) { send_text(x, 200, text, type); }

void exchange_send_file(struct exchange *x, const char *type, const char *data, size_t n) {
    static const char policy[] = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
                                 "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
                                 "require-trusted-types-for 'script'; trusted-types 'none'";
    struct MHD_Response *response = MHD_create_response_from_buffer(n, (void *)data, MHD_RESPMEM_PERSISTENT);
    if (response != NULL) {
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
        MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
        MHD_add_response_header(response, "Content-Security-Policy", policy);
        MHD_add_response_header(response, "X-Content-Type-Options", "nosniff");
        MHD_add_response_header(response, "Referrer-Policy", "no-referrer");
    }
    send_response(x, 200, response);
}

static enum MHD_Result answer_refused(struct exchange *x) {
    exchange_send_error(x, &x->error);
    return x->stage == STAGE_ANSWERED ? MHD_YES : MHD_NO;
}

void route_options(struct exchange *x) {
    send_response(x, 204, MHD_create_response_from_buffer(0, "", MHD_RESPMEM_PERSISTENT));
}

void exchange_send_stream(struct exchange *x, struct generation *g) {
    x->generation = g;
    x->last_byte_ns = clock_ns();
    buffer_init(&x->out, 0);
    struct MHD_Response *response = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, 16384, stream_read, x, NULL);
    if (response != NULL) {
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream; charset=utf-8");
        MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
        MHD_add_response_header(response, "X-Accel-Buffering", "no"); // a proxy must not gather events
    }
    send_response(x, 200, response);
}

// ---- the library's callbacks ----

static bool has_many_arguments(const char *uri) {
    size_t n = 0;
    for (const char *at = strchr(uri, '?'); at != NULL; at = strchr(at + 1, '&')) n++;
    return n > ARGUMENTS_MAX;
}

static void *begin(void *server, const char *uri, struct MHD_Connection *http) {
    struct server *s = server;
    struct exchange *x = calloc(1, sizeof *x);
    if (x == NULL) return NULL;
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(http, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    x->server = s;
    x->http = http;
    x->connection = info != NULL ? info->socket_context : NULL;
    x->received_ns = clock_ns();
    x->head_bytes = strlen(uri) + 12; // version, blanks and line end
    x->bad_path = strstr(uri, "%00") != NULL;
    atomic_fetch_add(&s->n_exchanges, 1);
    connection_begin(s, x->connection, x);
    if (has_many_arguments(uri)) {
        api_refuse(&x->error, 431, "headers_too_large", "the path has more than %d arguments", ARGUMENTS_MAX);
        connection_cut_off(s, x->connection, &x->error);
    }
    return x;
}

static enum MHD_Result take(void *server, struct MHD_Connection *http, const char *path, const char *method,
                            const char *version, const char *data, size_t *n_data, void **slot) {
    struct exchange *x = *slot;
    (void)server;
    (void)http;
    if (x == NULL) return MHD_NO;
    if (x->stage == STAGE_HEAD) return take_head(x, path, method, version);
    if (*n_data > 0) {
        enum MHD_Result result = take_body(x, data, *n_data);
        *n_data = 0;
        return result;
    }
    if (x->stage == STAGE_ANSWERED) return MHD_YES;
    x->stage = STAGE_WORK;
    connection_set_phase(x->server, x->connection, PHASE_WORK);
    if (x->refused) return answer_refused(x);
    x->route->handle(x);
    return x->stage == STAGE_ANSWERED ? MHD_YES : MHD_NO;
}

static void log_exchange(const struct exchange *x) {
    log_line(LOG_INFO, "%s %s %u %lld ms, prompt %d, reply %d%s%s", x->method, x->path != NULL ? x->path : "?",
             x->status, (long long)((clock_ns() - x->received_ns) / 1000000), (int)x->n_prompt, (int)x->n_reply,
             x->outcome != NULL ? ", " : "", x->outcome != NULL ? x->outcome : "");
}

void exchange_end(struct exchange *x) {
    struct server *s = x->server;
    if (s->options.log_requests) log_exchange(x);
    generation_free(x->generation);
    drop_body(x);
    buffer_free(&x->out);
    wire_blocks_free(&x->progress.blocks);
    free(x->path);
    free(x);
    atomic_fetch_sub(&s->n_exchanges, 1);
}

static void complete(void *server, struct MHD_Connection *http, void **slot, enum MHD_RequestTerminationCode code) {
    struct exchange *x = *slot;
    (void)http;
    (void)code;
    if (x == NULL) return;
    *slot = NULL;
    connection_begin(server, x->connection, NULL);
    exchange_end(x);
}

enum status http_start(struct server *s, struct error *e) {
    const struct server_limits *l = &s->options.limits;
    unsigned flags = MHD_USE_THREAD_PER_CONNECTION | MHD_USE_POLL_INTERNAL_THREAD | MHD_USE_ITC | MHD_USE_IPv6;
    s->daemon = MHD_start_daemon(flags, 0, NULL, NULL, take, s, MHD_OPTION_LISTEN_SOCKET, s->listen_fd,
                                 MHD_OPTION_CONNECTION_LIMIT, (unsigned)(l->connections + SPARE_CONNECTIONS),
                                 MHD_OPTION_CONNECTION_MEMORY_LIMIT, CONNECTION_BYTES(*l), MHD_OPTION_THREAD_STACK_SIZE,
                                 STACK_BYTES, MHD_OPTION_URI_LOG_CALLBACK, begin, s, MHD_OPTION_NOTIFY_COMPLETED,
                                 complete, s, MHD_OPTION_NOTIFY_CONNECTION, connections_notify, s, MHD_OPTION_END);
    if (s->daemon == NULL) return error_set(e, STATUS_IO, "the HTTP server could not be started");
    s->listen_fd = -1; // the library's now
    return STATUS_OK;
}
