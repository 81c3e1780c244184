// The table of fields: cases C09, C25, C43, C45, C49, C53 and C55. Every bad value is asked for on every route that has
// the field, and must be refused with the same words.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/server/scripted_engine.h"
#include "server/fields.h"
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static struct engine *engine;
static struct server_options options;
static struct service service;

static const char *const aliases[] = {"other"};

static int setup(void **state) {
    (void)state;
    engine = scripted_create(NULL);
    options = (struct server_options){.engine = engine,
                                      .name = "scripted",
                                      .aliases = aliases,
                                      .n_aliases = 1,
                                      .sampling = {.temperature = 0.6, .top_p = 0.95, .repetition = 1, .top_k = 20}};
    return service_init(&service, &options, NULL) == STATUS_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    service_destroy(&service);
    engine_free(engine);
    return 0;
}

static json_t *body_of(enum route_id route, const char *member) {
    char text[4096];
    bool is_chat = route == ROUTE_CHAT || route == ROUTE_MESSAGES;
    const char *own = is_chat                    ? "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"
                      : route == ROUTE_RESPONSES ? "\"input\":\"Hi\""
                                                 : "\"prompt\":\"Hi\"";
    snprintf(text, sizeof text, "{%s%s%s}", own, *member != 0 ? "," : "", member);
    json_t *body = json_loads(text, 0, NULL);
    if (body == NULL) fail_msg("not JSON: %s", text);
    return body;
}

static bool read_member(enum route_id route, const char *member, struct request_fields *f, struct api_error *e) {
    json_t *body = body_of(route, member);
    bool ok = fields_read(&service, route, body, f, e);
    if (ok) fields_free(f);
    json_decref(body); // only numbers and switches are looked at afterwards
    return ok;
}

static void accept(enum route_id route, const char *member, struct request_fields *f) {
    struct api_error e;
    if (!read_member(route, member, f, &e)) fail_msg("%s was refused: %s", member, e.text);
}

static void refuse_on(enum route_id route, const char *member, unsigned http, struct api_error *e) {
    struct request_fields f;
    if (read_member(route, member, &f, e)) fail_msg("%s was accepted", member);
    if (e->http != http) fail_msg("%s was refused with %u: %s", member, e->http, e->text);
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(member + 1, "\""), member + 1);
    if (http == 400 && strstr(e->text, name) == NULL)
        fail_msg("%s: the sentence does not name the field: %s", member, e->text);
}

// The same 400 on every route that generates, but where it does not know the field (C09).
static void refuse(const char *member) {
    static const enum route_id others[] = {ROUTE_COMPLETIONS, ROUTE_RESPONSES, ROUTE_MESSAGES};
    struct api_error a, b;
    refuse_on(ROUTE_CHAT, member, 400, &a);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        refuse_on(others[i], member, 400, &b);
        bool is_unknown = b.code != NULL && strcmp(b.code, "unknown_field") == 0;
        if ((is_unknown && others[i] != ROUTE_COMPLETIONS) || strstr(a.text, "use response_format") != NULL) continue;
        assert_string_equal(a.text, b.text);
        assert_string_equal(a.param, b.param);
    }
}

