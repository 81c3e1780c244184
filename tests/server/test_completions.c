// Completions, /tokenize and /detokenize: cases C19 (the switch), C41 in the older form, C45, C47, C57.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/server/stage.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONTEXT 4096

static struct stage stage;

static int setup(void **state) {
    (void)state;
    stage_open(&stage, NULL, NULL, true);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    stage_close(&stage);
    return 0;
}

static void expect(const char *path, const char *body, int status, const char *code, const char *param) {
    struct http_reply r;
    http_post(stage.port, path, body, &r);
    if (r.status != status) fail_msg("%.200s: %d %s", body, r.status, r.body.n > 0 ? r.body.data : "");
    if (code != NULL) assert_string_equal(text_at(r.json, "error.code"), code);
    if (param != NULL) assert_string_equal(text_at(r.json, "error.param"), param);
    http_reply_free(&r);
}

static void test_prompts(void **state) { // C47
    (void)state;
    static const char path[] = "/v1/completions";
    expect(path, "{\"prompt\":\"\"}", 400, NULL, NULL);
    expect(path, "{\"prompt\":[\"\"]}", 400, NULL, NULL);
    expect(path, "{\"prompt\":[]}", 400, NULL, "prompt");
    expect(path, "{\"prompt\":[[]]}", 400, NULL, "prompt[0]");
    expect(path, "{\"prompt\":[0,320]}", 400, NULL, "prompt[1]");
    expect(path, "{\"prompt\":[-1]}", 400, NULL, "prompt[0]");
    expect(path, "{\"prompt\":[1,\"a\"]}", 400, NULL, "prompt[1]");
    expect(path, "{\"prompt\":[1,null]}", 400, NULL, "prompt[1]");
    expect(path, "{\"prompt\":[1,2.5]}", 400, NULL, "prompt[1]");
    expect(path, "{\"prompt\":[[1],[2]]}", 400, "unsupported", "prompt");
    expect(path, "{\"prompt\":[\"a\",\"b\"]}", 400, "unsupported", "prompt");
    expect(path, "{\"prompt\":{}}", 400, NULL, "prompt");
    expect(path, "{\"prompt\":7}", 400, NULL, "prompt");
    expect(path, "{\"prompt\":null}", 400, NULL, "prompt");
    expect(path, "{}", 400, NULL, "prompt");
    expect(path, "{\"prompt\":\"a\"}", 200, NULL, NULL);
    expect(path, "{\"prompt\":[\"a\"]}", 200, NULL, NULL);
    expect(path, "{\"prompt\":[0,319]}", 200, NULL, NULL);
    expect(path, "{\"prompt\":[[1,2]]}", 200, NULL, NULL);
}

// prompt_token ids, `n` of them.
static void expect_length(size_t n, const char *extra, int status) {
    struct buffer b;
    buffer_init(&b, 0);
    buffer_append_text(&b, "{\"prompt\":[");
    for (size_t i = 0; i < n; i++) buffer_append_text(&b, i > 0 ? ",7" : "7");
    buffer_printf(&b, "]%s}", extra);
    expect("/v1/completions", b.data, status, status == 400 ? "context_length_exceeded" : NULL, NULL);
    buffer_free(&b);
}

static void test_lengths(void **state) { // C45, C57
    (void)state;
    stage_say(&stage, "x");
    static const char *const forms[] = {"", ",\"stream\":true"};
    for (size_t i = 0; i < 2; i++) {
        expect_length(CONTEXT - 1, forms[i], 200);
        expect_length(CONTEXT, forms[i], 400);
        expect_length(CONTEXT + 1, forms[i], 400);
        expect_length(10 * CONTEXT, forms[i], 400);
        expect_length(1000000, forms[i], 400);
    }
    expect_length(96, ",\"max_tokens\":4000", 200);
    expect_length(97, ",\"max_tokens\":4000", 400);
    expect_length(1, ",\"max_tokens\":2147483647", 400);
    expect_length(1, ",\"max_tokens\":4294967296", 400);
    expect_length(1, ",\"max_tokens\":9223372036854775807", 400);
    expect_length(1, ",\"max_tokens\":100000000", 400);
    struct http_reply r;
    struct buffer b;
    buffer_init(&b, 0);
    buffer_append_text(&b, "{\"prompt\":\"");
    for (int i = 0; i < 10 * CONTEXT; i++) buffer_append_text(&b, "a");
    buffer_append_text(&b, "\"}");
    http_post(stage.port, "/v1/completions", b.data, &r);
    assert_int_equal(r.status, 400);
    assert_string_equal(text_at(r.json, "error.code"), "context_length_exceeded");
    assert_non_null(strstr(text_at(r.json, "error.message"), "40960"));
    assert_non_null(strstr(text_at(r.json, "error.message"), "4096"));
    http_reply_free(&r);
    buffer_free(&b);
}

