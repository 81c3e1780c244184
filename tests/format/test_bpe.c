#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "format/bpe.h"
#include "format/tokenizer.h"
#include <stdlib.h>
#include <string.h>

enum { N_LETTERS = 4, N_MERGES = 40, N_IDS = 256 + N_MERGES };

static uint32_t next_random(uint32_t *seed) { return (*seed = *seed * 1664525u + 1013904223u) >> 8; }

struct rule {
    int32_t left, right;
};

// All bytes, and merges of random pieces over a few letters, so that they overlap in every way.
static struct bpe *random_vocabulary(uint32_t *seed, struct rule rules[N_MERGES]) {
    struct bpe *b = bpe_create(N_IDS, N_IDS, 1 << 20, N_MERGES);
    assert_non_null(b);
    for (int byte = 0; byte < 256; byte++) {
        char text = (char)byte;
        assert_true(bpe_add_piece(b, byte, &text, 1));
    }
    for (int rank = 0; rank < N_MERGES;) {
        int32_t pair[2];
        char joined[64];
        size_t n = 0;
        for (int i = 0; i < 2; i++) {
            uint32_t pick = next_random(seed) % (uint32_t)(N_LETTERS + rank);
            pair[i] = pick < N_LETTERS ? (int32_t)('a' + pick) : (int32_t)(256 + pick - N_LETTERS);
            size_t n_part;
            const char *part = bpe_bytes(b, pair[i], &n_part);
            if (n + n_part > sizeof joined) break;
            memcpy(joined + n, part, n_part);
            n += n_part;
        }
        if (n > 12 || !bpe_add_piece(b, 256 + rank, joined, n)) continue;
        assert_true(bpe_add_merge(b, pair[0], pair[1], 256 + rank));
        rules[rank++] = (struct rule){pair[0], pair[1]};
    }
    return b;
}

// BPE as it is defined: of all neighbours take the pair with the earliest merge, leftmost first, until none is left.
static size_t merge_simply(const struct rule rules[N_MERGES], int32_t *ids, size_t n) {
    for (;;) {
        size_t at = 0;
        int best = N_MERGES;
        for (size_t i = 0; i + 1 < n; i++)
            for (int rank = 0; rank < best; rank++)
                if (rules[rank].left == ids[i] && rules[rank].right == ids[i + 1]) {
                    best = rank;
                    at = i;
                }
        if (best == N_MERGES) return n;
        ids[at] = 256 + best;
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

static void test_against_definition(void **state) {
    (void)state;
    uint32_t seed = 3;
    for (int vocabulary = 0; vocabulary < 40; vocabulary++) {
        struct rule rules[N_MERGES];
        struct bpe *b = random_vocabulary(&seed, rules);
        struct bpe_scratch scratch = {0};
        for (int round = 0; round < 60; round++) {
            char text[300];
            int32_t expected[300];
            size_t n = 1 + next_random(&seed) % (round < 50 ? 24 : 300);
            for (size_t i = 0; i < n; i++) expected[i] = text[i] = (char)('a' + next_random(&seed) % N_LETTERS);
            size_t n_expected = merge_simply(rules, expected, n);
            struct token_list list = {0};
            assert_int_equal(bpe_encode(b, text, n, &scratch, &list, NULL), STATUS_OK);
            assert_int_equal(list.n, n_expected);
            assert_memory_equal(list.ids, expected, n_expected * sizeof *expected);
            token_list_free(&list);
        }
        bpe_scratch_free(&scratch);
        bpe_free(b);
    }
}

static void test_tables(void **state) {
    (void)state;
    struct bpe *b = bpe_create(300, 260, 300, 2);
    assert_int_equal(bpe_missing_byte(b), 0);
    for (int byte = 0; byte < 255; byte++) assert_true(bpe_add_piece(b, byte, &(char){(char)byte}, 1));
    assert_int_equal(bpe_missing_byte(b), 255);
    assert_true(bpe_add_piece(b, 299, "\xff", 1));
    assert_int_equal(bpe_missing_byte(b), -1);
    assert_false(bpe_add_piece(b, 298, "\xff", 1)); // the same bytes
    assert_false(bpe_add_piece(b, 299, "ab", 2));   // the same id
    assert_false(bpe_add_piece(b, 298, "", 0));
    assert_true(bpe_add_piece(b, 298, "ab", 2));
    assert_int_equal(bpe_find(b, "ab", 2), 298);
    assert_int_equal(bpe_find(b, "abc", 3), -1);
    assert_int_equal(bpe_find(b, "", 0), -1);
    assert_true(bpe_add_merge(b, 'a', 'b', 298));
    assert_false(bpe_add_merge(b, 'a', 'b', 299));
    size_t n = 9;
    assert_null(bpe_bytes(b, 297, &n));
    assert_int_equal(n, 0);
    assert_null(bpe_bytes(b, -1, &n));
    assert_null(bpe_bytes(b, 300, &n));
    assert_memory_equal(bpe_bytes(b, 298, &n), "ab", 2);
    assert_int_equal(bpe_count_ids(b), 300);
    bpe_free(b);
    bpe_free(NULL);
}

static void encode_one(struct bpe *b, const char *text, int32_t first, size_t n_expected) {
    struct bpe_scratch scratch = {0};
    struct token_list list = {0};
    assert_int_equal(bpe_encode(b, text, strlen(text), &scratch, &list, NULL), STATUS_OK);
    assert_int_equal(list.n, n_expected);
    assert_int_equal(list.ids[0], first);
    token_list_free(&list);
    bpe_scratch_free(&scratch);
}

// A piece that no merge builds is found with ignore_merges only.
static void test_ignore_merges(void **state) {
    (void)state;
    struct bpe *b = bpe_create(300, 300, 300, 2);
    for (int byte = 0; byte < 256; byte++) assert_true(bpe_add_piece(b, byte, &(char){(char)byte}, 1));
    assert_true(bpe_add_piece(b, 256, "xyz", 3));
    encode_one(b, "xyz", 'x', 3);
    bpe_set_ignore_merges(b, true);
    encode_one(b, "xyz", 256, 1);
    encode_one(b, "xyzx", 'x', 4);
    bpe_free(b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_definition),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_ignore_merges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
