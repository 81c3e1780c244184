// Stop strings in text that arrives in pieces: against a plain search, and what requests may say.
#include "format/stopper.h"

#include "base/random.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmocka.h>

static enum status create(const char *stop, struct stopper **out, struct error *e) {
    json_t *v = stop != NULL ? json_loads(stop, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL) : NULL;
    assert_int_equal(v == NULL, stop == NULL);
    struct json_view view = {.value = v, .path = "/stop"};
    enum status status = stopper_create(&view, out, e);
    json_decref(v);
    return status;
}

static void expect_refused(const char *stop, enum status code, const char *sentence) {
    struct stopper *s = NULL;
    struct error e = {0};
    assert_int_equal(create(stop, &s, &e), code);
    assert_null(s);
    assert_int_equal(e.code, code);
    assert_string_equal(e.text, sentence);
}

static void test_requests(void **state) { // C25
    (void)state;
    static const char *const none[] = {NULL, "null", "[]"};
    for (size_t i = 0; i < 3; i++) {
        struct stopper *s;
        assert_int_equal(create(none[i], &s, NULL), STATUS_OK);
        assert_true(stopper_is_empty(s));
        struct buffer out;
        buffer_init(&out, 0);
        size_t used = 0;
        assert_false(stopper_feed(s, "all of it", 9, &out, &used));
        assert_int_equal(used, 9);
        assert_string_equal(out.data, "all of it"); // nothing is held
        stopper_flush(s, &out);
        assert_int_equal(out.n, 9);
        buffer_free(&out);
        stopper_free(s);
    }
    stopper_free(NULL);
    expect_refused("\"\"", STATUS_INVALID, "/stop must not be an empty string");
    expect_refused("[\"\"]", STATUS_INVALID, "/stop/0 must not be an empty string");
    expect_refused("[\"x\", \"\"]", STATUS_INVALID, "/stop/1 must not be an empty string");
    expect_refused("5", STATUS_INVALID, "/stop must be a string or an array of strings");
    expect_refused("{}", STATUS_INVALID, "/stop must be a string or an array of strings");
    expect_refused("[\"x\", null]", STATUS_INVALID, "/stop/1 must be a string, not null");
    expect_refused("[5]", STATUS_INVALID, "/stop/0 must be a string, not an integer");
    expect_refused("[\"a\",\"b\",\"c\",\"d\",\"e\"]", STATUS_LIMIT, "/stop has 5 stop strings; at most 4 are possible");
    char text[512];
    memset(text, 'a', sizeof text);
    text[0] = text[257] = '"';
    text[258] = 0;
    struct stopper *s;
    assert_int_equal(create(text, &s, NULL), STATUS_OK);
    stopper_free(s);
    text[257] = 'a';
    text[258] = '"';
    text[259] = 0;
    expect_refused(text, STATUS_LIMIT, "/stop has 257 bytes; a stop string may have at most 256");
}

// Feeds text in pieces that end at cuts and returns what came out; *stop_end: after the stop string, or -1.
static void run(const char *stop, const char *text, size_t n, const size_t *cuts, size_t n_cuts, struct buffer *out,
                long *stop_end) {
    struct stopper *s;
    assert_int_equal(create(stop, &s, NULL), STATUS_OK);
    buffer_init(out, 0);
    *stop_end = -1;
    size_t at = 0, used;
    for (size_t i = 0; i <= n_cuts && *stop_end < 0; i++) {
        size_t end = i < n_cuts ? cuts[i] : n;
        bool hit = stopper_feed(s, text + at, end - at, out, &used);
        assert_true(hit ? used > 0 && used <= end - at : used == end - at);
        at += used;
        if (hit) *stop_end = (long)at;
        assert_true(at - out->n <= STOPPER_BYTES_MAX); // no more than that is held
    }
    size_t n_found = 0;
    const char *found = stopper_get_found(s, &n_found);
    assert_int_equal(found != NULL, *stop_end >= 0);
    if (found != NULL) assert_memory_equal(text + *stop_end - n_found, found, n_found);
    if (found != NULL) assert_int_equal(out->n + n_found, *stop_end);
    if (*stop_end < 0) stopper_flush(s, out);
    assert_false(out->failed);
    stopper_free(s);
}

static void expect_out(const char *stop, const char *text, const char *expected, long expected_end) {
    size_t n = strlen(text), cuts[256];
    for (size_t i = 0; i < n; i++) cuts[i] = i;
    for (size_t first = 0; first <= n + 1; first++) {
        struct buffer out;
        long end;
        if (first <= n)
            run(stop, text, n, &first, 1, &out, &end);
        else
            run(stop, text, n, cuts, n, &out, &end); // byte by byte
        assert_int_equal(end, expected_end);
        assert_string_equal(out.data != NULL ? out.data : "", expected);
        buffer_free(&out);
    }
}