static json_t *tokens_of(const char *body) {
    struct http_reply r;
    http_post(stage.port, "/tokenize", body, &r);
    assert_int_equal(r.status, 200);
    assert_int_equal(int_at(r.json, "count"), json_array_size(json_at(r.json, "tokens")));
    json_t *tokens = json_incref((json_t *)json_at(r.json, "tokens"));
    http_reply_free(&r);
    return tokens;
}

static void test_special_switch(void **state) { // C19
    (void)state;
    stage_say(&stage, "x");
    json_t *plain = tokens_of("{\"prompt\":\"a<|im_end|>\"}");
    assert_int_equal(json_array_size(plain), 11);
    json_t *special = tokens_of("{\"prompt\":\"a<|im_end|>\",\"parse_special\":true}");
    assert_int_equal(json_array_size(special), 2);
    assert_int_equal(int_at(special, "1"), scripted_id(stage.engine, "<|im_end|>"));
    json_decref(plain);
    json_decref(special);
    expect("/v1/completions", "{\"prompt\":\"a<|im_end|>\"}", 200, NULL, NULL);
    assert_int_equal(scripted_last_params(stage.engine)->n_prompt, 11);
    expect("/v1/completions", "{\"prompt\":\"a<|im_end|>\",\"parse_special\":true}", 200, NULL, NULL);
    assert_int_equal(scripted_last_params(stage.engine)->n_prompt, 2);
}

static void test_tokenize(void **state) {
    (void)state;
    json_t *a = tokens_of("{\"content\":\"h\xc3\xa9\"}"), *none = tokens_of("{\"prompt\":\"\"}");
    assert_int_equal(json_array_size(a), 3);
    assert_int_equal(json_array_size(none), 0);
    json_decref(a);
    json_decref(none);
    expect("/tokenize", "{}", 400, NULL, NULL);
    expect("/tokenize", "{\"prompt\":\"x\",\"messages\":[]}", 400, NULL, NULL);
    json_t *asks = tokens_of("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}");
    json_t *ends = tokens_of("{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"add_generation_prompt\":false}");
    assert_true(json_array_size(asks) > json_array_size(ends));
    json_decref(asks);
    json_decref(ends);
}

static void expect_content(const char *body, const char *content) {
    struct http_reply r;
    http_post(stage.port, "/detokenize", body, &r);
    assert_int_equal(r.status, 200);
    assert_string_equal(text_at(r.json, "content"), content);
    assert_string_equal(text_at(r.json, "prompt"), content);
    http_reply_free(&r);
}

static void test_detokenize(void **state) {
    (void)state;
    expect_content("{\"tokens\":[]}", "");
    expect_content("{\"tokens\":[104,195,169,302]}", "h\xc3\xa9<|im_end|>");
    expect_content("{\"tokens\":[104,195,169,302],\"skip_special_tokens\":true}", "h\xc3\xa9");
    expect_content("{\"tokens\":[240]}", "\xef\xbf\xbd");
    expect("/detokenize", "{\"tokens\":[320]}", 400, NULL, "tokens[0]");
    expect("/detokenize", "{\"tokens\":\"x\"}", 400, NULL, "tokens");
    expect("/detokenize", "{}", 400, NULL, "tokens");
}

