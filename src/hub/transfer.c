#include "hub/transfer.h"
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if TF_CURL
#include <curl/curl.h>
#include <strings.h>

#define REDIRECTS_MAX      5
#define CONNECT_SECONDS    30L
#define ANSWER_SECONDS     300L                // for a whole small answer
#define SLOW_BYTES         512L                // a second: less is as good as silence
#define HEAD_BYTES_MAX     ((size_t)256 << 10) // of all headers of an exchange, redirects included
#define ERROR_BYTES_MAX    ((size_t)64 << 10)  // of a body that says what went wrong, and is not read
#define ENDPOINT_BYTES_MAX 1024

struct transfer {
    CURL *curl;
    struct curl_slist *headers;
    char *endpoint;
    bool secure; // the endpoint is HTTPS
    char failure[CURL_ERROR_SIZE];

    // ---- of the exchange that runs ----
    struct buffer *answer; // of transfer_get; NULL otherwise
    struct transfer_sink *sink;
    struct error *error;
    enum status status; // what a callback found
    size_t n_head, n_ignored;
    int64_t range_first, range_total; // of Content-Range; -1: not said
    bool begun;
};

// ---- life ----

// 127.evil.org is another machine's name.
static bool is_loopback(const char *host) {
    bool is_number = host[strspn(host, "0123456789.")] == 0;
    return strcasecmp(host, "localhost") == 0 || (is_number && strncmp(host, "127.", 4) == 0) ||
           strcmp(host, "[::1]") == 0;
}

// Takes the endpoint apart; the token goes nowhere that others could read it.
static enum status check_endpoint(struct transfer *t, bool *private, struct error *e) {
    CURLU *url = curl_url();
    char *scheme = NULL, *host = NULL, *part = NULL;
    bool ok = url != NULL && strlen(t->endpoint) <= ENDPOINT_BYTES_MAX &&
              curl_url_set(url, CURLUPART_URL, t->endpoint, 0) == CURLUE_OK &&
              curl_url_get(url, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
              curl_url_get(url, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
              (strcmp(scheme, "https") == 0 || strcmp(scheme, "http") == 0);
    static const CURLUPart unwanted[] = {CURLUPART_USER, CURLUPART_PASSWORD, CURLUPART_QUERY, CURLUPART_FRAGMENT};
    for (size_t i = 0; ok && i < sizeof unwanted / sizeof *unwanted; i++)
        if (curl_url_get(url, unwanted[i], &part, 0) == CURLUE_OK) {
            curl_free(part);
            ok = false;
        }
    t->secure = ok && strcmp(scheme, "https") == 0;
    *private = t->secure || (ok && is_loopback(host));
    curl_free(scheme);
    curl_free(host);
    curl_url_cleanup(url);
    if (ok) return STATUS_OK;
    return error_set(e, STATUS_INVALID, "HF_ENDPOINT must be the address of a hub, such as https://huggingface.co");
}

static enum status add_token(struct transfer *t, const char *token, bool private, struct error *e) {
    struct buffer line;
    for (const char *c = token; *c != 0; c++)
        if (!isgraph((unsigned char)*c))
            return error_set(e, STATUS_INVALID, "HF_TOKEN has a character that no token has");
    if (!private)
        return error_set(e, STATUS_INVALID,
                         "HF_TOKEN would go unencrypted to another machine: use an https:// HF_ENDPOINT, or no token");
    buffer_init(&line, 0);
    buffer_printf(&line, "Authorization: Bearer %s", token);
    struct curl_slist *grown = line.failed ? NULL : curl_slist_append(t->headers, line.data);
    buffer_free(&line);
    if (grown == NULL) return error_memory(e);
    t->headers = grown;
    return STATUS_OK;
}

static size_t take_header(char *data, size_t one, size_t n, void *transfer);
static size_t take_body(char *data, size_t one, size_t n, void *transfer);

static void set_options(struct transfer *t, int64_t stall_s) {
    CURL *c = t->curl;
    const char *certificates = getenv("SSL_CERT_FILE");
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(c, CURLOPT_REDIR_PROTOCOLS_STR, t->secure ? "https" : "http,https");
#else
    curl_easy_setopt(c, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
    curl_easy_setopt(c, CURLOPT_REDIR_PROTOCOLS, (long)((t->secure ? 0 : CURLPROTO_HTTP) | CURLPROTO_HTTPS));
#endif
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 1L);
    curl_easy_setopt(c, CURLOPT_MAXREDIRS, (long)REDIRECTS_MAX);
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, CONNECT_SECONDS);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, SLOW_BYTES);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)stall_s);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "tokenfold/" TF_VERSION);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, t->headers);
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, t->failure);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, take_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, t);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, t);
    if (certificates != NULL && *certificates != 0) curl_easy_setopt(c, CURLOPT_CAINFO, certificates);
}

