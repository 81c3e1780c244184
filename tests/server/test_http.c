// Requests as bytes: routes, methods, limits, keys, malformed and ambiguous requests; cases C01, C03, C07.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "base/clock.h"
#include "tests/server/stage.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHAT "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]}"

static struct stage stage;

static const char *const aliases[] = {"org/other"};

static int setup(void **state) {
    (void)state;
    struct server_options o = {.aliases = aliases, .n_aliases = 1};
    stage_open(&stage, NULL, &o, true);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    stage_close(&stage);
    return 0;
}

static void check_error(const struct http_reply *r, int status, const char *code) {
    if (r->status != status)
        fail_msg("status %d instead of %d: %s", r->status, status, r->body.n > 0 ? r->body.data : "");
    assert_string_equal(http_header(r, "Content-Type"), "application/json");
    assert_true(*text_at(r->json, "error.message") != 0);
    assert_true(*text_at(r->json, "error.type") != 0);
    assert_non_null(json_at(r->json, "error.param"));
    if (code != NULL) assert_string_equal(text_at(r->json, "error.code"), code);
}

static void expect_error(const char *method, const char *path, const char *body, int status, const char *code,
                         const char *word) {
    struct http_reply r;
    http_request(stage.port, method, path, NULL, body, &r);
    check_error(&r, status, code);
    if (word != NULL && strstr(text_at(r.json, "error.message"), word) == NULL)
        fail_msg("%s does not say %s", text_at(r.json, "error.message"), word);
    http_reply_free(&r);
}

static void expect_ok(const char *method, const char *path, const char *body) {
    struct http_reply r;
    http_request(stage.port, method, path, NULL, body, &r);
    if (r.status != 200) fail_msg("%s %s: %d %s", method, path, r.status, r.body.n > 0 ? r.body.data : "");
    http_reply_free(&r);
}

static void test_paths(void **state) { // C07
    (void)state;
    expect_ok("GET", "/v1/models", NULL);
    expect_ok("GET", "/v1//models", NULL);
    expect_ok("GET", "//v1/models///", NULL);
    expect_ok("POST", "/v1/chat/completions/", CHAT);
    expect_ok("POST", "//v1//chat/completions", CHAT);
    expect_ok("GET", "/health?x=1", NULL);
    expect_error("GET", "/v1/v1/models", NULL, 404, "unknown_route", "/v1/models");
    expect_error("POST", "/v1/v1/chat/completions", CHAT, 404, "unknown_route", "/v1/chat/completions");
    expect_error("GET", "/models", NULL, 404, "unknown_route", "/v1/models");
    expect_error("POST", "/chat/completions", CHAT, 404, "unknown_route", "/v1/chat/completions");
    expect_error("GET", "/nothing", NULL, 404, "unknown_route", NULL);
    expect_error("POST", "/v1/responses", "{}", 400, NULL, "/input is missing");
    expect_error("POST", "/v1//messages/", "{}", 400, NULL, "/messages is missing");
    expect_error("POST", "/v1/messages/count_tokens", "{}", 400, NULL, "/messages is missing");
    expect_error("POST", "/", "{}", 405, "method_not_allowed", NULL);
}

static void test_methods(void **state) {
    (void)state;
    struct http_reply r;
    http_request(stage.port, "GET", "/v1/chat/completions", NULL, NULL, &r);
    check_error(&r, 405, "method_not_allowed");
    assert_string_equal(http_header(&r, "Allow"), "POST, OPTIONS");
    http_reply_free(&r);
    http_request(stage.port, "POST", "/v1/models", NULL, "{}", &r);
    check_error(&r, 405, "method_not_allowed");
    assert_string_equal(http_header(&r, "Allow"), "GET, HEAD, OPTIONS");
    http_reply_free(&r);
    http_request(stage.port, "OPTIONS", "/tokenize", NULL, NULL, &r);
    assert_int_equal(r.status, 204);
    assert_string_equal(http_header(&r, "Allow"), "POST, OPTIONS");
    assert_null(http_header(&r, "Access-Control-Allow-Origin"));
    http_reply_free(&r);
    expect_error("BREW", "/health", NULL, 405, "method_not_allowed", NULL);

    int fd = http_connect(stage.port);
    static const char head[] = "HEAD /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    struct buffer all;
    buffer_init(&all, 0);
    http_send(fd, head, sizeof head - 1);
    assert_false(http_read_until(fd, &all, "never"));
    assert_memory_equal(all.data, "HTTP/1.1 200", 12);
    assert_string_equal(strstr(all.data, "\r\n\r\n"), "\r\n\r\n"); // and no body
    buffer_free(&all);
    close(fd);
}

