// Owns what the steps of a draw share: the rows' parameters and intermediate results on the device. The definition is
// ops/draw.h; every step gives the same answer however its work is divided, because it compares, or adds integers.
#ifndef TF_CUDA_DRAW_CUH
#define TF_CUDA_DRAW_CUH

#include "cuda/device.cuh"
#include <stddef.h>

#define DRAW_BLOCK   2048 // tokens of a block of threads
#define DRAW_THREADS 256
#define DRAW_ROWS    16          // drawn at a time: bounds the scratch
#define DRAW_BINS    2048        // by depth below the largest s
#define DRAW_SCALE   64          // bins a unit of s
#define DRAW_MASS    0x1p45      // a probability mass of e^0 as an integer: a whole vocabulary's stays below 2^64
#define NOISE_MAX    36.74       // above every noise value: 53 ln 2
#define DRAW_USUAL   0xffffffffu // allowed_at: the ids that nearly all rows may have, which stay on the device

struct draw_row {
    double temperature, top_p, min_p, repetition, presence, frequency;
    uint64_t seed, position;
    int32_t top_k, n_bias, n_seen, n_top;
    uint32_t bias_at, seen_at, allowed_at; // bytes from the start of the lists, or DRAW_USUAL
};

struct draw_block {
    double max, raw_sum; // of the changed logits; of e^(x - raw_max)
    int32_t max_id;      // -1: no token of the block is in
    float raw_max;       // over all columns
    float raw_in;        // over those that are in, where alternatives are wanted
    double best;         // of s + noise
    int32_t best_id;
};

// A row's findings.
struct draw_found {
    double max_s, min_s, normaliser, first_best;
    unsigned long long total; // mass of all, where top-p is over all tokens
    int32_t max_id, id;       // the largest logit's; the token drawn
    bool sampled, listed;     // listed: top-k or top-p
    int32_t cut_bin;          // bins up to here are listed
};

struct draw_job {
    struct tensor logits;
    int32_t n_vocab, n_block;
    const char *lists;           // NULL where no row has any
    const uint32_t *usual;       // of allowed ids
    double *changed;             // [row][V], of rows that are sampled: logits after bias and penalties; NaN: out
    struct draw_block *blocks;   // [row][n_block]
    struct draw_top *tops;       // [row][DRAW_MAX_TOP][DRAW_MAX_TOP]: raw logits of so many blocks, falling
    uint32_t *count;             // [row][DRAW_BINS]
    unsigned long long *mass;    // [row][DRAW_BINS]
    int32_t *list, *n_list;      // [row][V], [row]
    struct draw_found *found;    // [row]
    struct draw_result *results; // [row]: what is known before the token is
    struct draw_result *answers; // [row], in the host's memory
    struct draw_row rows[DRAW_ROWS];
};

__device__ __forceinline__ bool draw_better(double x, int32_t id, double best, int32_t best_id) {
    return id >= 0 && (best_id < 0 || x > best || (x == best && id < best_id));
}

// The best of a block's threads; every thread gets it. shared: 32 of each.
__device__ __forceinline__ void draw_block_best(double *best, int32_t *id, double *shared_best, int32_t *shared_id) {
#pragma unroll 1 // instructions come from memory as a rule: the fewer, the sooner
    for (int round = 0; round < 2; round++) {
#pragma unroll 1
        for (int step = 16; step > 0; step >>= 1) {
            double other = __shfl_xor_sync(0xffffffffu, *best, step);
            int32_t other_id = __shfl_xor_sync(0xffffffffu, *id, step);
            if (draw_better(other, other_id, *best, *id)) {
                *best = other;
                *id = other_id;
            }
        }
        if (round == 1) return;
        __syncthreads();
        if (threadIdx.x % 32 == 0) {
            shared_best[threadIdx.x / 32] = *best;
            shared_id[threadIdx.x / 32] = *id;
        }
        __syncthreads();
        bool has = threadIdx.x % 32 < blockDim.x / 32;
        *best = has ? shared_best[threadIdx.x % 32] : 0;
        *id = has ? shared_id[threadIdx.x % 32] : -1;
    }
}

// Philox 4x32 with 10 rounds, as base/random.h defines it.
__device__ __forceinline__ uint64_t draw_bits(uint64_t key, uint64_t a, uint64_t b) {
    uint32_t c0 = (uint32_t)a, c1 = (uint32_t)(a >> 32), c2 = (uint32_t)b, c3 = (uint32_t)(b >> 32);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xd2511f53u * c0, p1 = (uint64_t)0xcd9e8d57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
    return (uint64_t)c1 << 32 | c0;
}

__device__ __forceinline__ double draw_noise(uint64_t bits) {
    return -log(-log(((double)(bits >> 12) + 0.5) * 0x1p-52));
}

// A bound on the noise that needs no logarithm: within ln 2 of -ln(1 - u), which is above it.
__device__ __forceinline__ double draw_noise_limit(uint64_t bits) {
    uint64_t rest = (1ull << 53) - 2 * (bits >> 12) - 1;
    return (double)(53 - (63 - __clzll((long long)rest))) * 0.69314718055994530942 + 1e-9;
}

__device__ __forceinline__ int draw_bin(double max_s, double s) {
    double depth = (max_s - s) * DRAW_SCALE;
    return depth < DRAW_BINS - 1 ? (int)depth : DRAW_BINS - 1;
}

__device__ __forceinline__ unsigned long long draw_mass(double max_s, double s) {
    return (unsigned long long)rint(exp(s - max_s) * DRAW_MASS);
}

// Of a block's threads, all of which call it: the answer, once its token is known.
__device__ __forceinline__ void draw_answer(const struct draw_job &job, int64_t row, int32_t id, double normaliser,
                                            const struct draw_result *known) {
    uint32_t *to = (uint32_t *)&job.answers[row];
    const uint32_t *from = (const uint32_t *)known;
    float x = id >= 0 ? ((const float *)job.logits.data)[row * job.logits.stride + id] : 0;
    for (int i = threadIdx.x; i < (int)(sizeof *known / 4); i += blockDim.x) {
        uint32_t word = from[i];
        if (i == offsetof(struct draw_result, id) / 4) word = (uint32_t)id;
        if (i == offsetof(struct draw_result, logprob) / 4 && job.rows[row].n_top >= 0)
            word = __float_as_uint((float)((double)x - normaliser));
        to[i] = word;
    }
}

// Launches the steps of one set of rows. n_top: most alternatives of a row. no_noise: no row is sampled, and the first
// steps know the answers.
void draw_scan(struct cuda_device *d, const struct draw_job *job, int n_row, int n_top, bool no_noise);
void draw_pick(struct cuda_device *d, const struct draw_job *job, int n_row, bool any_listed, bool any_unlisted);

#endif
