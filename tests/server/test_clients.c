// Clients that wait, leave, come in numbers, and meet an engine that is full, failing or going away: cases C29, C63,
// C57's "next request fine", and the drain.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "base/clock.h"
#include "tests/server/stage.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MS ((int64_t)1000000)
#define CHAT(extra)                                                                                                    \
    "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"chat_template_kwargs\":{\"enable_thinking\":"            \
    "false}" extra "}"
#define STREAM ",\"stream\":true"

static struct stage stage;

static int setup(void **state) {
    (void)state;
    struct scripted_options o = {.parallel = 2, .queue = 3};
    struct server_options s = {.limits.keep_alive_ns = 100 * MS};
    stage_open(&stage, &o, &s, true);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    stage_close(&stage);
    return 0;
}

// Replies that take their time: ms in the queue, the prompt, and for each token, of which there is no end.
static void play(int64_t queue, int64_t prompt, int64_t token) {
    static struct script script;
    script_init(&script);
    script_say(&script, "abcdefghij");
    script.queue_ns = queue * MS;
    script.prompt_ns = prompt * MS;
    script.token_ns = token * MS;
    scripted_set(stage.engine, &script);
}

static int ask(const char *body) {
    struct buffer b;
    buffer_init(&b, 0);
    buffer_printf(&b, "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", strlen(body),
                  body);
    int fd = http_connect(stage.port);
    http_send(fd, b.data, b.n);
    buffer_free(&b);
    return fd;
}

static void test_keep_alive(void **state) { // C29
    (void)state;
    static const struct { int64_t queue, prompt; } waits[] = {{700, 0}, {0, 700}};
    for (size_t i = 0; i < 2; i++) {
        struct http_reply r;
        struct http_events events;
        play(waits[i].queue, waits[i].prompt, 0);
        int64_t start = clock_ns();
        http_post(stage.port, "/v1/chat/completions", CHAT(STREAM ",\"max_tokens\":3"), &r);
        assert_int_equal(r.status, 200);
        assert_true(r.first_ns - start < 300 * MS); // the head comes at once
        assert_true(r.last_ns - start > 690 * MS);
        http_events(&r, &events);
        assert_true(events.done);
        assert_true(events.n_comments >= 4 && events.n_comments <= 8);
        http_events_free(&events);
        http_reply_free(&r);
    }
}

enum leave { LEAVE_CLOSE, LEAVE_HALF, LEAVE_RESET, LEAVE_KINDS };

static void leave(int fd, enum leave how) {
    struct linger hard = {.l_onoff = 1, .l_linger = 0};
    if (how == LEAVE_HALF) {
        shutdown(fd, SHUT_WR);
        return;
    }
    if (how == LEAVE_RESET) setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    close(fd);
}

// More clients than lanes leave in each phase and each manner, streaming or not; their lanes are free right after.
static void test_leaving(void **state) { // C63
    (void)state;
    static const struct { int64_t queue, prompt, token; } phases[] = {{60000, 0, 0}, {0, 60000, 0}, {0, 0, 200}};
    static const char *const bodies[] = {CHAT(), CHAT(STREAM)};
    for (size_t phase = 0; phase < 3; phase++)
        for (size_t body = 0; body < 2; body++)
            for (int how = 0; how < LEAVE_KINDS; how++) {
                int fds[5];
                play(phases[phase].queue, phases[phase].prompt, phases[phase].token);
                for (int i = 0; i < 5; i++) fds[i] = ask(bodies[body]);
                if (phase == 0) {
                    stage_wait_counts(&stage, 0, 5);
                } else {
                    stage_wait_counts(&stage, 2, 3);
                }
                int64_t start = clock_ns();
                for (int i = 0; i < 5; i++) leave(fds[i], (enum leave)how);
                stage_wait_idle(&stage);
                assert_true(clock_ns() - start < 1000 * MS);
                for (int i = 0; i < 5 && how == LEAVE_HALF; i++) close(fds[i]);
            }
    play(0, 0, 0);
    struct http_reply r;
    http_post(stage.port, "/v1/chat/completions", CHAT(",\"max_tokens\":3"), &r);
    assert_string_equal(text_at(r.json, "choices.0.message.content"), "abc");
    http_reply_free(&r);
}

