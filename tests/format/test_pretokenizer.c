#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "format/pretokenizer.h"
#include <stdlib.h>
#include <string.h>

static const char qwen[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
                           "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

static struct pretokenizer *with_patterns(const char *const *patterns, size_t n) {
    struct pretokenizer *p = pretokenizer_create();
    struct error e = {0};
    for (size_t i = 0; i < n; i++) {
        bool literal = patterns[i][0] == '='; // "=x" stands for the exact text x
        enum status status = pretokenizer_add(p, patterns[i] + literal, strlen(patterns[i] + literal), literal, &e);
        if (status != STATUS_OK) fail_msg("%s", e.text);
    }
    return p;
}

// Cuts the text and expects the stretches, which are separated by '|' ("\1" stands for a '|' in the text).
static void check_cuts(const struct pretokenizer *p, const char *text, size_t n, const char *expected) {
    struct pretokenizer_run *r = pretokenizer_run_create(p);
    assert_non_null(r);
    char joined[1024];
    size_t n_joined = 0;
    pretokenizer_begin(r, text, n);
    for (;;) {
        const char *piece;
        size_t n_piece;
        assert_int_equal(pretokenizer_next(r, &piece, &n_piece, NULL), STATUS_OK);
        if (!piece) break;
        assert_true(n_piece > 0);
        if (n_joined > 0) joined[n_joined++] = '|';
        memcpy(joined + n_joined, piece, n_piece);
        n_joined += n_piece;
    }
    joined[n_joined] = '\0';
    assert_string_equal(joined, expected);
    pretokenizer_run_free(r);
}

static void test_qwen_pattern(void **state) {
    (void)state;
    struct pretokenizer *p = with_patterns((const char *const[]){qwen}, 1);
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"", ""},
        {"Hello world", "Hello| world"},
        {"I'm you'LL he'\xc5\xbf 'x", "I|'m| you|'LL| he|'\xc5\xbf| '|x"}, // U+017F is an s, whatever the case
        {"12 345", "1|2| |3|4|5"},
        {"a   b", "a|  | b"},
        {"a   ", "a|   "},
        {"a \n\n  b", "a| \n\n| | b"},
        {"x;\r\n\r\ny", "x|;\r\n\r\n|y"},
        {"(foo) !!", "(foo|)| !!"},
        {"\tif", "\tif"},
        {"e\xcc\x81t\xcc\xa3", "e\xcc\x81t\xcc\xa3"}, // marks stay with words
        {"!\xcc\x81x", "!\xcc\x81x"},                 // and a sign may begin one
        {"a\xe1\xa0\x8e\xe1\xa0\x8e"
         "b",
         "a|\xe1\xa0\x8e\xe1\xa0\x8e|b"}, // U+180E is no white space
        {"a\xc2\xa0\xe3\x80\x80"
         "b",
         "a|\xc2\xa0|\xe3\x80\x80"
         "b"},
        {"\xf0\xb1\x8d\x90!", "\xf0\xb1\x8d\x90|!"}, // U+31350, a letter since Unicode 15
        {"\xe0\xa2\x97"
         "a",
         "\xe0\xa2\x97"
         "a"}, // U+0897, a mark since Unicode 16
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_cuts(p, cases[i].text, strlen(cases[i].text), cases[i].expected);
    check_cuts(p, "a\0b", 3, "a|");
    pretokenizer_free(p);
}

static void test_stages(void **state) {
    (void)state;
    struct pretokenizer *none = pretokenizer_create();
    check_cuts(none, "a b 1", 5, "a b 1");
    pretokenizer_free(none);
    struct pretokenizer *p = with_patterns((const char *const[]){"\\p{N}{1,3}", "= ", "[a-c]+?"}, 3);
    check_cuts(p, "ab 12345 xaz", 12, "a|b| |123|45| |x|a|z");
    pretokenizer_free(p);
    p = with_patterns((const char *const[]){"=a.b"}, 1); // a literal pattern is not a regular expression
    check_cuts(p, "axba.b", 6, "axb|a.b");
    pretokenizer_free(p);
    p = with_patterns((const char *const[]){pretokenizer_gpt2_pattern}, 1);
    check_cuts(p, "it's 123 abc", 12, "it|'s| 123| abc");
    pretokenizer_free(p);
    p = with_patterns((const char *const[]){"\\P{L}|\\S\\S"}, 1);
    check_cuts(p, "ab1c", 4, "ab|1|c");
    pretokenizer_free(p);
}

