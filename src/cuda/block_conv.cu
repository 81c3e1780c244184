// block_conv: taps lie in the lane's own rows, so nothing is kept between calls. A thread has one channel of one row,
// or four where rows allow; then a warp has a unit of a product's inputs, and what is not added to a residual, which is
// a product's rows as a rule, is left as planes too.
#include "cuda/norm.cuh"

#define THREADS  128
#define MAX_TAPS 8

struct block_conv_job {
    struct batch_view batch;
    struct tensor x, dyn, residual, out;
    const float *base;
    int n_tap, group;
    struct plane_rows planes; // x NULL: none are made
};

static __global__ void __launch_bounds__(THREADS) block_conv_kernel(const __grid_constant__ block_conv_job job) {
    begin_kernel();
    int64_t channel = (int64_t)blockIdx.x * THREADS + threadIdx.x, t = blockIdx.y;
    if (channel >= job.x.n_col) return;
    int64_t first = job.batch.lanes[job.batch.lane_of_row[t]].row0, n_group = job.x.n_col / job.group;
    int n_tap = (int)min((int64_t)job.n_tap, t - first + 1);
    float sum = 0;
    for (int k = 0; k < n_tap; k++) {
        float own = tensor_load(job.dyn, t, k * n_group + channel / job.group);
        sum += (job.base[k * job.x.n_col + channel] + own) * tensor_load(job.x, t - k, channel);
    }
    if (job.residual.data != NULL) sum += tensor_load(job.residual, t, channel);
    tensor_store(job.out, t, channel, sum);
}

static __device__ __forceinline__ float4 four_of(const struct tensor &x, int64_t row, int64_t i) {
    return *(const float4 *)((const float *)x.data + row * x.stride + i);
}

// The same arithmetic.
static __global__ void __launch_bounds__(THREADS) block_conv_kernel4(const __grid_constant__ block_conv_job job) {
    let_next_start();
    int64_t channel = ((int64_t)blockIdx.x * THREADS + threadIdx.x) * 4, t = blockIdx.y;
    if (channel / PLANES_UNIT * PLANES_UNIT >= job.x.n_col) return;
    int64_t first = job.batch.lanes[job.batch.lane_of_row[t]].row0, n_group = job.x.n_col / job.group;
    int n_tap = (int)min((int64_t)job.n_tap, t - first + 1);
    wait_for_earlier();
    float4 sum = make_float4(0, 0, 0, 0);
    for (int k = 0; k < n_tap; k++) {
        float own = ((const float *)job.dyn.data)[t * job.dyn.stride + k * n_group + channel / job.group];
        float4 base = *(const float4 *)(job.base + k * job.x.n_col + channel), x = four_of(job.x, t - k, channel);
        sum.x += (base.x + own) * x.x;
        sum.y += (base.y + own) * x.y;
        sum.z += (base.z + own) * x.z;
        sum.w += (base.w + own) * x.w;
    }
    if (job.residual.data != NULL) {
        float4 r = four_of(job.residual, t, channel);
        sum = make_float4(sum.x + r.x, sum.y + r.y, sum.z + r.z, sum.w + r.w);
    }
    *(float4 *)((float *)job.out.data + t * job.out.stride + channel) = sum;
    if (job.planes.x == NULL) return;
    struct planes at = planes_of_row(job.planes, t);
    int64_t unit = channel / PLANES_UNIT;
    plane_store<PLANES_TILE>(sum, 0, at.x + unit * (PLANES_TILE * PLANES_UNIT_X), at.notes + unit * PLANES_TILE);
    if (channel == 0) job.planes.factors[t] = 1;
}

// The same arithmetic, of a whole row onto a residual, which is normed then.
static __global__ void __launch_bounds__(NORM_MOST)
    block_conv_norm_kernel(const __grid_constant__ block_conv_job job, const __grid_constant__ norm_job norm) {
    __shared__ float shared[33];
    let_next_start();
    int64_t t = blockIdx.x, i = threadIdx.x * 8, n_group = job.x.n_col / job.group;
    int n_tap = (int)min((int64_t)job.n_tap, t - job.batch.lanes[job.batch.lane_of_row[t]].row0 + 1);
    float weight[8], before[8], v[8] = {};
    load_wide(norm.weight + i, weight);
    for (int k = 0; k < n_tap; k++) asm volatile("prefetch.global.L1 [%0];" ::"l"(job.base + k * job.x.n_col + i));
    wait_for_earlier();
    load_wide((const float *)job.residual.data + t * job.residual.stride + i, before);
#pragma unroll 2
    for (int k = 0; k < n_tap; k++) {
        float own = ((const float *)job.dyn.data)[t * job.dyn.stride + k * n_group + i / job.group], x[8], base[8];
        load_wide((const float *)job.x.data + (t - k) * job.x.stride + i, x);
        load_wide(job.base + k * job.x.n_col + i, base);
#pragma unroll
        for (int e = 0; e < 8; e++) v[e] += (base[e] + own) * x[e];
    }
#pragma unroll
    for (int e = 0; e < 8; e++) v[e] += before[e];
    float4 *to = (float4 *)((float *)job.out.data + t * job.out.stride + i);
    to[0] = *(const float4 *)v;
    to[1] = *(const float4 *)(v + 4);
    norm_row(norm, weight, v, shared);
}

// Whether four neighbouring channels have one coefficient and lie side by side.
static bool goes_by_four(const struct block_conv_args *a) {
    return rows_are_wide(a->x) && rows_are_wide(a->out) && (a->residual.data == NULL || rows_are_wide(a->residual)) &&
           a->dyn.dtype == DTYPE_F32 && (uintptr_t)a->base % 16 == 0 && a->group % 4 == 0 &&
           a->x.n_col % PLANES_UNIT == 0;
}

void cuda_block_conv(struct device *base, const struct block_conv_args *a) {
    struct cuda_device *d = cuda_of(base);
    const struct batch_view *view = cuda_batch(d, a->batch);
    must(a->n_tap >= 1 && a->n_tap <= MAX_TAPS && a->x.n_col % a->group == 0);
    if (d->failure != cudaSuccess || view->n_row == 0) return;
    struct block_conv_job job = {*view, a->x, a->dyn, a->residual, a->out, a->base, a->n_tap, a->group, {}};
    bool by_four = goes_by_four(a);
    struct plane_rows p;
    struct norm_job norm;
    if (a->normed.data != NULL && by_four && a->group % 8 == 0 && a->residual.data != NULL &&
        make_norm_job(d, a->normed, a->norm_weight, a->norm_eps, &norm)) {
        cuda_start(d, "block conv, norm", block_conv_norm_kernel, dim3((unsigned)view->n_row),
                   (unsigned)(a->x.n_col / 8), 0, job, norm);
        return;
    }
    if (by_four && a->residual.data == NULL && leave_planes(d, a->out, PLANES_UNIT, &p)) job.planes = p;
    dim3 grid((unsigned)ceil_div(a->x.n_col, by_four ? 4 * THREADS : THREADS), (unsigned)view->n_row);
    cuda_start(d, "block conv", by_four ? block_conv_kernel4 : block_conv_kernel, grid, THREADS, 0, job);
    if (a->normed.data == NULL) return;
    struct norm_args alone = {a->out, a->normed, a->norm_weight, a->norm_eps};
    base->ops->norm(base, &alone);
}
