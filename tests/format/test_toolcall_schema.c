// What a schema says of a value's types, and what JSON the value's text becomes.
#include "format/toolcall_schema.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static json_t *parse(const char *text) {
    json_t *v = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(v);
    return v;
}

// The JSON of a value under a property with this schema; $defs are there to be referred to.
static void expect_json(const char *schema, const char *text, const char *expected) {
    char whole[2048];
    snprintf(whole, sizeof whole,
             "{\"$defs\": {\"N\": {\"type\": \"integer\"}, \"M\": {\"$ref\": \"#/$defs/N\"}, \"L\": {\"$ref\": "
             "\"#/$defs/L\"},"
             " \"a\": {\"b\": {\"type\": \"boolean\"}}}, \"properties\": {\"k\": %s}}",
             schema);
    json_t *parameters = parse(whole);
    unsigned types = 0;
    struct buffer b;
    buffer_init(&b, 0);
    assert_true(toolcall_find_parameter(parameters, "k", 1, &types, NULL));
    assert_true(toolcall_append_value(&b, types, text, strlen(text)));
    assert_string_equal(b.data, expected);
    buffer_free(&b);
    json_decref(parameters);
}

static void test_types(void **state) {
    (void)state;
    expect_json("{\"type\": \"string\"}", "5", "\"5\"");
    expect_json("{\"type\": \"string\"}", "null", "\"null\"");
    expect_json("{\"type\": \"string\"}", " a ", "\" a \"");
    expect_json("{\"type\": \"text\"}", "5", "\"5\""); // a name of its own
    expect_json("{\"type\": \"integer\"}", "-5", "-5");
    expect_json("{\"type\": \"integer\"}", "\n 5 ", "5");
    expect_json("{\"type\": \"integer\"}", "5.0", "5.0");
    expect_json("{\"type\": \"integer\"}", "5.5", "\"5.5\"");
    expect_json("{\"type\": \"integer\"}", "05", "\"05\"");
    expect_json("{\"type\": \"integer\"}", "null", "\"null\"");
    expect_json("{\"type\": \"integer\"}", "true", "\"true\"");
    expect_json("{\"type\": \"integer\"}", "5 6", "\"5 6\"");
    expect_json("{\"type\": \"integer\"}", "", "\"\"");
    expect_json("{\"type\": \"number\"}", "1.50", "1.50");
    expect_json("{\"type\": \"number\"}", "1e3", "1e3");
    expect_json("{\"type\": \"number\"}", "5", "5");
    expect_json("{\"type\": \"number\"}", "NaN", "\"NaN\"");
    expect_json("{\"type\": \"number\"}", "1e999", "\"1e999\"");
    expect_json("{\"type\": \"boolean\"}", "true", "true");
    expect_json("{\"type\": \"boolean\"}", "False", "false");
    expect_json("{\"type\": \"boolean\"}", "True", "true");
    expect_json("{\"type\": \"boolean\"}", "TRUE", "\"TRUE\"");
    expect_json("{\"type\": \"null\"}", "null", "null");
    expect_json("{\"type\": \"null\"}", "None", "null");
    expect_json("{\"type\": \"object\"}", "{\"a\": 1.0, \"b\":[]}", "{\"a\": 1.0, \"b\":[]}");
    expect_json("{\"type\": \"object\"}", "[1]", "\"[1]\"");
    expect_json("{\"type\": \"object\"}", "{'a': 1}", "\"{'a': 1}\"");
    expect_json("{\"type\": \"array\"}", "[\"a\\u0000\"]\n", "[\"a\\u0000\"]");
    expect_json("{\"type\": \"array\"}", "\"a\"", "\"\\\"a\\\"\"");
}

static void test_several_types(void **state) {
    (void)state;
    expect_json("{\"type\": [\"string\", \"null\"]}", "null", "null");
    expect_json("{\"type\": [\"string\", \"null\"]}", "None", "null");
    expect_json("{\"type\": [\"string\", \"integer\"]}", "1", "\"1\""); // text loses nothing
    expect_json("{\"type\": [\"string\", \"array\"]}", "[\"a\"]", "[\"a\"]");
    expect_json("{\"type\": [\"string\", \"array\"]}", "[a]", "\"[a]\"");
    expect_json("{\"type\": [\"integer\", \"null\"]}", "1", "1");
    expect_json("{\"type\": [\"integer\", \"null\"]}", "null", "null");
    expect_json("{\"anyOf\": [{\"type\": \"integer\"}, {\"type\": \"null\"}]}", "7", "7");
    expect_json("{\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"null\"}]}", "7", "\"7\"");
    expect_json("{\"oneOf\": [{\"type\": \"boolean\"}, {\"type\": \"object\"}]}", "{}", "{}");
    expect_json("{\"allOf\": [{\"$ref\": \"#/$defs/N\"}, {\"minimum\": 1}]}", "7", "7");
    expect_json("{\"allOf\": [{\"type\": \"string\"}]}", "7", "\"7\"");
    expect_json("{\"enum\": [\"a\", \"7\"]}", "7", "\"7\"");
    expect_json("{\"enum\": [1, 7]}", "7", "7");
    expect_json("{\"enum\": [null, true]}", "true", "true");
    expect_json("{\"const\": 7}", "7", "7");
    expect_json("{\"const\": \"7\"}", "7", "\"7\"");
    expect_json("{}", "7", "7");
    expect_json("{}", "seven", "\"seven\"");
    expect_json("{}", "\"seven\"", "\"\\\"seven\\\"\"");
    expect_json("true", "null", "null");
    expect_json("{\"type\": 5, \"enum\": 5, \"anyOf\": {}, \"$ref\": []}", "7", "7");
}