// A client that stops reading is noticed as gone when it hangs up, though the server waits to write to it.
static void test_leaving_unread(void **state) {
    (void)state;
    static struct script script;
    script_init(&script);
    for (int i = 0; i < 4000; i++) script_say(&script, "0123456789abcdef");
    scripted_set(stage.engine, &script);
    int fd = ask(CHAT(STREAM ",\"max_tokens\":3900,\"return_token_ids\":true,\"logprobs\":true,\"top_logprobs\":20"));
    clock_sleep_ns(300 * MS);
    close(fd);
    stage_wait_idle(&stage);
    for (int64_t until = clock_ns() + 3000 * MS; !server_idle(stage.server) && clock_ns() < until;)
        clock_sleep_ns(5 * MS);
    assert_true(server_idle(stage.server));
}

static void test_full_queue(void **state) {
    (void)state;
    int fds[5];
    play(60000, 0, 0);
    for (int i = 0; i < 5; i++) fds[i] = ask(CHAT(STREAM));
    stage_wait_counts(&stage, 0, 5);
    static const char *const bodies[] = {CHAT(), CHAT(STREAM)};
    for (int i = 0; i < 2; i++) {
        struct http_reply r;
        http_post(stage.port, "/v1/chat/completions", bodies[i], &r);
        assert_int_equal(r.status, 429);
        assert_string_equal(text_at(r.json, "error.code"), "queue_full");
        assert_string_equal(text_at(r.json, "error.type"), "rate_limit_error");
        assert_non_null(http_header(&r, "Retry-After"));
        http_reply_free(&r);
    }
    for (int i = 0; i < 5; i++) close(fds[i]);
    stage_wait_idle(&stage);
}

static void test_failures(void **state) {
    (void)state;
    static struct script script;
    struct http_reply r;
    struct http_events events;
    static const struct {
        enum status code;
        int http;
    } kinds[] = {{STATUS_DEVICE, 503}, {STATUS_MEMORY, 503}, {STATUS_IO, 500}, {STATUS_INVALID, 500}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int after = 0; after < 3; after += 2) {
            script_init(&script);
            script_say(&script, "abc");
            script.fail_at = after;
            script.fail_code = kinds[i].code;
            scripted_set(stage.engine, &script);
            http_post(stage.port, "/v1/chat/completions", CHAT(), &r);
            assert_int_equal(r.status, kinds[i].http);
            assert_string_equal(text_at(r.json, "error.type"), "server_error");
            http_reply_free(&r);
            http_post(stage.port, "/v1/chat/completions", CHAT(STREAM), &r);
            assert_int_equal(r.status, 200);
            http_events(&r, &events);
            assert_true(events.done);
            size_t n = json_array_size(events.list);
            assert_non_null(strstr(text_at(json_array_get(events.list, n - 1), "error.message"), "script"));
            http_events_free(&events);
            http_reply_free(&r);
        }
    script_init(&script);
    script_say(&script, "abc");
    script.submit = STATUS_DEVICE;
    scripted_set(stage.engine, &script);
    http_post(stage.port, "/v1/chat/completions", CHAT(STREAM), &r);
    assert_int_equal(r.status, 503);
    http_reply_free(&r);
}

static void test_deadline(void **state) {
    (void)state;
    struct stage hasty;
    struct http_reply r;
    struct http_events events;
    struct server_options o = {.limits.request_ns = 200 * MS};
    stage_open(&hasty, NULL, &o, true);
    static struct script script;
    script_init(&script);
    script_say(&script, "abc");
    script.token_ns = 30 * MS;
    scripted_set(hasty.engine, &script);
    http_post(hasty.port, "/v1/chat/completions", CHAT(), &r);
    assert_int_equal(r.status, 408);
    http_reply_free(&r);
    http_post(hasty.port, "/v1/chat/completions", CHAT(STREAM), &r);
    http_events(&r, &events);
    assert_true(events.done);
    assert_string_equal(text_at(json_array_get(events.list, json_array_size(events.list) - 1), "error.code"),
                        "request_timeout");
    http_events_free(&events);
    http_reply_free(&r);
    stage_close(&hasty);
}

// ---- many at once ----

struct client {
    pthread_t thread;
    int index;
    bool ok;
};

static void choose_by_prompt(const struct request_params *p, struct script *script) {
    char text[64];
    snprintf(text, sizeof text, "reply %d of many", p->prompt[p->n_prompt - 1]);
    script_say(script, text);
    script_end(script);
    script->token_ns = MS;
}

static struct stage crowd;

static void *run_client(void *argument) {
    struct client *c = argument;
    c->ok = true;
    for (int i = 0; i < 10; i++) {
        char body[256], expected[64], joined[256] = "";
        struct http_reply r;
        bool stream = i % 2 == 0;
        snprintf(body, sizeof body, "{\"prompt\":[7,%d]%s}", c->index, stream ? STREAM : "");
        snprintf(expected, sizeof expected, "reply %d of many", c->index);
        http_post(crowd.port, "/v1/completions", body, &r);
        if (stream) {
            struct http_events events;
            http_events(&r, &events);
            for (size_t k = 0; k < json_array_size(events.list); k++)
                strcat(joined, text_at(json_array_get(events.list, k), "choices.0.text"));
            http_events_free(&events);
        } else {
            strcat(joined, text_at(r.json, "choices.0.text"));
        }
        c->ok = c->ok && r.status == 200 && strcmp(joined, expected) == 0;
        http_reply_free(&r);
    }
    return NULL;
}

