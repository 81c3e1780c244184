// block_conv: a thread has one channel of one row. Taps lie in the lane's own rows, so nothing is kept between calls.
#include "cuda/device.cuh"

#define THREADS  128
#define MAX_TAPS 8

struct block_conv_job {
    struct batch_view batch;
    struct tensor x, dyn, residual, out;
    const float *base;
    int n_tap, group;
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

void cuda_block_conv(struct device *base, const struct block_conv_args *a) {
    struct cuda_device *d = cuda_of(base);
    const struct batch_view *view = cuda_batch(d, a->batch);
    must(a->n_tap >= 1 && a->n_tap <= MAX_TAPS && a->x.n_col % a->group == 0);
    if (d->failure != cudaSuccess || view->n_row == 0) return;
    struct block_conv_job job = {*view, a->x, a->dyn, a->residual, a->out, a->base, a->n_tap, a->group};
    dim3 grid((unsigned)ceil_div(a->x.n_col, THREADS), (unsigned)view->n_row);
    cuda_start(d, "block conv", block_conv_kernel, grid, THREADS, 0, job);
}
