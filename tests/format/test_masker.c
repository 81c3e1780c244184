// Masks against their definition: a token may come if and only if its bytes may. Walks through grammars with the
// shipped model's vocabulary; at each state every token is tried byte by byte.
#include "base/buffer.h"
#include "base/random.h"
#include "format/masker.h"
#include "tests/format/grammars.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define WORDS 256
#define STEPS 60

static struct tokenizer *tokenizer;
static struct vocabulary *vocabulary;
static const int32_t ends[] = {4042, 4040};

static const char *const forms[] = {
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"n\":{\"type\":\"integer\",\"minimum\":5,"
    "\"maximum\":1200},\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":9},\"maxItems\":3}},"
    "\"required\":[\"name\",\"n\",\"tags\"]}",
    "{\"type\":\"string\",\"minLength\":70,\"maxLength\":75}",
    "{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"ab\",\"abc d\",1,12,123,[1,2]]},\"minItems\":3}",
    "{\"type\":\"object\",\"properties\":{\"d\":{\"format\":\"date-time\"},\"m\":{\"format\":\"email\"},\"x\":{"
    "\"type\":"
    "\"number\",\"minimum\":-2.5,\"maximum\":77}},\"required\":[\"d\",\"m\",\"x\"]}",
    "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^(a|the )+(\\\\n|[^b-z])*$\"},\"minItems\":2}",
    "{\"type\":\"string\",\"pattern\":\"^[a-z]+(-[A-Z ]{2,})?$\"}",
    "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":4},{\"const\":\"temperature\"},{\"type\":\"array\"}]}",
    "{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"enum\":[\"red\",\"green\",7,null]},\"minItems\":1}"
    "}",
    "[{\"type\":\"function\",\"function\":{\"name\":\"add\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{"
    "\"type\":\"string\",\"maxLength\":20},\"b\":{\"type\":\"object\"},\"c\":{\"type\":\"string\"}},\"required\":["
    "\"c\"]}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"addition\"}}]",
};

static int load(void **state) {
    (void)state;
    struct error e;
    if (tokenizer_load("models/fold-s/tokenizer.json", NULL, &tokenizer, &e) != STATUS_OK) return -1;
    return vocabulary_create(tokenizer, WORDS * 32, &vocabulary, &e) == STATUS_OK ? 0 : -1;
}

static int unload(void **state) {
    (void)state;
    vocabulary_free(vocabulary);
    tokenizer_free(tokenizer);
    return 0;
}

static struct masker *make(const char *form, struct grammar **g) {
    struct masker *m;
    struct error e;
    assert_int_equal(grammar_of_schema(form, g, &e), STATUS_OK);
    assert_int_equal(masker_create(*g, vocabulary, ends, 2, &m, &e), STATUS_OK);
    return m;
}

static bool bytes_may_come(const struct grammar *g, const struct grammar_state *s, int32_t id) {
    static struct grammar_state states[2];
    size_t n;
    const char *bytes = tokenizer_id_bytes(tokenizer, id, &n);
    if (bytes == NULL || tokenizer_is_special(tokenizer, id)) return false;
    if (tokenizer_is_added(tokenizer, id)) // a tag: part of a form, not of a text
        grammar_keep_words(g, s, &states[0]);
    else
        memcpy(&states[0], s, grammar_state_bytes(s));
    for (size_t i = 0; i < n; i++)
        if (!grammar_step(g, &states[i % 2], (unsigned char)bytes[i], &states[(i + 1) % 2])) return false;
    return true;
}

static bool is_set(const uint32_t *words, int32_t id) { return words[id / 32] >> id % 32 & 1; }

static void check_mask(const struct grammar *g, const struct grammar_state *s, const uint32_t *words) {
    for (int32_t id = 0; id < WORDS * 32; id++) {
        bool end = id == ends[0] || id == ends[1];
        bool expected = end ? s->complete : bytes_may_come(g, s, id);
        if (is_set(words, id) != expected) fail_msg("token %d was %s", id, expected ? "left out" : "let in");
    }
}

// Any token of the mask, or -1 at the end.
static int32_t choose(const uint32_t *words, uint64_t bits) {
    int32_t n = 0, found = -1;
    for (int32_t id = 0; id < WORDS * 32; id++) n += is_set(words, id);
    int32_t wanted = n > 0 ? (int32_t)(bits % (uint64_t)n) : 0;
    for (int32_t id = 0; id < WORDS * 32 && found < 0; id++)
        if (is_set(words, id) && wanted-- == 0) found = id;
    return found;
}

static void walk(const char *form, uint64_t seed) {
    static struct grammar_state state, before;
    static uint32_t words[WORDS], again[WORDS];
    struct grammar *g;
    struct masker *m = make(form, &g);
    masker_start(m, &state);
    for (int i = 0; i < STEPS; i++) {
        masker_fill(m, &state, words, WORDS);
        check_mask(g, &state, words);
        int32_t id = choose(words, random_bits(seed, (uint64_t)i, 0));
        assert_true(id >= 0);
        if (id == ends[0] || id == ends[1]) break;
        // A state that was kept, once others have been asked, has the mask that it had.
        memcpy(&before, &state, sizeof state);
        assert_true(masker_take(m, &state, id));
        masker_fill(m, &state, again, WORDS);
        masker_fill(m, &before, again, WORDS);
        assert_memory_equal(words, again, sizeof words);
    }
    masker_free(m);
}

static void test_masks(void **unused) {
    (void)unused;
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        for (uint64_t seed = 0; seed < 8; seed++) walk(forms[i], seed);
}