static void test_text(void **state) {
    (void)state;
    struct http_reply whole, streamed;
    struct http_events events;
    stage_say(&stage, "<think>raw</think> text STOP");
    http_post(stage.port, "/v1/completions", "{\"prompt\":\"p\",\"stop\":\"STOP\"}", &whole);
    assert_string_equal(text_at(whole.json, "object"), "text_completion");
    assert_string_equal(text_at(whole.json, "choices.0.text"), "<think>raw</think> text ");
    assert_string_equal(text_at(whole.json, "choices.0.finish_reason"), "stop");
    assert_memory_equal(text_at(whole.json, "id"), "cmpl-", 5);
    http_post(stage.port, "/v1/completions", "{\"prompt\":\"p\",\"stop\":\"STOP\",\"stream\":true}", &streamed);
    http_events(&streamed, &events);
    assert_true(events.done);
    char joined[256] = "";
    for (size_t i = 0; i < json_array_size(events.list); i++)
        strcat(joined, text_at(json_array_get(events.list, i), "choices.0.text"));
    assert_string_equal(joined, text_at(whole.json, "choices.0.text"));
    http_events_free(&events);
    http_reply_free(&whole);
    http_reply_free(&streamed);
}

static void test_logprobs(void **state) {
    (void)state;
    static struct script script;
    struct http_reply r;
    script_init(&script);
    script_say(&script, "\xc3\xa9");
    script_add(&script, ID_F09F);
    script_add(&script, ID_9880);
    script_say(&script, "z");
    script_end(&script);
    scripted_set(stage.engine, &script);
    http_post(stage.port, "/v1/completions", "{\"prompt\":\"p\",\"logprobs\":2}", &r);
    const json_t *l = json_at(r.json, "choices.0.logprobs");
    static const char *const names[] = {"bytes:\\xc3", "bytes:\\xa9", "bytes:\\xf0\\x9f", "bytes:\\x98\\x80", "z"};
    static const int offsets[] = {0, 0, 1, 1, 2};
    assert_int_equal(json_array_size(json_at(l, "tokens")), 5);
    for (size_t i = 0; i < 5; i++) {
        assert_string_equal(json_string_value(json_array_get(json_at(l, "tokens"), i)), names[i]);
        assert_int_equal(json_integer_value(json_array_get(json_at(l, "text_offset"), i)), offsets[i]);
        assert_true(json_is_real(json_array_get(json_at(l, "token_logprobs"), i)));
        assert_int_equal(json_object_size(json_array_get(json_at(l, "top_logprobs"), i)), 2);
    }
    http_reply_free(&r);
    http_post(stage.port, "/v1/completions", "{\"prompt\":\"p\",\"logprobs\":0}", &r);
    assert_true(json_is_null(json_at(r.json, "choices.0.logprobs.top_logprobs")));
    http_reply_free(&r);
}

static void test_no_tokenizer(void **state) {
    (void)state;
    struct stage bare;
    struct http_reply r;
    struct scripted_options o = {.no_tokenizer = true};
    stage_open(&bare, &o, NULL, true);
    http_post(bare.port, "/v1/completions",
              "{\"prompt\":[5,6],\"return_token_ids\":true,\"max_tokens\":3,\"logprobs\":1}", &r);
    assert_int_equal(r.status, 200);
    assert_string_equal(text_at(r.json, "choices.0.text"), "");
    assert_int_equal(json_array_size(json_at(r.json, "choices.0.token_ids")), 3);
    http_reply_free(&r);
    static const char *const refused[] = {"{\"prompt\":\"x\"}", "{\"prompt\":[5],\"stop\":\"x\"}"};
    for (size_t i = 0; i < 2; i++) {
        http_post(bare.port, "/v1/completions", refused[i], &r);
        assert_int_equal(r.status, 400);
        http_reply_free(&r);
    }
    http_post(bare.port, "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}", &r);
    assert_int_equal(r.status, 400);
    http_reply_free(&r);
    stage_close(&bare);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts),  cmocka_unit_test(test_lengths),      cmocka_unit_test(test_special_switch),
        cmocka_unit_test(test_tokenize), cmocka_unit_test(test_detokenize),   cmocka_unit_test(test_text),
        cmocka_unit_test(test_logprobs), cmocka_unit_test(test_no_tokenizer),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
