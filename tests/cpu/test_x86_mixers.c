// The kernels for x86 instruction sets that look back, one by one: convolution, attention, the delta rule. Against
// fp64, and each row alone against the same row among others.
#include "base/numeric.h"
#include "tests/cpu/kernels.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

static void convolution(const struct cpu_kernels *k, enum compute compute) {
    (void)compute;
    for (int n_tap = 2; n_tap <= 4; n_tap++) {
        enum { ROWS = 5, N = 37 };
        float *in[ROWS + 3], *out[ROWS], *weight = numbers((size_t)(N * n_tap), 1);
        const float *rows[ROWS + 3];
        for (int i = 0; i < ROWS + 3; i++) rows[i] = in[i] = numbers(N, 1);
        for (int i = 0; i < ROWS; i++) out[i] = take(N * sizeof(float));
        k->conv(rows, weight, n_tap, ROWS, N, out);
        for (int i = 0; i < ROWS; i++)
            for (int c = 0; c < N; c++) {
                double sum = 0;
                for (int j = 0; j < n_tap; j++) sum += (double)weight[c * n_tap + j] * (double)rows[i + j][c];
                assert_near(out[i][c], sum * sigmoid(sum), 1e-6, 1e-6);
            }
        for (int i = 0; i < ROWS + 3; i++) free(in[i]);
        for (int i = 0; i < ROWS; i++) free(out[i]);
        free(weight);
    }
}

static void test_convolution(void **state) {
    (void)state;
    for_each_isa(convolution);
}

// ---- attention ----

struct tile {
    struct cpu_attend a;
    float *q, *max, *sum, *acc;
    uint16_t *k, *v;
    int32_t *visible;
    void *scratch;
};

static struct tile make_tile(const struct cpu_kernels *kernels, int n_query, int n_key, int head_dim) {
    struct tile t = {0};
    size_t dim = (size_t)head_dim, n = (size_t)n_query;
    t.q = numbers(n * dim, 1);
    t.k = take((size_t)n_key * dim * 2);
    t.v = take((size_t)n_key * dim * 2);
    for (size_t i = 0; i < (size_t)n_key * dim; i++) {
        t.k[i] = float_to_bf16(number());
        t.v[i] = float_to_bf16(number());
    }
    t.max = take(n * sizeof(float));
    t.sum = take(n * sizeof(float));
    t.acc = take(n * dim * sizeof(float));
    t.visible = take(n * sizeof(int32_t));
    for (int i = 0; i < n_query; i++) t.visible[i] = i % 7 == 3 ? 0 : (i * 5 + 1) % n_key + 1;
    t.scratch = take_aligned(kernels->attend_scratch(n_query, head_dim));
    t.a = (struct cpu_attend){.n_query = n_query,
                              .n_key = n_key,
                              .head_dim = head_dim,
                              .q = t.q,
                              .k = t.k,
                              .v = t.v,
                              .kv = DTYPE_BF16,
                              .visible = t.visible,
                              .scale = 0.3f,
                              .max = t.max,
                              .sum = t.sum,
                              .acc = t.acc,
                              .scratch = t.scratch};
    return t;
}

static void start_chain(struct tile *t) {
    for (int i = 0; i < t->a.n_query; i++) {
        t->max[i] = -INFINITY;
        t->sum[i] = 0;
    }
    memset(t->acc, 0, (size_t)(t->a.n_query * t->a.head_dim) * sizeof *t->acc);
}

static void free_tile(struct tile *t) {
    free(t->q);
    free(t->k);
    free(t->v);
    free(t->max);
    free(t->sum);
    free(t->acc);
    free(t->visible);
    free(t->scratch);
}

// Two tiles of the same keys; the second one finds what the first left behind.
static void run_chain(const struct cpu_kernels *k, struct tile *t, enum form form) {
    start_chain(t);
    t->a.again = false;
    k->attend[form](&t->a);
    t->a.again = true;
    k->attend[form](&t->a);
}

static void check_attention(const struct tile *t, double bound) {
    int n = t->a.head_dim;
    for (int i = 0; i < t->a.n_query; i++) {
        double score[CPU_TILE_KEYS], max = -INFINITY, sum = 0;
        for (int j = 0; j < t->visible[i]; j++) {
            score[j] = 0;
            for (int d = 0; d < n; d++) score[j] += (double)t->q[i * n + d] * (double)bf16_to_float(t->k[j * n + d]);
            score[j] *= (double)0.3f;
            max = fmax(max, score[j]);
        }
        for (int j = 0; j < t->visible[i]; j++) sum += exp(score[j] - max);
        if (t->visible[i] == 0) {
            assert_true(t->max[i] == -INFINITY && t->sum[i] == 0 && t->acc[i * n] == 0);
            continue;
        }
        assert_near(t->sum[i], 2 * sum, bound, 0);
        for (int d = 0; d < n; d++) {
            double want = 0;
            for (int j = 0; j < t->visible[i]; j++)
                want += exp(score[j] - max) * (double)bf16_to_float(t->v[j * n + d]);
            assert_near(t->acc[i * n + d], 2 * want, bound, bound * 4 * sum);
        }
    }
}

