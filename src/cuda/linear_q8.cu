// Products in rounds with narrow matrices of 8 bits, such as make a drafter's coefficients. As product_q4.cuh has it: a
// row enters as planes, groups are summed as integers, warp k of n takes the units k, k + n, ..., and the warps' sums
// are added as a tree. A block has 16 outputs, and asks for all of its first units before it waits.
#include "cuda/linear_q8.cuh"
#include "cuda/parts_q4.cuh"
#include "cuda/planes_make.cuh"

#define STAGES     5
#define UNIT_CODES (16 * UNIT_INPUTS)
#define UNIT_BYTES (UNIT_CODES + 16 * 8) // and two scales and two biases of each output

// A row of codes is eight pieces of 16 bytes; every second row has its halves exchanged, so that the threads of a
// quarter of a warp meet different banks.
__device__ __forceinline__ int q8_piece(int output, int piece) { return piece ^ output % 2 * 4; }

// What this thread copies of each unit: 16 bytes of four outputs, and one output's two scales or two biases.
struct q8_source {
    const char *codes, *scales;
    int64_t row_bytes;
    int last; // the highest output that exists, counted from the block's first
};

__device__ __forceinline__ struct q8_source q8_open(const struct weight_view &w, int o0, int unit) {
    int lane = threadIdx.x % 32;
    struct q8_source q;
    q.row_bytes = w.row_bytes;
    q.codes = w.data + (int64_t)(o0 + lane / 8) * w.row_bytes + unit * UNIT_INPUTS + lane % 8 * 16;
    q.scales = (lane < 16 ? w.scales : w.biases) + (int64_t)(o0 + lane % 16) * (w.n_group * 2) + unit * 4;
    q.last = (int)w.n_out - 1 - o0;
    return q;
}

// Starts the copy of the unit that is next, and moves on by `step` units.
__device__ __forceinline__ void q8_fetch(struct q8_source *q, char *unit, int step) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int t = 0; t < 4; t++) {
        int output = t * 4 + lane / 8;
        char *to = unit + output * UNIT_INPUTS + q8_piece(output, lane % 8) * 16;
        if (output <= q->last) copy16(to, q->codes + t * 4 * q->row_bytes, 16);
    }
    if (lane % 16 <= q->last) copy4(unit + UNIT_CODES + lane % 16 * 8 + lane / 16 * 4, q->scales, 4);
    q->codes += step * UNIT_INPUTS;
    q->scales += step * 4;
}

// A group's 16 codes of an output as operands: planes have of eight inputs the even ones, then the odd ones.
__device__ __forceinline__ void q8_codes(const char *unit, int output, int piece, uint32_t even[2], uint32_t odd[2]) {
    uint4 w = *(const uint4 *)(unit + output * UNIT_INPUTS + q8_piece(output, piece) * 16);
    even[0] = __byte_perm(w.x, w.y, 0x6420);
    odd[0] = __byte_perm(w.x, w.y, 0x7531);
    even[1] = __byte_perm(w.z, w.w, 0x6420);
    odd[1] = __byte_perm(w.z, w.w, 0x7531);
}

template <int NT>
__device__ __forceinline__ void q8_multiply(const char *unit, const struct q4_inputs<NT> &in, float y[NT][2]) {
    int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    struct q4_scales by;
    float sum[NT][2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        uint2 both = *(const uint2 *)(unit + UNIT_CODES + (i * 8 + g) * 8);
        by.scale[i] = bf16_pair(both.x);
        by.bias[i] = bf16_pair(both.y);
    }
#pragma unroll
    for (int group = 0; group < 2; group++) {
        uint32_t even[2][2], odd[2][2]; // [output][half of the group's inputs]
        int q[NT][4];
        for (int i = 0; i < 2; i++) q8_codes(unit, g + 8 * i, group * 4 + c, even[i], odd[i]);
        const uint32_t a[2][4] = {{even[0][0], even[1][0], odd[0][0], odd[1][0]},
                                  {even[0][1], even[1][1], odd[0][1], odd[1][1]}};
#pragma unroll
        for (int j = 0; j < NT; j++) {
            const uint4 &x = in.x[group][j];
            mma_codes_first(q[j], a[0], x.x, x.y);
            mma_codes(q[j], a[1], x.z, x.w);
        }
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                float whole = (float)(q[j][2 * i] * 256 + q[j][2 * i + 1]);
                sum[j][i] = group == 0 ? by.scale[i].x * whole : fmaf(by.scale[i].y, whole, sum[j][i]);
            }
    }
    q4_add_unit<NT>(by, in.note, sum, y);
}

