// draw: pinned noise, a naive re-implementation of ops/draw.h on random settings, ties, extremes, and the distribution.
#include "base/random.h"
#include "cpu/device_cpu.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MAX_V 1000

static struct device *devices[8];
static int n_devices;

static int open_devices(void **state) {
    (void)state;
    struct device_limits limits = {.n_vocab = MAX_V};
    for (int isa = ISA_C; isa <= (int)cpu_isa_detect(); isa++) {
        struct error e;
        struct device *d;
        if (cpu_device_create(COMPUTE_F32, false, 1 + isa % 3, (enum cpu_isa)isa, &d, &e) != STATUS_OK) return 1;
        if (d->reserve(d, &limits, &e) != STATUS_OK) return 1;
        devices[n_devices++] = d;
    }
    return 0;
}

static int close_devices(void **state) {
    (void)state;
    for (int i = 0; i < n_devices; i++) device_free(devices[i]);
    return 0;
}

// ---- pinned values: words of Philox, and the noise to 1e-12, both computed in 50 decimal digits elsewhere ----

static void test_pinned(void **state) {
    (void)state;
    static const struct {
        uint64_t seed, position;
        int32_t id;
        uint64_t bits;
        double noise;
    } pinned[] = {
        {UINT64_C(0x0), UINT64_C(0), 0, UINT64_C(0xe169c58d6627e8d5), 2.0616612544342412},
        {UINT64_C(0x1), UINT64_C(0), 0, UINT64_C(0xe50a0ebce3e80670), 2.195670729993342},
        {UINT64_C(0x0), UINT64_C(1), 0, UINT64_C(0x5cb200dbf8e4cca4), -0.015734951866712456},
        {UINT64_C(0x0), UINT64_C(0), 1, UINT64_C(0xf08d6eaa844515e1), 2.7767701121016546},
        {UINT64_C(0x2a), UINT64_C(17), 248319, UINT64_C(0xa257b72e4761ebe2), 0.78642918469904355},
        {UINT64_C(0x123456789abcdef), UINT64_C(262143), 151643, UINT64_C(0x30c38b7279dbb60a), -0.50572559409930096},
        {UINT64_C(0xffffffffffffffff), UINT64_C(1099511627781), 1, UINT64_C(0x4a04019f56be2ce7), -0.21583764037731229},
        {UINT64_C(0x7), UINT64_C(4096), 100, UINT64_C(0x67ccc5c55fa90db1), 0.10235115164445681},
    };
    for (size_t i = 0; i < sizeof pinned / sizeof *pinned; i++) {
        uint64_t bits = random_bits(pinned[i].seed, pinned[i].position, (uint64_t)pinned[i].id);
        assert_true(bits == pinned[i].bits);
        assert_true(fabs(-log(-log(random_unit(bits))) - pinned[i].noise) < 1e-12);
    }
}

// ---- the definition, naively ----

struct token {
    double s;
    int32_t id;
};

