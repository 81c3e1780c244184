// The router's logits in FORM_PROMPT on matrix units, to the precision of fp32: a row is the sum of three bf16, which
// hold all of its bits, and weights are bf16 or codes of 8 bits, which bf16 holds as well; so products are exact, and
// sums are fp32. A block has 32 rows and all experts; a warp has up to three times 16 experts, the M side of
// mma.m16n8k16. A row is a column of the accumulators and meets no other.
#include "cuda/device.cuh"
#include "cuda/router.cuh"

#define WARPS   8
#define THREADS (32 * WARPS)
#define ROWS    32
#define COLUMNS (ROWS / 8)
#define TILES   3  // of 16 experts, of a warp
#define GROUP   64 // inputs of a step
#define TERMS   3
#define PITCH   (GROUP + 8) // elements of a row in shared memory: quarter warps meet different banks

struct router_room {
    __nv_bfloat16 x[2][TERMS][ROWS][PITCH];
    float sums[2][ROWS];
};

// Eight inputs of one row, as this thread turns them into terms: row thread / 8.
static __device__ __forceinline__ void load_share(const struct tensor &x, int64_t row, int64_t k, float v[8]) {
    if (row >= x.n_row) {
        for (int i = 0; i < 8; i++) v[i] = 0;
    } else if (x.dtype == DTYPE_F32) {
        const float4 *from = (const float4 *)((const float *)x.data + row * x.stride + k);
        *(float4 *)v = from[0];
        *(float4 *)(v + 4) = from[1];
    } else {
        for (int i = 0; i < 8; i++) v[i] = tensor_load(x, row, k + i);
    }
}

static __device__ __forceinline__ void store_share(struct router_room *room, int half, const float v[8]) {
    int row = threadIdx.x / 8, at = threadIdx.x % 8 * 8;
    float left[8], sum = 0;
    for (int i = 0; i < 8; i++) {
        left[i] = v[i];
        sum += v[i];
    }
    for (int term = 0; term < TERMS; term++) {
        uint32_t words[4];
        for (int i = 0; i < 4; i++) {
            words[i] = pack_bf16(left[2 * i], left[2 * i + 1]);
            left[2 * i] -= __uint_as_float(words[i] << 16);
            left[2 * i + 1] -= __uint_as_float(words[i] & 0xffff0000u);
        }
        *(uint4 *)&room->x[half][term][row][at] = make_uint4(words[0], words[1], words[2], words[3]);
    }
    for (int step = 1; step < 8; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x % 8 == 0) room->sums[half][row] = sum;
}

// Sixteen weights of one expert in a step, the share of a column of inputs, with the group's scale and bias.
template <bool CODES> struct expert_share {
    uint4 words[CODES ? 1 : 2];
    float scale, bias;
};

template <bool CODES>
static __device__ __forceinline__ void load_expert(const struct router_job &job, int e, int step,
                                                   struct expert_share<CODES> *s) {
    bool is_shared = e >= job.gate.n_out && job.has_shared;
    const struct weight_view &w = is_shared ? job.shared_gate : job.gate;
    int64_t row = is_shared ? 0 : min(e, (int)job.gate.n_out - 1);
    const char *at = w.data + row * w.row_bytes + (step * GROUP + threadIdx.x % 4 * 16) * (CODES ? 1 : 2);
    s->words[0] = ((const uint4 *)at)[0];
    if constexpr (CODES) {
        s->scale = load_float(w.scales, w.dtype, row * w.n_group + step);
        s->bias = load_float(w.biases, w.dtype, row * w.n_group + step);
    } else {
        s->words[1] = ((const uint4 *)at)[1];
    }
}

// Four codes of a word as two pairs.
static __device__ __forceinline__ void pairs_of_codes(uint32_t word, uint32_t out[2]) {
    float f[4];
    for (int i = 0; i < 4; i++) f[i] = __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7540 + i)) - 8388608.0f;
    out[0] = pack_bf16(f[0], f[1]);
    out[1] = pack_bf16(f[2], f[3]);
}

template <bool CODES>
static __device__ __forceinline__ void operands(const struct expert_share<CODES> &s, uint32_t out[8]) {
    const uint32_t *words = (const uint32_t *)s.words;
    if constexpr (CODES) {
#pragma unroll
        for (int i = 0; i < 4; i++) pairs_of_codes(words[i], out + 2 * i);
    } else {
#pragma unroll
        for (int i = 0; i < 8; i++) out[i] = words[i];
    }
}

