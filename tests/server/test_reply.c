// Ids to deltas, without HTTP: cases C21, C23, C31, C33, C35, C37, and where log probabilities go.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "base/buffer.h"
#include "tests/server/scripted_engine.h"
#include "tests/server/scripted_tokenizer.h"
#include "server/reply.h"
#include <string.h>

static struct tokenizer *tok;

static int setup(void **state) {
    (void)state;
    tok = scripted_tokenizer();
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tokenizer_free(tok);
    return 0;
}

// A reply as a line: "r:..." reasoning, "c:..." content, "f0:name" and "a0:..." calls, joined over deltas.
struct told {
    struct buffer line;
    struct reply_totals totals;
    int last_kind;
};

static void tell(struct told *t, const struct reply *r) {
    for (size_t i = 0; i < reply_count_deltas(r); i++) {
        struct delta d = reply_get_delta(r, i);
        int kind = (int)d.kind * 16 + (int)d.call;
        if (kind != t->last_kind || d.kind == DELTA_CALL) {
            if (d.kind == DELTA_REASONING) buffer_append_text(&t->line, "|r:");
            if (d.kind == DELTA_CONTENT) buffer_append_text(&t->line, "|c:");
            if (d.kind == DELTA_CALL) buffer_printf(&t->line, "|f%zu:", d.call);
            if (d.kind == DELTA_ARGUMENTS) buffer_printf(&t->line, "|a%zu:", d.call);
        }
        t->last_kind = kind;
        buffer_append(&t->line, d.text, d.n);
    }
}

static struct told run(const int32_t *ids, int32_t n, const struct reply_options *options) {
    struct told t = {.last_kind = -1};
    struct error e;
    struct reply *r;
    buffer_init(&t.line, 0);
    assert_int_equal(reply_create(options, &r, &e), STATUS_OK);
    bool ended = false;
    for (int32_t i = 0; i < n && !ended; i++) {
        assert_int_equal(reply_feed(r, ids[i], &ended), STATUS_OK);
        tell(&t, r);
        reply_clear(r);
    }
    assert_int_equal(reply_finish(r), STATUS_OK);
    tell(&t, r);
    t.totals = reply_get_totals(r);
    reply_free(r);
    if (t.line.n == 0) buffer_append_text(&t.line, "|");
    return t;
}

static struct reply_totals expect_text(const char *text, const char *stop, const struct toolcall_options *parser,
                                       const char *expected) {
    static struct script script;
    script_init(&script);
    script_say(&script, text);
    json_t *list = stop != NULL ? json_string(stop) : NULL;
    struct json_view view = json_root(list);
    struct reply_options o = {.tokenizer = tok, .stop = list != NULL ? &view : NULL, .parser = parser, .places = true};
    struct told t = run(script.ids, script.n, &o);
    assert_string_equal(t.line.data, expected);
    buffer_free(&t.line);
    json_decref(list);
    return t.totals;
}

static void expect_ids(const int32_t *ids, int32_t n, const char *expected) {
    struct reply_options o = {.tokenizer = tok};
    struct told t = run(ids, n, &o);
    assert_string_equal(t.line.data, expected);
    buffer_free(&t.line);
}

#define EXPECT_IDS(expected, ...)                                                                                      \
    expect_ids((const int32_t[]){__VA_ARGS__}, sizeof((int32_t[]){__VA_ARGS__}) / 4, expected)

static void test_split_characters(void **state) { // C21
    (void)state;
    EXPECT_IDS("|c:\xf0\x9f\x98\x80", ID_F09F, ID_9880);
    EXPECT_IDS("|c:a\xe5\x8c\x97z", 'a', ID_E58C, 0x97, 'z');
    EXPECT_IDS("|c:a\xe5\x8c\x97z", 'a', 0xe5, 0x8c, 0x97, 'z');
    EXPECT_IDS("|c:a\xef\xbf\xbd", 'a', ID_F09F);                      // ends inside a character: once, at the end
    EXPECT_IDS("|c:\xef\xbf\xbdgo on", 0xff, 'g', 'o', ' ', 'o', 'n'); // invalid bytes stall nothing
}

static void test_stop_strings(void **state) { // C23
    (void)state;
    struct reply_totals t = expect_text("and ST", "STOP!", NULL, "|c:and ST");
    assert_false(t.stopped);
    t = expect_text("and STOP! more", "STOP!", NULL, "|c:and ");
    assert_true(t.stopped);
    assert_int_equal(t.n_fed, 9);
    t = expect_text("STOP!", "STOP!", NULL, "|");
    assert_true(t.stopped);
}

