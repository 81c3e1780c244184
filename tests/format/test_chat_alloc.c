// Compiling templates, loading one and rendering prompts when any one allocation fails: an error, no crash, no leak.
#include "base/mapped_file.h"
#include "format/chat.h"
#include "format/json.h"
#include "tests/alloc_fail.h"
#include "tests/format/folder.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const char messages_text[] = "[{\"role\": \"system\", \"content\": \"a\"}, {\"role\": \"developer\", "
                                    "\"content\": [{\"type\": \"text\", \"text\": \"b\"}]},"
                                    " {\"role\": \"user\", \"content\": \"c\"}, {\"role\": \"assistant\", "
                                    "\"reasoning_content\": \"t\", \"tool_calls\": [{\"id\": \"x\","
                                    " \"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": "
                                    "\"{\\\"k\\\": [1, 2.5, null]}\"}}, {\"function\": {\"name\":"
                                    " \"g\", \"arguments\": \"{\"}}]}, {\"role\": \"tool\", \"content\": \"r\"}, "
                                    "{\"role\": \"system\", \"content\": \"late\"},"
                                    " {\"role\": \"assistant\", \"content\": \"to continue\"}]";
static const char no_user_text[] = "[{\"role\": \"tool\", \"content\": \"r\"}]";
static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\"}}}]";

static json_t *parse(const char *text) {
    json_t *v = NULL;
    assert_int_equal(json_parse(text, strlen(text), SIZE_MAX, 0, &v, NULL), STATUS_OK);
    return v;
}

static void sweep_render(const struct chat_template *t, const char *text) {
    json_t *messages = parse(text), *tools = parse(tools_text), *kwargs = parse("{\"preserve_thinking\": true}");
    struct chat_options o = {.kwargs = kwargs, .enable_thinking = CHAT_ON, .now_s = 1};
    long n = 1;
    for (;; n++) {
        struct chat_prompt p = {0};
        struct error e = {0};
        alloc_fail_at(n);
        enum status status = chat_render(t, messages, tools, &o, &p, &e);
        bool failed = alloc_failed();
        alloc_fail_off();
        if (failed && status != STATUS_MEMORY) fail_msg("allocation %ld failed and the status is %d", n, status);
        if (!failed) assert_int_equal(status, STATUS_OK);
        if (failed) assert_int_equal(e.code, STATUS_MEMORY);
        assert_true(failed == !p.text.n_spans);
        chat_prompt_free(&p);
        if (!failed) break;
    }
    assert_true(n > 20);
    json_decref(messages);
    json_decref(tools);
    json_decref(kwargs);
}

static void test_render(void **state) {
    (void)state;
    static const char *const names[] = {"qwen3.6", "qwen3.8", "types"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[128], *source;
        size_t n;
        struct chat_template *t = NULL;
        snprintf(path, sizeof path, "tests/fixtures/chat/%s.jinja", names[i]);
        assert_int_equal(file_read(path, SIZE_MAX, &source, &n, NULL), STATUS_OK);
        assert_int_equal(chat_template_create(source, n, NULL, &t, NULL), STATUS_OK);
        free(source);
        sweep_render(t, messages_text);
        sweep_render(t, no_user_text);
        chat_template_free(t);
    }
}

static void test_load(void **state) {
    (void)state;
    struct folder f = folder_create();
    folder_write_text(
        &f, "tokenizer_config.json",
        "{\"bos_token\": \"<s>\", \"additional_special_tokens\": [\"<a>\"], \"chat_template\": [{\"name\": \"default\","
        " \"template\": \"{% macro m(a=1) %}{{ a|upper }}{% endmacro %}{% for x in messages %}{{ x.content ~ m() }}{% "
        "endfor %}\"},"
        " {\"name\": \"tool_use\", \"template\": \"{% set ns = namespace(a=[1]) %}{{ tools|tojson(indent=1) }}\"}]}");
    for (long n = 1;; n++) {
        struct chat_template *t = NULL;
        alloc_fail_at(n);
        enum status status = chat_template_load(f.path, NULL, &t, NULL);
        bool failed = alloc_failed();
        alloc_fail_off();
        if (failed && status != STATUS_MEMORY) fail_msg("allocation %ld failed and the status is %d", n, status);
        if (!failed) assert_int_equal(status, STATUS_OK);
        assert_true(failed == !t);
        chat_template_free(t);
        if (!failed) break;
    }
    folder_remove(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_render), cmocka_unit_test(test_load)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