static void attention(const struct cpu_kernels *k, enum compute compute) {
    static const int n_querys[] = {1, 4, 6, 17, 40}, n_keys[] = {64, 33, 1, 64, 50}, dims[] = {32, 64, 256, 96, 40};
    for (int form = 0; form < CPU_N_FORM; form++)
        for (int c = 0; c < 5; c++) {
            struct tile t = make_tile(k, n_querys[c], n_keys[c], dims[c]);
            run_chain(k, &t, (enum form)form);
            check_attention(&t, compute == COMPUTE_F32 || form == FORM_ROWS ? 1e-5 : 3e-5);
            size_t dim = (size_t)dims[c];
            for (int i = 0; i < n_querys[c]; i++) {
                struct tile alone = t;
                float max = -INFINITY, sum = 0, *acc = take(dim * sizeof *acc);
                memset(acc, 0, dim * sizeof *acc);
                alone.a.n_query = 1;
                alone.a.q = t.q + (size_t)i * dim;
                alone.a.visible = t.visible + i;
                alone.a.max = &max;
                alone.a.sum = &sum;
                alone.a.acc = acc;
                alone.a.again = false;
                for (int n = 0; n < 2; n++) k->attend[form](&alone.a);
                assert_true(max == t.max[i] && sum == t.sum[i]);
                assert_memory_equal(acc, t.acc + (size_t)i * dim, dim * sizeof *acc);
                free(acc);
            }
            free_tile(&t);
        }
}

static void test_attention(void **state) {
    (void)state;
    for_each_isa(attention);
}

// What a query does not see may be anything: zero times it must not get in.
static void hidden_keys(const struct cpu_kernels *k, enum compute compute) {
    for (int form = 0; form < CPU_N_FORM; form++) {
        struct tile t = make_tile(k, 5, 64, 64);
        for (int i = 0; i < 5; i++) t.visible[i] = 40 + i;
        for (int i = 44 * 64; i < 64 * 64; i++) t.k[i] = t.v[i] = i % 2 ? 0x7fc0 : 0x7f80; // NaN, inf
        run_chain(k, &t, (enum form)form);
        check_attention(&t, compute == COMPUTE_F32 || form == FORM_ROWS ? 1e-5 : 3e-5);
        free_tile(&t);
    }
}

static void test_hidden_keys(void **state) {
    (void)state;
    for_each_isa(hidden_keys);
}

// ---- the delta rule ----

enum { DK = 48, DV = 72 };

static void delta_rows(const struct cpu_kernels *k, enum compute compute) {
    (void)compute;
    float *q = numbers(DK, 0.2f), *key = numbers(DK, 0.2f), *v = numbers(DV, 1), *state = numbers(DK * DV, 1);
    float *folded = take(DK * DV * sizeof *folded), d[DV], o[DV];
    memcpy(folded, state, DK * DV * sizeof *folded);
    float *before = take(DK * DV * sizeof *before);
    memcpy(before, state, DK * DV * sizeof *before);
    struct cpu_delta_row r = {.key_dim = DK,
                              .value_dim = DV,
                              .q = q,
                              .k = key,
                              .v = v,
                              .decay = 0.8f,
                              .beta = 0.6f,
                              .state = state,
                              .d = d,
                              .o = o};
    k->delta_step(&r);
    for (int c = 0; c < DV; c++) {
        double m = 0, out = 0;
        for (int i = 0; i < DK; i++) m += (double)0.8f * (double)before[i * DV + c] * (double)key[i];
        double want = (double)0.6f * ((double)v[c] - m);
        assert_near(d[c], want, 1e-5, 1e-5);
        for (int i = 0; i < DK; i++)
            out += (double)q[i] * ((double)0.8f * (double)before[i * DV + c] + (double)key[i] * want);
        assert_near(o[c], out, 1e-5, 1e-5);
    }
    k->delta_fold(
        &(struct cpu_delta_row){.key_dim = DK, .value_dim = DV, .k = key, .decay = 0.8f, .state = folded, .d = d});
    assert_memory_equal(folded, state, DK * DV * sizeof *folded);
    free(q);
    free(key);
    free(v);
    free(state);
    free(folded);
    free(before);
}