// An id that reaches into the stop string counts as shown; those wholly inside it do not.
static void test_shown_tokens(void **state) {
    (void)state;
    struct reply_totals t = expect_text("and STOP! more", "STOP!", NULL, "|c:and ");
    assert_int_equal(t.n_shown, 4);
    const int32_t ids[] = {'a', 'S', 'T', ID_STOP_TAIL};
    json_t *stop = json_string("STOP!");
    struct json_view view = json_root(stop);
    struct reply_options o = {.tokenizer = tok, .places = true};
    struct told told = run(ids, 4, &o);
    assert_string_equal(told.line.data, "|c:aSTOP! and");
    assert_int_equal(told.totals.n_shown, 4);
    buffer_free(&told.line);
    o.stop = &view;
    told = run(ids, 4, &o);
    assert_string_equal(told.line.data, "|c:a");
    assert_int_equal(told.totals.n_shown, 1);
    buffer_free(&told.line);
    json_decref(stop);
}

static void test_cut_thought(void **state) { // C31
    (void)state;
    struct toolcall_options p = {.starts_in_think = true};
    struct reply_totals t = expect_text("I wonder", NULL, &p, "|r:I wonder");
    assert_int_equal(t.n_reasoning, 8);
    t = expect_text("I wonder\n</think>\n\nYes.", NULL, &p, "|r:I wonder|c:Yes.");
    assert_int_equal(t.n_reasoning, 8 + 1 + 1 + 2);
    t = expect_text("Yes.", NULL, &(struct toolcall_options){.may_think = true}, "|c:Yes.");
    assert_int_equal(t.n_reasoning, 0);
}

static json_t *tools_of(void) {
    return json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"type\":\"object\","
                      "\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}}}}}]",
                      0, NULL);
}

static void test_literal_tags(void **state) { // C33
    (void)state;
    json_t *tools = tools_of();
    struct toolcall_options on = {.tools = tools}, off = {0};
    static const char *const texts[] = {"The literal token `<tool_call>` is a tag.", "<tool_call>",
                                        "<tool_call>\nnot a call",
                                        "<tool_call>\n{\"name\": \"other\", \"arguments\": {}}\n</tool_call>"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        char expected[256];
        snprintf(expected, sizeof expected, "|c:%s", texts[i]);
        expect_text(texts[i], NULL, &on, expected);
        expect_text(texts[i], NULL, &off, expected);
    }
    expect_text("<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>", NULL, &off,
                "|c:<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>");
    json_decref(tools);
}

#define CALL(a) "<function=add>\n<parameter=a>\n" a "\n</parameter>\n</function>"

static void test_calls(void **state) { // C35, C37
    (void)state;
    json_t *tools = tools_of();
    struct toolcall_options p = {.tools = tools};
    struct reply_totals t =
        expect_text("Sure.\n<tool_call>\n" CALL("1") "\n</tool_call>\n<tool_call>\n" CALL("2") "\n</tool_call>", NULL,
                    &p, "|c:Sure.|f0:add|a0:{\"a\": 1}|f1:add|a1:{\"a\": 2}");
    assert_int_equal(t.n_calls, 2);
    assert_false(t.truncated);
    t = expect_text(CALL("1"), NULL, &p, "|f0:add|a0:{\"a\": 1}"); // no <tool_call>
    assert_int_equal(t.n_calls, 1);
    t = expect_text("<tool_call>\n<function=add>\n<parameter=b>\nlong te", NULL, &p, "|f0:add|a0:{\"b\": \"long te\"}");
    assert_true(t.truncated);
    json_decref(tools);
}

static void test_one_call(void **state) {
    (void)state;
    json_t *tools = tools_of();
    struct toolcall_options p = {.tools = tools, .one_call = true};
    struct reply_totals t =
        expect_text("<tool_call>\n" CALL("1") "\n</tool_call>\n<tool_call>\n" CALL("2") "\n</tool_call>", NULL, &p,
                    "|f0:add|a0:{\"a\": 1}");
    assert_int_equal(t.n_calls, 1);
    assert_false(t.truncated);
    json_decref(tools);
}

static void test_no_tokenizer(void **state) {
    (void)state;
    struct reply_options o = {.places = true};
    const int32_t ids[] = {1, 2, 3};
    struct told t = run(ids, 3, &o);
    assert_string_equal(t.line.data, "|");
    assert_int_equal(t.totals.n_fed, 3);
    assert_int_equal(t.totals.n_shown, 3);
    buffer_free(&t.line);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_characters), cmocka_unit_test(test_stop_strings),
        cmocka_unit_test(test_shown_tokens),     cmocka_unit_test(test_cut_thought),
        cmocka_unit_test(test_literal_tags),     cmocka_unit_test(test_calls),
        cmocka_unit_test(test_one_call),         cmocka_unit_test(test_no_tokenizer),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