enum status transfer_create(const struct transfer_options *options, struct transfer **out, struct error *e) {
    bool private;
    struct transfer *t = calloc(1, sizeof *t);
    if (t == NULL) return error_memory(e);
    t->endpoint = strdup(options->endpoint);
    t->curl = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK ? curl_easy_init() : NULL;
    enum status st = t->endpoint != NULL && t->curl != NULL ? STATUS_OK : error_memory(e);
    for (size_t n = st == STATUS_OK ? strlen(t->endpoint) : 0; n > 0 && t->endpoint[n - 1] == '/';)
        t->endpoint[--n] = 0;
    if (st == STATUS_OK) st = check_endpoint(t, &private, e);
    if (st == STATUS_OK && options->token != NULL) st = add_token(t, options->token, private, e);
    if (st != STATUS_OK) {
        transfer_free(t);
        return st;
    }
    set_options(t, options->stall_s);
    *out = t;
    return STATUS_OK;
}

void transfer_free(struct transfer *t) {
    if (t == NULL) return;
    curl_easy_cleanup(t->curl);
    curl_slist_free_all(t->headers);
    free(t->endpoint);
    free(t);
}

// ---- answers ----

static size_t refuse(struct transfer *t, enum status status, const char *sentence) {
    t->status = error_set(t->error, status, "%s", sentence);
    return 0; // which makes the library give up
}

// "bytes 100-199/1000"
static void read_range(struct transfer *t, const char *text, size_t n) {
    char copy[128];
    long long first, last, total;
    if (n >= sizeof copy) return;
    memcpy(copy, text, n);
    copy[n] = 0;
    if (sscanf(copy, " bytes %lld-%lld/%lld", &first, &last, &total) != 3) return;
    t->range_first = first;
    t->range_total = total;
}

static size_t take_header(char *data, size_t one, size_t n, void *transfer) {
    static const char range[] = "content-range:";
    struct transfer *t = transfer;
    (void)one;
    t->n_head += n;
    if (t->n_head > HEAD_BYTES_MAX) return refuse(t, STATUS_INVALID, "the hub's answer has too many headers");
    if (n >= 5 && memcmp(data, "HTTP/", 5) == 0) t->range_first = t->range_total = -1; // the next one of a redirect
    if (n > sizeof range && strncasecmp(data, range, sizeof range - 1) == 0)
        read_range(t, data + sizeof range - 1, n - (sizeof range - 1));
    return n;
}

// Before the first byte of a file: what the hub is about to send is what was asked for.
static enum status begin_file(struct transfer *t, long code) {
    struct transfer_sink *sink = t->sink;
    t->begun = true;
    if (code == 200) return sink->at == 0 ? STATUS_OK : sink->restart(sink, t->error);
    if (sink->at > 0 && t->range_first == sink->at && t->range_total == sink->size) return STATUS_OK;
    return error_set(t->error, STATUS_INVALID, "the hub sends another part of the file than the one asked for");
}

static size_t take_body(char *data, size_t one, size_t n, void *transfer) {
    struct transfer *t = transfer;
    long code = 0;
    (void)one;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &code);
    if (code != 200 && (code != 206 || t->sink == NULL)) {
        t->n_ignored += n;
        return t->n_ignored <= ERROR_BYTES_MAX ? n : 0;
    }
    if (t->answer != NULL) {
        if (buffer_append(t->answer, data, n)) return n;
        return refuse(t, STATUS_LIMIT, "the hub's answer is too long");
    }
    if (!t->begun) t->status = begin_file(t, code);
    if (t->status != STATUS_OK) return 0;
    if ((int64_t)n > t->sink->size - t->sink->at)
        return refuse(t, STATUS_INVALID, "the hub sends more bytes than it said the file has");
    t->status = t->sink->write(t->sink, data, n, t->error);
    return t->status == STATUS_OK ? n : 0;
}