static void test_refusals(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *sentence;
        enum status status;
    } cases[] = {
        {"a.b", "the pattern has \".\" at byte 1, which is not supported", STATUS_UNSUPPORTED},
        {"^a", "the pattern has \"^\" at byte 0", STATUS_UNSUPPORTED},
        {"a$", "the pattern has \"$\" at byte 1", STATUS_UNSUPPORTED},
        {"\\w+", "the pattern has \"\\w\" at byte 0", STATUS_UNSUPPORTED},
        {"a\\d", "the pattern has \"\\d\" at byte 1", STATUS_UNSUPPORTED},
        {"\\h", "the pattern has \"\\h\"", STATUS_UNSUPPORTED},
        {"\\1", "the pattern has \"\\1\"", STATUS_UNSUPPORTED},
        {"\\p{Han}", "the pattern has \"\\p{Ha\"", STATUS_UNSUPPORTED},
        {"\\p{^L}", "the pattern has \"\\p{^L\"", STATUS_UNSUPPORTED},
        {"\\p", "the pattern has \"\\p\"", STATUS_UNSUPPORTED},
        {"[\\S]", "the pattern has \"\\S\"", STATUS_UNSUPPORTED},
        {"[a\\P{L}]", "the pattern has \"\\P{L}\" at byte 2", STATUS_UNSUPPORTED},
        {"[a[b]]", "the pattern has \"[b\" at byte 2", STATUS_UNSUPPORTED},
        {"[a&&b]", "the pattern has \"&&\" at byte 2", STATUS_UNSUPPORTED},
        {"[]a]", "the pattern has \"]\" at byte 1", STATUS_UNSUPPORTED},
        {"[\\s-x]", "the pattern has \"-x\" at byte 3", STATUS_UNSUPPORTED},
        {"[+-\\s]", "the pattern has \"-\\s\" at byte 2", STATUS_UNSUPPORTED},
        {"(?i)a", "the pattern has \"(?i\" at byte 0", STATUS_UNSUPPORTED},
        {"(?<=a)b", "the pattern has \"(?<\"", STATUS_UNSUPPORTED},
        {"(?P<n>a)", "the pattern has \"(?P\"", STATUS_UNSUPPORTED},
        {"(*UTF)a", "the pattern has \"(*U\"", STATUS_UNSUPPORTED},
        {"a{,3}", "the pattern has \"{,\"", STATUS_UNSUPPORTED},
        {"a{2}+", "the pattern has \"+\" at byte 4", STATUS_UNSUPPORTED},
        {"a{2,3}?", "the pattern has \"?\" at byte 6", STATUS_UNSUPPORTED},
        {"a{x", "the pattern has \"{x\"", STATUS_UNSUPPORTED},
        {"a{2", "the pattern has \"{2\"", STATUS_UNSUPPORTED},
        {"a*", "the pattern can match the empty text", STATUS_UNSUPPORTED},
        {"(?!x)", "the pattern can match the empty text", STATUS_UNSUPPORTED},
        {"a\\", "the pattern ends in a backslash", STATUS_INVALID},
        {"x[ab", "the pattern opens a class at byte 1 and never closes it", STATUS_INVALID},
        {"(a", "the pattern is not a regular expression: missing closing parenthesis", STATUS_INVALID},
        {"a)", "the pattern is not a regular expression: ", STATUS_INVALID},
        {"+a", "the pattern is not a regular expression: ", STATUS_INVALID},
        {"", "the pattern is empty", STATUS_INVALID},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct pretokenizer *p = pretokenizer_create();
        struct error e = {0};
        assert_int_equal(pretokenizer_add(p, cases[i].pattern, strlen(cases[i].pattern), false, &e), cases[i].status);
        if (strncmp(e.text, cases[i].sentence, strlen(cases[i].sentence)))
            fail_msg("%s gives \"%s\", not \"%s\"", cases[i].pattern, e.text, cases[i].sentence);
        check_cuts(p, "ab", 2, "ab"); // a refused pattern leaves no stage behind
        pretokenizer_free(p);
    }
}

static void test_limits(void **state) {
    (void)state;
    struct pretokenizer *p = pretokenizer_create();
    char pattern[5000];
    memset(pattern, 'a', sizeof pattern);
    assert_int_equal(pretokenizer_add(p, pattern, sizeof pattern, false, NULL), STATUS_LIMIT);
    for (int i = 0; i < PRETOKENIZER_STAGES_MAX; i++)
        assert_int_equal(pretokenizer_add(p, "a", 1, false, NULL), STATUS_OK);
    assert_int_equal(pretokenizer_add(p, "a", 1, false, NULL), STATUS_LIMIT);
    check_cuts(p, "bab", 3, "b|a|b");
    pretokenizer_free(p);
    pretokenizer_free(NULL);
}

// A pattern whose backtracking explodes is stopped with an error.
static void test_exploding_pattern(void **state) {
    (void)state;
    struct pretokenizer *p = with_patterns((const char *const[]){"(?:a|a|aa)+c"}, 1);
    struct pretokenizer_run *r = pretokenizer_run_create(p);
    char text[200];
    memset(text, 'a', sizeof text);
    memcpy(text + sizeof text - 2, "bc", 2); // a text without a c would be given up at once
    pretokenizer_begin(r, text, sizeof text);
    const char *piece = NULL;
    size_t n;
    struct error e;
    enum status status = STATUS_OK;
    do status = pretokenizer_next(r, &piece, &n, &e);
    while (status == STATUS_OK && piece);
    assert_int_equal(status, STATUS_LIMIT);
    assert_non_null(strstr(e.text, "too many steps"));
    pretokenizer_run_free(r);
    pretokenizer_free(p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_qwen_pattern),      cmocka_unit_test(test_stages),
        cmocka_unit_test(test_refusals),          cmocka_unit_test(test_limits),
        cmocka_unit_test(test_exploding_pattern),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