static const char *const bad_values[] = {
    "\"model\":\"\"",
    "\"model\":7",
    "\"stream\":\"yes\"",
    "\"stream\":1",
    "\"temperature\":-0.1",
    "\"temperature\":2.1",
    "\"temperature\":\"1\"",
    "\"temperature\":true",
    "\"top_p\":2",
    "\"top_p\":-1",
    "\"top_k\":-2",
    "\"top_k\":1.5",
    "\"top_k\":4294967296",
    "\"min_p\":1.01",
    "\"repetition_penalty\":0",
    "\"presence_penalty\":2.5",
    "\"frequency_penalty\":-2.5",
    "\"frequency_penalty\":[]",
    "\"max_tokens\":0",
    "\"max_tokens\":-1",
    "\"max_tokens\":1.0",
    "\"max_tokens\":\"10\"",
    "\"seed\":-1",
    "\"seed\":1.5",
    "\"seed\":\"x\"",
    "\"n\":0",
    "\"n\":2",
    "\"n\":5",
    "\"n\":\"1\"",
    "\"best_of\":2",
    "\"echo\":true",
    "\"suffix\":\"end\"",
    "\"stream_options\":{\"include_usage\":true}",
    "\"stream\":true,\"stream_options\":{\"include_usage\":\"yes\"}",
    "\"stream\":true,\"stream_options\":[]",
    "\"stream\":true,\"stream_options\":{\"more\":1}",
    "\"stop\":\"\"",
    "\"stop\":[\"\"]",
    "\"stop\":[\"\",\"x\"]",
    "\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]",
    "\"stop\":7",
    "\"stop\":[7]",
    "\"stop\":[null]",
    "\"stop\":{}",
    "\"logit_bias\":[]",
    "\"logit_bias\":{\"x\":1}",
    "\"logit_bias\":{\"-1\":1}",
    "\"logit_bias\":{\"99999\":1}",
    "\"logit_bias\":{\"05\":1}",
    "\"logit_bias\":{\"5\":101}",
    "\"logit_bias\":{\"5\":\"1\"}",
    "\"logit_bias\":{\"5\":null}",
    "\"logprobs\":\"yes\"",
    "\"logprobs\":1.5",
    "\"ignore_eos\":1",
    "\"draft\":\"no\"",
    "\"return_token_ids\":0",
    "\"priority\":2",
    "\"priority\":-1",
    "\"response_format\":{\"type\":\"json_object\",\"strict\":true}", // C55, from here on
    "\"response_format\":{\"type\":\"json_schema\"}",
    "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}",
    "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":42}}",
    "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":\"hello\"}}",
    "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{}}}",
    "\"response_format\":{\"type\":\"json_schema\",\"strict\":true,\"json_schema\":{\"schema\":{\"type\":\"null\"}}}",
    "\"response_format\":{\"type\":\"xml\"}",
    "\"response_format\":42",
    "\"response_format\":\"hello\"",
    "\"response_format\":{}",
    "\"modalities\":[\"audio\"]",
    "\"modalities\":[]",
    "\"modalities\":\"text\"",
    "\"audio\":{}",
    "\"functions\":[{}]",
    "\"function_call\":\"auto\"",
    "\"guided_json\":{}",
    "\"grammar\":\"root ::= x\"",
    "\"temprature\":1",
    "\"verbosity\":\"low\"",
};

static void test_bad_values(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad_values / sizeof *bad_values; i++) {
        const char *m = bad_values[i];
        struct api_error e;
        // The type of `logprobs` differs between the routes, so its words do too.
        if (strncmp(m, "\"logprobs\"", 10) == 0) {
            refuse_on(ROUTE_CHAT, m, 400, &e);
            refuse_on(ROUTE_COMPLETIONS, m, 400, &e);
        } else {
            refuse(m);
        }
    }
}

