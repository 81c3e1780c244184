#include "format/json.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#define N_OF(a) (sizeof(a) / sizeof *(a))

static enum status parse(const char *text, int flags, json_t **out, struct error *e) {
    // A copy of exactly the text's size, so that a sanitizer sees a read past its end.
    size_t n = strlen(text);
    char *exact = malloc(n ? n : 1);
    memcpy(exact, text, n);
    enum status status = json_parse(exact, n, 1 << 20, flags, out, e);
    free(exact);
    return status;
}

struct refusal {
    const char *text;
    int flags;
    enum status status;
    const char *sentence; // a part of it
};

static const struct refusal refusals[] = {
    // C01: halves of surrogate pairs, in values and keys, and the member that holds them
    {"{\"messages\":[{\"content\":\"\\ud83d\"}]}", 0, STATUS_INVALID, "/messages/0/content"},
    {"{\"prompt\":\"x \\ude00 y\"}", 0, STATUS_INVALID, "half of a surrogate pair"},
    {"{\"a\":1,\"b\":[0,1,\"\\udcf0\"]}", 0, STATUS_INVALID, "/b/2"},
    {"{\"a\":\"\\ud83d\\ud83d\"}", 0, STATUS_INVALID, "/a"},
    {"{\"a\":\"\\ud83dx\"}", 0, STATUS_INVALID, "/a"},
    {"{\"a\":\"\\ud83d\\u0041\"}", 0, STATUS_INVALID, "/a"},
    {"{\"a\":\"\\ud83d\\", 0, STATUS_INVALID, "/a"},
    {"{\"\\ud83d\":1}", 0, STATUS_INVALID, "half of a surrogate pair"},
    // not UTF-8
    {"{\"a\":{\"b\":\"\xff\"}}", 0, STATUS_INVALID, "not valid UTF-8 at line 1, in /a/b"},
    {"{\"a\":\"\xc0\x80\"}", 0, STATUS_INVALID, "UTF-8"},
    {"{\"a\":\"\xed\xa0\xbd\"}", 0, STATUS_INVALID, "UTF-8"},
    {"{\"a\":\"\xf4\x90\x80\x80\"}", 0, STATUS_INVALID, "UTF-8"},
    {"{\"a\":\"\xe2\x82", 0, STATUS_INVALID, "UTF-8"},
    {"\xff", JSON_PARSE_ANY, STATUS_INVALID, "UTF-8"},
    // not JSON
    {"", 0, STATUS_INVALID, "ends too early"},
    {"{", 0, STATUS_INVALID, "ends too early"},
    {"{\"a\":", 0, STATUS_INVALID, "ends too early"},
    {"{\"a\":1}}", 0, STATUS_INVALID, "more text"},
    {"{\"a\":1} x", 0, STATUS_INVALID, "more text"},
    {"{\"a\" 1}", 0, STATUS_INVALID, "not valid JSON"},
    {"[1,]", 0, STATUS_INVALID, "not valid JSON"},
    {"[01]", 0, STATUS_INVALID, "not valid JSON"},
    {"[NaN]", 0, STATUS_INVALID, "not valid JSON"},
    {"[Infinity]", 0, STATUS_INVALID, "not valid JSON"},
    {"[-]", 0, STATUS_INVALID, "not valid JSON"},
    {"['a']", 0, STATUS_INVALID, "not valid JSON"},
    {"{a:1}", 0, STATUS_INVALID, "not valid JSON"},
    {"[\"a\nb\"]", 0, STATUS_INVALID, "not valid JSON"},
    {"[\"\\x41\"]", 0, STATUS_INVALID, "not valid JSON"},
    {"[1e999]", 0, STATUS_INVALID, "too large"},
    {"{\"seed\":18446744073709551616}", 0, STATUS_INVALID, "too large at line 1, in /seed"},
    {"{\n\"a\":1,\n\"a\":2}", 0, STATUS_INVALID, "repeated at line 3"},
    {"[\"a\\u0000b\"]", 0, STATUS_INVALID, "U+0000"},
    {"{\"a\\u0000b\":1}", JSON_PARSE_NUL, STATUS_INVALID, "U+0000"},
    {"5", 0, STATUS_INVALID, "not valid JSON"},
    {"]]]]", 0, STATUS_INVALID, "not valid JSON"},
};

