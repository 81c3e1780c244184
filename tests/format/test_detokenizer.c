// Streaming text: case C21 (characters split over tokens) and the bytes half of C41.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "base/buffer.h"
#include "format/detokenizer.h"
#include "format/tokenizer.h"
#include "format/unicode.h"
#include <stdlib.h>
#include <string.h>

#define FIXTURE "tests/fixtures/tokenizer/small/tokenizer.json"

static struct tokenizer *tok;
static int32_t byte_id[256];

static int setup(void **state) {
    (void)state;
    struct error e;
    if (tokenizer_load(FIXTURE, "tests/fixtures/tokenizer/small/tokenizer_config.json", &tok, &e) != STATUS_OK) {
        print_error("%s\n", e.text);
        return -1;
    }
    for (int32_t id = 0; id < tokenizer_count_ids(tok); id++) {
        size_t n;
        const char *bytes = tokenizer_id_bytes(tok, id, &n);
        if (n == 1) byte_id[(unsigned char)bytes[0]] = id;
    }
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tokenizer_free(tok);
    return 0;
}

static int32_t added(const char *text) {
    int32_t id = tokenizer_find(tok, text, strlen(text));
    assert_true(id >= 0);
    return id;
}

static void assert_part(const char *part, size_t n, const char *expected) {
    assert_int_equal(n, strlen(expected));
    assert_memory_equal(part, expected, n);
}

// Feeds the bytes of `text` as one-byte tokens and expects the deltas, one for each byte and the last for the end.
static void check_deltas(const char *text, size_t n, const char *const *deltas) {
    struct detokenizer *d = detokenizer_create(tok, true);
    assert_non_null(d);
    size_t n_part;
    for (size_t i = 0; i < n; i++) {
        const char *part = detokenizer_feed(d, byte_id[(unsigned char)text[i]], &n_part);
        assert_part(part, n_part, deltas[i]);
    }
    const char *part = detokenizer_finish(d, &n_part);
    assert_part(part, n_part, deltas[n]);
    detokenizer_free(d);
}

#define BAD "\xef\xbf\xbd"

static void test_split_characters(void **state) {
    (void)state;
    check_deltas("\xf0\x9f\x98\x80!", 5, (const char *const[]){"", "", "", "\xf0\x9f\x98\x80", "!", ""});
    check_deltas("\xe5\x8c\x97\xe5", 4, (const char *const[]){"", "", "\xe5\x8c\x97", "", BAD}); // ends inside one
    check_deltas("a\xff"
                 "b",
                 3, (const char *const[]){"a", BAD, "b", ""});
    check_deltas("\xf0\x9f"
                 "b\x80",
                 4, (const char *const[]){"", "", BAD "b", BAD, ""});
}

// Finds a token with exactly these bytes among the pieces, or spells them in single bytes.
static void spell(struct token_list *ids, const char *bytes, size_t n) {
    for (int32_t id = 0; id < tokenizer_count_ids(tok); id++) {
        size_t n_piece;
        const char *piece = tokenizer_id_bytes(tok, id, &n_piece);
        if (n_piece != n || memcmp(piece, bytes, n)) continue;
        assert_true(ids->n < ids->capacity);
        ids->ids[ids->n++] = id;
        return;
    }
    for (size_t i = 0; i < n; i++) spell(ids, bytes + i, 1);
}

// A family of emoji, cut into tokens at every pair of places: the deltas joined are the text.
static void test_every_cut(void **state) {
    (void)state;
    static const char text[] = "a\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7\xe5\x8c\x97\xc3\xa9.";
    const size_t n = sizeof text - 1;
    for (size_t first = 0; first <= n; first++)
        for (size_t second = first; second <= n; second++) {
            int32_t room[64];
            struct token_list ids = {.ids = room, .capacity = 64};
            if (first > 0) spell(&ids, text, first);
            if (second > first) spell(&ids, text + first, second - first);
            if (n > second) spell(&ids, text + second, n - second);
            struct detokenizer *d = detokenizer_create(tok, false);
            struct buffer joined, raw;
            buffer_init(&joined, 0);
            buffer_init(&raw, 0);
            size_t n_part;
            for (size_t i = 0; i < ids.n; i++) {
                const char *part = detokenizer_feed(d, ids.ids[i], &n_part);
                assert_true(unicode_valid(part, n_part));
                buffer_append(&joined, part, n_part);
                part = tokenizer_id_bytes(tok, ids.ids[i], &n_part);
                buffer_append(&raw, part, n_part);
            }
            const char *part = detokenizer_finish(d, &n_part);
            buffer_append(&joined, part, n_part);
            assert_string_equal(joined.data, text);
            assert_string_equal(raw.data, text); // C41: the tokens' bytes joined are the text
            buffer_free(&joined);
            buffer_free(&raw);
            detokenizer_free(d);
        }
}

static void test_special_tokens(void **state) {
    (void)state;
    int32_t ids[] = {added("<think>"),    byte_id['a'],  byte_id[0xc3],
                     added("<|im_end|>"), byte_id[0xa9], added("</think>")};
    char *text;
    size_t n;
    assert_int_equal(detokenizer_decode(tok, ids, 6, true, &text, &n, NULL), STATUS_OK);
    assert_part(text, n, "<think>a\xc3\xa9</think>"); // what is left out does not cut a character
    free(text);
    assert_int_equal(detokenizer_decode(tok, ids, 6, false, &text, &n, NULL), STATUS_OK);
    assert_part(text, n, "<think>a" BAD "<|im_end|>" BAD "</think>");
    free(text);
    assert_int_equal(detokenizer_decode(tok, NULL, 0, false, &text, &n, NULL), STATUS_OK);
    assert_part(text, n, "");
    free(text);
}

static void test_ids_without_text(void **state) {
    (void)state;
    int32_t ids[] = {byte_id[0xe5], -1, byte_id[0x8c], tokenizer_count_ids(tok), INT32_MAX, INT32_MIN, byte_id[0x97]};
    char *text;
    size_t n;
    assert_int_equal(detokenizer_decode(tok, ids, 7, true, &text, &n, NULL), STATUS_OK);
    assert_part(text, n, "\xe5\x8c\x97");
    free(text);
}

static void test_reset_and_reuse(void **state) {
    (void)state;
    struct detokenizer *d = detokenizer_create(tok, true);
    size_t n;
    detokenizer_feed(d, byte_id[0xf0], &n);
    detokenizer_reset(d);
    const char *part = detokenizer_feed(d, byte_id['x'], &n);
    assert_part(part, n, "x");
    detokenizer_feed(d, byte_id[0xf0], &n);
    part = detokenizer_finish(d, &n);
    assert_part(part, n, BAD);
    part = detokenizer_finish(d, &n);
    assert_part(part, n, "");
    detokenizer_free(d);
    detokenizer_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_characters), cmocka_unit_test(test_every_cut),
        cmocka_unit_test(test_special_tokens),   cmocka_unit_test(test_ids_without_text),
        cmocka_unit_test(test_reset_and_reuse),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