static void test_models(void **state) {
    (void)state;
    struct http_reply r;
    http_request(stage.port, "GET", "/v1/models", NULL, NULL, &r);
    assert_string_equal(text_at(r.json, "data.0.id"), "scripted");
    assert_string_equal(text_at(r.json, "data.1.id"), "org/other");
    assert_string_equal(text_at(r.json, "data.0.object"), "model");
    assert_int_equal(int_at(r.json, "data.0.max_model_len"), 4096);
    http_reply_free(&r);
    http_request(stage.port, "GET", "/v1/models/org/other", NULL, NULL, &r);
    assert_string_equal(text_at(r.json, "id"), "org/other");
    http_reply_free(&r);
    expect_error("GET", "/v1/models/none", NULL, 404, "model_not_found", NULL);
}

static void test_bad_json(void **state) { // C01, C03
    (void)state;
    static const char *const paths[] = {"/v1/chat/completions", "/v1/completions", "/tokenize"};
    static const char *const bodies[] = {
        "",
        "{",
        "nonsense",
        "[]",
        "7",
        "\"text\"",
        "null",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"\\ud83d\"}]}",
        "{\"messages\":[{\"role\":\"user\",\"content\":\"x \\ude00 y\"}]}",
        "{\"prompt\":\"\\udcf0\"}",
        "{\"prompt\":\"\xff\"}",
        "{\"prompt\":\"a\",\"prompt\":\"b\"}",
        "{\"prompt\":\"a\\u0000b\"}",
        "{\"temperature\":NaN}",
        "{\"temperature\":1e999}",
        "{\"seed\":18446744073709551616}",
        "{\"max_tokens\":9223372036854775808}",
    };
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        for (size_t k = 0; k < sizeof bodies / sizeof *bodies; k++)
            expect_error("POST", paths[i], bodies[k], 400, NULL, NULL);
    expect_ok("POST", "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"\\ud83d\\ude00\"}]}");
}

static void test_deep_json(void **state) { // C03
    (void)state;
    static const char *const frames[] = {"%s", "{\"tools\":%s}", "{\"messages\":[{\"role\":\"user\",\"content\":%s}]}",
                                         "{\"messages\":[],\"chat_template_kwargs\":{\"x\":%s}}"};
    static const size_t depths[] = {3000, 300000};
    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++)
        for (size_t k = 0; k < sizeof depths / sizeof *depths; k++)
            for (int objects = 0; objects < 2; objects++) {
                struct buffer deep, body;
                buffer_init(&deep, 0);
                buffer_init(&body, 0);
                for (size_t n = 0; n < depths[k]; n++) buffer_append_text(&deep, objects ? "{\"a\":" : "[");
                size_t n = strcspn(frames[i], "%");
                buffer_append(&body, frames[i], n);
                buffer_append(&body, deep.data, deep.n);
                buffer_append_text(&body, frames[i] + n + 2);
                expect_error("POST", "/v1/chat/completions", body.data, 400, NULL, "64");
                buffer_free(&deep);
                buffer_free(&body);
            }
    expect_ok("GET", "/health", NULL);
}

static void test_no_bytes_are_echoed(void **state) {
    (void)state;
    struct http_reply r;
    char body[70000];
    memset(body, 'q', sizeof body);
    memcpy(body, "{\"stop\":\"", 9);
    strcpy(body + sizeof body - 3, "\"}");
    http_post(stage.port, "/v1/chat/completions", body, &r);
    check_error(&r, 400, NULL);
    assert_true(r.body.n < 1000);
    assert_null(strstr(r.body.data, "qqqq"));
    http_reply_free(&r);
}

