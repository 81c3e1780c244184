// attention in FORM_PROMPT: one head and 64 rows a block, each warp 16 of them, over tiles of 64 keys from position 0
// on. A row's chain meets every tile up to its own position; a tile that is read for the sake of later rows alone has
// weights of exactly 0 and leaves a row's bits as they are.
#include "cuda/attention_wide_fetch.cuh"

#define ROWS    64
#define THREADS 128

template <int D> struct prompt_shared {
    char q[ROWS * D * 2], k[CUDA_TILE_KEYS * D * 2], v[CUDA_TILE_KEYS * D * 2];
    struct tile_rows rows[2];
};

template <int D> __device__ __forceinline__ void score_tile(struct prompt_shared<D> *s, float c[8][4]) {
    int lane = threadIdx.x % 32, row0 = threadIdx.x / 32 * 16;
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 4; i++) c[j][i] = 0;
#pragma unroll 4
    for (int k = 0; k < D / 16; k++) {
        uint32_t a[4];
        load_matrices(a, kv_piece<D>(s->q, row0 + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t b[4];
            load_matrices(b, kv_piece<D>(s->k, 16 * j + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
            mma_bf16(c[2 * j], a, b[0], b[1]);
            mma_bf16(c[2 * j + 1], a, b[2], b[3]);
        }
    }
}

template <int D>
__device__ __forceinline__ void add_values(struct prompt_shared<D> *s, const float c[8][4], const float fade[2],
                                           float acc[D / 8][4]) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < D / 8; n++)
        for (int i = 0; i < 4; i++) acc[n][i] *= fade[i / 2];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t a[4] = {pack_bf16(c[2 * k][0], c[2 * k][1]), pack_bf16(c[2 * k][2], c[2 * k][3]),
                         pack_bf16(c[2 * k + 1][0], c[2 * k + 1][1]), pack_bf16(c[2 * k + 1][2], c[2 * k + 1][3])};
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t b[4];
            load_matrices_transposed(b, kv_piece<D>(s->v, 16 * k + lane % 16, 2 * n + lane / 16));
            mma_bf16(acc[2 * n], a, b[0], b[1]);
            mma_bf16(acc[2 * n + 1], a, b[2], b[3]);
        }
    }
}

template <int D>
__device__ __forceinline__ void store_rows(const struct attention_job &job, const struct lane_entry &lane, int row0,
                                           int h, const struct chain_state &st, const float acc[D / 8][4]) {
    int l = threadIdx.x % 32;
    for (int half = 0; half < 2; half++) {
        int row = row0 + threadIdx.x / 32 * 16 + l / 4 + 8 * half;
        if (row >= lane.n_row) continue;
        float inverse = 1.0f / st.sum[half];
        int64_t t = lane.row0 + row;
#pragma unroll
        for (int n = 0; n < D / 8; n++)
            for (int i = 0; i < 2; i++) {
                int col = 8 * n + 2 * (l % 4) + i;
                float gate = tensor_load(job.qg, t, ((int64_t)h * 2 + 1) * D + col);
                tensor_store(job.out, t, (int64_t)h * D + col, acc[n][2 * half + i] * inverse * sigmoid_of(gate));
            }
    }
}

template <int D, bool WHOLE>
static __global__ void __launch_bounds__(THREADS) attention_prompt_kernel(const __grid_constant__ attention_job job) {
    extern __shared__ __align__(16) char memory[];
    struct prompt_shared<D> *s = (struct prompt_shared<D> *)memory;
    const struct lane_entry lane = job.lanes[0];
    // The last rows have the longest chains, so they come first.
    int row0 = ((int)gridDim.y - 1 - (int)blockIdx.y) * ROWS, h = blockIdx.x, kv_head = h / job.r;
    int end = lane.position + min(row0 + ROWS, lane.n_row);
    const int32_t *pages = job.pages + lane.page_at;
    for (int i = threadIdx.x; i < ROWS * D / 8; i += THREADS) {
        int row = row0 + i / (D / 8);
        uint4 v = make_uint4(0, 0, 0, 0);
        if (row < lane.n_row) v = query_piece<D>(job.q, lane.row0 + row, h, i % (D / 8));
        *(uint4 *)kv_piece<D>(s->q, i / (D / 8), i % (D / 8)) = v;
    }
    int64_t v_offset = value_offset(job, D);
    int warp_position = lane.position + row0 + threadIdx.x / 32 * 16;
    struct chain_state st = {{-INFINITY, -INFINITY}, {0, 0}};
    float acc[D / 8][4] = {};
    int page = tile_page<WHOLE>(job, pages, 0, end), next_page = tile_page<WHOLE>(job, pages, CUDA_TILE_KEYS, end);
    find_rows<D, WHOLE>(job, pages, page, kv_head, 0, end, &s->rows[0]);
    __syncthreads();
    fetch_tile<D, WHOLE, THREADS>(job, &s->rows[0], tile_start<D, WHOLE>(job, page, kv_head, 0), 0,
                                  min(CUDA_TILE_KEYS, end), s->k);
    copies_commit();
    int buffer = 0;
    for (int key0 = 0; key0 < end; key0 += CUDA_TILE_KEYS, buffer ^= 1) {
        int next = key0 + CUDA_TILE_KEYS, page_after = tile_page<WHOLE>(job, pages, next + CUDA_TILE_KEYS, end);
        copies_wait<0>();
        __syncthreads();
        fetch_tile<D, WHOLE, THREADS>(job, &s->rows[buffer], tile_start<D, WHOLE>(job, page, kv_head, key0), v_offset,
                                      min(CUDA_TILE_KEYS, end - key0), s->v);
        copies_commit();
        find_rows<D, WHOLE>(job, pages, next_page, kv_head, next, end, &s->rows[buffer ^ 1]);
        widen_tile<D, THREADS>(job, s->k);
        float c[8][4], fade[2];
        score_tile<D>(s, c);
        __syncthreads();
        if (next < end)
            fetch_tile<D, WHOLE, THREADS>(job, &s->rows[buffer ^ 1],
                                          tile_start<D, WHOLE>(job, next_page, kv_head, next), 0,
                                          min(CUDA_TILE_KEYS, end - next), s->k);
        copies_commit();
        struct tile_scales scales = {NULL, NULL};
        if (job.kv.dtype == DTYPE_E4M3) scales = {s->rows[buffer].k_scale, s->rows[buffer].v_scale};
        weigh_tile(job, scales, warp_position + 1 - key0, c, &st, fade);
        copies_wait<1>();
        __syncthreads();
        widen_tile<D, THREADS>(job, s->v);
        add_values<D>(s, c, fade, acc);
        page = next_page;
        next_page = page_after;
    }
    copies_wait<0>();
    store_rows<D>(job, lane, row0, h, st, acc);
}