static void test_refusals(void **state) {
    (void)state;
    for (size_t i = 0; i < N_OF(refusals); i++) {
        const struct refusal *r = &refusals[i];
        json_t *out = (json_t *)&out;
        struct error e;
        enum status status = parse(r->text, r->flags, &out, &e);
        if (status != r->status || !strstr(e.text, r->sentence))
            fail_msg("%s: status %s, \"%s\" lacks \"%s\"", r->text, status_name(status), e.text, r->sentence);
        assert_ptr_equal(out, &out);
        assert_int_equal(e.code, status);
    }
}

static void test_accepted(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int flags;
        const char *again; // as json_write gives it, compact
    } cases[] = {
        {"{\"a\":\"\\ud83d\\ude00\"}", 0, "{\"a\":\"\xf0\x9f\x98\x80\"}"},
        {" [ ] \n", 0, "[]"},
        {"{\"a\":1,\"a\":2}", JSON_PARSE_DUPLICATES, "{\"a\":2}"},
        {"[\"a\\u0000b\"]", JSON_PARSE_NUL, "[\"a\\u0000b\"]"},
        {"7", JSON_PARSE_ANY, "7"},
        {"\"x\"", JSON_PARSE_ANY, "\"x\""},
        {"[9223372036854775807,-9223372036854775808,0.1,1e2,-0]", 0,
         "[9223372036854775807,-9223372036854775808,0.1,100.0,0]"},
        {"{\"b\":{},\"a\":[[],{\"c\":null}],\"t\":true,\"f\":false}", 0,
         "{\"b\":{},\"a\":[[],{\"c\":null}],\"t\":true,\"f\":false}"},
        {"[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\\u001f\\u007f\"]", 0, "[\"\\\"\\\\/\\b\\f\\n\\r\\t\\u001f\x7f\"]"},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        json_t *value = NULL;
        struct error e;
        assert_int_equal(parse(cases[i].text, cases[i].flags, &value, &e), STATUS_OK);
        struct buffer b;
        buffer_init(&b, 0);
        assert_true(json_write(&b, value, JSON_STYLE_COMPACT));
        assert_string_equal(b.data, cases[i].again);
        buffer_free(&b);
        json_decref(value);
    }
}

// C03: nesting is refused at a fixed depth before anything recurses on it.
static void test_depth(void **state) {
    (void)state;
    static const char *const opens[] = {"[", "{\"a\":", "{\"a\":[", "[[[[{\"tools\":"};
    for (size_t i = 0; i < N_OF(opens); i++)
        for (size_t n = 100; n <= 300000; n *= 30) {
            struct buffer b;
            buffer_init(&b, 0);
            for (size_t k = 0; k < n; k++) buffer_append_text(&b, opens[i]);
            json_t *out = NULL;
            struct error e;
            assert_int_equal(json_parse(b.data, b.n, SIZE_MAX, 0, &out, &e), STATUS_LIMIT);
            assert_non_null(strstr(e.text, "deeper than 64"));
            assert_null(out);
            buffer_free(&b);
        }
    for (int depth = JSON_DEPTH_MAX - 1; depth <= JSON_DEPTH_MAX + 1; depth++) {
        char text[2 * JSON_DEPTH_MAX + 4] = "";
        for (int k = 0; k < depth; k++) strcat(text, "[");
        for (int k = 0; k < depth; k++) strcat(text, "]");
        json_t *out = NULL;
        assert_int_equal(parse(text, 0, &out, NULL), depth > JSON_DEPTH_MAX ? STATUS_LIMIT : STATUS_OK);
        if (out) {
            struct buffer b;
            buffer_init(&b, 0);
            assert_true(json_write(&b, out, JSON_STYLE_COMPACT));
            assert_string_equal(b.data, text);
            json_t *deeper = json_array();
            json_array_append(deeper, out);
            buffer_clear(&b);
            assert_int_equal(json_write(&b, deeper, JSON_STYLE_COMPACT), depth < JSON_DEPTH_MAX);
            json_decref(deeper);
            buffer_free(&b);
        }
        json_decref(out);
    }
    // Brackets inside strings are text.
    json_t *out = NULL;
    char text[400] = "[\"";
    for (int k = 0; k < 300; k++) strcat(text, k % 2 ? "[" : "{");
    strcat(text, "\"]");
    assert_int_equal(parse(text, 0, &out, NULL), STATUS_OK);
    json_decref(out);
}

static void test_size(void **state) {
    (void)state;
    json_t *out = NULL;
    struct error e;
    assert_int_equal(json_parse("[1,2]", 5, 4, 0, &out, &e), STATUS_LIMIT);
    assert_non_null(strstr(e.text, "5 bytes; the limit is 4"));
    assert_int_equal(json_parse("[1,2]", 5, 5, 0, &out, &e), STATUS_OK);
    json_decref(out);
}