// Each route names its own field for it.
static void test_forms_of_other_servers(void **state) {
    (void)state;
    static const struct {
        enum route_id route;
        const char *sentence;
    } cases[] = {{ROUTE_CHAT, "/guided_json is unsupported: use response_format"},
                 {ROUTE_COMPLETIONS, "/guided_json is unsupported: use response_format"},
                 {ROUTE_RESPONSES, "/guided_json is unsupported: use text.format"},
                 {ROUTE_MESSAGES, "/guided_json is unsupported: use output_config.format"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct request_fields f;
        struct api_error e;
        json_t *body = json_pack("{s:{}}", "guided_json");
        assert_false(fields_read(&service, cases[i].route, body, &f, &e));
        assert_string_equal(e.text, cases[i].sentence);
        json_decref(body);
    }
}

static void test_bad_values_of_one_route(void **state) {
    (void)state;
    struct api_error e;
    static const char *const chat[] = {
        "\"max_completion_tokens\":0",
        "\"max_tokens\":5,\"max_completion_tokens\":6",
        "\"top_logprobs\":5",
        "\"logprobs\":true,\"top_logprobs\":21",
        "\"parallel_tool_calls\":\"no\"",
        "\"tools\":{}",
        "\"chat_template_kwargs\":[]",
        "\"reasoning_effort\":\"extreme\"",
        "\"reasoning_effort\":3",
        "\"prompt\":\"x\"",
        "\"parse_special\":true",
    };
    for (size_t i = 0; i < sizeof chat / sizeof *chat; i++) refuse_on(ROUTE_CHAT, chat[i], 400, &e);
    static const char *const completions[] = {"\"logprobs\":true",           "\"logprobs\":21", "\"logprobs\":-1",
                                              "\"parse_special\":1",         "\"messages\":[]", "\"tools\":[]",
                                              "\"reasoning_effort\":\"low\""};
    for (size_t i = 0; i < sizeof completions / sizeof *completions; i++)
        refuse_on(ROUTE_COMPLETIONS, completions[i], 400, &e);
}

static void test_params_are_named(void **state) {
    (void)state;
    struct api_error e;
    refuse_on(ROUTE_CHAT, "\"top_p\":2", 400, &e);
    assert_string_equal(e.param, "top_p");
    refuse_on(ROUTE_CHAT, "\"stop\":[\"a\",\"\"]", 400, &e);
    assert_string_equal(e.param, "stop[1]");
    refuse_on(ROUTE_CHAT, "\"stream\":true,\"stream_options\":{\"include_usage\":3}", 400, &e);
    assert_string_equal(e.param, "stream_options.include_usage");
}

static void test_models(void **state) {
    (void)state;
    struct request_fields f;
    struct api_error e;
    accept(ROUTE_CHAT, "", &f);
    accept(ROUTE_CHAT, "\"model\":null", &f);
    accept(ROUTE_CHAT, "\"model\":\"scripted\"", &f);
    accept(ROUTE_CHAT, "\"model\":\"other\"", &f);
    accept(ROUTE_CHAT, "\"model\":\"default\"", &f);
    refuse_on(ROUTE_CHAT, "\"model\":\"gpt-4o\"", 404, &e);
    assert_string_equal(e.code, "model_not_found");
    assert_null(strstr(e.text, "gpt-4o"));
}

static void test_defaults(void **state) {
    (void)state;
    struct request_fields f;
    accept(ROUTE_CHAT, "", &f);
    assert_true(fabs(f.temperature - 0.6) < 1e-12 && fabs(f.top_p - 0.95) < 1e-12);
    assert_int_equal(f.top_k, 20);
    assert_int_equal(f.max_tokens, -1);
    assert_int_equal(f.seed, -1);
    assert_true(f.draft && f.parallel_calls && !f.stream && !f.ignore_eos);
    assert_int_equal(fields_n_top(&f, ROUTE_CHAT), -1);
    assert_null(f.stop.value);
}

static void test_accepted_values(void **state) {
    (void)state;
    struct request_fields f;
    static const char *const members[] = {
        "\"n\":1",
        "\"n\":null",
        "\"best_of\":1",
        "\"echo\":false",
        "\"suffix\":\"\"",
        "\"suffix\":null",
        "\"stop\":null",
        "\"stop\":[]",
        "\"stop\":\"END\"",
        "\"stop\":[\"a\",\"b\",\"c\",\"d\"]",
        "\"seed\":0",
        "\"seed\":9223372036854775807",
        "\"max_tokens\":9223372036854775807",
        "\"response_format\":{\"type\":\"text\"}",
        "\"response_format\":{\"type\":\"json_object\"}",
        "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\":\"null\"},\"strict\":true}"
        "}",
        "\"modalities\":[\"text\"]",
        "\"user\":\"me\"",
        "\"metadata\":{\"a\":\"b\"}",
        "\"store\":true",
        "\"service_tier\":\"auto\"",
        "\"temperature\":0",
        "\"temperature\":2",
        "\"top_p\":0",
        "\"top_k\":-1",
        "\"logit_bias\":{}",
        "\"audio\":null",
        "\"functions\":[]",
        "\"logprobs\":null",
        "\"stream_options\":null",
        "\"priority\":1",
        "\"draft\":false",
    };
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        accept(ROUTE_CHAT, members[i], &f);
        accept(ROUTE_COMPLETIONS, members[i], &f);
    }
    accept(ROUTE_CHAT, "\"top_p\":0,\"top_k\":-1", &f);
    assert_true(f.top_p > 0 && f.top_p <= DBL_MIN);
    assert_int_equal(f.top_k, 0);
    accept(ROUTE_CHAT, "\"max_completion_tokens\":7", &f);
    assert_int_equal(f.max_tokens, 7);
    accept(ROUTE_CHAT, "\"stream\":true,\"stream_options\":{\"include_usage\":true,\"include_obfuscation\":false}", &f);
    assert_true(f.include_usage);
    accept(ROUTE_CHAT, "\"logprobs\":true", &f);
    assert_int_equal(fields_n_top(&f, ROUTE_CHAT), 0);
    accept(ROUTE_CHAT, "\"logprobs\":true,\"top_logprobs\":20", &f);
    assert_int_equal(fields_n_top(&f, ROUTE_CHAT), 20);
    accept(ROUTE_COMPLETIONS, "\"logprobs\":0", &f);
    assert_int_equal(fields_n_top(&f, ROUTE_COMPLETIONS), 0);
}