static int32_t first_id(const char *text) {
    int32_t *ids;
    size_t n;
    struct error e;
    assert_int_equal(tokenizer_encode(tokenizer, text, strlen(text), false, &ids, &n, &e), STATUS_OK);
    int32_t id = ids[0];
    free(ids);
    return id;
}

// A token that is too long for one reading of a state may go on with another.
static void test_long_token_of_one_reading(void **unused) {
    (void)unused;
    static struct grammar_state state;
    static uint32_t words[WORDS];
    struct grammar *g;
    struct masker *m = make(forms[6], &g);
    masker_start(m, &state);
    assert_true(masker_take(m, &state, first_id("\"")));
    masker_fill(m, &state, words, WORDS);
    check_mask(g, &state, words);
    masker_free(m);
}

// Many readings at once, each in the middle of a pattern: what costs the most.
static void write_heavy(struct buffer *out) {
    buffer_init(out, 0);
    buffer_append_text(out, "{\"anyOf\":[");
    for (int i = 0; i < 24; i++)
        buffer_printf(out, "%s{\"type\":\"string\",\"pattern\":\"^[a-z ,.A-Z]{0,%d}%c$\"}", i > 0 ? "," : "", 60 + i,
                      '0' + i % 10);
    assert_true(buffer_append_text(out, "]}"));
}

// Made in parts, a mask is the same, and no part takes much more than it may.
static void test_parts(void **unused) {
    (void)unused;
    static struct grammar_state state, other;
    static uint32_t words[WORDS], parts[WORDS];
    struct grammar *g, *twin;
    struct buffer heavy;
    write_heavy(&heavy);
    struct masker *m = make(heavy.data, &g), *whole = make(heavy.data, &twin);
    masker_start(m, &state);
    masker_start(m, &other);
    assert_true(masker_take(m, &state, first_id("\"")));
    for (int turn = 0; turn < 2; turn++) {
        int n_part = 0;
        for (bool done = false; !done; n_part++) {
            int64_t steps = 4000;
            done = masker_prepare(m, &state, &steps);
            assert_true(steps > -1000 && (done || steps <= 0)); // no further than the step that was begun
            assert_true(n_part < 1000);
        }
        masker_fill(m, &state, parts, WORDS);
        masker_fill(whole, &state, words, WORDS);
        assert_memory_equal(words, parts, sizeof words);
        if (turn > 0) break;
        assert_true(n_part > 5);
        int64_t few = 100; // of a mask that is then left for the other one
        assert_true(masker_take(m, &state, first_id("a")));
        assert_false(masker_prepare(m, &state, &few));
        masker_fill(m, &other, parts, WORDS);
        masker_fill(whole, &other, words, WORDS);
        assert_memory_equal(words, parts, sizeof words);
    }
    masker_free(m);
    masker_free(whole);
    buffer_free(&heavy);
}

// What maskers take together is bounded, and given back.
static void test_memory_is_bounded(void **unused) {
    (void)unused;
    static struct masker *made[4096];
    struct grammar *g;
    struct error e;
    enum status status = STATUS_OK;
    int n = 0;
    long long before = atomic_load(&vocabulary->claimed_bytes);
    while (status == STATUS_OK && n < 4096) {
        assert_int_equal(grammar_of_schema("{\"type\":\"null\"}", &g, &e), STATUS_OK);
        status = masker_create(g, vocabulary, ends, 2, &made[n], &e);
        n += status == STATUS_OK;
    }
    assert_int_equal(status, STATUS_BUSY);
    assert_true(n > 200);
    while (n > 0) masker_free(made[--n]);
    assert_int_equal(atomic_load(&vocabulary->claimed_bytes), before);
}

// What a model takes against its mask leaves an end as the only way.
static void test_wrong_token(void **unused) {
    (void)unused;
    static struct grammar_state state;
    static uint32_t words[WORDS];
    struct grammar *g;
    struct masker *m = make(forms[0], &g);
    masker_start(m, &state);
    assert_false(masker_take(m, &state, ends[0])); // not complete
    masker_fill(m, &state, words, WORDS);
    for (int32_t id = 0; id < WORDS * 32; id++) assert_int_equal(is_set(words, id), id == ends[0] || id == ends[1]);
    masker_start(m, &state);
    assert_false(masker_take(m, &state, -1));
    masker_start(m, &state);
    assert_false(masker_take(m, &state, 1 << 30));
    masker_free(m);
}

// Within one string, tokens of any kind leave states that share a few masks.
static void test_masks_are_kept(void **unused) {
    (void)unused;
    static struct grammar_state state;
    static uint32_t words[WORDS];
    struct grammar *g;
    struct masker *m = make("{\"type\":\"string\"}", &g);
    int32_t *ids;
    size_t n;
    struct error e;
    static const char text[] = "\"It was a bright day, and the clocks were striking. Nobody knew why they did.";
    assert_int_equal(tokenizer_encode(tokenizer, text, strlen(text), false, &ids, &n, &e), STATUS_OK);
    masker_start(m, &state);
    for (size_t i = 0; i < n; i++) {
        masker_fill(m, &state, words, WORDS);
        assert_true(is_set(words, ids[i]) && masker_take(m, &state, ids[i]));
    }
    struct masker_counts c = masker_get_counts(m);
    assert_int_equal(c.n_asked, n);
    assert_true(c.n_made <= 2);
    free(ids);
    masker_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masks),       cmocka_unit_test(test_long_token_of_one_reading),
        cmocka_unit_test(test_wrong_token), cmocka_unit_test(test_masks_are_kept),
        cmocka_unit_test(test_parts),       cmocka_unit_test(test_memory_is_bounded)};
    return cmocka_run_group_tests(tests, load, unload);
}
