// Prompt attention on AMX tiles. Keys and values are stored as bf16; queries and weights are sums of two bf16; scores,
// sums and results are fp32. 32 queries at a time take a tile of keys: scores, then weights, then weights times values.
//
// A tile instruction treats each query's row alone, and always goes over all CPU_TILE_KEYS keys, with zeros where there
// is none or where a query does not see one. So a query's bits do not depend on the queries beside it.
#include "cpu/x86/attend_body.h"
#include "cpu/x86/tiles_amx.h"
#include "cpu/x86/transpose_512.h"
#include "cpu/x86/x86.h"

#define BLOCK 32 // queries
#define KEYS  CPU_TILE_KEYS

// Scratch of a call. Queries stay there for the calls that follow with the same ones.
struct attend_space {
    uint16_t *q;   // [n_query up to a multiple of BLOCK][2][head_dim]: rounded, and what rounding left
    uint8_t *k;    // tiles of 32 dimensions by 16 keys: [KEYS / 16][head_dim / 32]
    uint8_t *v;    // tiles of 32 keys by 16 dimensions: [head_dim / 16][2]
    float *scores; // [BLOCK][KEYS]
    uint16_t *p;   // [BLOCK][2][KEYS]: as q
    float *kept;   // [BLOCK][head_dim]
};

static int64_t padded(int64_t n_query) { return (n_query + BLOCK - 1) / BLOCK * BLOCK; }

static size_t space_bytes(int n_query, int head_dim) {
    size_t dim = (size_t)head_dim;
    return (size_t)padded(n_query) * dim * 4 + 2 * KEYS * dim * 2 + BLOCK * KEYS * 8 + BLOCK * dim * 4;
}

static struct attend_space open_space(const struct cpu_attend *a) {
    struct attend_space s = {.q = a->scratch};
    int64_t dim = a->head_dim;
    s.k = (uint8_t *)(s.q + padded(a->n_query) * dim * 2);
    s.v = s.k + KEYS * dim * 2;
    s.scores = (float *)(s.v + KEYS * dim * 2);
    s.p = (uint16_t *)(s.scores + BLOCK * KEYS);
    s.kept = (float *)(s.p + BLOCK * 2 * KEYS);
    return s;
}

// What x is more than the bf16 that it was rounded to.
INLINE vec rest_of(vec x, __m256i rounded) {
    return vec_sub(x, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16)));
}

// 32 values as two terms.
INLINE void split_32(vec low, vec high, uint16_t *rounded, uint16_t *rest) {
    __m512i first = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    low = rest_of(low, _mm512_castsi512_si256(first));
    high = rest_of(high, _mm512_extracti64x4_epi64(first, 1));
    _mm512_storeu_si512(rounded, first);
    _mm512_storeu_si512(rest, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

static void split_queries(const struct cpu_attend *a, uint16_t *q) {
    int64_t dim = a->head_dim;
    for (int64_t i = 0; i < a->n_query; i++, q += 2 * dim) {
        for (int64_t d = 0; d < dim; d += 32)
            split_32(vec_load(a->q + i * dim + d), vec_load(a->q + i * dim + d + 16), q + d, q + dim + d);
    }
    memset(q, 0, (size_t)((padded(a->n_query) - a->n_query) * 2 * dim) * sizeof *q);
}

// Keys become columns; those that do not exist repeat the last, and their scores are never looked at.
static void pack_keys(const struct cpu_attend *a, uint8_t *tiles) {
    int64_t row_bytes = (int64_t)a->head_dim * 2;
    for (int j = 0; j < KEYS; j += 16) {
        const uint8_t *rows[16];
        for (int i = 0; i < 16; i++)
            rows[i] = (const uint8_t *)a->k + (j + i < a->n_key ? j + i : a->n_key - 1) * row_bytes;
        for (int64_t offset = 0; offset < row_bytes; offset += 16, tiles += 256) {
            __m512i column[4];
            load_columns_16x4(rows, offset, column);
            for (int d = 0; d < 4; d++) _mm512_storeu_si512(tiles + d * 64, column[d]);
        }
    }
}

// Pairs of keys side by side; keys that do not exist are zeros. False if a value that some query does not see is not
// finite: then a weight of zero would not keep it out.
static bool pack_values(const struct cpu_attend *a, int seen_by_all, uint8_t *tiles) {
    const __m512i exponents = _mm512_set1_epi32(0x7f807f80);
    int64_t dim = a->head_dim;
    __mmask32 infinite = 0;
    for (int j = 0; j < KEYS; j += 2) {
        const uint16_t *even = (const uint16_t *)a->v + j * dim, *odd = even + dim;
        for (int64_t d = 0; d < dim; d += 16) {
            __m512i pair = _mm512_setzero_si512();
            if (j < a->n_key) pair = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(even + d)));
            if (j + 1 < a->n_key)
                pair = _mm512_or_si512(
                    pair, _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(odd + d))), 16));
            if (j + 1 >= seen_by_all) infinite |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(pair, exponents), exponents);
            _mm512_storeu_si512(tiles + (d / 16 * 2 + j / 32) * 1024 + j % 32 / 2 * 64, pair);
        }
    }
    return infinite == 0;
}