static void test_bias(void **state) {
    (void)state;
    struct request_fields f;
    struct api_error e;
    json_t *body = body_of(ROUTE_CHAT, "\"logit_bias\":{\"5\":-100,\"0\":1.5}");
    assert_true(fields_read(&service, ROUTE_CHAT, body, &f, &e));
    assert_int_equal(f.n_bias, 2);
    assert_int_equal(f.bias[0].id, 5);
    assert_true(f.bias[0].bias < -99.5f && f.bias[1].bias > 1.4f);
    fields_free(&f);
    json_decref(body);
}

static void choose(const char *members, enum tool_mode *mode, struct api_error *e, bool expected) {
    const char *name = NULL;
    struct request_fields f;
    json_t *body = body_of(ROUTE_CHAT, members);
    assert_true(fields_read(&service, ROUTE_CHAT, body, &f, e));
    if (fields_read_tool_choice(&f, mode, &name, e) != expected) fail_msg("%s: %s", members, e->text);
    fields_free(&f);
    json_decref(body);
}

#define TOOLS "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\"}}]"

static void test_tool_choice(void **state) { // C39
    (void)state;
    enum tool_mode mode;
    struct api_error e;
    choose(TOOLS, &mode, &e, true);
    assert_int_equal(mode, TOOLS_AUTO);
    choose(TOOLS ",\"tool_choice\":\"auto\"", &mode, &e, true);
    assert_int_equal(mode, TOOLS_AUTO);
    choose(TOOLS ",\"tool_choice\":\"none\"", &mode, &e, true);
    assert_int_equal(mode, TOOLS_NONE);
    choose("\"tool_choice\":\"none\"", &mode, &e, true);
    choose(TOOLS ",\"tool_choice\":\"required\"", &mode, &e, true);
    assert_int_equal(mode, TOOLS_REQUIRED);
    choose("\"tool_choice\":\"required\"", &mode, &e, false);
    assert_string_equal(e.param, "tool_choice");
    choose(TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"add\"}}", &mode, &e, true);
    assert_int_equal(mode, TOOLS_NAMED);
    choose(TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"sub\"}}", &mode, &e, false);
    assert_non_null(strstr(e.text, "name of one of the tools"));
    choose(TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\",\"tools\":[]}", &mode, &e, false);
    assert_string_equal(e.param, "tool_choice.type");
    choose(TOOLS ",\"tool_choice\":\"sometimes\"", &mode, &e, false);
    choose(TOOLS ",\"tool_choice\":{}", &mode, &e, false);
    choose(TOOLS ",\"tool_choice\":7", &mode, &e, false);
    assert_string_equal(e.param, "tool_choice");
}

static void test_not_an_object(void **state) {
    (void)state;
    struct request_fields f;
    struct api_error e;
    json_t *list = json_array();
    assert_false(fields_read(&service, ROUTE_CHAT, list, &f, &e));
    assert_int_equal(e.http, 400);
    json_decref(list);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_values),
        cmocka_unit_test(test_forms_of_other_servers),
        cmocka_unit_test(test_bad_values_of_one_route),
        cmocka_unit_test(test_params_are_named),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_accepted_values),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_tool_choice),
        cmocka_unit_test(test_not_an_object),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