static int falling(const void *a, const void *b) {
    const struct token *x = a, *y = b;
    if (x->s != y->s) return x->s > y->s ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

static double adjusted(const float *row, const struct draw_params *p, int32_t id) {
    double l = (double)row[id];
    for (int i = 0; i < p->n_bias; i++)
        if (p->bias[i].id == id) l += (double)p->bias[i].bias;
    for (int i = 0; i < p->n_seen; i++) {
        if (p->seen[i].id != id) continue;
        l = l > 0 ? l / p->repetition : l * p->repetition;
        if (p->seen[i].n_reply > 0) l -= p->frequency * (double)p->seen[i].n_reply + p->presence;
    }
    return isnan(l) ? -INFINITY : l;
}

// How many of the first n tokens, in falling order, step 6 keeps.
static int kept_by_top_p(const struct token *tokens, int n, double top_p) {
    double total = 0, mass = 0;
    int kept = 0;
    for (int i = 0; i < n; i++) total += exp(tokens[i].s - tokens[0].s);
    while (kept < n && (kept == 0 || mass < top_p * total)) mass += exp(tokens[kept++].s - tokens[0].s);
    return kept;
}

static int32_t naive_draw(const float *row, int n_vocab, const struct draw_params *p) {
    static struct token tokens[MAX_V];
    double temperature = fmin(fmax(p->temperature, 1e-30), 1e30);
    int n = 0;
    for (int32_t id = 0; id < n_vocab; id++) {
        if (!(p->allowed[id / 32] >> (id % 32) & 1)) continue;
        double l = adjusted(row, p, id);
        tokens[n++] = (struct token){p->temperature > 0 ? l / temperature : l, id};
    }
    qsort(tokens, (size_t)n, sizeof *tokens, falling);
    if (p->temperature == 0 || isinf(tokens[0].s)) return tokens[0].id;
    if (p->top_k > 0 && p->top_k < n) n = p->top_k;
    if (p->top_p < 1) n = kept_by_top_p(tokens, n, p->top_p);
    double best = -INFINITY;
    int32_t id = tokens[0].id;
    for (int i = 0; i < n; i++) {
        if (p->min_p > 0 && tokens[i].s < tokens[0].s + log(p->min_p)) continue;
        double u = random_unit(random_bits(p->seed, (uint64_t)p->position, (uint64_t)tokens[i].id));
        double value = tokens[i].s - log(-log(u));
        if (value > best || (value == best && tokens[i].id < id)) {
            best = value;
            id = tokens[i].id;
        }
    }
    return id;
}

// ---- one row ----

struct row {
    float logits[MAX_V];
    int n_column, n_vocab;
    struct draw_params p;
    struct draw_bias bias[400];
    struct draw_seen seen[60];
    uint32_t allowed[(MAX_V + 31) / 32];
};

static struct draw_result draw_on(struct device *d, const struct row *r) {
    struct draw_result result;
    struct draw_args args = {
        {(void *)r->logits, DTYPE_F32, 1, r->n_column, r->n_column},
        r->n_vocab,
        &r->p,
        &result,
    };
    d->poison(d);
    memset(&result, 0xff, sizeof result);
    d->ops->draw(d, &args);
    return result;
}

static void check_row(struct row *r, const char *what) {
    r->p.bias = r->bias;
    r->p.seen = r->seen;
    r->p.allowed = r->allowed;
    int32_t want = naive_draw(r->logits, r->n_vocab, &r->p);
    for (int i = 0; i < n_devices; i++) {
        struct draw_result got = draw_on(devices[i], r);
        if (got.id != want)
            fail_msg("%s on %s: V=%d T=%g top_k=%d top_p=%.17g min_p=%g gives %d, not %d", what, devices[i]->name,
                     r->n_vocab, r->p.temperature, r->p.top_k, r->p.top_p, r->p.min_p, got.id, want);
    }
}

static struct row plain_row(int n, double spread, uint64_t seed) {
    struct row r = {.n_column = n, .n_vocab = n};
    r.p = (struct draw_params){.temperature = 1, .top_p = 1, .repetition = 1, .seed = seed, .position = 9, .n_top = -1};
    for (int i = 0; i < n; i++) r.logits[i] = (float)(spread * random_normal(seed, 1, (uint64_t)i));
    memset(r.allowed, 0xff, sizeof r.allowed);
    return r;
}

static double pick(uint64_t key, uint64_t what, const double *values, int n) {
    return values[random_bits(key, 2, what) % (uint64_t)n];
}

static void test_random_settings(void **state) {
    (void)state;
    static const double sizes[] = {1, 2, 31, 32, 33, 255, 256, 257, 700, 999, 1000};
    static const double temperatures[] = {0, 1e-300, 1e-6, 0.1, 0.6, 1, 1.5, 2, 100, 1e300};
    static const double top_ps[] = {1, 1, 1e-12, 0.1, 0.5, 0.9, 0.95, 0.999, 1 - 1e-12};
    static const double top_ks[] = {0, 0, 1, 2, 20, 64, 500, 1000, 2000};
    static const double min_ps[] = {0, 0, 1e-300, 0.01, 0.1, 0.5, 1};
    static const double spreads[] = {0, 1e-3, 1, 3, 20, 1e4};
    static const double repetitions[] = {1, 1.1, 2, 0.5, 1e6};
    for (uint64_t k = 0; k < 4000; k++) {
        int n = (int)pick(k, 0, sizes, 11);
        struct row r = plain_row(n, pick(k, 1, spreads, 6), k);
        r.p.temperature = pick(k, 2, temperatures, 10);
        r.p.top_p = pick(k, 3, top_ps, 9);
        r.p.top_k = (int32_t)pick(k, 4, top_ks, 9);
        r.p.min_p = pick(k, 5, min_ps, 7);
        r.p.repetition = pick(k, 6, repetitions, 5);
        r.p.presence = (double)(k % 5) - 2;
        r.p.frequency = (double)(k % 3) * 0.5;
        r.n_vocab = n - (int)(k % 7 == 0 ? n / 3 : 0);
        for (int i = 0; i < n; i++)
            if (k % 2) r.logits[i] = rintf(r.logits[i]); // many ties
        for (int i = 0; k % 4 == 1 && i < n; i++)
            if (random_bits(k, 3, (uint64_t)i) % 3 == 0) r.allowed[i / 32] &= ~(1u << (i % 32));
        r.allowed[0] |= 1;
        r.p.n_bias = k % 3 == 0 ? 40 < n ? 40 : n : 0;
        r.p.n_seen = k % 5 < 2 ? 60 < n ? 60 : n : 0;
        for (int i = 0; i < r.p.n_bias; i++) r.bias[i] = (struct draw_bias){n - 1 - i, (float)(i % 9) - 4};
        for (int i = 0; i < r.p.n_seen; i++)
            r.seen[i] = (struct draw_seen){(int32_t)((k + (uint64_t)i) % (uint64_t)n), i % 3};
        check_row(&r, "random settings");
    }
}

static void test_ties(void **state) {
    (void)state;
    struct row r = plain_row(1000, 0, 3); // all equal
    r.p.temperature = 0;
    check_row(&r, "greedy among equals");
    assert_int_equal(draw_on(devices[0], &r).id, 0);
    r.allowed[0] = 0;
    assert_int_equal(draw_on(devices[0], &r).id, 32);
    r.p.temperature = 1;
    r.p.top_k = 3; // of equals the lowest ids remain: 32, 33, 34
    for (r.p.seed = 0; r.p.seed < 50; r.p.seed++) {
        check_row(&r, "top-k among equals");
        assert_in_range(draw_on(devices[0], &r).id, 32, 34);
    }
    // A biased token that comes to equal an unbiased one: the lower id of the two.
    r = plain_row(100, 0, 4);
    r.logits[70] = 2;
    r.bias[0] = (struct draw_bias){20, 2};
    r.p.n_bias = 1;
    r.p.temperature = 0;
    check_row(&r, "a bias that makes a tie");
    assert_int_equal(draw_on(devices[0], &r).id, 20);
    r.bias[0].id = 90;
    assert_int_equal(draw_on(devices[0], &r).id, 70);
    // Zeros of both signs are equal.
    r = plain_row(64, 0, 5);
    for (int i = 0; i < 64; i++) r.logits[i] = i < 10 ? -0.0f : 0.0f;
    r.p.temperature = 0;
    check_row(&r, "zeros of both signs");
    assert_int_equal(draw_on(devices[0], &r).id, 0);
}

// The nucleus ends among tokens that are 9 below the likeliest; 400 biased tokens lie below those. A list of the
// largest that holds all biased tokens and not all others must not be cut before the others are in it.
static void test_top_p_among_biased(void **state) {
    (void)state;
    struct row r = plain_row(501, 0, 0);
    for (int i = 1; i <= 500; i++) r.logits[i] = i <= 400 ? -20 : -9;
    for (int i = 0; i < 400; i++) r.bias[i] = (struct draw_bias){i + 1, 10};
    r.p.n_bias = 400;
    r.p.top_p = 1.005 / (1 + 400 * exp(-10) + 100 * exp(-9));
    int n_tail = 0;
    for (r.p.seed = 0; r.p.seed < 2000; r.p.seed++) {
        check_row(&r, "top-p among biased tokens");
        n_tail += draw_on(devices[0], &r).id != 0;
    }
    assert_true(n_tail > 0); // or nothing was tested
}

static void test_bad_logits(void **state) {
    (void)state;
    for (double temperature = 0; temperature < 2; temperature++) {
        struct row r = plain_row(300, 2, 6);
        r.p.temperature = temperature;
        for (int i = 0; i < 300; i += 2) r.logits[i] = NAN;
        check_row(&r, "every second logit NaN");
        for (int i = 0; i < 300; i++) r.logits[i] = i % 3 ? NAN : -INFINITY;
        r.allowed[0] = 0xff00;
        check_row(&r, "no logit left");
        assert_int_equal(draw_on(devices[0], &r).id, 8);
        r.p.top_p = 0.5;
        r.p.top_k = 10;
        assert_int_equal(draw_on(devices[0], &r).id, 8);
        r = plain_row(300, 2, 7);
        r.p.temperature = temperature;
        r.logits[200] = r.logits[100] = INFINITY;
        check_row(&r, "two infinite logits");
        assert_int_equal(draw_on(devices[0], &r).id, 100);
        r = plain_row(300, 1e38, 8);
        r.p.temperature = temperature;
        check_row(&r, "huge logits");
    }
}

static void test_logprobs(void **state) {
    (void)state;
    struct row r = plain_row(500, 2, 11);
    r.p.n_top = DRAW_MAX_TOP;
    r.p.temperature = 0.3; // log probabilities are of the raw logits all the same
    r.p.n_bias = 1;
    r.bias[0] = (struct draw_bias){7, 50};
    r.n_vocab = 490;
    r.allowed[1] = 0;
    check_row(&r, "log probabilities");
    double sum = 0;
    for (int i = 0; i < 500; i++) sum += exp((double)r.logits[i]);
    for (int i = 0; i < n_devices; i++) {
        struct draw_result got = draw_on(devices[i], &r);
        assert_int_equal(got.id, 7);
        assert_true(fabs((double)got.logprob - ((double)r.logits[7] - log(sum))) < 1e-5);
        assert_int_equal(got.n_top, DRAW_MAX_TOP);
        for (int t = 0; t < got.n_top; t++) {
            int32_t id = got.top[t].id;
            assert_true(id < 490 && (id < 32 || id >= 64));
            assert_true(fabs((double)got.top[t].logprob - ((double)r.logits[id] - log(sum))) < 1e-5);
            if (t > 0) assert_true(got.top[t].logprob <= got.top[t - 1].logprob);
        }
    }
    r.p.n_top = 0;
    assert_int_equal(draw_on(devices[0], &r).n_top, 0);
    memset(r.allowed, 0, sizeof r.allowed);
    r.allowed[0] = 6;
    r.p.n_top = 20; // only two ids are in
    assert_int_equal(draw_on(devices[0], &r).n_top, 2);
}

// Over many keys a token is drawn as often as its probability says; chi-square with 4 degrees of freedom.
static void test_distribution(void **state) {
    (void)state;
    struct row r = plain_row(5, 0, 0);
    static const float logits[] = {1, 0, -1, 0.5f, -2};
    const int n = 20000;
    double count[5] = {0}, sum = 0, chi = 0;
    memcpy(r.logits, logits, sizeof logits);
    r.p.temperature = 0.7;
    r.p.bias = r.bias;
    r.p.seen = r.seen;
    r.p.allowed = r.allowed;
    for (int i = 0; i < 5; i++) sum += exp((double)logits[i] / 0.7);
    for (int k = 0; k < n; k++) {
        r.p.position = k;
        count[draw_on(devices[0], &r).id]++;
    }
    for (int i = 0; i < 5; i++) {
        double expected = n * exp((double)logits[i] / 0.7) / sum;
        chi += (count[i] - expected) * (count[i] - expected) / expected;
    }
    assert_true(chi < 23.5); // once in 10,000 experiments by chance; the keys are fixed
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pinned),       cmocka_unit_test(test_random_settings),
        cmocka_unit_test(test_ties),         cmocka_unit_test(test_top_p_among_biased),
        cmocka_unit_test(test_bad_logits),   cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_distribution),
    };
    return cmocka_run_group_tests(tests, open_devices, close_devices);
}