// ---- bytes ----

// Sends bytes as they are, and returns the status of the first response, or 0 when there was none.
static int raw(const char *data, size_t n, struct http_reply *r) {
    int fd = http_connect(stage.port);
    http_send(fd, data, n);
    shutdown(fd, SHUT_WR);
    http_read(fd, r);
    close(fd);
    return r->status;
}

static int raw_status(const char *text) {
    struct http_reply r;
    int status = raw(text, strlen(text), &r);
    http_reply_free(&r);
    return status;
}

static void test_ambiguous(void **state) {
    (void)state;
#define HEAD    "POST /tokenize HTTP/1.1\r\nHost: x\r\n"
#define CHUNKED "e\r\n{\"prompt\":\"x\"}\r\n0\r\n\r\n" // a good body, were it not for the head
    static const char *const refused[] = {
        HEAD "Content-Length: 14\r\nTransfer-Encoding: chunked\r\n\r\n" CHUNKED,
        HEAD "Transfer-Encoding: chunked\r\nContent-Length: 14\r\n\r\n" CHUNKED,
        HEAD "Content-Length: 14\r\nContent-Length: 15\r\n\r\n{\"prompt\":\"x\"}",
        HEAD "Content-Length: 14\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"x\"}",
        HEAD "Content-Length: +14\r\n\r\n{\"prompt\":\"x\"}",
        HEAD "Content-Length: 0x0e\r\n\r\n{\"prompt\":\"x\"}",
        HEAD "Content-Length: -1\r\n\r\n",
        HEAD "Content-Length: 99999999999999999999999\r\n\r\n",
        HEAD "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        HEAD "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        HEAD "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" CHUNKED,
        HEAD "Content-Length : 14\r\n\r\n{\"prompt\":\"x\"}",
        HEAD "Host: y\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"x\"}",
        "POST /tokenize HTTP/1.1\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"x\"}",
        HEAD "Transfer-Encoding: chunked\r\n\r\nZZ\r\nxx\r\n0\r\n\r\n",
        "POST /tokenize HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" CHUNKED,
        HEAD "X: a\rContent-Length: 3\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"x\"}",
        HEAD "X: a\x01\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"x\"}",
        HEAD "Authorization: Bearer a\r\nAuthorization: Bearer b\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"x\"}",
        HEAD "Content-Length: 1\r\n 4\r\n\r\n{\"prompt\":\"x\"}",
        HEAD "Content-Length:\r\n 14\r\n\r\n{\"prompt\":\"x\"}",
        HEAD "Transfer-Encoding:\r\n chunked\r\n\r\n" CHUNKED,
        HEAD "X: a\r\n Content-Length: 3\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"x\"}",
        "GET /health%00/metrics HTTP/1.1\r\nHost: x\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        int status = raw_status(refused[i]);
        if (status != 400 && status != 413) fail_msg("%s: %d", refused[i], status);
    }
    assert_int_equal(raw_status(HEAD "Content-Length: 14\r\n\r\n{\"prompt\":\"x\"}"), 200);
    assert_int_equal(raw_status(HEAD "Transfer-Encoding: chunked\r\n\r\n4\r\n{\"pr\r\na\r\nompt\":\"x\"}\r\n0\r\n\r\n"),
                     200);
    assert_int_equal(raw_status("POST /tokenize HTTP/1.0\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"x\"}"), 200);
    assert_int_equal(raw_status(HEAD "Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\nxxxx"), 415);
}

static void test_garbage(void **state) {
    (void)state;
    static const char *const garbage[] = {"\r\n\r\n",
                                          "x",
                                          "GET\r\n\r\n",
                                          "GET /\r\n\r\n",
                                          "\x16\x03\x01\x02",
                                          "GET / HTTP/9.9\r\n\r\n",
                                          "GET /health HTTP/1.1\r\nHost: x\r\nbroken\r\n\r\n"};
    for (size_t i = 0; i < sizeof garbage / sizeof *garbage; i++) {
        int status = raw_status(garbage[i]);
        if (status >= 500 && status != 505) fail_msg("%s: %d", garbage[i], status);
    }
    expect_ok("GET", "/health", NULL);
}