template <int NT>
static __global__ void __launch_bounds__(Q4_THREADS) linear_q8_kernel(const __grid_constant__ q4_job job) {
    extern __shared__ __align__(16) char shared[];
    int warp = threadIdx.x / 32, sharing = blockDim.x / 32, t0 = blockIdx.y * 4 * NT;
    int n_mine = (job.n_unit - warp + sharing - 1) / sharing, n_column = min((int)job.n_row - t0, 4 * NT);
    char *stages = shared + warp * (STAGES * UNIT_BYTES);
    float *parts = (float *)(shared + sharing * (STAGES * UNIT_BYTES));
    let_next_start();
    const struct rows_part &part = q4_part_of(job, blockIdx.x);
    int o0 = ((int)blockIdx.x - part.first_tile) * 16;
    struct q8_source q = q8_open(part.w, o0, warp);
    for (int s = 0; s < STAGES; s++) {
        if (s < n_mine) q8_fetch(&q, stages + s * UNIT_BYTES, sharing);
        copies_commit();
    }
    wait_for_earlier();

    struct q4_rows<NT> rows;
    q4_take_rows<NT>(job.x, &rows, [&](int n) { return min(t0 + n, (int)job.n_row - 1); });
    rows.x += warp * (PLANES_TILE * PLANES_UNIT_X);
    rows.notes += warp * PLANES_TILE * (int)sizeof(struct plane_note);
    float y[1][NT][2] = {};
    char *stage = stages;
#pragma unroll 1
    for (int i = 0; i < n_mine; i++) {
        struct q4_inputs<NT> in;
        q4_load<NT, PLANES_TILE>(rows, &in);
        rows.x += sharing * (PLANES_TILE * PLANES_UNIT_X);
        rows.notes += sharing * PLANES_TILE * (int)sizeof(struct plane_note);
        copies_wait<STAGES - 1>();
        __syncwarp();
        q8_multiply<NT>(stage, in, y[0]);
        __syncwarp();
        if (i + STAGES < n_mine) q8_fetch(&q, stage, sharing);
        copies_commit();
        stage = stage + UNIT_BYTES == stages + STAGES * UNIT_BYTES ? stages : stage + UNIT_BYTES;
    }
    q4_put_part<1, NT>(parts, warp, n_column, y);
    __syncthreads();
    for (int e = threadIdx.x; e < 16 * n_column; e += blockDim.x) {
        int m = e % 16, n = e / 16;
        float sum = q4_sum_parts(parts + n * 16 + m, n_column * 16, sharing);
        store_sum(job.residual, part, job.n_row, t0 + n, o0 + m, sum * job.x.factors[t0 + n]);
    }
}

template <int NT> static void launch(struct cuda_device *d, const struct q4_job &job) {
    int sharing = q4_sharing(job.n_unit);
    size_t bytes = (size_t)(sharing * (STAGES * UNIT_BYTES + 4 * NT * 16 * (int)sizeof(float)));
    cudaFuncSetAttribute(linear_q8_kernel<NT>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    dim3 grid((unsigned)job.n_tile, (unsigned)ceil_div(job.n_row, 4 * NT));
    cuda_start(d, "linear, rows", linear_q8_kernel<NT>, grid, 32 * sharing, bytes, job);
}

void linear_q8(struct cuda_device *d, struct q4_job *job) {
    q4_cut_tiles(job, 16);
    if (!job->made) make_plane_rows(d, job->in, job->x);
    job->made = true;
    if (job->n_row <= 4)
        launch<1>(d, *job);
    else if (job->n_row <= 8)
        launch<2>(d, *job);
    else
        launch<4>(d, *job);
}
