#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "format/unicode.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define TEXT(literal) literal, sizeof literal - 1

static void test_valid(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t n, valid;
    } cases[] = {
        {TEXT(""), 0},
        {TEXT("a\0b"), 3},
        {TEXT("\xc3\xa9"), 2},
        {TEXT("\xed\x9f\xbf\xee\x80\x80\xf4\x8f\xbf\xbf"), 10},
        {TEXT("ab\xc3"), 2},           // cut off
        {TEXT("ab\x80"), 2},           // a continuation byte alone
        {TEXT("\xc0\x80"), 0},         // overlong
        {TEXT("\xc1\xbf"), 0},         // overlong
        {TEXT("\xe0\x9f\xbf"), 0},     // overlong
        {TEXT("\xf0\x8f\xbf\xbf"), 0}, // overlong
        {TEXT("a\xed\xa0\x80"), 1},    // a surrogate
        {TEXT("\xf4\x90\x80\x80"), 0}, // above U+10FFFF
        {TEXT("\xf5\x80\x80\x80"), 0},
        {TEXT("\xff"), 0},
        {TEXT("\xe4\xb8\xad\xe4\xb8"), 3},
        {TEXT("\xe4\xb8\x41"), 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(unicode_valid_prefix(cases[i].text, cases[i].n), cases[i].valid);
        assert_int_equal(unicode_valid(cases[i].text, cases[i].n), cases[i].valid == cases[i].n);
    }
}

static void test_every_code_point(void **state) {
    (void)state;
    size_t n_spaces = 0;
    for (uint32_t cp = 0; cp < 0x110000; cp++) {
        if (cp >= 0xd800 && cp < 0xe000) continue;
        char text[4];
        size_t n = unicode_write(cp, text), at = 0, back = n;
        assert_true(unicode_valid(text, n));
        assert_int_equal(unicode_next(text, n, &at), cp);
        assert_int_equal(at, n);
        assert_int_equal(unicode_previous(text, &back), cp);
        assert_int_equal(back, 0);
        assert_int_equal(unicode_count(text, n), 1);
        n_spaces += unicode_is_space(cp);
    }
    assert_int_equal(n_spaces, 29); // len([c for c in range(0x110000) if chr(c).isspace()]) in Python
    assert_true(unicode_is_space(0x1c) && unicode_is_space(0x85) && unicode_is_space(0x3000));
    assert_false(unicode_is_space(0x180e) || unicode_is_space(0x200b) || unicode_is_space(0xfeff));
}

static void check_strip(const char *text, size_t n, const char *expected, size_t n_expected) {
    unicode_strip(&text, &n);
    assert_int_equal(n, n_expected);
    assert_memory_equal(text, expected, n);
}

static void test_strip(void **state) {
    (void)state;
    check_strip(TEXT(""), TEXT(""));
    check_strip(TEXT(" \t\n\xe3\x80\x80"), TEXT(""));
    check_strip(TEXT("\xc2\xa0 a b\xc2\x85\x1f"), TEXT("a b"));
    check_strip(TEXT("\xe2\x80\x8b x \xe2\x80\x8b"), TEXT("\xe2\x80\x8b x \xe2\x80\x8b"));
    check_strip(TEXT("\xf0\x9f\x9a\x80"), TEXT("\xf0\x9f\x9a\x80"));
    check_strip(TEXT("\r\n\xf0\x9f\x9a\x80 "), TEXT("\xf0\x9f\x9a\x80"));
}

// ---- NFC ----

static bool is_bang_or_acute(uint32_t cp) { return cp == '!' || cp == 0x301; }

static void check_nfc(const char *text, size_t n, bool (*is_boundary)(uint32_t), const char *expected,
                      size_t n_expected) {
    char *out = NULL;
    size_t n_out = 0;
    assert_int_equal(unicode_nfc(text, n, is_boundary, &out, &n_out, NULL), STATUS_OK);
    assert_int_equal(n_out, n_expected);
    assert_memory_equal(out, expected, n_out);
    assert_int_equal(out[n_out], '\0');
    free(out);
}