struct chunk {
    float *q, *k, *v, *state, *o, *kk, *qk, sum_g[CPU_DELTA_ROWS], low_g[CPU_DELTA_ROWS], beta[CPU_DELTA_ROWS];
    void *scratch;
};

static void run_delta_chunk(const struct cpu_kernels *k, struct chunk *c, int n_row) {
    k->delta_scores(&(struct cpu_delta_scores){n_row, DK, c->q, c->k, c->sum_g, c->low_g, c->beta, c->kk, c->qk});
    k->delta_chunk(&(struct cpu_delta_chunk){.n_row = n_row,
                                             .key_dim = DK,
                                             .n_col = DV,
                                             .q = c->q,
                                             .k = c->k,
                                             .sum_g = c->sum_g,
                                             .low_g = c->low_g,
                                             .beta = c->beta,
                                             .kk = c->kk,
                                             .qk = c->qk,
                                             .v = c->v,
                                             .state = c->state,
                                             .o = c->o,
                                             .v_stride = DV,
                                             .state_stride = DV,
                                             .o_stride = DV,
                                             .scratch = c->scratch});
}

static double cumulative_g(const struct chunk *c, int t) {
    return t < 0 ? 0 : (double)c->sum_g[t] + (double)c->low_g[t];
}

// The recurrence in double precision.
static void check_chunk(const struct chunk *c, const float *state0, int n_row, double bound) {
    double *s = take(DK * DV * sizeof *s);
    for (int i = 0; i < DK * DV; i++) s[i] = (double)state0[i];
    for (int t = 0; t < n_row; t++) {
        double decay = exp(cumulative_g(c, t) - cumulative_g(c, t - 1));
        for (int v = 0; v < DV; v++) {
            double m = 0, out = 0;
            for (int i = 0; i < DK; i++) m += decay * s[i * DV + v] * (double)c->k[t * DK + i];
            double d = (double)c->beta[t] * ((double)c->v[t * DV + v] - m);
            for (int i = 0; i < DK; i++) {
                s[i * DV + v] = decay * s[i * DV + v] + (double)c->k[t * DK + i] * d;
                out += (double)c->q[t * DK + i] * s[i * DV + v];
            }
            assert_near(c->o[t * DV + v], out, bound, bound);
        }
    }
    for (int i = 0; i < DK * DV; i++) assert_near(c->state[i], s[i], bound, bound);
    free(s);
}

static void delta_chunks(const struct cpu_kernels *k, enum compute compute) {
    (void)compute;
    static const int n_rows[] = {64, 1, 5, 30};
    // Of even rows and of odd ones. The second goes far below the normal range of numbers; in the third a large sum
    // is to keep what lies between a row and the next.
    static const float decays[][2] = {{0.1f, 0.1f}, {4, 4}, {1000, 0.1f}};
    float *full = take(64 * DV * sizeof *full);
    for (int g = 0; g < 3; g++) {
        struct chunk c = {numbers(64 * DK, 0.15f),
                          numbers(64 * DK, 0.15f),
                          numbers(64 * DV, 1),
                          take(DK * DV * sizeof(float)),
                          take(64 * DV * sizeof(float)),
                          take_aligned(64 * 64 * 4),
                          take_aligned(64 * 64 * 4),
                          {0},
                          {0},
                          {0},
                          take_aligned(k->delta_scratch(DK, DV))};
        float *state0 = numbers(DK * DV, 1);
        double sum = 0;
        for (int i = 0; i < 64; i++) {
            sum -= (double)(decays[g][i % 2] * fabsf(number()));
            c.sum_g[i] = (float)sum;
            c.low_g[i] = (float)(sum - (double)c.sum_g[i]);
            c.beta[i] = 0.5f + 0.4f * tanhf(number());
        }
        for (int n = 0; n < 4; n++) {
            memcpy(c.state, state0, DK * DV * sizeof *state0);
            run_delta_chunk(k, &c, n_rows[n]);
            check_chunk(&c, state0, n_rows[n], 2e-5);
            if (n == 0) memcpy(full, c.o, 64 * DV * sizeof *full);
            assert_memory_equal(c.o, full, (size_t)(n_rows[n] * DV) * sizeof *full);
        }
        free(c.q);
        free(c.k);
        free(c.v);
        free(c.state);
        free(c.o);
        free(c.kk);
        free(c.qk);
        free(c.scratch);
        free(state0);
    }
    free(full);
}

static void test_delta(void **state) {
    (void)state;
    for_each_isa(delta_rows);
    for_each_isa(delta_chunks);
    volatile float tiny = 1e-38f; // numbers below the normal range are as they were again
    assert_true(tiny / 16 > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_convolution),
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_hidden_keys),
        cmocka_unit_test(test_delta),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
