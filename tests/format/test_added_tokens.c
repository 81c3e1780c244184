#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "format/added_tokens.h"
#include <stdlib.h>
#include <string.h>

static enum status add(struct added_tokens *a, int32_t id, const char *text) {
    return added_tokens_add(a, id, text, strlen(text), false, false, NULL);
}

static void expect_match(const struct added_tokens *a, const char *text, size_t from, int32_t id, size_t at) {
    size_t found_at = 0;
    const struct added_token *found = added_matcher_search(&a->raw, text, strlen(text), from, &found_at);
    if (id < 0) {
        assert_null(found);
        return;
    }
    assert_non_null(found);
    assert_int_equal(found->id, id);
    assert_int_equal(found_at, at);
}

static void test_leftmost_longest(void **state) {
    (void)state;
    struct added_tokens a = {0};
    const char *texts[] = {"<a>", "<a>b", "<a", "bc", "b", "<a>bcd", "\xe4\xb8\xad"};
    for (int i = 0; i < 7; i++) assert_int_equal(add(&a, i, texts[i]), STATUS_OK);
    assert_int_equal(added_tokens_finish(&a, true, NULL), STATUS_OK);
    expect_match(&a, "x<a>bcx", 0, 1, 1);
    expect_match(&a, "x<a>bcd", 0, 5, 1);
    expect_match(&a, "x<abcd", 0, 2, 1);
    expect_match(&a, "x<a>", 0, 0, 1);
    expect_match(&a, "x<<a>", 0, 0, 2);
    expect_match(&a, "x<a>bc", 2, 3, 4);
    expect_match(&a, "xcb", 0, 4, 2);
    expect_match(&a, "x<c", 0, -1, 0);
    expect_match(&a, "", 0, -1, 0);
    expect_match(&a, "\xe4\xb8\xe4\xb8\xad", 0, 6, 2);
    added_tokens_free(&a);
}

static unsigned next_random(unsigned *seed) { return (*seed = *seed * 1664525u + 1013904223u) >> 16; }

// The longest of the texts that stand leftmost in text, or -1.
static int search_plainly(char texts[][8], int n_texts, const char *text, size_t *best_at) {
    int best = -1;
    for (size_t at = 0; text[at] && best < 0; at++)
        for (int k = 0; k < n_texts; k++) {
            if (strncmp(text + at, texts[k], strlen(texts[k]))) continue;
            if (best >= 0 && strlen(texts[k]) <= strlen(texts[best])) continue;
            best = k;
            *best_at = at;
        }
    return best;
}

static void test_against_plain_search(void **state) {
    (void)state;
    unsigned seed = 11;
    for (int round = 0; round < 500; round++) {
        struct added_tokens a = {0};
        char texts[8][8] = {{0}}, text[33] = {0};
        int n_texts = 0;
        for (int i = 0; i < 8; i++) {
            size_t n = 1 + next_random(&seed) % 6;
            for (size_t k = 0; k < n; k++) texts[n_texts][k] = "ab"[next_random(&seed) & 1];
            texts[n_texts][n] = '\0';
            bool known = false;
            for (int k = 0; k < n_texts; k++) known |= !strcmp(texts[k], texts[n_texts]);
            if (known) continue;
            assert_int_equal(add(&a, n_texts, texts[n_texts]), STATUS_OK);
            n_texts++;
        }
        assert_int_equal(added_tokens_finish(&a, true, NULL), STATUS_OK);
        for (int i = 0; i < 32; i++) text[i] = "aabc"[next_random(&seed) % 4];
        size_t best_at = 0;
        int best = search_plainly(texts, n_texts, text, &best_at);
        expect_match(&a, text, 0, best, best_at);
        added_tokens_free(&a);
    }
}

static void test_repeats(void **state) {
    (void)state;
    struct error e;
    struct added_tokens a = {0};
    assert_int_equal(added_tokens_add(&a, 5, "<x>", 3, true, false, NULL), STATUS_OK);
    assert_int_equal(added_tokens_add(&a, 5, "<x>", 3, false, false, NULL), STATUS_OK);
    assert_int_equal(add(&a, 4, "<y>"), STATUS_OK);
    assert_int_equal(added_tokens_finish(&a, true, NULL), STATUS_OK);
    assert_int_equal(a.n, 2);
    assert_true(added_tokens_by_id(&a, 5)->special); // as given first
    assert_int_equal(added_tokens_by_text(&a, "<y>", 3)->id, 4);
    assert_null(added_tokens_by_text(&a, "<y", 2));
    assert_null(added_tokens_by_id(&a, 6));
    added_tokens_free(&a);
    add(&a, 5, "<x>");
    add(&a, 5, "<y>");
    assert_int_equal(added_tokens_finish(&a, true, &e), STATUS_INVALID);
    assert_string_equal(e.text, "two added tokens have the id 5");
    added_tokens_free(&a);
    add(&a, 5, "<x>");
    add(&a, 6, "<x>");
    assert_int_equal(added_tokens_finish(&a, true, &e), STATUS_INVALID);
    assert_string_equal(e.text, "the added tokens with ids 5 and 6 have the same text");
    added_tokens_free(&a);
}

static void test_refused_texts(void **state) {
    (void)state;
    struct added_tokens a = {0};
    char longest[ADDED_TOKEN_BYTES_MAX + 2];
    memset(longest, 'x', sizeof longest);
    assert_int_equal(added_tokens_add(&a, 1, "", 0, false, false, NULL), STATUS_INVALID);
    assert_int_equal(added_tokens_add(&a, 1, "\xc3", 1, false, false, NULL), STATUS_INVALID);
    assert_int_equal(added_tokens_add(&a, 1, longest, ADDED_TOKEN_BYTES_MAX + 1, false, false, NULL), STATUS_LIMIT);
    assert_int_equal(added_tokens_add(&a, 1, longest, ADDED_TOKEN_BYTES_MAX, false, false, NULL), STATUS_OK);
    added_tokens_free(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_leftmost_longest),
        cmocka_unit_test(test_against_plain_search),
        cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_refused_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
