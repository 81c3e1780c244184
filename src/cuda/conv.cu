// conv: a thread has one channel of a few consecutive rows of a lane, so that each tap is loaded once.
#include "cuda/conv.cuh"

#define THREADS 128
#define ROWS    8

// blockIdx.y counts blocks of ROWS rows over all lanes; lanes are few.
template <int TAPS>
static __global__ void __launch_bounds__(THREADS) conv_kernel(const __grid_constant__ conv_job job) {
    begin_kernel();
    int64_t channel = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (channel >= job.m.n_col) return;
    int block = blockIdx.y, l = 0;
    for (;; l++) {
        int n = (job.batch.lanes[l].n_row + ROWS - 1) / ROWS;
        if (block < n) break;
        block -= n;
    }
    const struct lane_entry lane = job.batch.lanes[l];
    float weight[TAPS], tap[TAPS];
    int first = block * ROWS, end = min(lane.n_row, first + ROWS);
#pragma unroll
    for (int j = 0; j < TAPS; j++) {
        weight[j] = job.weight[channel * TAPS + j];
        tap[j] = j + 1 < TAPS ? conv_tap(job, lane, first + j - (TAPS - 1), channel) : 0;
    }
    for (int i = first; i < end; i++) {
        float sum = 0;
        tap[TAPS - 1] = tensor_load(job.m, lane.row0 + i, channel);
#pragma unroll
        for (int j = 0; j < TAPS; j++) sum += weight[j] * tap[j];
        tensor_store(job.out, lane.row0 + i, channel, silu_of(sum));
        if (job.keeps_rows)
            store_float(lane.run + job.ring_offset, job.m.dtype, conv_ring_element(job, lane.position + i, channel),
                        tap[TAPS - 1]);
#pragma unroll
        for (int j = 0; j + 1 < TAPS; j++) tap[j] = tap[j + 1];
    }
}

// Into the rings: in FORM_ROWS all rows of lane y; in FORM_PROMPT (y = 0) the last rows of the pass, and (y > 0) those
// before a keep. A launch of its own, after everything that reads the rings' old rows.
static __global__ void ring_kernel(const __grid_constant__ conv_job job, bool is_rows) {
    begin_kernel();
    int64_t channel = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (channel >= job.m.n_col) return;
    const struct lane_entry lane = job.batch.lanes[is_rows ? blockIdx.y : 0];
    char *run = lane.run;
    int from = 0, to = lane.n_row;
    if (!is_rows) {
        if (blockIdx.y > 0) {
            const struct keep_entry keep = job.batch.keeps[blockIdx.y - 1];
            to = keep.position - lane.position;
            run = keep.run;
        }
        from = max(0, to - (job.n_tap - 1));
    }
    for (int i = from; i < to; i++)
        store_float(run + job.ring_offset, job.m.dtype, conv_ring_element(job, lane.position + i, channel),
                    tensor_load(job.m, lane.row0 + i, channel));
}

void cuda_conv(struct device *base, const struct conv_args *a) {
    struct cuda_device *d = cuda_of(base);
    const struct batch *b = a->batch;
    const struct batch_view *view = cuda_batch(d, b);
    if (d->failure != cudaSuccess || b->n_row == 0) return;
    bool is_rows = b->form == FORM_ROWS;
    struct conv_job job = conv_job_of(a, view);
    job.keeps_rows = is_rows;
    int64_t n_block = 0;
    for (int i = 0; i < b->n_lane; i++) {
        n_block += ceil_div(b->lanes[i].n_row, ROWS);
        if (b->lanes[i].n_row + a->n_tap - 1 > a->ring_rows || b->lanes[i].n_row > ROWS) job.keeps_rows = false;
    }
    unsigned n_x = (unsigned)ceil_div(a->m.n_col, THREADS);
    dim3 grid(n_x, (unsigned)n_block);
    must(a->n_tap >= 2 && a->n_tap <= 4);
    cuda_start(d, "conv",
               a->n_tap == 4   ? conv_kernel<4>
               : a->n_tap == 3 ? conv_kernel<3>
                               : conv_kernel<2>,
               grid, THREADS, 0, job);
    if (job.keeps_rows) return;
    cuda_start(d, "conv rings", ring_kernel, dim3(n_x, (unsigned)(is_rows ? b->n_lane : 1 + b->n_keep)), THREADS, 0,
               job, is_rows);
}
