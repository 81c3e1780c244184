// What is accepted and refused of schemas, case by case; tests/format/test_schema.py does the same at random.
#include "base/buffer.h"
#include "format/schema.h"
#include "tests/format/grammars.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

static void expect(const char *schema, bool accepted, const char *text) {
    struct error e;
    struct grammar *g;
    if (grammar_of_schema(schema, &g, &e) != STATUS_OK) fail_msg("%s: %s", schema, e.text);
    if (grammar_accepts(g, text, strlen(text)) != accepted)
        fail_msg("%s: %s was %s", schema, text, accepted ? "refused" : "accepted");
    grammar_free(g);
}

static void refuse(const char *schema, const char *sentence) {
    struct error e;
    struct grammar *g;
    if (grammar_of_schema(schema, &g, &e) == STATUS_OK) fail_msg("%s was accepted", schema);
    if (strncmp(e.text, sentence, strlen(sentence)) != 0) fail_msg("%s: %s", schema, e.text);
}

static void test_values(void **state) {
    (void)state;
    expect("{\"type\":\"null\"}", true, "null");
    expect("{\"type\":\"null\"}", false, "nul");
    expect("{\"type\":\"boolean\"}", true, "false");
    expect("{\"type\":[\"string\",\"null\"]}", true, "\"\"");
    expect("{\"type\":\"string\",\"nullable\":true}", true, "null");
    expect("{\"type\":\"integer\"}", true, "-999999999999999");
    expect("{\"type\":\"integer\"}", false, "1.0");
    expect("{\"type\":\"number\"}", true, "0.5e-3");
    expect("{\"type\":\"number\"}", false, ".5");
    expect("{\"enum\":[\"a\",{\"b\":[1,2]}]}", true, "{\"b\": [1, 2]}");
    expect("{\"enum\":[\"a\",{\"b\":[1,2]}]}", false, "\"b\"");
}

static void test_strings(void **state) {
    (void)state;
    static const char two[] = "{\"type\":\"string\",\"minLength\":2,\"maxLength\":2}";
    expect(two, true, "\"ab\"");
    expect(two, true, "\"\\n\\u00e9\"");
    expect(two, true, "\"\xc3\xa9\xf0\x9f\x98\x80\"");
    expect(two, false, "\"a\"");
    expect(two, false, "\"abc\"");
    expect(two, false, "\"a\xed\xa0\x80\""); // half a surrogate
    expect(two, false, "\"a\\ud83d\"");      // the same, escaped
    expect(two, false, "\"a\\u0000\"");
    expect(two, false, "\"a\xc0\xaf\""); // '/' in two bytes
    expect(two, false, "\"a\n\"");
    expect("{\"type\":\"string\",\"pattern\":\"^\\\\\\\\\\\"$\"}", true, "\"\\\\\\\"\"");
    expect("{\"type\":\"string\",\"format\":\"date\"}", false, "\"2023-02-30\"");
    expect("{\"type\":\"string\",\"format\":\"date\"}", true, "\"2023-11-30\"");
}

static void test_numbers(void **state) {
    (void)state;
    static const char range[] = "{\"type\":\"integer\",\"minimum\":-12,\"maximum\":105}";
    struct error e;
    struct grammar *g;
    assert_int_equal(grammar_of_schema(range, &g, &e), STATUS_OK);
    for (int i = -2000; i <= 2000; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", i);
        assert_int_equal(grammar_accepts(g, text, strlen(text)), i >= -12 && i <= 105);
    }
    grammar_free(g);
    static const char open[] = "{\"type\":\"number\",\"exclusiveMinimum\":0.25,\"maximum\":1.5}";
    expect(open, false, "0.25");
    expect(open, false, "0.250");
    expect(open, true, "0.2501");
    expect(open, true, "1.50");
    expect(open, false, "1.501");
    expect(open, false, "-1");
    expect("{\"type\":\"number\",\"minimum\":-0.5,\"maximum\":-0.0}", true, "-0.25");
    expect("{\"type\":\"number\",\"minimum\":-12345.678}", true, "-12345.678");
    expect("{\"type\":\"number\",\"minimum\":-12345.678}", false, "-12345.6781");
    // The largest integer that programs in JavaScript know.
    expect("{\"type\":\"integer\",\"maximum\":9007199254740991}", true, "999999999999999");
}