// Tiles 0, 1 and 4 are of queries 0..15 of a block, 2, 3 and 5 of queries 16..31; 6 and 7 are keys or values.
static void configure(int64_t n_query) {
    struct tile_shapes s = {.palette = 1};
    int64_t low = n_query < 16 ? n_query : 16, high = n_query > 16 ? n_query - 16 : 1;
    const int64_t rows[8] = {low, low, high, high, low, high, 16, 16};
    for (int i = 0; i < 8; i++) tile_shape(&s, i, rows[i], 64);
    _tile_loadconfig(&s);
}

// Queries by keys; with more than 16 queries, the other half in the same pass. The two parts of a query follow one
// another.
INLINE void score_keys(const struct attend_space *s, int64_t first, int64_t dim, const bool two) {
    const uint16_t *low = s->q + first * 2 * dim, *high = low + 16 * 2 * dim;
    const int64_t row_bytes = dim * 4, score_bytes = KEYS * sizeof(float);
    for (int j = 0; j < KEYS; j += 32) {
        float *scores = s->scores + j;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t d = 0; d < 2 * dim; d += 32) {
            const uint8_t *k = s->k + j * dim * 2 + d % dim * 32;
            _tile_loadd(4, low + d, row_bytes);
            _tile_loadd(6, k, 64);
            _tile_loadd(7, k + 16 * dim * 2, 64);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            if (!two) continue;
            _tile_loadd(5, high + d, row_bytes);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, scores, score_bytes);
        _tile_stored(1, scores + 16, score_bytes);
        if (!two) continue;
        _tile_stored(2, scores + 16 * KEYS, score_bytes);
        _tile_stored(3, scores + 16 * KEYS + 16, score_bytes);
    }
}

// A query's scores to weights, zeros where a key is not visible. Returns the factor for what it has so far.
static float weigh_scores(const struct cpu_attend *a, int64_t query, const float *scores, uint16_t *p) {
    int n = a->visible[query];
    float old = a->max[query];
    vec s[4], largest = vec_set(old), sum = vec_set(0);
    for (int i = 0; i < 4; i++) {
        s[i] = vec_mul(vec_load(scores + 16 * i), vec_set(a->scale));
        s[i] = vec_blend_n(s[i], vec_set(-INFINITY), n > 16 * i ? n - 16 * i : 0);
        largest = vec_max(largest, s[i]);
    }
    float max = vec_largest(largest);
    for (int i = 0; i < 4; i++) {
        s[i] = vec_exp(vec_sub(s[i], vec_set(max)));
        sum = vec_add(sum, s[i]);
    }
    for (int i = 0; i < 4; i += 2) split_32(s[i], s[i + 1], p + 16 * i, p + KEYS + 16 * i);
    float fade = old == max ? 1.0f : _mm512_cvtss_f32(vec_exp(vec_set(old - max)));
    a->max[query] = max;
    a->sum[query] = a->sum[query] * fade + vec_sum(sum);
    return fade;
}