static __device__ __forceinline__ void take_queries(const struct attention_job &job, char *q,
                                                    const struct lane_entry &lane, int row0, int h) {
    for (int i = threadIdx.x; i < WIDE_ROWS * WIDE_DIM / 8; i += WIDE_MULTIPLY) {
        int row = row0 + i / (WIDE_DIM / 8), piece = i % (WIDE_DIM / 8);
        uint4 v = make_uint4(0, 0, 0, 0);
        if (row < lane.n_row) v = query_piece<WIDE_DIM>(job.q, lane.row0 + row, h, piece);
        *(uint4 *)wide_piece(q, WIDE_ROWS, row - row0, piece) = v;
    }
    publish_shared();
    asm volatile("bar.sync 1, %0;" ::"n"(WIDE_MULTIPLY) : "memory"); // of those that multiply
}

static __device__ __forceinline__ void store_wide(const struct attention_job &job, const struct lane_entry &lane,
                                                  int row0, int h, const struct chain_state &st,
                                                  const float acc[WIDE_DIM / 2]) {
    int l = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = row0 + threadIdx.x / 32 * 16 + l / 4 + 8 * half;
        if (row >= lane.n_row) continue;
        float inverse = 1.0f / st.sum[half];
        int64_t t = lane.row0 + row;
        const float *gate = (const float *)job.qg.data + t * job.qg.stride + (int64_t)(h * 2 + 1) * WIDE_DIM;
        float *out = (float *)job.out.data + t * job.out.stride + (int64_t)h * WIDE_DIM;
#pragma unroll
        for (int n = 0; n < WIDE_DIM / 8; n++)
            for (int i = 0; i < 2; i++) {
                int col = 8 * n + 2 * (l % 4) + i;
                out[col] = acc[4 * n + 2 * half + i] * inverse * sigmoid_of(gate[col]);
            }
    }
}

template <bool E4M3>
static __global__ void __launch_bounds__(WIDE_THREADS, 1)
    attention_wide_kernel(const __grid_constant__ attention_job job, const __grid_constant__ wide_boxes<E4M3> boxes) {
    extern __shared__ char memory[];
    struct wide_shared<E4M3> *s =
        (struct wide_shared<E4M3> *)(memory + (1024 - (shared_address(memory) & 1023)) % 1024);
    int held = 0;
    if constexpr (!E4M3) {
        if (threadIdx.x == WIDE_MULTIPLY) prepare_boxes(&boxes.whole);
        if (threadIdx.x >= WIDE_MULTIPLY) held = hold_box_pages(job, 0);
    }
    const struct lane_entry lane = job.lanes[0];
    // The last rows have the longest chains, so they come first.
    int row0 = ((int)gridDim.y - 1 - (int)blockIdx.y) * WIDE_ROWS, h = blockIdx.x;
    int end = lane.position + min(row0 + WIDE_ROWS, lane.n_row);
    if (threadIdx.x == 0) {
        for (int i = 0; i < WIDE_BUFFERS; i++) {
            barrier_open(&s->full[i], E4M3 ? WIDE_FETCH : 1);
            barrier_open(&s->empty[i], WIDE_MULTIPLY);
        }
        publish_shared();
    }
    __syncthreads();
    if (threadIdx.x >= WIDE_MULTIPLY) {
        fewer_registers<E4M3 ? 56 : 24>();
        if constexpr (E4M3)
            fetch_tiles(job, s, job.pages + lane.page_at, h / job.r, end);
        else
            fetch_tiles(job, boxes, s, held, h / job.r, end);
        return;
    }
    more_registers<E4M3 ? 224 : 240>();
    take_queries(job, s->q, lane, row0, h);
    int warp_position = lane.position + row0 + threadIdx.x / 32 * 16;
    struct chain_state st = {{-INFINITY, -INFINITY}, {0, 0}};
    float acc[WIDE_DIM / 2];
#pragma unroll
    for (int i = 0; i < WIDE_DIM / 2; i++) acc[i] = 0;
    multiply_tiles(job, s, warp_position, end, &st, acc);
    store_wide(job, lane, row0, h, st, acc);
}