static void test_objects(void **state) {
    (void)state;
    static const char s[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"null\"},\"b\":{\"type\":\"null\"},"
                            "\"c\":{\"type\":\"null\"}},\"required\":[\"b\"]}";
    expect(s, true, "{\"b\":null}");
    expect(s, true, "{ \"a\": null, \"b\": null, \"c\": null }");
    expect(s, true, "{\n  \"b\": null,\n  \"c\": null\n}");
    expect(s, false, "{\"a\":null}");
    expect(s, false, "{\"b\":null,\"a\":null}");
    expect(s, false, "{\"b\":null,}");
    expect(s, false, "{\"b\":null,\"b\":null}");
    expect(s, false, "{\"b\":null} ");
    expect(s, false, "{  \"b\":null}"); // white space is bounded
    expect("{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"}}", true, "{\"x\": 1, \"y\": 2}");
    expect("{\"type\":\"object\",\"additionalProperties\":false}", true, "{}");
    expect("{\"type\":\"object\",\"additionalProperties\":false}", false, "{\"x\":1}");
    expect("{\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"k\":{\"const\":1}},\"required\":["
           "\"k\"]}}",
           false, "[\"k\"]"); // C55
}

// From every state there is a way to the end, also where values nest as deeply as they may.
static void test_depth(void **state) {
    (void)state;
    static const char tree[] =
        "{\"type\":\"object\",\"properties\":{\"l\":{\"$ref\":\"#\"},\"v\":{\"type\":\"integer\"},"
        "\"r\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}},\"required\":[\"v\",\"r\"]}";
    static struct grammar_state states[2];
    struct error e;
    struct grammar *g;
    int n = 0, depth = 0;
    assert_int_equal(grammar_of_schema(tree, &g, &e), STATUS_OK);
    grammar_start(g, &states[0]);
    for (const char *next = "{\"l\":"; depth < 100; next = "{\"l\":", depth++) {
        bool lives = true;
        for (; lives && *next != 0; next++, n += lives)
            lives = grammar_step(g, &states[n % 2], (unsigned char)*next, &states[(n + 1) % 2]);
        if (!lives) break;
    }
    assert_in_range(depth, 20, GRAMMAR_DEPTH_MAX);
    for (int bytes = 0; !states[n % 2].complete; bytes++) {
        static const char closers[] = "}\"vr:n1ul,";
        bool lives = false;
        assert_true(bytes < 4096);
        for (const char *c = closers; !lives && *c != 0; c++)
            lives = grammar_step(g, &states[n % 2], (unsigned char)*c, &states[(n + 1) % 2]);
        assert_true(lives);
        n++;
    }
    grammar_free(g);
}

static void test_refused(void **state) { // C05, C55
    (void)state;
    static const char *const patterns[] = {"*a", "(?<=x)+", "{2,3}", "a{5,2}", "[", "\\\\", "a)", "(", "a**", "[z-a]"};
    char schema[128];
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        snprintf(schema, sizeof schema, "{\"type\":\"string\",\"pattern\":\"%s\"}", patterns[i]);
        refuse(schema, "/pattern is an unsupported pattern");
    }
    refuse("{\"type\":\"notatype\"}", "/type must be");
    refuse("{\"type\":\"xml\"}", "/type must be");
    refuse("{\"type\":\"array\",\"items\":{\"type\":\"array\",\"uniqueItems\":true}}", "/items/uniqueItems is not");
    refuse("{\"properties\":{\"a/b\":{\"not\":{}}}}", "/properties/a~1b/not is not");
    refuse("{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#\"}},\"required\":[\"a\"]}",
           " can never be complete");
}

// Alternatives `depth` deep, each twice the next: 2^depth ways to one value.
static void write_doubles(char *out, size_t size, int depth) {
    size_t n = (size_t)snprintf(out, size, "{\"$ref\":\"#/$defs/0\",\"$defs\":{");
    for (int i = 0; i < depth; i++)
        n += (size_t)snprintf(out + n, size - n,
                              "\"%d\":{\"anyOf\":[{\"$ref\":\"#/$defs/%d\"},{\"$ref\":\"#/$defs/%d\"}]},", i, i + 1,
                              i + 1);
    n += (size_t)snprintf(out + n, size - n, "\"%d\":{\"type\":\"null\"}}}", depth);
    assert_true(n < size);
}