// Weights of a block's queries; what they have so far fades. Queries that see nothing keep theirs aside.
static void weigh_block(const struct cpu_attend *a, const struct attend_space *s, int64_t first, int64_t n_query) {
    int64_t dim = a->head_dim;
    for (int64_t i = 0; i < n_query; i++) {
        float *acc = a->acc + (first + i) * dim;
        if (a->visible[first + i] == 0) {
            memset(s->p + i * 2 * KEYS, 0, 2 * KEYS * sizeof *s->p);
            memcpy(s->kept + i * dim, acc, (size_t)dim * sizeof *acc);
            continue;
        }
        float fade = weigh_scores(a, first + i, s->scores + i * KEYS, s->p + i * 2 * KEYS);
        if (fade == 1.0f) continue;
        for (int64_t d = 0; d < dim; d += VEC_N) vec_store(acc + d, vec_mul(vec_load(acc + d), vec_set(fade)));
    }
}

// Adds one term of the weights by values.
INLINE void add_weighed(const struct attend_space *s, const uint16_t *p, float *acc, int64_t dim, const bool two) {
    const int64_t row_bytes = dim * (int64_t)sizeof(float), p_bytes = 2 * KEYS * sizeof *p;
    _tile_loadd(1, p, p_bytes);
    _tile_loadd(4, p + 32, p_bytes);
    if (two) {
        _tile_loadd(3, p + 16 * 2 * KEYS, p_bytes);
        _tile_loadd(5, p + 16 * 2 * KEYS + 32, p_bytes);
    }
    for (int64_t d = 0; d < dim; d += 16) {
        const uint8_t *v = s->v + d * 128;
        float *high = acc + 16 * dim + d;
        _tile_loadd(6, v, 64);
        _tile_loadd(7, v + 1024, 64);
        _tile_loadd(0, acc + d, row_bytes);
        _tile_dpbf16ps(0, 1, 6);
        _tile_dpbf16ps(0, 4, 7);
        if (two) {
            _tile_loadd(2, high, row_bytes);
            _tile_dpbf16ps(2, 3, 6);
            _tile_dpbf16ps(2, 5, 7);
        }
        _tile_stored(0, acc + d, row_bytes);
        if (two) _tile_stored(2, high, row_bytes);
    }
}

static void attend_block(const struct cpu_attend *a, const struct attend_space *s, int64_t first, int64_t n_query) {
    int64_t dim = a->head_dim;
    float *acc = a->acc + first * dim;
    int32_t most = 0;
    for (int64_t i = 0; i < n_query; i++) most = a->visible[first + i] > most ? a->visible[first + i] : most;
    if (most == 0) return;
    if (n_query > 16)
        score_keys(s, first, dim, true);
    else
        score_keys(s, first, dim, false);
    weigh_block(a, s, first, n_query);
    for (int term = 0; term < 2; term++) {
        if (n_query > 16)
            add_weighed(s, s->p + term * KEYS, acc, dim, true);
        else
            add_weighed(s, s->p + term * KEYS, acc, dim, false);
    }
    for (int64_t i = 0; i < n_query; i++)
        if (a->visible[first + i] == 0) memcpy(acc + i * dim, s->kept + i * dim, (size_t)dim * sizeof *acc);
}

NOT_INLINED static void attend_tiles_flushed(const struct cpu_attend *a) {
    struct attend_space s = open_space(a);
    int seen_by_all = a->n_key;
    for (int i = 0; i < a->n_query; i++) seen_by_all = a->visible[i] < seen_by_all ? a->visible[i] : seen_by_all;
    if (a->kv != DTYPE_BF16 || a->head_dim % 32 != 0) {
        attend(a);
        return;
    }
    if (!a->again) split_queries(a, s.q);
    if (!pack_values(a, seen_by_all, s.v)) {
        attend(a);
        return;
    }
    pack_keys(a, s.k);
    int64_t shaped = 0;
    for (int64_t first = 0; first < a->n_query; first += BLOCK) {
        int64_t n = a->n_query - first < BLOCK ? a->n_query - first : BLOCK;
        if (n != shaped) configure(n);
        shaped = n;
        attend_block(a, &s, first, n);
    }
    _tile_release();
}

static void attend_tiles(const struct cpu_attend *a) {
    unsigned before = flush_tiny_numbers();
    attend_tiles_flushed(a);
    _mm_setcsr(before);
}

void cpu_x86_fill_attend_amx(struct cpu_kernels *k) {
    fill_attend(k);
    k->attend[FORM_PROMPT] = attend_tiles;
    k->attend_scratch = space_bytes;
}