static void test_nfc(void **state) {
    (void)state;
    check_nfc(TEXT(""), NULL, TEXT(""));
    check_nfc(TEXT("plain ascii\0too"), NULL, TEXT("plain ascii\0too"));
    check_nfc(TEXT("xe\xcc\x81y"), NULL, TEXT("x\xc3\xa9y"));
    check_nfc(TEXT("a\xcc\x88\xcc\xa3"), NULL, TEXT("\xe1\xba\xa1\xcc\x88"));            // the mark below comes first
    check_nfc(TEXT("\xe2\x84\xab\xcd\xbe"), NULL, TEXT("\xc3\x85;"));                    // singletons
    check_nfc(TEXT("\xe1\x84\x80\xe1\x85\xa1\xe1\x86\xa8"), NULL, TEXT("\xea\xb0\x81")); // Hangul
    check_nfc(TEXT("\xef\xac\x81"), NULL, TEXT("\xef\xac\x81"));                         // a compatibility form stays
    check_nfc(TEXT("\xe0\xa5\x98"), NULL, TEXT("\xe0\xa4\x95\xe0\xa4\xbc"));             // excluded from composition
    check_nfc(TEXT(">\xcc\xb8"), NULL, TEXT("\xe2\x89\xaf"));
    // A boundary is copied and neither passed nor composed with.
    check_nfc(TEXT("e\xcc\x81"), is_bang_or_acute, TEXT("e\xcc\x81"));
    check_nfc(TEXT("!\xcc\x80"
                   "a\xcc\x80"),
              is_bang_or_acute, TEXT("!\xcc\x80\xc3\xa0"));
    check_nfc(TEXT("a\xcc\x81\xcc\xa3"), is_bang_or_acute, TEXT("a\xcc\x81\xcc\xa3"));
    check_nfc(TEXT("a\xcc\x81\xcc\xa3"), NULL, TEXT("\xe1\xba\xa1\xcc\x81"));
}

static uint32_t next_random(uint32_t *seed) { return *seed = *seed * 1664525u + 1013904223u; }

// Random starters and marks, against utf8proc's own NFC.
static void test_nfc_against_utf8proc(void **state) {
    (void)state;
    static const struct {
        uint32_t low, high;
    } ranges[] = {{0x20, 0x7f},   {0x300, 0x36f}, {0x591, 0x5c7},   {0x1100, 0x11ff}, {0xac00, 0xd7a3},
                  {0x900, 0x9ff}, {0xc0, 0x24f},  {0x1e00, 0x1fff}, {0xf71, 0xf87},   {0x1d15e, 0x1d1c0}};
    uint32_t seed = 1;
    for (int round = 0; round < 3000; round++) {
        char text[4 * 80 + 1];
        size_t n = 0, length = next_random(&seed) % 80;
        for (size_t i = 0; i < length; i++) {
            size_t r = (next_random(&seed) >> 16) % (sizeof ranges / sizeof *ranges);
            if (i % 3) r = 1; // long runs of marks, so that both ways of sorting are used
            uint32_t offset = (next_random(&seed) >> 8) % (ranges[r].high - ranges[r].low + 1);
            n += unicode_write(ranges[r].low + offset, text + n);
        }
        text[n] = '\0';
        utf8proc_uint8_t *expected = utf8proc_NFC((utf8proc_uint8_t *)text);
        assert_non_null(expected);
        check_nfc(text, n, NULL, (char *)expected, strlen((char *)expected));
        free(expected);
    }
}

// Half a million marks in falling order: exchanging neighbours would take minutes.
static void test_nfc_is_linear(void **state) {
    (void)state;
    const size_t n_marks = 500000, n = 1 + 2 * n_marks;
    char *text = malloc(n), *out;
    size_t n_out;
    assert_non_null(text);
    text[0] = 'q';
    for (size_t i = 0; i < n_marks; i++) unicode_write(i < n_marks / 2 ? 0x301 : 0x323, text + 1 + 2 * i);
    assert_int_equal(unicode_nfc(text, n, NULL, &out, &n_out, NULL), STATUS_OK);
    assert_int_equal(n_out, n);
    size_t at = 1;
    assert_int_equal(unicode_next(out, n_out, &at), 0x323);
    free(out);
    free(text);
}

// ---- the decoder ----

static void check_decoded(const char *bytes, size_t n, const char *expected) {
    char out[UTF8_DECODED_MAX(64) + 3];
    assert_true(n <= 64);
    for (size_t step = 1; step <= n + 1; step++) { // pieces of every size
        struct utf8_decoder d = {0};
        size_t written = 0;
        for (size_t at = 0; at < n; at += step) {
            size_t part = step < n - at ? step : n - at;
            written += utf8_decoder_feed(&d, bytes + at, part, out + written);
            assert_true(unicode_valid(out, written));
            assert_true(d.n_tail <= 3);
        }
        written += utf8_decoder_finish(&d, out + written);
        assert_int_equal(d.n_tail, 0);
        assert_int_equal(written, strlen(expected));
        assert_memory_equal(out, expected, written);
    }
}