static enum status judge_code(long code, struct error *e) {
    if (code == 200 || code == 206) return STATUS_OK;
    if (code == 401 || code == 403)
        return error_set(e, STATUS_UNSUPPORTED,
                         "the hub refuses access (HTTP %ld): the repository may be private or gated; set HF_TOKEN",
                         code);
    if (code == 404) return error_set(e, STATUS_NOT_FOUND, "the hub has no such repository, revision or file");
    if (code == 408 || code == 429 || code >= 500)
        return error_set(e, STATUS_BUSY, "the hub is busy or broken (HTTP %ld)", code);
    return error_set(e, STATUS_INVALID, "the hub answers with HTTP %ld, which makes no sense here", code);
}

static bool is_final(CURLcode result) {
    switch (result) {
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_URL_MALFORMAT:
    case CURLE_TOO_MANY_REDIRECTS:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE: return true;
    default: return false;
    }
}

static enum status run(struct transfer *t, const char *path, struct error *e) {
    struct buffer url;
    long code = 0;
    buffer_init(&url, 0);
    buffer_printf(&url, "%s%s", t->endpoint, path);
    if (url.failed) return error_memory(e);
    t->error = e;
    t->status = STATUS_OK;
    t->n_head = t->n_ignored = 0;
    t->range_first = t->range_total = -1;
    t->begun = false;
    t->failure[0] = 0;
    curl_easy_setopt(t->curl, CURLOPT_URL, url.data);
    CURLcode result = curl_easy_perform(t->curl);
    buffer_free(&url);
    if (t->status != STATUS_OK) return t->status;
    curl_easy_getinfo(t->curl, CURLINFO_RESPONSE_CODE, &code);
    if (result == CURLE_OK || (code >= 300 && result == CURLE_WRITE_ERROR)) return judge_code(code, e);
    return error_set(e, is_final(result) ? STATUS_UNSUPPORTED : STATUS_IO, "%s",
                     t->failure[0] != 0 ? t->failure : curl_easy_strerror(result));
}

void transfer_escape(struct buffer *b, const char *text) {
    for (; *text != 0; text++) {
        unsigned char c = (unsigned char)*text;
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || strchr("-._~", c);
        buffer_printf(b, plain ? "%c" : "%%%02X", c);
    }
}

enum status transfer_get(struct transfer *t, const char *path, size_t limit, struct buffer *out, struct error *e) {
    buffer_init(out, limit);
    t->answer = out;
    t->sink = NULL;
    curl_easy_setopt(t->curl, CURLOPT_TIMEOUT, ANSWER_SECONDS);
    enum status st = run(t, path, e);
    if (st != STATUS_OK) buffer_free(out);
    return st;
}

enum status transfer_file(struct transfer *t, const char *path, struct transfer_sink *sink, struct error *e) {
    char range[32] = "";
    t->answer = NULL;
    t->sink = sink;
    snprintf(range, sizeof range, "%" PRId64 "-", sink->at);
    // Not RESUME_FROM: that gives up on a hub which sends the whole file, and that is an answer one can use.
    curl_easy_setopt(t->curl, CURLOPT_RANGE, sink->at > 0 ? range : NULL);
    curl_easy_setopt(t->curl, CURLOPT_TIMEOUT, 0L);
    enum status st = run(t, path, e);
    curl_easy_setopt(t->curl, CURLOPT_RANGE, NULL);
    if (st == STATUS_OK && sink->at < sink->size)
        st = error_set(e, STATUS_IO, "the hub stopped after %" PRId64 " of %" PRId64 " bytes", sink->at, sink->size);
    return st;
}

#else // a build that is carried to machines without the library

enum status transfer_create(const struct transfer_options *options, struct transfer **out, struct error *e) {
    (void)options;
    (void)out;
    return error_set(e, STATUS_UNSUPPORTED, "this build of tokenfold cannot download: it was made without libcurl");
}

void transfer_free(struct transfer *t) { (void)t; }

void transfer_escape(struct buffer *b, const char *text) { buffer_append_text(b, text); }

enum status transfer_get(struct transfer *t, const char *path, size_t limit, struct buffer *out, struct error *e) {
    (void)t;
    (void)path;
    (void)limit;
    (void)out;
    return error_set(e, STATUS_UNSUPPORTED, "this build cannot download");
}

enum status transfer_file(struct transfer *t, const char *path, struct transfer_sink *sink, struct error *e) {
    (void)t;
    (void)path;
    (void)sink;
    return error_set(e, STATUS_UNSUPPORTED, "this build cannot download");
}
#endif
