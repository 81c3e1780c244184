// Every allocation of compiling a schema, of making the vocabulary of masks and a masker fails in turn: each call says
// so, and nothing leaks.
#include "format/masker.h"
#include "tests/format/grammars.h"

#include "tests/alloc_fail.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const char *const forms[] = {
    "{\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"v\":{\"enum\":[\"a\",1,{\"b\":2}]},\"next\":{\"anyOf\":["
    "{\"$ref\":\"#/$defs/n\"},{\"type\":\"null\"}]}},\"required\":[\"next\"]}},\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\",\"pattern\":\"^a{2,9}b?$\",\"maxLength\":5},\"i\":{\"type\":\"integer\",\"minimum\":3},"
    "\"l\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/n\"}},\"d\":{\"type\":\"string\",\"format\":\"date\"},"
    "\"any\":{},\"two\":{\"type\":[\"number\",\"null\"]},\"one\":{\"oneOf\":[{\"const\":1},{\"const\":2}]}}}",
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{"
    "\"type\":\"string\"},\"b\":{\"type\":\"object\"},\"e\":{\"enum\":[\"x\",\"y\"]}},\"required\":[\"a\"]}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]",
};

static void test_schemas(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        json_t *schema = json_loads(forms[i], 0, NULL);
        assert_non_null(schema);
        for (long n = 1;; n++) {
            struct grammar *g = NULL;
            struct error e = {0};
            alloc_fail_at(n);
            enum status status = grammar_of_json(schema, &g, &e);
            bool failed = alloc_failed();
            alloc_fail_off();
            if (status != (failed ? STATUS_MEMORY : STATUS_OK)) fail_msg("allocation %ld: %s", n, e.text);
            if (status == STATUS_OK) grammar_free(g);
            if (failed) continue;
            assert_true(n > 50);
            break;
        }
        json_decref(schema);
    }
}

static void test_masker(void **state) {
    (void)state;
    struct tokenizer *t;
    struct error e;
    int32_t end = 4042;
    assert_int_equal(tokenizer_load("models/fold-s/tokenizer.json", NULL, &t, &e), STATUS_OK);
    for (long n = 1;; n++) {
        struct vocabulary *v = NULL;
        struct masker *m = NULL;
        struct grammar *g = NULL;
        assert_int_equal(grammar_of_schema("{\"type\":\"string\"}", &g, &e), STATUS_OK);
        alloc_fail_at(n);
        enum status status = vocabulary_create(t, 4096, &v, &e);
        if (status == STATUS_OK)
            status = masker_create(g, v, &end, 1, &m, &e);
        else
            grammar_free(g);
        bool failed = alloc_failed();
        alloc_fail_off();
        assert_int_equal(status, failed ? STATUS_MEMORY : STATUS_OK);
        masker_free(m);
        vocabulary_free(v);
        if (failed) continue;
        assert_true(n > 8);
        break;
    }
    tokenizer_free(t);
}

// A masker takes all its memory when it is made.
static void test_masks_allocate_nothing(void **state) {
    (void)state;
    static struct grammar_state s;
    static uint32_t words[128];
    struct tokenizer *t;
    struct vocabulary *v;
    struct masker *m;
    struct grammar *g;
    struct error e;
    assert_int_equal(tokenizer_load("models/fold-s/tokenizer.json", NULL, &t, &e), STATUS_OK);
    assert_int_equal(vocabulary_create(t, 4096, &v, &e), STATUS_OK);
    assert_int_equal(grammar_of_schema(forms[0], &g, &e), STATUS_OK);
    assert_int_equal(masker_create(g, v, NULL, 0, &m, &e), STATUS_OK);
    alloc_fail_from(1);
    masker_start(m, &s);
    for (int i = 0; i < 40; i++) {
        int32_t id = 0;
        masker_fill(m, &s, words, 128);
        while (id < 4095 && !(words[id / 32] >> id % 32 & 1)) id++;
        masker_take(m, &s, id);
    }
    assert_int_equal(alloc_count(), 0);
    alloc_fail_off();
    masker_free(m);
    vocabulary_free(v);
    tokenizer_free(t);
}

static void *allocate(size_t n) { return malloc(n); }

int main(void) {
    json_set_alloc_funcs(allocate, free);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_schemas), cmocka_unit_test(test_masker),
                                       cmocka_unit_test(test_masks_allocate_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