// One step of 16 experts.
template <bool CODES>
static __device__ __forceinline__ void multiply(const struct router_room *room, int half,
                                                const struct expert_share<CODES> share[2], float y[COLUMNS][4]) {
    int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    uint32_t top[8], bottom[8];
    operands<CODES>(share[0], top);
    operands<CODES>(share[1], bottom);
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
        float sum[4] = {0, 0, 0, 0};
#pragma unroll
        for (int term = TERMS - 1; term >= 0; term--) {
            uint4 v[2];
            const uint4 *from = (const uint4 *)&room->x[half][term][8 * j + g][c * 16];
            v[0] = from[0];
            v[1] = from[1];
            const uint32_t *b = (const uint32_t *)v;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t a[4] = {top[2 * i], bottom[2 * i], top[2 * i + 1], bottom[2 * i + 1]};
                mma_bf16(CODES ? sum : y[j], a, b[2 * i], b[2 * i + 1]);
            }
        }
        if constexpr (CODES) {
            float2 of_inputs = *(const float2 *)&room->sums[half][8 * j + 2 * c];
            y[j][0] = fmaf(share[0].bias, of_inputs.x, fmaf(share[0].scale, sum[0], y[j][0]));
            y[j][1] = fmaf(share[0].bias, of_inputs.y, fmaf(share[0].scale, sum[1], y[j][1]));
            y[j][2] = fmaf(share[1].bias, of_inputs.x, fmaf(share[1].scale, sum[2], y[j][2]));
            y[j][3] = fmaf(share[1].bias, of_inputs.y, fmaf(share[1].scale, sum[3], y[j][3]));
        }
    }
}

template <bool CODES>
static __global__ void __launch_bounds__(THREADS) router_prompt_kernel(const __grid_constant__ router_job job) {
    __shared__ __align__(16) struct router_room room;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    int n_logit = (int)job.gate.n_out + (job.has_shared ? 1 : 0), n_tile = (n_logit + 15) / 16;
    int first = blockIdx.y * WARPS * TILES + warp, n_step = (int)(job.gate.n_in / GROUP);
    int64_t t0 = (int64_t)blockIdx.x * ROWS, row = t0 + threadIdx.x / 8;
    float y[TILES][COLUMNS][4] = {}, v[8];
    struct expert_share<CODES> share[TILES][2];
    begin_kernel();
    load_share(job.x, row, threadIdx.x % 8 * 8, v);
    store_share(&room, 0, v);
    __syncthreads();
    for (int step = 0; step < n_step; step++) {
        bool more = step + 1 < n_step;
        if (more) load_share(job.x, row, (step + 1) * GROUP + threadIdx.x % 8 * 8, v);
#pragma unroll
        for (int i = 0; i < TILES; i++) {
            int tile = first + i * WARPS;
            if (tile >= n_tile) continue;
            load_expert<CODES>(job, tile * 16 + g, step, &share[i][0]);
            load_expert<CODES>(job, tile * 16 + g + 8, step, &share[i][1]);
        }
#pragma unroll
        for (int i = 0; i < TILES; i++)
            if (first + i * WARPS < n_tile) multiply<CODES>(&room, step % 2, share[i], y[i]);
        if (more) store_share(&room, (step + 1) % 2, v);
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
            for (int k = 0; k < 4; k++) {
                int64_t e = (first + i * WARPS) * 16 + g + k / 2 * 8, t = t0 + 8 * j + 2 * c + k % 2;
                if (e < n_logit && t < job.x.n_row) job.logits[t * (job.gate.n_out + 1) + e] = y[i][j][k];
            }
}

static bool weights_fit(const struct weight_view &w) {
    bool codes = w.weight_class == CLASS_Q8 && w.group == GROUP;
    return (codes || w.weight_class == CLASS_BF16) && w.n_in % GROUP == 0 && (uintptr_t)w.data % 16 == 0;
}

bool router_prompt_fits(const struct router_job *job) {
    const struct tensor &x = job->x;
    bool wide = x.dtype != DTYPE_F32 || ((uintptr_t)x.data % 16 == 0 && x.stride % 4 == 0);
    return wide && weights_fit(job->gate) && weights_fit(job->shared_gate) &&
           job->gate.weight_class == job->shared_gate.weight_class;
}

void router_prompt_logits(struct cuda_device *d, const struct router_job *job) {
    int64_t n_tile = ceil_div(job->gate.n_out + (job->has_shared ? 1 : 0), 16);
    dim3 grid((unsigned)ceil_div(job->x.n_row, ROWS), (unsigned)ceil_div(n_tile, WARPS * TILES));
    cuda_start(d, "router, logits",
               job->gate.weight_class == CLASS_BF16 ? router_prompt_kernel<false> : router_prompt_kernel<true>, grid,
               THREADS, 0, *job);
}
