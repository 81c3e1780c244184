// Addresses of servers, and answers of them in pieces, broken off, or none of HTTP.
#include "measure/stream.h"
#include "measure/client.h"
#include <arpa/inet.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

static void test_urls(void **state) {
    (void)state;
    static const char *const good[][4] = {{"http://h", "h", "80", "/v1"},
                                          {"http://h/", "h", "80", "/v1"},
                                          {"http://127.0.0.1:8080/v1", "127.0.0.1", "8080", "/v1"},
                                          {"http://h:1/a/b//", "h", "1", "/a/b"},
                                          {"http://[::1]:5", "::1", "5", "/v1"},
                                          {"http://[::1]/a", "::1", "80", "/a"},
                                          {"http://h:65535", "h", "65535", "/v1"}};
    static const char *const wrong[] = {"",
                                        "h",
                                        "ftp://h",
                                        "http://",
                                        "http://:80",
                                        "http://h:",
                                        "http://h:x",
                                        "http://h:1x",
                                        "http://[::1",
                                        "http://u@h",
                                        "http://h/a b",
                                        "http://h?x",
                                        "http://[::1]x",
                                        "http://[::1]80",
                                        "http://h:65536"};
    struct stream_place p;
    struct error e;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        if (stream_read_url(good[i][0], &p, &e) != STATUS_OK) fail_msg("%s: %s", good[i][0], e.text);
        assert_string_equal(p.host, good[i][1]);
        assert_string_equal(p.port, good[i][2]);
        assert_string_equal(p.path, good[i][3]);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (stream_read_url(wrong[i], &p, &e) != STATUS_INVALID) fail_msg("\"%s\" was taken", wrong[i]);
    assert_int_equal(stream_read_url("https://h", &p, &e), STATUS_UNSUPPORTED);
}

// ---- a server that says what it is told to ----

struct canned {
    const char *answer;
    size_t piece; // bytes at once
    int fd;
    char request[4096]; // as it came
};

static void *serve(void *context) {
    struct canned *c = context;
    char *request = c->request;
    int fd = accept(c->fd, NULL, NULL);
    size_t got = 0;
    ssize_t n;
    while (got + 1 < sizeof c->request && (n = recv(fd, request + got, sizeof c->request - 1 - got, 0)) > 0) {
        got += (size_t)n;
        request[got] = 0;
        const char *head = strstr(request, "\r\n\r\n"), *length = strstr(request, "Content-Length: ");
        int body = 0;
        if (head != NULL && length != NULL && sscanf(length, "Content-Length: %d", &body) == 1 &&
            request + got >= head + 4 + body)
            break;
    }
    for (size_t at = 0, all = strlen(c->answer); at < all; at += c->piece) {
        size_t size = all - at < c->piece ? all - at : c->piece;
        if (send(fd, c->answer + at, size, MSG_NOSIGNAL) < 0) break;
    }
    close(fd);
    return NULL;
}

static enum status ask(const char *answer, size_t piece, struct sample *out, struct error *e) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    struct canned c = {.answer = answer, .piece = piece, .fd = socket(AF_INET, SOCK_STREAM, 0)};
    struct client client = {.key = "k"};
    struct cell cell = {CELL_DECODE, 4, 3, 1};
    pthread_t thread;
    char url[64];
    assert_int_equal(bind(c.fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(c.fd, 1), 0);
    assert_int_equal(getsockname(c.fd, (struct sockaddr *)&at, &size), 0);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/v1", ntohs(at.sin_port));
    assert_int_equal(stream_read_url(url, &client.at, e), STATUS_OK);
    assert_int_equal(pthread_create(&thread, NULL, serve, &c), 0);
    enum status s = client_measure(&client, &cell, 1, out, e);
    pthread_join(thread, NULL);
    close(c.fd);
    return s;
}

#define OK     "HTTP/1.1 200 OK\r\n"
#define CHUNKS OK "Transfer-Encoding: chunked\r\n\r\n"
#define ONE    "data: {\"choices\":[{\"text\":\"a\",\"token_ids\":[7]}]}\n\n" // 48 bytes
#define TWO    "data: {\"choices\":[{\"text\":\"bc\",\"token_ids\":[8,9]}]}\n\n"
#define DONE   "data: [DONE]\n\n"

