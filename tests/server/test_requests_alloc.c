// Every allocation between a request's bytes and its reply's text, failed in turn: no crash, no leak, an error that
// says so.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/server/scripted_engine.h"
#include "tests/server/scripted_tokenizer.h"
#include "server/fields.h"
#include "server/prompt.h"
#include "server/reply.h"
#include "server/structured.h"
#include "server/translate.h"
#include "tests/alloc_fail.h"
#include <stdlib.h>
#include <string.h>

static struct tokenizer *tok;
static struct model_config config = {.n_vocab = 320, .n_eos = 1, .eos_ids = {1}};
static struct engine_info info = {.config = &config, .context = 4096, .max_tokens = 64};
static struct server_options options = {.name = "x", .sampling = {.temperature = 1, .top_p = 1, .repetition = 1}};
static struct service service = {.options = &options, .info = &info, .n_vocab = 320};

static void *take_memory(size_t n) { return malloc(n); }
static void give_memory(void *p) { free(p); }

static int setup(void **state) {
    (void)state;
    json_set_alloc_funcs(take_memory, give_memory);
    json_object_seed(1);
    info.tokenizer = tok = scripted_tokenizer();
    options.chat = scripted_template(true);
    service.vocabulary = vocabulary_slot_create();
    return service.vocabulary != NULL ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    vocabulary_slot_free(service.vocabulary);
    tokenizer_free(tok);
    chat_template_free((struct chat_template *)options.chat);
    return 0;
}

static enum status read_reply(const struct request_fields *f, const struct prompt *p) {
    struct toolcall_options parser = {
        .starts_in_think = p->starts_in_think, .may_think = p->may_think, .tools = p->tools};
    struct reply_options o = {.tokenizer = tok, .stop = &f->stop, .parser = &parser, .places = true};
    static const char text[] =
        "hm</think>\n\nOK <tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>";
    struct reply *r;
    struct error e;
    enum status status = reply_create(&o, &r, &e);
    if (status != STATUS_OK) return status;
    bool ended = false;
    for (size_t i = 0; text[i] != 0 && status == STATUS_OK && !ended; i++)
        status = reply_feed(r, (unsigned char)text[i], &ended);
    if (status == STATUS_OK) status = reply_finish(r);
    reply_free(r);
    return status;
}

// The whole way, on which the n-th allocation fails; true when none did. jansson's lexer does not survive that its
// buffer cannot grow, which it does for words of 14 letters or more: bodies with such names are parsed before.
static bool work(enum route_id route, const char *text, long n, struct api_error *api) {
    struct error e = {0};
    json_t *body;
    struct request_fields f;
    struct prompt p;
    bool long_words = route == ROUTE_MESSAGES || route == ROUTE_RESPONSES;
    if (!long_words) alloc_fail_at(n);
    if (json_parse(text, strlen(text), strlen(text), JSON_PARSE_DEFAULT, &body, &e) != STATUS_OK)
        return api_refuse_error(api, &e);
    if (long_words) alloc_fail_at(n);
    bool ok = fields_read(&service, route, body, &f, api);
    if (ok) {
        ok = translate_fields(&service, route, &f, api) &&
             (route != ROUTE_COMPLETIONS ? prompt_from_messages(&service, &f, &p, api)
                                         : prompt_from_text(&service, &f, &p, api));
        if (ok) {
            struct masker *masker = NULL;
            bool calls_first;
            ok = structured_open(&service, route, &f, &p, &masker, &calls_first, api);
            masker_free(masker);
            enum status status = ok ? read_reply(&f, &p) : STATUS_OK;
            if (status != STATUS_OK) ok = api_refuse_error(api, &(struct error){.code = status});
            prompt_free(&p);
        }
        fields_free(&f);
    }
    json_decref(body);
    return ok;
}

static void sweep(enum route_id route, const char *text) {
    for (long n = 1;; n++) {
        struct api_error e = {0};
        bool ok = work(route, text, n, &e);
        bool failed = alloc_failed();
        alloc_fail_off();
        if (!failed) {
            assert_true(ok);
            assert_true(n > 10);
            return;
        }
        // jansson drops members of what it copies without saying so; the request then looks malformed.
        if (!ok && e.http != 503 && e.http != 400) fail_msg("allocation %ld: %u %s", n, e.http, e.text);
    }
}

static void test_chat(void **state) {
    (void)state;
    sweep(
        ROUTE_CHAT,
        "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":[{\"type\":\"text\","
        "\"text\":"
        "\"Hi\"}]},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"c\",\"type\":\"function\","
        "\"function\":"
        "{\"name\":\"add\",\"arguments\":\"{\\\"a\\\":1}\"}}]},{\"role\":\"tool\",\"content\":\"1\"}],\"tools\":[{"
        "\"type\":"
        "\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"properties\":{\"a\":{\"type\":\"integer\"}}}}}],"
        "\"stop\":[\"END\",\"\\n\\n\\n\"],\"logit_bias\":{\"5\":1}}");
    sweep(ROUTE_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],\"response_format\":{\"type\":"
                      "\"json_schema\",\"json_schema\":{\"schema\":{\"properties\":{\"a\":{\"enum\":[1,2]}}}}},"
                      "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true}}]}");
}

static void test_completion(void **state) {
    (void)state;
    sweep(ROUTE_COMPLETIONS, "{\"prompt\":\"a text of some words\",\"stop\":\"END\"}");
    sweep(ROUTE_COMPLETIONS, "{\"prompt\":[1,2,3,4,5,6,7,8],\"logit_bias\":{\"5\":1,\"6\":2}}");
}

static void test_messages(void **state) {
    (void)state;
    sweep(ROUTE_MESSAGES, "{\"system\":[{\"type\":\"text\",\"text\":\"S\"},{\"type\":\"text\",\"text\":\"T\"}],"
                          "\"thinking\":{\"type\":\"adaptive\"},"
                          "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"role\":\"assistant\",\"content\":[{"
                          "\"type\":\"thinking\","
                          "\"thinking\":\"hm\"},{\"type\":\"tool_use\",\"id\":\"t\",\"name\":\"add\",\"input\":{\"a\":"
                          "1}}]},{\"role\":\"user\","
                          "\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":\"t\",\"is_error\":true,\"content\":"
                          "\"1\"},{\"type\":\"text\","
                          "\"text\":\"so\"}]}],\"tools\":[{\"name\":\"add\",\"description\":\"adds\",\"input_schema\":{"
                          "}}],\"tool_choice\":{\"type\":"
                          "\"auto\"},\"stop_sequences\":[\"END\"]}");
}

static void test_responses(void **state) {
    (void)state;
    sweep(ROUTE_RESPONSES,
          "{\"instructions\":\"S\",\"reasoning\":{\"effort\":\"low\"},\"input\":[{\"role\":\"user\",\"content\":[{"
          "\"type\":"
          "\"input_text\",\"text\":\"Hi\"}]},{\"type\":\"reasoning\",\"content\":[{\"type\":\"reasoning_text\","
          "\"text\":\"hm\"}]},"
          "{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"add\",\"arguments\":\"{}\"},{\"type\":\"function_"
          "call_output\","
          "\"call_id\":\"c\",\"output\":\"1\"},{\"role\":\"assistant\",\"content\":\"One.\"},{\"role\":\"user\","
          "\"content\":\"so\"}],"
          "\"tools\":[{\"type\":\"function\",\"name\":\"add\",\"parameters\":{}}],\"tool_choice\":\"auto\"}");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat),
        cmocka_unit_test(test_completion),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_responses),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
