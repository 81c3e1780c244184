// Owns what the files of the feed-forward block with experts share: rounds in which norm, router, shared expert and
// experts are one operation (moe_args). The shared expert is one of the experts there, as the last pair of a row.
//   moe_open.cu  logits, and with several rows the choice, the pairs listed by expert, and the rows in groups
//   moe_one.cu   a single row: gate and up with the choice before them; down with the sums
//   moe_many.cu  several rows, expert by expert
// A row's bits are the same in both.
#ifndef TF_CUDA_MOE_CUH
#define TF_CUDA_MOE_CUH

#include "cuda/experts.cuh"
#include "cuda/moe_product.cuh"
#include "cuda/router.cuh"

#define MOE_MOST_GROUPS 32        // of a row
#define MOE_MOST_PAIRS  32        // of a row
#define MOE_TILE_PAIRS  2         // of an expert, at least
#define MOE_MOST_LIST   (1 << 15) // pairs of a round

struct moe_job {
    struct router_job router; // of the rows before their norm
    bool usual_router;
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

// A block's part of a row of x in groups; all of its warps call it.
__device__ __forceinline__ void moe_take_row(const struct moe_job &job, int64_t row, char *to) {
    for (int i = threadIdx.x; i < job.x_groups * 16; i += (int)blockDim.x) {
        float4 v = moe_four(job.router.x, row, 4 * i), w = *(const float4 *)(job.norm_weight + 4 * i);
        float squares = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, v.w * v.w)));
        moe_make_group(make_float4(v.x * w.x, v.y * w.y, v.z * w.z, v.w * w.w), squares, to, job.x_groups, i / 16);
    }
}

void moe_open(struct cuda_device *d, struct moe_job *job);
void moe_one(struct cuda_device *d, const struct moe_job *job);
void moe_many(struct cuda_device *d, const struct moe_job *job, int64_t most_tiles);

#endif