#define BAD "\xef\xbf\xbd"

static void test_decoder(void **state) { // each expectation is bytes.decode("utf-8", "replace") of Python
    (void)state;
    check_decoded(TEXT(""), "");
    check_decoded(TEXT("abc"), "abc");
    check_decoded(TEXT("\xf0\x9f\x98\x80"), "\xf0\x9f\x98\x80");
    check_decoded(TEXT("\xe4\xb8\xad\xe6\x96\x87"), "\xe4\xb8\xad\xe6\x96\x87");
    check_decoded(TEXT("\x80"), BAD);
    check_decoded(TEXT("\xff\xfe"), BAD BAD);
    check_decoded(TEXT("\xc0\x80"), BAD BAD);
    check_decoded(TEXT("\xe0\x80\x80"), BAD BAD BAD);
    check_decoded(TEXT("\xed\xa0\x80"), BAD BAD BAD);
    check_decoded(TEXT("\xf4\x90\x80\x80"), BAD BAD BAD BAD);
    check_decoded(TEXT("\xf0\x9f\x98"), BAD);
    check_decoded(TEXT("\xf0\x9f\x98\x41"), BAD "A");
    check_decoded(TEXT("\xf0\x9f\xf0\x9f\x98\x80"), BAD "\xf0\x9f\x98\x80");
    check_decoded(TEXT("\xe4\xb8\xc3\xa9\xc3"), BAD "\xc3\xa9" BAD);
    check_decoded(TEXT("a\xe2\x82"
                       "b\xe2\x82\xac"),
                  "a" BAD "b\xe2\x82\xac");
}

// A second decoder, written from the standard's table of well-formed sequences: at each place take the longest valid
// character, or else replace the longest beginning of one, or else one byte.
static size_t decode_simply(const unsigned char *s, size_t n, char *out) {
    static const unsigned char rows[9][8] = {{0x00, 0x7f},
                                             {0xc2, 0xdf, 0x80, 0xbf},
                                             {0xe0, 0xe0, 0xa0, 0xbf, 0x80, 0xbf},
                                             {0xe1, 0xec, 0x80, 0xbf, 0x80, 0xbf},
                                             {0xed, 0xed, 0x80, 0x9f, 0x80, 0xbf},
                                             {0xee, 0xef, 0x80, 0xbf, 0x80, 0xbf},
                                             {0xf0, 0xf0, 0x90, 0xbf, 0x80, 0xbf, 0x80, 0xbf},
                                             {0xf1, 0xf3, 0x80, 0xbf, 0x80, 0xbf, 0x80, 0xbf},
                                             {0xf4, 0xf4, 0x80, 0x8f, 0x80, 0xbf, 0x80, 0xbf}};
    size_t written = 0;
    for (size_t at = 0; at < n;) {
        size_t longest = 0;
        bool whole = false;
        for (int r = 0; r < 9; r++) {
            size_t length = r == 0 ? 1 : r == 1 ? 2 : r < 6 ? 3 : 4, k = 0;
            while (k < length && at + k < n && s[at + k] >= rows[r][2 * k] && s[at + k] <= rows[r][2 * k + 1]) k++;
            if (k > longest) longest = k;
            if (k == length) whole = true;
        }
        if (whole)
            memcpy(out + written, s + at, longest);
        else
            memcpy(out + written, BAD, 3);
        written += whole ? longest : 3;
        at += longest ? longest : 1;
    }
    out[written] = '\0';
    return written;
}

static void test_decoder_on_random_bytes(void **state) {
    (void)state;
    static const unsigned char interesting[] = {0x41, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc1, 0xc2,
                                                0xe0, 0xe1, 0xed, 0xef, 0xf0, 0xf1, 0xf4, 0xf5, 0xff};
    uint32_t seed = 7;
    for (int round = 0; round < 20000; round++) {
        unsigned char bytes[24];
        char expected[3 * 24 + 1];
        size_t n = next_random(&seed) % 24;
        for (size_t i = 0; i < n; i++) bytes[i] = interesting[(next_random(&seed) >> 16) % sizeof interesting];
        decode_simply(bytes, n, expected);
        check_decoded((char *)bytes, n, expected);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_valid),
        cmocka_unit_test(test_every_code_point),
        cmocka_unit_test(test_strip),
        cmocka_unit_test(test_nfc),
        cmocka_unit_test(test_nfc_against_utf8proc),
        cmocka_unit_test(test_nfc_is_linear),
        cmocka_unit_test(test_decoder),
        cmocka_unit_test(test_decoder_on_random_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
