// What a request says about the form of its reply, over HTTP: what is refused and where (C39, C55), when a reply gets a
// masker, and how the reply is read then. The engine is scripted, so replies here need not keep to their form.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tests/server/stage.h"
#include <stdio.h>
#include <string.h>

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

#define CHAT  "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
#define OTHER "/v1/responses", "{\"input\":\"x\""
#define THIRD "/v1/messages", "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
#define TOOL(strict)                                                                                                   \
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"add\"," strict                                        \
    "\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]}}}]"
#define FORMAT(schema) ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":" schema "}}"
#define OBJECT         "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}},\"required\":[\"a\"]}"

static int post(const char *path, const char *body, const char *members, json_t **reply) {
    struct http_reply r;
    char text[8192];
    snprintf(text, sizeof text, "%s%s}", body, members);
    http_post(stage.port, path, text, &r);
    int status = r.status;
    *reply = json_incref(r.json);
    http_reply_free(&r);
    return status;
}

static void refuse(const char *path, const char *body, const char *members, const char *param) {
    json_t *reply;
    int status = post(path, body, members, &reply);
    if (status != 400) fail_msg("%s was answered with %d", members, status);
    if (strcmp(text_at(reply, "error.param"), param) != 0)
        fail_msg("%s: %s (%s)", members, text_at(reply, "error.param"), text_at(reply, "error.message"));
    json_decref(reply);
}

static void accept(const char *path, const char *body, const char *members, bool masked) {
    json_t *reply;
    stage_say(&stage, "Hm.</think>\n\nx");
    int status = post(path, body, members, &reply);
    if (status != 200) fail_msg("%s: %s", members, text_at(reply, "error.message"));
    if (scripted_last_has_masker(stage.engine) != masked) fail_msg("%s has %s masker", members, masked ? "no" : "a");
    json_decref(reply);
}

static void test_refused(void **state) {
    (void)state;
    refuse(CHAT, FORMAT("{\"type\":\"notatype\"}"), "response_format.json_schema.schema.type");
    refuse(CHAT, FORMAT("{\"type\":\"xml\"}"), "response_format.json_schema.schema.type");
    refuse(CHAT, FORMAT("42"), "response_format.json_schema.schema");
    refuse(CHAT, FORMAT("\"hello\""), "response_format.json_schema.schema");
    refuse(CHAT, FORMAT("{}"), "response_format.json_schema.schema");
    refuse(CHAT, FORMAT("{\"items\":{\"not\":{}}}"), "response_format.json_schema.schema.items.not");
    refuse(CHAT, FORMAT(OBJECT) ",\"ignore_eos\":true", "ignore_eos");
    refuse(CHAT,
           ",\"response_format\":{\"type\":\"json_schema\",\"strict\":true,\"json_schema\":{\"schema\":" OBJECT "}}",
           "response_format.strict");
    refuse(OTHER, ",\"text\":{\"format\":{\"type\":\"json_schema\",\"schema\":{\"type\":7}}}",
           "text.format.schema.type");
    refuse(THIRD, ",\"output_config\":{\"format\":{\"type\":\"json_schema\",\"schema\":{\"enum\":[]}}}",
           "output_config.format.schema.enum");
    refuse(CHAT, ",\"tool_choice\":\"required\"", "tool_choice");
    refuse(CHAT, TOOL("") ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"sub\"}}",
           "tool_choice.function.name");
    refuse(CHAT, TOOL("\"strict\":\"yes\","), "tools[0].function.strict");
    // The tools' pointers are those of the route's own bodies.
    static const char bad[] = "{\"properties\":{\"a\":{\"if\":{}}}}";
    char members[512];
    snprintf(members, sizeof members,
             ",\"tool_choice\":\"required\",\"tools\":[{\"type\":\"function\",\"name\":\"f\","
             "\"parameters\":%s}]",
             bad);
    refuse(OTHER, members, "tools[0].parameters.properties.a.if");
    snprintf(members, sizeof members,
             ",\"tool_choice\":{\"type\":\"any\"},\"tools\":[{\"name\":\"f\",\"input_schema\":%s}]", bad);
    refuse(THIRD, members, "tools[0].input_schema.properties.a.if");
}

static void test_masked(void **state) {
    (void)state;
    accept(CHAT, "", false);
    accept(CHAT, ",\"response_format\":{\"type\":\"text\"}", false);
    accept(CHAT, ",\"response_format\":{\"type\":\"json_object\"}", true);
    accept(CHAT, FORMAT(OBJECT), true);
    accept(CHAT, TOOL(""), false);
    accept(CHAT, TOOL("\"strict\":true,"), true);
    accept(CHAT, TOOL("\"strict\":true,") ",\"tool_choice\":\"none\"", false);
    accept(CHAT, TOOL("") ",\"tool_choice\":\"required\"", true);
    accept(CHAT, TOOL("") ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"add\"}}", true);
    accept(OTHER, ",\"text\":{\"format\":{\"type\":\"json_schema\",\"name\":\"n\",\"schema\":" OBJECT "}}", true);
    accept(THIRD, ",\"output_config\":{\"format\":{\"type\":\"json_schema\",\"schema\":" OBJECT "}}", true);
    accept(THIRD, ",\"output_format\":{\"type\":\"json_schema\",\"schema\":" OBJECT "}", true);
}

// Beside a format, calls are looked for only where the reply begins with them.
static void test_calls_first(void **state) {
    (void)state;
#define CALL "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>"
    static const char within[] =
        "{\"a\": \"<tool_call><function=add><parameter=a>1</parameter></function></tool_call>\"}";
    char said[512];
    snprintf(said, sizeof said, "Hm.</think>\n\n%s", within);
    stage_say(&stage, said);
    json_t *r = stage_chat_both(&stage, TOOL("") FORMAT(OBJECT));
    assert_string_equal(text_at(r, "choices.0.message.content"), within);
    assert_string_equal(text_at(r, "choices.0.finish_reason"), "stop");
    json_decref(r);
    r = stage_chat_both(&stage, TOOL("")); // without one they are looked for everywhere
    assert_string_equal(text_at(r, "choices.0.finish_reason"), "tool_calls");
    json_decref(r);
    stage_say(&stage, "Hm.</think>\n\n" CALL "\n" CALL);
    r = stage_chat_both(&stage, TOOL("") FORMAT(OBJECT));
    assert_int_equal(json_array_size(json_at(r, "choices.0.message.tool_calls")), 2);
    json_decref(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refused), cmocka_unit_test(test_masked),
                                       cmocka_unit_test(test_calls_first)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
