// Masks in the engine, on the shipped small model: a masked reply is what its grammar accepts, ends by itself, has no
// effect on replies beside it, and is the same alone and in company; a masker is freed however its request ends.
#include "format/masker.h"
#include "format/schema.h"
#include "tests/engine/bed.h"
#include "tests/format/grammars.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define FORM                                                                                                           \
    "{\"type\":\"object\",\"properties\":{\"color\":{\"enum\":[\"red\",\"green\",\"blue\"]},\"n\":{\"type\":"          \
    "\"integer\","                                                                                                     \
    "\"minimum\":40,\"maximum\":60},\"s\":{\"type\":\"string\",\"maxLength\":12},\"l\":{\"type\":\"array\",\"items\":" \
    "{"                                                                                                                \
    "\"type\":\"boolean\"},\"minItems\":2,\"maxItems\":4}},\"required\":[\"color\",\"n\",\"s\",\"l\"]}"

static struct engine *engine;
static struct vocabulary *vocabulary;
static int32_t *prompt;
static const int32_t n_prompt = 70;

static int setup(void **state) {
    (void)state;
    struct error e;
    if (!bed_start()) return -1;
    struct engine_options o = {.model_dir = "models/fold-s",
                               .device = bed_device(),
                               .parallel = 3,
                               .queue = 4,
                               .max_tokens = 64,
                               .drafts = {.expected = true, .pattern = DRAFTS_ALTERNATE},
                               .context = 1024,
                               .decode_share = 0.25};
    if (engine_create(&o, &engine, &e) != STATUS_OK) return -1;
    const struct engine_info *info = engine_get_info(engine);
    prompt = bed_prompt(n_prompt, 9);
    return vocabulary_create(info->tokenizer, (int32_t)info->config->n_vocab, &vocabulary, &e) == STATUS_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    engine_free(engine);
    vocabulary_free(vocabulary);
    free(prompt);
    bed_stop();
    return 0;
}

static struct grammar *grammar(void) {
    struct error e;
    struct grammar *g = NULL;
    assert_int_equal(grammar_of_schema(FORM, &g, &e), STATUS_OK);
    return g;
}

static struct request_params params(int which, bool masked) {
    const struct model_config *config = engine_get_info(engine)->config;
    struct request_params p = bed_params(prompt, n_prompt, 160);
    struct error e;
    p.ignore_eos = !masked;
    p.draw.temperature = which % 3;
    p.draw.top_k = which % 2 ? 5 : 0;
    p.draw.seed = (uint64_t)which;
    p.has_seed = true;
    if (masked)
        assert_int_equal(masker_create(grammar(), vocabulary, config->eos_ids, (int32_t)config->n_eos, &p.masker, &e),
                         STATUS_OK);
    return p;
}

static void read_text(const struct request *r, const struct request_view *v, struct buffer *out) {
    buffer_init(out, 0);
    for (int32_t i = 0; i < v->n_tokens - v->ended_by_eos; i++) {
        size_t n;
        const char *bytes = tokenizer_id_bytes(vocabulary->tokenizer, request_tokens(r)[i].id, &n);
        assert_true(bytes != NULL && buffer_append(out, bytes, n));
    }
}

static void check_text(const struct request *r, const struct request_view *v) {
    struct buffer text;
    struct grammar *g = grammar();
    read_text(r, v, &text);
    assert_int_equal(v->finish, FINISH_STOP);
    assert_true(v->ended_by_eos);
    if (!grammar_accepts(g, text.data, text.n)) fail_msg("%s", text.data);
    buffer_free(&text);
    grammar_free(g);
}

static void masked_replies_keep_to_their_form(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        struct request_params p = params(i, true);
        struct request *r = bed_submit(engine, &p);
        struct request_view v = bed_wait_done(r);
        check_text(r, &v);
        request_free(r);
    }
}

static void company_changes_nothing(void **state) {
    (void)state;
    enum { N = 3 };
    int32_t alone[N][160], n_alone[N];
    for (int turn = 0; turn < 2; turn++) {
        struct request *r[N];
        for (int i = 0; i < N; i++) {
            struct request_params p = params(i + 1, i != 1); // the one in the middle may say anything
            if (turn > 0) {
                r[i] = bed_submit(engine, &p);
                continue;
            }
            n_alone[i] = bed_run(engine, &p, alone[i]);
        }
        for (int i = 0; turn > 0 && i < N; i++) {
            struct request_view v = bed_wait_done(r[i]);
            assert_int_equal(v.n_tokens, n_alone[i]);
            for (int32_t t = 0; t < v.n_tokens; t++) assert_int_equal(request_tokens(r[i])[t].id, alone[i][t]);
            if (i != 1) check_text(r[i], &v);
            request_free(r[i]);
        }
    }
}

// Drafts keep to the form too, so they are kept about as often as in free replies, and change no token.
static void drafts_keep_to_the_form(void **state) {
    (void)state;
    enum { N = 4 };
    static const struct draft_options kinds[] = {
        {0},
        {.mtp = true, .forced = true, .max_window = 6},
        {.block = true, .forced = true, .max_window = 8},
        {.copies = true, .mtp = true, .forced = true, .max_window = 6},
    };
    int32_t plain[N][160], n_plain[N];
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        struct engine *e = bed_open((struct engine_options){.model_dir = "models/fold-s",
                                                            .drafter_dir = "models/fold-s-DFlash2",
                                                            .drafter_bits = 4,
                                                            .drafts = kinds[k],
                                                            .context = 1024});
        int32_t ids[160], n_drafted = 0, n_accepted = 0;
        for (int i = 0; i < N; i++) {
            struct request_params p = params(i * 3, true); // greedy
            p.draft = true;
            struct request_view v = bed_run_view(e, &p, k == 0 ? plain[i] : ids);
            if (k == 0) n_plain[i] = v.n_tokens;
            assert_int_equal(v.n_tokens, n_plain[i]);
            assert_memory_equal(k == 0 ? plain[i] : ids, plain[i], (size_t)v.n_tokens * sizeof *ids);
            n_drafted += v.n_drafted;
            n_accepted += v.n_accepted;
        }
        if (k > 0) assert_true(n_drafted > 0 && n_accepted * 4 > n_drafted);
        engine_free(e);
    }
}