static void test_file(void **state) {
    (void)state;
    char path[] = "/tmp/tf-json-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "{\"a\":[1,}", 9), 9);
    close(fd);
    json_t *out = NULL;
    struct error e;
    assert_int_equal(json_parse_file(path, 100, 0, &out, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, path));
    assert_non_null(strstr(e.text, "in /a/1"));
    assert_int_equal(json_parse_file(path, 3, 0, &out, &e), STATUS_LIMIT);
    assert_int_equal(json_parse_file(path, 100, 0, &out, NULL), STATUS_INVALID);
    remove(path);
    assert_int_equal(json_parse_file(path, 100, 0, &out, &e), STATUS_NOT_FOUND);
    assert_non_null(strstr(e.text, path));
}

static void test_getters(void **state) {
    (void)state;
    json_t *value = NULL;
    assert_int_equal(
        parse("{\"n\":5,\"x\":2.5,\"s\":\"hi\",\"b\":true,\"z\":null,\"o\":{\"a/b~c\":[1,[2,\"q\"],null]}}", 0, &value,
              NULL),
        STATUS_OK);
    struct json_view root = json_root(value), o, v;
    struct error e;
    int64_t n = -1;
    double x = -1;
    bool b = false;
    const char *s = NULL;
    size_t length = 0;
    assert_int_equal(json_get_int(&root, "n", JSON_REQUIRED, 1, 5, &n, &e), STATUS_OK);
    assert_int_equal(n, 5);
    assert_int_equal(json_get_int(&root, "n", JSON_REQUIRED, 6, 9, &n, &e), STATUS_INVALID);
    assert_string_equal(e.text, "/n must be an integer from 6 to 9, not 5");
    assert_int_equal(json_get_int(&root, "x", JSON_OPTIONAL, 0, 9, &n, &e), STATUS_INVALID);
    assert_string_equal(e.text, "/x must be an integer, not a number with a fraction");
    assert_int_equal(json_get_int(&root, "none", JSON_REQUIRED, 0, 9, &n, &e), STATUS_INVALID);
    assert_string_equal(e.text, "/none is missing");
    assert_int_equal(json_get_int(&root, "z", JSON_REQUIRED, 0, 9, &n, &e), STATUS_INVALID);
    assert_string_equal(e.text, "/z is missing");
    assert_int_equal(json_get_int(&root, "z", JSON_OPTIONAL, 0, 9, &n, &e), STATUS_OK);
    assert_int_equal(n, 5);
    assert_int_equal(json_get_real(&root, "x", JSON_REQUIRED, 0, 3, &x, &e), STATUS_OK);
    assert_true(x == 2.5);
    assert_int_equal(json_get_real(&root, "n", JSON_REQUIRED, 0, 9, &x, &e), STATUS_OK);
    assert_true(x == 5);
    assert_int_equal(json_get_real(&root, "x", JSON_REQUIRED, 0, 1, &x, &e), STATUS_INVALID);
    assert_string_equal(e.text, "/x must be a number from 0 to 1, not 2.5");
    assert_int_equal(json_get_real(&root, "s", JSON_REQUIRED, 0, 1, &x, &e), STATUS_INVALID);
    assert_string_equal(e.text, "/s must be a number, not a string");
    assert_int_equal(json_get_bool(&root, "b", JSON_REQUIRED, &b, &e), STATUS_OK);
    assert_true(b);
    assert_int_equal(json_get_bool(&root, "n", JSON_REQUIRED, &b, &e), STATUS_INVALID);
    assert_int_equal(json_get_string(&root, "s", JSON_REQUIRED, &s, &length, &e), STATUS_OK);
    assert_string_equal(s, "hi");
    assert_int_equal(length, 2);
    assert_int_equal(json_get_string(&root, "o", JSON_REQUIRED, &s, NULL, &e), STATUS_INVALID);
    assert_string_equal(e.text, "/o must be a string, not an object");
    assert_int_equal(json_get_view(&root, "o", JSON_REQUIRED, JSON_OBJECT, &o, &e), STATUS_OK);
    assert_int_equal(json_get_view(&root, "o", JSON_REQUIRED, JSON_ARRAY, &v, &e), STATUS_INVALID);
    assert_int_equal(json_get_view(&root, "none", JSON_OPTIONAL, JSON_ARRAY, &v, &e), STATUS_OK);
    assert_null(v.value);
    assert_true(json_find(&o, "a/b~c", &v));
    assert_int_equal(json_length(&v), 3);
    assert_false(json_element(&v, 2, &o));
    assert_false(json_element(&v, 3, &o));
    assert_true(json_element(&v, 1, &v));
    assert_true(json_element(&v, 1, &v));
    assert_int_equal(json_as_int(&v, 0, 9, &n, &e), STATUS_INVALID);
    assert_string_equal(e.text, "/o/a~1b~0c/1/1 must be an integer, not a string");
    assert_false(json_find(&v, "x", &o));
    assert_int_equal(json_length(&v), 0);
    json_decref(value);
}