static void test_answers(void **state) {
    (void)state;
    struct sample whole = {0}, chunked, words;
    struct error e;
    assert_int_equal(ask(OK "\r\n: hello\n\n" ONE TWO DONE, 4096, &whole, &e), STATUS_OK);
    assert_true(whole.ids != 0 && whole.text != 0 && whole.tokens_per_s > 0);
    char text[1024];
    snprintf(text, sizeof text, CHUNKS "%zx\r\n" ONE "\r\n%zx;x=y\r\n" TWO DONE "\r\n0\r\n\r\n", strlen(ONE),
             strlen(TWO DONE));
    for (size_t piece = 1; piece < 40; piece += 6) {
        assert_int_equal(ask(text, piece, &chunked, &e), STATUS_OK);
        assert_true(chunked.ids == whole.ids && chunked.text == whole.text);
    }
    // A server that sends no ids is told apart by its text.
    assert_int_equal(ask(OK "\r\ndata: {\"choices\":[{\"text\":\"a\"}]}\r\n\r\n"
                            "data: {\"choices\":[{\"text\":\"bc\"}]}\r\n\r\n"
                            "data: {\"choices\":[],\"usage\":{\"completion_tokens\":4,\"prompt_tokens_details\":"
                            "{\"cached_tokens\":2}}}\r\n\r\ndata: [DONE]\r\n",
                         4096, &words, &e),
                     STATUS_OK);
    assert_true(words.ids == 0 && words.text == whole.text);
    assert_int_equal(words.n_cached, 2);
}

// An address with colons stands in brackets where its port follows.
static void test_ipv6(void **state) {
    (void)state;
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    socklen_t size = sizeof at;
    struct canned c = {.answer = "HTTP/1.1 400 no\r\n\r\nno", .piece = 4096, .fd = socket(AF_INET6, SOCK_STREAM, 0)};
    struct client client = {.key = "k"};
    struct cell cell = {CELL_DECODE, 4, 3, 1};
    struct sample sample;
    struct error e;
    pthread_t thread;
    char url[64], host[64];
    if (c.fd < 0 || bind(c.fd, (struct sockaddr *)&at, sizeof at) != 0) {
        if (c.fd >= 0) close(c.fd);
        skip(); // no IPv6 on this machine
    }
    assert_int_equal(listen(c.fd, 1), 0);
    assert_int_equal(getsockname(c.fd, (struct sockaddr *)&at, &size), 0);
    snprintf(url, sizeof url, "http://[::1]:%d/v1", ntohs(at.sin6_port));
    snprintf(host, sizeof host, "\r\nHost: [::1]:%d\r\n", ntohs(at.sin6_port));
    assert_int_equal(stream_read_url(url, &client.at, &e), STATUS_OK);
    assert_int_equal(pthread_create(&thread, NULL, serve, &c), 0);
    assert_int_not_equal(client_measure(&client, &cell, 1, &sample, &e), STATUS_OK);
    pthread_join(thread, NULL);
    close(c.fd);
    assert_non_null(strstr(c.request, host));
    assert_non_null(strstr(e.text, url));
}

static void test_bad_answers(void **state) {
    (void)state;
    static const char *const bad[] = {
        "",
        "SMTP hello\r\n\r\n",
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 500 No\r\n\r\nthe model is gone",
        OK "\r\n" DONE,
        OK "\r\ndata: {\"choices\"\n\n",
        OK "\r\ndata: {\"error\":{\"message\":\"out of memory\"}}\n\n",
        OK "Content-Length: 400\r\n\r\n" ONE,
        CHUNKS "zz\r\n" ONE,
        CHUNKS "30\r\n" ONE,
        CHUNKS "-5\r\n" ONE,
    };
    struct sample s;
    struct error e;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (ask(bad[i], 4096, &s, &e) == STATUS_OK) fail_msg("answer %zu was taken", i);
    assert_int_equal(ask(bad[3], 4096, &s, &e), STATUS_IO);
    assert_non_null(strstr(e.text, "the model is gone"));
    assert_int_equal(ask(bad[6], 4096, &s, &e), STATUS_IO);
    assert_non_null(strstr(e.text, "out of memory"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_urls),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_ipv6),
        cmocka_unit_test(test_bad_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