static void test_pipelined(void **state) {
    (void)state;
    static const char two[] = "GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n";
    struct http_reply r;
    int fd = http_connect(stage.port);
    http_send(fd, two, sizeof two - 1);
    http_read(fd, &r);
    assert_string_equal(text_at(r.json, "status"), "ok");
    http_reply_free(&r);
    http_read(fd, &r);
    assert_string_equal(text_at(r.json, "object"), "list");
    http_reply_free(&r);
    close(fd);
}

// ---- limits ----

static void test_large_head(void **state) {
    (void)state;
    struct http_reply r;
    char headers[17000];
    memset(headers, 'h', sizeof headers);
    memcpy(headers, "X-Long: ", 8);
    strcpy(headers + sizeof headers - 3, "\r\n");
    http_request(stage.port, "GET", "/health", headers, NULL, &r);
    check_error(&r, 431, "headers_too_large");
    http_reply_free(&r);
    memset(headers, 'p', sizeof headers);
    headers[0] = '/';
    headers[sizeof headers - 1] = 0;
    http_request(stage.port, "GET", headers, NULL, NULL, &r);
    check_error(&r, 431, "headers_too_large");
    http_reply_free(&r);
    http_request(stage.port, headers + 1, "/health", NULL, NULL, &r); // the method
    check_error(&r, 431, "headers_too_large");
    http_reply_free(&r);
}

// The client has sent all of a body that is too large, and still reads the answer.
static void test_large_body(void **state) {
    (void)state;
    size_t n = ((size_t)32 << 20) + 1;
    char *body = malloc(n + 1);
    assert_non_null(body);
    memset(body, ' ', n);
    body[n] = 0;
    struct http_reply r;
    http_post(stage.port, "/v1/completions", body, &r);
    check_error(&r, 413, "body_too_large");
    http_reply_free(&r);
    body[n - 1] = 0; // as large as is allowed
    http_post(stage.port, "/v1/completions", body, &r);
    check_error(&r, 400, NULL);
    http_reply_free(&r);
    int fd = http_connect(stage.port);
    static const char head[] = "POST /tokenize HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2000001\r\n";
    http_send(fd, head, sizeof head - 1);
    body[n - 1] = ' ';
    http_send(fd, body, n);
    http_send(fd, "\r\n0\r\n\r\n", 7);
    http_read(fd, &r);
    check_error(&r, 413, "body_too_large");
    http_reply_free(&r);
    close(fd);
    free(body);
    int huge = http_connect(stage.port);
    static const char announced[] = "POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 999999999999\r\n\r\n";
    http_send(huge, announced, sizeof announced - 1);
    http_read(huge, &r);
    check_error(&r, 413, "body_too_large");
    http_reply_free(&r);
    close(huge);
}

static void test_slow_requests(void **state) {
    (void)state;
    static const char *const parts[] = {"GET /health HTTP/1.1\r\nHos", HEAD "Content-Length: 100\r\n\r\n{\"pro"};
    struct stage hasty;
    struct server_options o = {.limits.receive_ns = 700000000};
    stage_open(&hasty, NULL, &o, true);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        struct http_reply r;
        int fd = http_connect(hasty.port);
        int64_t start = clock_ns();
        http_send(fd, parts[i], strlen(parts[i]));
        http_read(fd, &r);
        check_error(&r, 408, "request_timeout");
        assert_true(clock_ns() - start < 3000000000);
        http_reply_free(&r);
        close(fd);
    }
    stage_close(&hasty);
}

static void test_expect(void **state) {
    (void)state;
    struct http_reply r;
    int fd = http_connect(stage.port);
    static const char head[] = HEAD "Expect: 100-continue\r\nContent-Length: 14\r\n\r\n";
    http_send(fd, head, sizeof head - 1);
    http_read(fd, &r);
    assert_int_equal(r.status, 100);
    http_reply_free(&r);
    http_send(fd, "{\"prompt\":\"x\"}", 14);
    http_read(fd, &r);
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    close(fd);
    fd = http_connect(stage.port);
    static const char wrong[] =
        "POST /nothing HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 14\r\n\r\n";
    http_send(fd, wrong, sizeof wrong - 1);
    http_read(fd, &r);
    check_error(&r, 404, "unknown_route");
    http_reply_free(&r);
    close(fd);
}