static void test_examples(void **state) {
    (void)state;
    expect_out("\"STOP!\"", "and ST", "and ST", -1); // C23
    expect_out("\"STOP!\"", "and STOP! more", "and ", 9);
    expect_out("\"STOP!\"", "STOP!", "", 5);
    expect_out("\"STOP!\"", "STOSTOP!", "STO", 8);
    expect_out("\"aab\"", "aaaab", "aa", 5);
    expect_out("\"abab!\"", "ababab!", "ab", 7);
    expect_out("[\"abcd\", \"bc\"]", "xabcd", "xa", 4); // the first to be complete
    expect_out("[\"c\", \"abc\"]", "xabc", "x", 4);     // of two at once the longer
    expect_out("[\"abc\", \"c\"]", "xabc", "x", 4);
    expect_out("[\"abcx\", \"bcd\"]", "abcd", "a", 4); // held for one, ended by the other
    expect_out("[\"a\", \"a\"]", "ba", "b", 2);
    expect_out("[\"\\u0000\\n\"]", "a\n", "a\n", -1);
    expect_out("[\"\\u00e9\"]", "\xc3\xa8\xc3\xa9z", "\xc3\xa8", 4);
    expect_out("[]", "", "", -1);
}

static void test_held_back(void **state) {
    (void)state;
    struct stopper *s;
    struct buffer out;
    size_t used;
    buffer_init(&out, 0);
    assert_int_equal(create("[\"\\n\\nUser:\", \"END\"]", &s, NULL), STATUS_OK);
    static const char *const steps[][2] = {{"Hi\n", "Hi"},       {"\nUs", "Hi"},     {"ex", "Hi\n\nUsex"},
                                           {"EN", "Hi\n\nUsex"}, {"", "Hi\n\nUsex"}, {"\n", "Hi\n\nUsexEN"}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        assert_false(stopper_feed(s, steps[i][0], strlen(steps[i][0]), &out, &used));
        assert_string_equal(out.data, steps[i][1]);
    }
    assert_false(stopper_feed(s, NULL, 0, &out, &used));
    stopper_flush(s, &out);
    assert_string_equal(out.data, "Hi\n\nUsexEN\n");
    stopper_flush(s, &out);
    assert_int_equal(out.n, 11);
    stopper_free(s);
    buffer_free(&out);
}

// Where the stop string that ends first stands, by trying all; false if there is none.
static bool search(char stops[4][8], const char *text, size_t n, size_t *begin, size_t *end) {
    for (*end = 1; *end <= n; ++*end) {
        size_t longest = 0;
        for (int i = 0; i < 4; i++) {
            size_t m = strlen(stops[i]);
            if (m <= *end && m > longest && memcmp(text + *end - m, stops[i], m) == 0) longest = m;
        }
        *begin = *end - longest;
        if (longest > 0) return true;
    }
    return false;
}

static void test_random(void **state) {
    (void)state;
    for (uint64_t j = 0; j < 3000; j++) {
        char stops[4][8] = {0}, list[64], text[64];
        for (uint64_t i = 0; i < 4; i++)
            for (uint64_t k = 0; k < 1 + random_bits(j, 1, i) % 6; k++)
                stops[i][k] = (char)('a' + random_bits(j, 2, i * 8 + k) % 2);
        snprintf(list, sizeof list, "[\"%s\", \"%s\", \"%s\", \"%s\"]", stops[0], stops[1], stops[2], stops[3]);
        size_t n = random_bits(j, 3, 0) % sizeof text, begin = 0, end = 0, cuts[64], n_cuts = 0;
        for (uint64_t k = 0; k < n; k++) text[k] = (char)('a' + random_bits(j, 4, k) % (k % 7 == 0 ? 3 : 2));
        for (size_t k = 0; k < n; k++)
            if (random_bits(j, 5, k) % 4 == 0) cuts[n_cuts++] = k;
        struct buffer out;
        long stop_end;
        bool hit = search(stops, text, n, &begin, &end);
        run(list, text, n, cuts, n_cuts, &out, &stop_end);
        assert_int_equal(stop_end, hit ? (long)end : -1);
        assert_int_equal(out.n, hit ? begin : n);
        if (out.n > 0) assert_memory_equal(out.data, text, out.n);
        buffer_free(&out);
    }
}

// A MiB that nearly matches all the time.
static void test_linear(void **state) {
    (void)state;
    size_t n = 1u << 20, *cuts = malloc(n * sizeof *cuts);
    char *text = malloc(n), stop[260];
    assert_non_null(cuts);
    assert_non_null(text);
    memset(text, 'a', n);
    memset(stop, 'a', sizeof stop);
    memcpy(stop + 250, "b\"", 3);
    stop[0] = '"';
    for (size_t i = 0; i < n; i++) cuts[i] = i;
    for (size_t i = 0; i < 2; i++) {
        struct buffer out;
        long end;
        clock_t begin = clock();
        run(stop, text, n, cuts, i == 0 ? 0 : n, &out, &end);
        assert_true((double)(clock() - begin) / CLOCKS_PER_SEC < 5);
        assert_int_equal(end, -1);
        assert_int_equal(out.n, n);
        buffer_free(&out);
    }
    free(cuts);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests), cmocka_unit_test(test_examples), cmocka_unit_test(test_held_back),
        cmocka_unit_test(test_random),   cmocka_unit_test(test_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