static bool attention_wide_fits(const struct cuda_device *d, const struct attention_args *a,
                                const struct attention_job *job) {
    bool plain = a->qg.dtype == DTYPE_F32 && a->out.dtype == DTYPE_F32 && job->code_bytes == 16;
    return d->major == 9 && a->head_dim == WIDE_DIM && plain && has_whole_tiles(job) &&
           (a->kv.dtype == DTYPE_E4M3 || find_box_encoder() != NULL);
}

// Whether the driver could describe what is to be brought, and it was started.
template <bool E4M3>
static bool attention_wide(struct cuda_device *d, const struct attention_job &job, const struct lane *lane) {
    size_t bytes = 1024 + sizeof(struct wide_shared<E4M3>);
    struct wide_boxes<E4M3> boxes;
    if (!describe_prompt(job, lane, &boxes)) return false;
    cudaFuncSetAttribute(attention_wide_kernel<E4M3>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    dim3 grid((unsigned)job.n_head, (unsigned)ceil_div(lane->n_row, WIDE_ROWS));
    attention_wide_kernel<E4M3><<<grid, WIDE_THREADS, bytes, d->stream>>>(job, boxes);
    cuda_launched(d, "attention, prompt, wide");
    return true;
}

template <int D, bool WHOLE> static void launch(struct cuda_device *d, const struct attention_job &job, int n_row) {
    size_t bytes = sizeof(struct prompt_shared<D>);
    cudaFuncSetAttribute(attention_prompt_kernel<D, WHOLE>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    dim3 grid((unsigned)job.n_head, (unsigned)ceil_div(n_row, ROWS));
    attention_prompt_kernel<D, WHOLE><<<grid, THREADS, bytes, d->stream>>>(job);
    cuda_launched(d, "attention, prompt");
}

void attention_prompt(struct cuda_device *d, const struct attention_args *a, struct attention_job *job) {
    must(a->batch->n_lane == 1);
    const struct lane *lane = &a->batch->lanes[0];
    int n_row = lane->n_row;
    auto wide = job->kv.dtype == DTYPE_E4M3 ? attention_wide<true> : attention_wide<false>;
    if (attention_wide_fits(d, a, job) && wide(d, *job, lane)) return;
    switch (a->head_dim) {
#ifndef TF_ATTENTION_FLAT
    case 16: launch<16, false>(d, *job, n_row); break;
    case 32: launch<32, false>(d, *job, n_row); break;
    case 64: launch<64, false>(d, *job, n_row); break;
    case 128: launch<128, false>(d, *job, n_row); break;
#endif
    default:
        must(a->head_dim == 256);
        (has_whole_tiles(job) ? launch<256, true> : launch<256, false>)(d, *job, n_row);
        break;
    }
}

// Of pages that hold whole tiles and whose size is a power of two; -1: others.
static int page_shift(int page_rows) {
    int shift = 0;
    while ((1 << shift) < page_rows) shift++;
    return (1 << shift) == page_rows && page_rows >= CUDA_TILE_KEYS ? shift : -1;
}

void cuda_attention(struct device *base, const struct attention_args *a) {
    struct cuda_device *d = cuda_of(base);
    const struct batch_view *b = cuda_batch(d, a->batch);
    if (d->failure != cudaSuccess || b->n_row == 0) return;
    must(a->kv.dtype == DTYPE_BF16 || a->kv.dtype == DTYPE_E4M3); // products are of bf16, so fp32 would be no better
    uintptr_t places = (uintptr_t)a->kv.pages | (uintptr_t)a->kv.page_bytes | (uintptr_t)a->kv.layer_offset;
    struct attention_job job = {};
    job.lanes = b->lanes;
    job.lane_of_row = b->lane_of_row;
    job.pages = b->pages;
    job.widest = b->widest;
    job.q = a->q;
    job.qg = a->qg;
    job.out = a->out;
    job.kv = a->kv;
    job.n_head = a->n_head;
    job.n_kv_head = a->n_kv_head;
    job.r = a->n_head / a->n_kv_head;
    job.scale = a->scale;
    job.page_shift = page_shift(a->kv.page_rows);
    job.code_bytes = places % 16 == 0 ? 16 : 8;
    if (a->batch->form == FORM_ROWS)
        attention_rows(d, a, &job);
    else
        attention_prompt(d, a, &job);
}