// A form that can be read in many ways, each in the middle of a pattern: every token wants a mask that takes long.
static struct masker *heavy_masker(void) {
    const struct model_config *config = engine_get_info(engine)->config;
    struct masker *m;
    struct grammar *g;
    struct buffer form;
    struct error e;
    buffer_init(&form, 0);
    buffer_append_text(&form, "{\"anyOf\":[");
    for (int i = 0; i < 6; i++)
        buffer_printf(&form, "%s{\"type\":\"string\",\"pattern\":\"^[a-zA-Z ,.]{30,%d}%d?$\"}", i > 0 ? "," : "",
                      90 + i, i % 10);
    assert_true(buffer_append_text(&form, "]}"));
    if (grammar_of_schema(form.data, &g, &e) != STATUS_OK) fail_msg("%s", e.text);
    assert_int_equal(masker_create(g, vocabulary, config->eos_ids, (int32_t)config->n_eos, &m, &e), STATUS_OK);
    buffer_free(&form);
    return m;
}

static struct request_params heavy_params(void) {
    struct request_params p = params(1, false);
    p.ignore_eos = false;
    p.draw.temperature = 1;
    p.masker = heavy_masker();
    return p;
}

// While such a mask is made, the others' rounds go on; and the reply is what it is alone, drafted or not.
static void heavy_masks_hold_up_nobody(void **state) {
    (void)state;
    enum { N_PLAIN = 160 };
    int32_t alone[160], n_alone, plain[160];
    struct request_params p = heavy_params(), light = params(2, false);
    struct request_view v;
    n_alone = bed_run(engine, &p, alone);
    assert_true(n_alone > 12);
    light.max_tokens = N_PLAIN;
    assert_int_equal(bed_run(engine, &light, plain), N_PLAIN);
    for (int drafted = 0; drafted < 2; drafted++) {
        p = heavy_params();
        p.draft = drafted;
        p.expected = alone;
        p.n_expected = n_alone;
        struct request *other = bed_submit(engine, &light);
        bed_wait_tokens(other, 1);
        struct request *heavy = bed_submit(engine, &p);
        bed_wait_tokens(heavy, 1);
        int32_t before = bed_view(other).n_tokens;
        v = bed_wait_done(heavy);
        int32_t meanwhile = bed_view(other).n_tokens - before;
        if (!drafted && 2 * meanwhile < 3 * n_alone)
            fail_msg("%d rounds of the other reply in those of %d tokens of the heavy one", meanwhile, n_alone);
        assert_int_equal(v.n_tokens, n_alone);
        bed_wait_done(other);
        for (int32_t i = 0; i < N_PLAIN; i++) assert_int_equal(request_tokens(other)[i].id, plain[i]);
        for (int32_t i = 0; i < n_alone; i++) assert_int_equal(request_tokens(heavy)[i].id, alone[i]);
        if (drafted) assert_true(v.n_drafted > 0); // windows are cut where the masks are not there yet
        request_free(other);
        request_free(heavy);
    }
}

// One that leaves, and an engine that ends, while its mask is made.
static void heavy_masks_are_left(void **state) {
    (void)state;
    struct request_params light = params(2, false);
    struct request *other = bed_submit(engine, &light);
    for (int i = 0; i < 6; i++) {
        struct request_params p = heavy_params();
        struct request *heavy = bed_submit(engine, &p);
        bed_wait_tokens(heavy, 1 + i);
        request_free(heavy);
    }
    bed_wait_done(other);
    request_free(other);
    bed_wait_idle(engine);
}

// Cut short, cancelled, or never taken on: a leak checker sees what is left.
static void maskers_are_freed(void **state) {
    (void)state;
    struct request_params p = params(1, true);
    struct request *r;
    struct error e;
    p.max_tokens = 3;
    r = bed_submit(engine, &p);
    assert_int_equal(bed_wait_done(r).finish, FINISH_LENGTH);
    request_free(r);
    p = params(2, true);
    r = bed_submit(engine, &p);
    request_free(r);
    bed_wait_idle(engine);
    p = params(3, true);
    p.max_tokens = 1 << 20;
    assert_int_equal(engine_submit(engine, &p, &r, &e), STATUS_LIMIT);
    p = params(3, true);
    p.draw.top_k = -1;
    assert_int_equal(engine_submit(engine, &p, &r, &e), STATUS_INVALID);
    engine_drain(engine);
    p = params(3, true);
    assert_int_equal(engine_submit(engine, &p, &r, &e), STATUS_BUSY);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(masked_replies_keep_to_their_form),
                                       cmocka_unit_test(company_changes_nothing),
                                       cmocka_unit_test(drafts_keep_to_the_form),
                                       cmocka_unit_test(heavy_masks_hold_up_nobody),
                                       cmocka_unit_test(heavy_masks_are_left),
                                       cmocka_unit_test(maskers_are_freed)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
