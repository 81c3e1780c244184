// Owns what the files of the feed-forward block with experts share: rounds in which norm, router, shared expert and
// experts are one operation (moe_args). The shared expert is one of the experts there, as the last pair of a row.
//   moe_open.cu  logits, and with many rows the choice, the pairs listed by expert, and the rows in groups
//   moe_one.cu   a single row: gate and up with the choice before them; down with the sums
//   moe_few.cu   a few rows, where there is room: the same two, expert by expert
//   moe_many.cu  several rows, expert by expert
// A row's bits are the same in all.
#ifndef TF_CUDA_MOE_CUH
#define TF_CUDA_MOE_CUH

#include "cuda/experts.cuh"
#include "cuda/moe_product.cuh"
#include "cuda/router.cuh"

#define MOE_MOST_GROUPS 32        // of a row
#define MOE_MOST_PAIRS  32        // of a row
#define MOE_TILE_PAIRS  2         // of an expert, at least
#define MOE_MOST_LIST   (1 << 15) // pairs of a round
#define MOE_FEW_ROWS    16        // at most
#define MOE_FEW_ENTRY   24        // bytes of a pair in the list

struct moe_job {
    struct router_job router;  // of the rows before their norm
    bool usual_router, is_few; // moe_few.cu has the rows
    char *few_list;            // moe_few.cu: what was chosen, from gate and up to down
    const float *norm_weight;
    float eps;
    struct expert_weights gate, up, down;
    struct moe_matrix shared_gate, shared_up, shared_down;
    int n_expert, n_used, n_row;
    int tile_pairs;         // several rows
    int x_groups, h_groups; // of a row, and of a pair's activations
    struct tensor residual, out;
    float *h, *y; // [pair][width], [pair][hidden]
    // Several rows. A pair is a row with one of its experts, as in experts.cuh; that of row t with the shared expert is
    // n_row * n_used + t.
    char *x, *h_rows; // [row][x_groups], [pair][h_groups]
    float *factors;   // [row]: of its norm
    struct pair_groups groups;
};

__device__ __forceinline__ struct moe_matrix
moe_matrix_of_expert(const struct expert_weights &w, const struct moe_matrix &shared, int expert, int n_expert) {
    if (expert == n_expert) return shared;
    struct weight_view v = weight_of_expert(w, expert);
    return (struct moe_matrix){v.data, v.scales, v.biases};
}

__device__ __forceinline__ float4 moe_four(const struct tensor &x, int64_t row, int64_t i) {
    return *(const float4 *)((const float *)x.data + row * x.stride + i);
}

__device__ __forceinline__ float moe_squares(float4 v) {
    return fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, v.w * v.w)));
}
__device__ __forceinline__ float4 moe_times(float4 v, float4 w) {
    return make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w);
}

// A block's part of a row of x in groups; all of its warps call it.
__device__ __forceinline__ void moe_take_row(const struct moe_job &job, int64_t row, char *to) {
    int n = job.x_groups * 8;
    for (int i = threadIdx.x; i - (int)threadIdx.x % 32 < n; i += (int)blockDim.x) {
        float4 a = make_float4(0, 0, 0, 0), b = a, v = a, w = a;
        if (i < n) {
            const float4 *weight = (const float4 *)(job.norm_weight + 8 * i);
            a = moe_four(job.router.x, row, 8 * i);
            b = moe_four(job.router.x, row, 8 * i + 4);
            v = weight[0];
            w = weight[1];
        }
        moe_make_group<true>(moe_times(a, v), moe_times(b, w), moe_squares(a) + moe_squares(b), to, job.x_groups,
                             i / 8);
    }
}

// Where activations lie: eight of them, counted over all pairs.
struct moe_eight {
    float4 a, b;
};
__device__ __forceinline__ struct moe_eight moe_load_eight(const float *h, int i) {
    const float4 *from = (const float4 *)h + 2 * i;
    return (struct moe_eight){__ldcg(from), __ldcg(from + 1)};
}

// Activations of n_pair pairs into groups, by a block of THREADS, AHEAD loads of a thread together.
template <int THREADS, int AHEAD>
__device__ __forceinline__ void moe_take_activations(const struct moe_job &job, int n_pair, char *to) {
    int n = n_pair * job.h_groups * 8;
    for (int first = threadIdx.x; first - (int)threadIdx.x % 32 < n; first += AHEAD * THREADS) {
        struct moe_eight v[AHEAD] = {};
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (first + k * THREADS < n) v[k] = moe_load_eight(job.h, first + k * THREADS);
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            int i = first + k * THREADS, group = i / 8, pair = group / job.h_groups;
            if (i - (int)threadIdx.x % 32 >= n) break;
            moe_make_group<false>(v[k].a, v[k].b, 0, to + pair * moe_row_bytes(job.h_groups), job.h_groups,
                                  i < n ? group - pair * job.h_groups : job.h_groups);
        }
    }
}

void moe_open(struct cuda_device *d, struct moe_job *job);
void moe_one(struct cuda_device *d, const struct moe_job *job);
bool moe_few_fits(struct cuda_device *d, const struct moe_args *a, const struct moe_job *job);
void moe_few(struct cuda_device *d, const struct moe_job *job);
void moe_many(struct cuda_device *d, const struct moe_job *job, int64_t most_tiles);

#endif