static void test_keys(void **state) {
    (void)state;
    struct stage locked;
    struct http_reply r;
    struct server_options o = {.api_keys = (const char *const[]){"secret"}, .n_api_keys = 1};
    stage_open(&locked, NULL, &o, true);
    http_request(locked.port, "POST", "/v1/chat/completions", NULL, CHAT, &r);
    check_error(&r, 401, "invalid_api_key");
    http_reply_free(&r);
    http_request(locked.port, "POST", "/v1/chat/completions", "Authorization: Bearer mistaken\r\n", CHAT, &r);
    check_error(&r, 401, "invalid_api_key");
    assert_null(strstr(r.body.data, "mistaken"));
    http_reply_free(&r);
    http_request(locked.port, "GET", "/nothing", NULL, NULL, &r);
    check_error(&r, 401, "invalid_api_key");
    http_reply_free(&r);
    http_request(locked.port, "GET", "/health", NULL, NULL, &r);
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    http_request(locked.port, "POST", "/v1/chat/completions", "Authorization: Bearer secret\r\n", CHAT, &r);
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    stage_close(&locked);
}

static int health_status(int port) {
    struct http_reply r;
    http_request(port, "GET", "/health", NULL, NULL, &r);
    int status = r.status;
    http_reply_free(&r);
    return status;
}

static void test_crowd(void **state) {
    (void)state;
    struct stage small;
    struct http_reply r;
    struct server_options o = {.limits.connections = 2};
    stage_open(&small, NULL, &o, true);
    // Who has not asked anything gives way, the oldest first.
    int a = http_connect(small.port), b = http_connect(small.port);
    clock_sleep_ns(1000000000);
    assert_int_equal(health_status(small.port), 200);
    assert_int_equal(recv(a, &r, 1, 0), 0);
    assert_int_equal(send(b, "G", 1, MSG_NOSIGNAL), 1);
    close(a);
    close(b);
    // Who has does not.
    static const char part[] = HEAD "Content-Length: 100\r\n\r\n{";
    a = http_connect(small.port);
    b = http_connect(small.port);
    http_send(a, part, sizeof part - 1);
    http_send(b, part, sizeof part - 1);
    clock_sleep_ns(200000000);
    http_request(small.port, "GET", "/health", NULL, NULL, &r);
    check_error(&r, 429, "too_many_connections");
    http_reply_free(&r);
    close(a);
    close(b);
    for (int i = 0; i < 100 && health_status(small.port) != 200; i++) clock_sleep_ns(10000000);
    assert_int_equal(health_status(small.port), 200);
    stage_close(&small);
}

static void test_bad_starts(void **state) {
    (void)state;
    struct error e;
    struct server *s = NULL;
    struct server_options o = {.engine = stage.engine, .name = "x", .host = "127.0.0.1", .port = stage.port};
    assert_int_equal(server_start(&o, &s, &e), STATUS_IO);
    assert_non_null(strstr(e.text, "127.0.0.1"));
    o.host = "no such host.invalid";
    assert_int_equal(server_start(&o, &s, &e), STATUS_INVALID);
    o.host = "127.0.0.1";
    o.port = 0;
    o.name = "";
    assert_int_equal(server_start(&o, &s, &e), STATUS_INVALID);
    assert_null(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_paths),      cmocka_unit_test(test_methods),
        cmocka_unit_test(test_models),     cmocka_unit_test(test_bad_json),
        cmocka_unit_test(test_deep_json),  cmocka_unit_test(test_no_bytes_are_echoed),
        cmocka_unit_test(test_ambiguous),  cmocka_unit_test(test_garbage),
        cmocka_unit_test(test_pipelined),  cmocka_unit_test(test_large_head),
        cmocka_unit_test(test_large_body), cmocka_unit_test(test_slow_requests),
        cmocka_unit_test(test_expect),     cmocka_unit_test(test_keys),
        cmocka_unit_test(test_crowd),      cmocka_unit_test(test_bad_starts),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