// Every step into alternatives tries all ways through them.
static void test_ways(void **state) {
    (void)state;
    char schema[4096];
    write_doubles(schema, sizeof schema, 8);
    expect(schema, true, "null");
    write_doubles(schema, sizeof schema, 40);
    refuse(schema, " has alternatives within alternatives");
}

// The items with their numbers, between commas.
static void append_items(struct buffer *out, int n, const char *before, const char *after) {
    for (int i = 0; i < n; i++) buffer_printf(out, "%s%s%d%s", i > 0 ? "," : "", before, i, after);
    assert_false(out->failed);
}

static void refuse_work(struct buffer *schema) {
    struct error e;
    struct grammar *g;
    if (grammar_of_schema(schema->data, &g, &e) == STATUS_OK) fail_msg("%.100s was accepted", schema->data);
    assert_int_equal(e.code, STATUS_LIMIT);
    if (strstr(e.text, "takes more work than it may") == NULL) fail_msg("%.100s: %s", schema->data, e.text);
    buffer_clear(schema);
}

// What each part of a schema may take does not multiply: the sum of the work is bounded.
static void test_work(void **state) {
    (void)state;
    struct buffer s;
    buffer_init(&s, 0);
    buffer_append_text(&s, "{\"properties\":{"); // as many dates as people may have
    append_items(&s, 200, "\"p", "\":{\"type\":\"string\",\"format\":\"date-time\"}");
    buffer_append_text(&s, "}}");
    expect(s.data, true, "{}");
    buffer_clear(&s);
    buffer_append_text(&s, "{\"properties\":{"); // patterns of many steps and few states
    append_items(&s, 250, "\"p", "\":{\"type\":\"string\",\"pattern\":\"^(a?){60}a{60}$\"}");
    buffer_append_text(&s, "}}");
    refuse_work(&s);
    buffer_append_text(&s, "{\"properties\":{"); // members that are not allowed
    append_items(&s, 60000, "\"p", "\":false");
    buffer_append_text(&s, "}}");
    refuse_work(&s);
    buffer_append_text(&s, "{\"properties\":{"); // what stands beside references, however often they are followed
    append_items(&s, 200, "\"p", "\":{\"$ref\":\"#/$defs/a\"}");
    buffer_append_text(&s, "},\"$defs\":{\"b\":{\"type\":\"null\"},\"a\":{\"$ref\":\"#/$defs/b\",");
    append_items(&s, 2000, "\"x-", "\":0");
    buffer_append_text(&s, "}}}");
    refuse_work(&s);
    buffer_append_text(&s, "{\"oneOf\":["); // alternatives that list long values which differ at their ends
    for (int i = 0; i < 24; i++) {
        buffer_append_text(&s, i > 0 ? ",{\"enum\":[" : "{\"enum\":[");
        for (int k = 0; k < 30; k++) {
            buffer_append_text(&s, k > 0 ? ",[" : "[");
            append_items(&s, 300, "", "");
            buffer_printf(&s, ",%d]", 1000 * i + k);
        }
        buffer_append_text(&s, "]}");
    }
    buffer_append_text(&s, "]}");
    refuse_work(&s);
    buffer_free(&s);
}

// Two spellings of one value do not keep alternatives apart.
static void test_apart(void **state) {
    (void)state;
    refuse("{\"oneOf\":[{\"const\":[1,{\"a\":1,\"b\":2}]},{\"const\":[1.0,{\"b\":2,\"a\":1}]}]}", "/oneOf");
    refuse("{\"oneOf\":[{\"enum\":[0,5]},{\"enum\":[-0.0]}]}", "/oneOf");
    expect("{\"oneOf\":[{\"enum\":[[1],[2]]},{\"enum\":[[3],[\"1\"]]}]}", true, "[\"1\"]");
    expect("{\"oneOf\":[{\"const\":{\"a\":1,\"b\":2}},{\"const\":{\"a\":2,\"b\":1}}]}", true, "{\"a\": 2, \"b\": 1}");
    expect("{\"oneOf\":[{\"const\":1},{\"const\":true},{\"const\":\"1\"}]}", true, "true");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),  cmocka_unit_test(test_strings), cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_objects), cmocka_unit_test(test_depth),   cmocka_unit_test(test_refused),
        cmocka_unit_test(test_ways),    cmocka_unit_test(test_work),    cmocka_unit_test(test_apart)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
