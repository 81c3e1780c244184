// qk_store: norm and rotation of queries and keys, and the only writer of the page pool. One warp a head of a row.
#include "cuda/device.cuh"
#include <cuda_fp8.h>

#define WARPS      8
#define E4M3_MAX   448.0f
#define MAX_VALUES 8 // of a thread: heads have at most 256

struct qk_job {
    struct batch_view batch;
    struct qk_store_args a; // its batch is not followed
};

// What a thread knows of its head before the row is there: weights of the norm, and how far its pairs are turned.
struct head_constants {
    float weight[MAX_VALUES], sine[MAX_VALUES / 2], cosine[MAX_VALUES / 2];
};

static __device__ __forceinline__ void load_constants(const struct qk_job &job, float position, const float *weight,
                                                      struct head_constants *c) {
    int lane = threadIdx.x % 32, half = job.a.n_rot / 2;
#pragma unroll
    for (int k = 0; k < MAX_VALUES; k++) c->weight[k] = lane + 32 * k < job.a.head_dim ? weight[lane + 32 * k] : 0.0f;
#pragma unroll
    for (int k = 0; k < MAX_VALUES / 2; k++)
        if (lane + 32 * k < half) sincosf(position * job.a.inv_freq[lane + 32 * k], &c->sine[k], &c->cosine[k]);
}

// Pairs (i, half + i) of the row; one of them lies in another thread's registers.
static __device__ __forceinline__ void rotate(int half, const struct head_constants &c, float *row) {
    __syncwarp();
#pragma unroll
    for (int k = 0; k < MAX_VALUES / 2; k++) {
        int i = threadIdx.x % 32 + 32 * k;
        if (i >= half) break;
        float low = row[i], high = row[half + i];
        row[i] = low * c.cosine[k] - high * c.sine[k];
        row[half + i] = high * c.cosine[k] + low * c.sine[k];
    }
    __syncwarp();
}

static __device__ __forceinline__ void norm_row(float v[MAX_VALUES], int n, const struct head_constants &c, float eps) {
    float squares = 0;
#pragma unroll
    for (int k = 0; k < MAX_VALUES; k++) squares += v[k] * v[k];
    float inverse = rsqrtf(warp_sum(squares) / (float)n + eps);
#pragma unroll
    for (int k = 0; k < MAX_VALUES; k++) v[k] = v[k] * inverse * c.weight[k];
}

static __device__ void store_e4m3(const struct kv_layer &kv, char *page, int64_t at, int n, const float *row) {
    float most = 0;
    for (int i = threadIdx.x % 32; i < n; i += 32) most = fmaxf(most, fabsf(row[i]));
    most = warp_max(most);
    float scale = most / E4M3_MAX;
    uint8_t *codes = (uint8_t *)page + kv.layer_offset + at * n;
    for (int i = threadIdx.x % 32; i < n; i += 32)
        codes[i] = most > 0 ? __nv_cvt_float_to_fp8(row[i] / scale, __NV_SATFINITE, __NV_E4M3) : 0;
    if (threadIdx.x % 32 == 0) *(float *)(page + kv.scale_offset + at * 4) = scale;
}

// Where a row stands, weights and angles come out of tables that no earlier kernel of the batch writes.
static __global__ void __launch_bounds__(32 * WARPS) qk_store_kernel(const __grid_constant__ qk_job job) {
    __shared__ float rows[WARPS][32 * MAX_VALUES];
    let_next_start();
    const struct qk_store_args &a = job.a;
    int n = a.head_dim, n_all = a.n_head + 2 * a.n_kv_head, h = blockIdx.y * WARPS + threadIdx.x / 32;
    int64_t t = blockIdx.x;
    if (h >= n_all) return;
    float *row = rows[threadIdx.x / 32];
    const struct lane_entry lane = job.batch.lanes[job.batch.lane_of_row[t]];
    int position = lane.position + (int)(t - lane.row0);
    bool is_query = h < a.n_head, is_key = !is_query && h < a.n_head + a.n_kv_head;
    int kv_head = h - a.n_head - (is_key ? 0 : a.n_kv_head);
    const struct tensor &from = is_query ? a.qg : is_key ? a.k : a.v;
    int64_t col = is_query ? (int64_t)h * (a.no_gate ? 1 : 2) * n : (int64_t)kv_head * n;
    struct head_constants constants;
    if (is_query || is_key) load_constants(job, (float)position, is_query ? a.q_norm : a.k_norm, &constants);
    int page_index = position / a.kv.page_rows, slot = position % a.kv.page_rows;
    int page_number = is_query ? 0 : job.batch.pages[lane.page_at + page_index];
    wait_for_earlier();
    float v[MAX_VALUES];
#pragma unroll
    for (int k = 0; k < MAX_VALUES; k++) {
        int i = threadIdx.x % 32 + 32 * k;
        v[k] = i < n ? tensor_load(from, t, col + i) : 0.0f;
    }
    if (is_query || is_key) norm_row(v, n, constants, a.eps);
#pragma unroll
    for (int k = 0; k < MAX_VALUES; k++) row[threadIdx.x % 32 + 32 * k] = v[k];
    if (is_query || is_key) rotate(a.n_rot / 2, constants, row);
    if (is_query) {
        for (int i = threadIdx.x % 32; i < n; i += 32) tensor_store(a.q_out, t, (int64_t)h * n + i, row[i]);
        return;
    }
    char *page = (char *)a.kv.pages + page_number * a.kv.page_bytes;
    int64_t at = (is_key ? 0 : (int64_t)a.n_kv_head * a.kv.page_rows) + (int64_t)kv_head * a.kv.page_rows + slot;
    if (a.kv.dtype == DTYPE_E4M3) {
        store_e4m3(a.kv, page, at, n, row);
        return;
    }
    for (int i = threadIdx.x % 32; i < n; i += 32)
        store_float(page + a.kv.layer_offset, a.kv.dtype, at * n + i, row[i]);
}

void cuda_qk_store(struct device *base, const struct qk_store_args *a) {
    struct cuda_device *d = cuda_of(base);
    const struct batch_view *b = cuda_batch(d, a->batch);
    if (d->failure != cudaSuccess || b->n_row == 0) return;
    must(a->head_dim <= 32 * MAX_VALUES && (a->kv.dtype == DTYPE_BF16 || a->kv.dtype == DTYPE_E4M3));
    struct qk_job job = {*b, *a};
    dim3 grid((unsigned)b->n_row, (unsigned)ceil_div(a->n_head + 2 * a->n_kv_head, WARPS));
    cuda_start(d, "qk_store", qk_store_kernel, grid, 32 * WARPS, 0, job);
}