static void test_long_path(void **state) {
    (void)state;
    json_t *value = json_integer(1);
    char key[100];
    memset(key, 'k', sizeof key - 1);
    key[sizeof key - 1] = 0;
    for (int i = 0; i < 10; i++) {
        json_t *outer = json_object();
        json_object_set_new(outer, key, value);
        value = outer;
    }
    struct json_view v = json_root(value);
    for (int i = 0; i < 10; i++) assert_true(json_find(&v, key, &v));
    assert_true(strlen(v.path) < JSON_PATH_BYTES);
    assert_string_equal(v.path + strlen(v.path) - 3, "...");
    json_decref(value);
}

static void test_reals(void **state) {
    (void)state;
    static const struct {
        double x;
        const char *text;
    } cases[] = {
        {0, "0.0"},
        {-0.0, "-0.0"},
        {1, "1.0"},
        {-1, "-1.0"},
        {0.1, "0.1"},
        {0.7, "0.7"},
        {1.0 / 3, "0.3333333333333333"},
        {100, "100.0"},
        {1e15, "1000000000000000.0"},
        {1e16, "1e+16"},
        {123456789012345680, "1.2345678901234568e+17"},
        {0.0001, "0.0001"},
        {0.00001, "1e-05"},
        {1.5e-7, "1.5e-07"},
        {1e22, "1e+22"},
        {1e23, "1e+23"},
        {1e100, "1e+100"},
        {5e-324, "5e-324"},
        {2.2250738585072014e-308, "2.2250738585072014e-308"},
        {1.7976931348623157e308, "1.7976931348623157e+308"},
        {9007199254740993, "9007199254740992.0"},
        {0.30000000000000004, "0.30000000000000004"},
        {2.5, "2.5"},
        {123456.789, "123456.789"},
        {1e-4, "0.0001"},
        {(double)0.1f, "0.10000000149011612"},
        {-1.25e-9, "-1.25e-09"},
        {NAN, "null"},
        {INFINITY, "null"},
        {-INFINITY, "null"},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        struct buffer b;
        buffer_init(&b, 0);
        assert_true(json_write_real(&b, cases[i].x));
        assert_string_equal(b.data, cases[i].text);
        buffer_free(&b);
    }
}

static void test_styles(void **state) {
    (void)state;
    json_t *value = NULL;
    assert_int_equal(parse("{\"a\":1,\"b\":[2,3.0,{}],\"c\":{\"d\":[]}}", 0, &value, NULL), STATUS_OK);
    static const char *const texts[] = {
        [JSON_STYLE_COMPACT] = "{\"a\":1,\"b\":[2,3.0,{}],\"c\":{\"d\":[]}}",
        [JSON_STYLE_SPACED] = "{\"a\": 1, \"b\": [2, 3.0, {}], \"c\": {\"d\": []}}",
        [JSON_STYLE_INDENT] =
            "{\n  \"a\": 1,\n  \"b\": [\n    2,\n    3.0,\n    {}\n  ],\n  \"c\": {\n    \"d\": []\n  }\n}",
    };
    for (size_t i = 0; i < N_OF(texts); i++) {
        struct buffer b;
        buffer_init(&b, 0);
        assert_true(json_write(&b, value, (enum json_style)i));
        assert_string_equal(b.data, texts[i]);
        buffer_free(&b);
        buffer_init(&b, 10);
        assert_false(json_write(&b, value, (enum json_style)i));
        assert_true(b.failed);
        buffer_free(&b);
    }
    json_decref(value);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),  cmocka_unit_test(test_accepted), cmocka_unit_test(test_depth),
        cmocka_unit_test(test_size),      cmocka_unit_test(test_file),     cmocka_unit_test(test_getters),
        cmocka_unit_test(test_long_path), cmocka_unit_test(test_reals),    cmocka_unit_test(test_styles),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