static void test_many(void **state) {
    (void)state;
    struct client clients[24];
    struct scripted_options o = {.parallel = 4, .queue = 64, .choose = choose_by_prompt};
    stage_open(&crowd, &o, NULL, true);
    for (int i = 0; i < 24; i++) {
        clients[i] = (struct client){.index = i};
        assert_int_equal(pthread_create(&clients[i].thread, NULL, run_client, &clients[i]), 0);
    }
    for (int i = 0; i < 24; i++) {
        pthread_join(clients[i].thread, NULL);
        assert_true(clients[i].ok);
    }
    stage_close(&crowd);
}

// ---- the end ----

static void test_health(void **state) {
    (void)state;
    struct stage sick;
    struct http_reply r;
    stage_open(&sick, NULL, NULL, true);
    http_request(sick.port, "GET", "/health", NULL, NULL, &r);
    assert_int_equal(r.status, 200);
    http_reply_free(&r);
    scripted_set_failed(sick.engine);
    http_request(sick.port, "GET", "/health", NULL, NULL, &r);
    assert_int_equal(r.status, 503);
    http_reply_free(&r);
    http_post(sick.port, "/v1/chat/completions", CHAT(), &r);
    assert_int_equal(r.status, 503);
    assert_string_equal(text_at(r.json, "error.code"), "engine_failed");
    http_reply_free(&r);
    stage_close(&sick);
}

static void test_drain(void **state) {
    (void)state;
    struct stage ending;
    struct http_reply r;
    stage_open(&ending, NULL, NULL, true);
    static struct script script;
    script_init(&script);
    script_say(&script, "abc");
    script.token_ns = 100 * MS;
    script_end(&script);
    scripted_set(ending.engine, &script);
    int saved = stage.port;
    stage.port = ending.port;
    int fd = ask(CHAT()), idle = http_connect(ending.port);
    stage.port = saved;
    stage_wait_counts(&ending, 1, 0);
    assert_false(server_idle(ending.server));
    server_drain(ending.server);
    static const char late[] =
        "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"x\"}";
    http_send(idle, late, sizeof late - 1);
    http_read(idle, &r); // refused, or cut off before it was read
    assert_true(r.status == 503 || r.status == 0);
    http_reply_free(&r);
    http_read(fd, &r); // what ran goes on to its end
    assert_int_equal(r.status, 200);
    assert_string_equal(text_at(r.json, "choices.0.message.content"), "abc");
    assert_string_equal(http_header(&r, "Connection"), "close");
    http_reply_free(&r);
    for (int64_t until = clock_ns() + 3000 * MS; !server_idle(ending.server) && clock_ns() < until;)
        clock_sleep_ns(5 * MS);
    assert_true(server_idle(ending.server));
    close(fd);
    close(idle);
    stage_close(&ending);
}

// Stopping with requests in every phase ends them all.
static void test_stop(void **state) {
    (void)state;
    struct stage ending;
    struct http_reply r[4];
    int fds[4], saved = stage.port;
    struct scripted_options o = {.parallel = 1};
    stage_open(&ending, &o, NULL, true);
    static struct script script;
    script_init(&script);
    script_say(&script, "abc");
    script.token_ns = 50 * MS;
    scripted_set(ending.engine, &script);
    stage.port = ending.port;
    for (int i = 0; i < 4; i++) fds[i] = ask(i % 2 == 0 ? CHAT() : CHAT(STREAM));
    stage.port = saved;
    stage_wait_counts(&ending, 1, 3);
    int64_t start = clock_ns();
    stage_close(&ending);
    assert_true(clock_ns() - start < 2000 * MS);
    for (int i = 0; i < 4; i++) {
        http_read(fds[i], &r[i]);
        assert_true(r[i].status == 0 || r[i].truncated);
        http_reply_free(&r[i]);
        close(fds[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keep_alive), cmocka_unit_test(test_leaving),  cmocka_unit_test(test_leaving_unread),
        cmocka_unit_test(test_full_queue), cmocka_unit_test(test_failures), cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_many),       cmocka_unit_test(test_health),   cmocka_unit_test(test_drain),
        cmocka_unit_test(test_stop),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