static void test_references(void **state) {
    (void)state;
    expect_json("{\"$ref\": \"#/$defs/N\"}", "7", "7");
    expect_json("{\"$ref\": \"#/$defs/N\"}", "true", "\"true\"");
    expect_json("{\"$ref\": \"#/$defs/M\"}", "true", "\"true\"");
    expect_json("{\"$ref\": \"#/$defs/a/b\"}", "True", "true");
    expect_json("{\"$ref\": \"#/$defs/none\"}", "7", "7"); // nothing is known
    expect_json("{\"$ref\": \"other.json\"}", "7", "7");
    expect_json("{\"$ref\": \"#\"}", "7", "7");
    expect_json("{\"$ref\": \"#/$defs/L\"}", "7", "7"); // refers to itself
    expect_json("{\"anyOf\": [{\"$ref\": \"#/$defs/N\"}, {\"type\": \"null\"}]}", "null", "null");
}

// A schema that refers to itself many times over ends at once.
static void test_schema_bomb(void **state) {
    (void)state;
    json_t *parameters = json_object(), *list = json_array(), *unions = json_object();
    for (int i = 0; i < 1000; i++) json_array_append_new(list, parse("{\"$ref\": \"#/properties/k\"}"));
    json_object_set_new(unions, "anyOf", list);
    json_t *properties = json_object();
    json_object_set_new(properties, "k", unions);
    json_object_set_new(parameters, "properties", properties);
    unsigned types = 0;
    assert_true(toolcall_find_parameter(parameters, "k", 1, &types, NULL));
    assert_int_equal(types, VALUE_ANY);
    json_decref(parameters);
}

static void test_find_function(void **state) {
    (void)state;
    json_t *tools = parse("[5, {}, {\"function\": 5}, {\"function\": {\"name\": 5}}, {\"function\": {\"name\": \"f\"}},"
                          "{\"function\": {\"name\": \"g\", \"parameters\": {\"properties\": {\"k\": {}}}}},"
                          "{\"function\": {\"name\": \"h\", \"parameters\": []}}]");
    unsigned types = 0;
    const json_t *f = toolcall_find_function(tools, "f", 1), *g = toolcall_find_function(tools, "gh", 1);
    assert_non_null(f);
    assert_false(toolcall_find_parameter(f, "k", 1, &types, NULL));
    assert_int_equal(types, VALUE_STRING);
    assert_true(toolcall_find_parameter(g, "k", 1, &types, NULL));
    assert_false(toolcall_find_parameter(g, "k\0", 2, &types, NULL));
    assert_non_null(toolcall_find_function(tools, "h", 1));
    assert_null(toolcall_find_function(tools, "gh", 2));
    assert_null(toolcall_find_function(tools, "", 0));
    assert_null(toolcall_find_function(NULL, "f", 1));
    json_decref(tools);
}

static void test_find_member(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"{\"a\": {\"x\": \"}\\\"\"} , \"k\": [1, {\"k\": 2}] }", "[1, {\"k\": 2}]"},
        {"{\"k\":5}", "5"},
        {" { \"b\" : \"k\" , \"k\" : \"v\\\\\" } ", "\"v\\\\\""},
        {"{\"\\\"k\": 1, \"k\": null}", "null"},
        {"{\"b\": 1}", NULL},
        {"{}", NULL},
        {"{\"a\": {\"k\": 1}}", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t from = 0, length = 0, n = strlen(cases[i][0]);
        bool found = toolcall_find_member(cases[i][0], n, "k", &from, &length);
        assert_int_equal(found, cases[i][1] != NULL);
        if (!found) continue;
        assert_int_equal(length, strlen(cases[i][1]));
        assert_memory_equal(cases[i][0] + from, cases[i][1], length);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),       cmocka_unit_test(test_several_types), cmocka_unit_test(test_references),
        cmocka_unit_test(test_schema_bomb), cmocka_unit_test(test_find_function), cmocka_unit_test(test_find_member),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
