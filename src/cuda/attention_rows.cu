// attention in FORM_ROWS. A block has one absolute chunk of 512 keys, one KV head of one lane, and up to 16 of the
// queries that share it; it runs their chains over the chunk's tiles of 64 keys. A second kernel merges the chunks of
// each query in order. Chunks begin at multiples of 512 whatever the lane's length, and queries are rows of the matrix
// product, so that a query's bits depend on itself and its keys only.
#include "cuda/attention_codes.cuh"
#include "cuda/attention_tiles.cuh"

#define THREADS 128
#define QUERIES 16

// BUFFERS: of keys and of values. With two of each a tile is on its way while another is worked on; with one, values
// are on their way while scores are made, and the other way round.
template <int D, int BUFFERS> struct rows_shared {
    char q[QUERIES * D * 2], k[BUFFERS][CUDA_TILE_KEYS * D * 2], v[BUFFERS][CUDA_TILE_KEYS * D * 2];
    char p[QUERIES * CUDA_TILE_KEYS * 2]; // weights as bf16
    float s[QUERIES][CUDA_TILE_KEYS + 4];
    float max[QUERIES], sum[QUERIES], fade[QUERIES];
    struct tile_rows rows[2];
};

// Scores of this warp's 16 keys.
template <int D, int BUFFERS>
__device__ __forceinline__ void score_tile(const struct attention_job &job, struct rows_shared<D, BUFFERS> *s,
                                           int buffer) {
    int lane = threadIdx.x % 32, key0 = threadIdx.x / 32 * 16;
    float c[2][4] = {};
#pragma unroll 4
    for (int k = 0; k < D / 16; k++) {
        uint32_t a[4], b[4];
        load_matrices(a, kv_piece<D>(s->q, lane % 16, 2 * k + lane / 16));
        load_matrices(b, kv_piece<D>(s->k[buffer % BUFFERS], key0 + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
        mma_bf16(c[0], a, b[0], b[1]);
        mma_bf16(c[1], a, b[2], b[3]);
    }
    for (int j = 0; j < 2; j++)
        for (int i = 0; i < 4; i++) {
            int key = key0 + 8 * j + 2 * (lane % 4) + i % 2;
            float scale = job.kv.dtype == DTYPE_E4M3 ? job.scale * s->rows[buffer].k_scale[key] : job.scale;
            s->s[lane / 4 + i / 2 * 8][key] = c[j][i] * scale;
        }
}

// One step of the chain: eight threads a query. The tile's keys from `first` on and before `visible` take part.
template <int D, int BUFFERS>
__device__ __forceinline__ void weigh_tile(const struct attention_job &job, struct rows_shared<D, BUFFERS> *s,
                                           int buffer, int first, int visible) {
    int query = threadIdx.x / 8, part = threadIdx.x % 8;
    float x[8], most = s->max[query];
    for (int i = 0; i < 8; i++) {
        int key = part + 8 * i;
        x[i] = key >= first && key < visible ? s->s[query][key] : -INFINITY;
        most = fmaxf(most, x[i]);
    }
    for (int step = 1; step < 8; step *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
    float sum = 0;
    for (int i = 0; i < 8; i++) {
        int key = part + 8 * i;
        float p = key >= first && key < visible ? expf(x[i] - most) : 0.0f;
        sum += p;
        if (job.kv.dtype == DTYPE_E4M3 && key < visible) p *= s->rows[buffer].v_scale[key];
        *(__nv_bfloat16 *)(kv_piece<CUDA_TILE_KEYS>(s->p, query, key / 8) + key % 8 * 2) = __float2bfloat16_rn(p);
    }
    for (int step = 1; step < 8; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (part != 0) return;
    float fade = visible > 0 ? expf(s->max[query] - most) : 1.0f;
    s->sum[query] = s->sum[query] * fade + sum;
    s->fade[query] = fade;
    if (visible > 0) s->max[query] = most;
}

// This warp's columns of the results: pairs of 8, every fourth pair.
template <int D, int N, int BUFFERS>
__device__ __forceinline__ void add_values(struct rows_shared<D, BUFFERS> *s, int buffer, float acc[N][2][4]) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float fade[2] = {s->fade[lane / 4], s->fade[lane / 4 + 8]};
#pragma unroll
    for (int n = 0; n < N; n++)
        for (int j = 0; j < 2; j++)
            for (int i = 0; i < 4; i++) acc[n][j][i] *= fade[i / 2];
#pragma unroll
    for (int k = 0; k < CUDA_TILE_KEYS / 16; k++) {
        uint32_t a[4];
        load_matrices(a, kv_piece<CUDA_TILE_KEYS>(s->p, lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (int n = 0; n < N; n++) {
            int block = warp + 4 * n; // of 16 columns
            if (block * 16 >= D) continue;
            uint32_t b[4];
            load_matrices_transposed(b, kv_piece<D>(s->v[buffer % BUFFERS], 16 * k + lane % 16, 2 * block + lane / 16));
            mma_bf16(acc[n][0], a, b[0], b[1]);
            mma_bf16(acc[n][1], a, b[2], b[3]);
        }
    }
}

// The chunk's results of this block's queries: a thread has two of them, and pairs of columns of each.
template <int D, int N, int BUFFERS>
__device__ __forceinline__ void store_parts(const struct attention_job &job, const struct lane_entry &lane,
                                            const struct rows_shared<D, BUFFERS> *s, int query0, int kv_head,
                                            int n_chunk, const float acc[N][2][4]) {
    int n_query = lane.n_row * job.r, l = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int own = l / 4 + half * 8, q = query0 + own, row = q / job.r;
        if (q >= n_query) continue;
        int64_t part = (lane.part_base - job.first_part + (int64_t)row * n_chunk + blockIdx.x) * job.n_head +
                       kv_head * job.r + (q - row * job.r);
        float *to = job.parts + part * (D + 2);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                int col = (warp + 4 * n) * 16 + j * 8 + 2 * (l % 4);
                if (col < D) *(float2 *)(to + 2 + col) = make_float2(acc[n][j][2 * half], acc[n][j][2 * half + 1]);
            }
        if (warp == 0 && l % 4 == 0) *(float2 *)to = make_float2(s->max[own], s->sum[own]);
    }
}

// What a block works on.
struct rows_place {
    int kv_head, query0, first_key, end, n_chunk;
    const int32_t *pages;
};

template <int D, bool WHOLE>
__device__ __forceinline__ void fetch_keys(const struct attention_job &job, const struct rows_place &at,
                                           const struct tile_rows *rows, int page, int key0, int64_t offset,
                                           char *tile) {
    fetch_tile<D, WHOLE, THREADS>(job, rows, tile_start<D, WHOLE>(job, page, at.kv_head, key0), offset,
                                  min(CUDA_TILE_KEYS, at.end - key0), tile);
}

// The chain over the chunk's tiles; the first tile's keys are on their way, and with two buffers its values.
template <int D, bool WHOLE, int BUFFERS, int N>
__device__ __forceinline__ void walk_tiles(const struct attention_job &job, const struct lane_entry &lane,
                                           const struct rows_place &at, struct rows_shared<D, BUFFERS> *s, int page,
                                           int next_page, float acc[N][2][4]) {
    constexpr bool TWO = BUFFERS == 2;
    int64_t v_offset = value_offset(job, D);
    int my_row = (at.query0 + threadIdx.x / 8) / job.r; // of the query that this thread weighs keys for
    int buffer = 0;
    for (int key0 = at.first_key; key0 < at.end; key0 += CUDA_TILE_KEYS, buffer ^= 1) {
        int next = key0 + CUDA_TILE_KEYS, other = buffer ^ 1;
        int page_after = tile_page<WHOLE>(job, at.pages, next + CUDA_TILE_KEYS, at.end);
        if (!TWO) fetch_keys<D, WHOLE>(job, at, &s->rows[buffer], page, key0, v_offset, s->v[0]);
        if (!TWO) copies_commit();
        find_rows<D, WHOLE>(job, at.pages, next_page, at.kv_head, next, at.end, &s->rows[other]);
        if (TWO) {
            if (next < at.end) fetch_keys<D, WHOLE>(job, at, NULL, next_page, next, 0, s->k[other % BUFFERS]);
            copies_commit();
            if (next < at.end) fetch_keys<D, WHOLE>(job, at, NULL, next_page, next, v_offset, s->v[other % BUFFERS]);
            copies_commit();
        }
        copies_wait<TWO ? 3 : 1>();
        __syncthreads();
        widen_tile<D, THREADS>(job, s->k[buffer % BUFFERS]);
        score_tile<D>(job, s, buffer);
        __syncthreads();
        if (!TWO && next < at.end) fetch_keys<D, WHOLE>(job, at, &s->rows[other], next_page, next, 0, s->k[0]);
        if (!TWO) copies_commit();
        weigh_tile<D>(job, s, buffer, job.unseen - key0,
                      max(0, min(CUDA_TILE_KEYS, lane.position + my_row + 1 - key0)));
        copies_wait<TWO ? 2 : 1>();
        __syncthreads();
        widen_tile<D, THREADS>(job, s->v[buffer % BUFFERS]);
        add_values<D, N>(s, buffer, acc);
        __syncthreads();
        page = next_page;
        next_page = page_after;
    }
    copies_wait<0>();
}

// BUFFERS is 2 with whole tiles only.
template <int D, bool WHOLE, int BUFFERS>
static __global__ void __launch_bounds__(THREADS) attention_rows_kernel(const __grid_constant__ attention_job job) {
    constexpr int N = (D + 63) / 64;
    extern __shared__ __align__(16) char memory[];
    struct rows_shared<D, BUFFERS> *s = (struct rows_shared<D, BUFFERS> *)memory;
    let_next_start();
    const struct lane_entry lane = job.batch.lanes[job.first_lane + blockIdx.z];
    int n_tile_q = (int)gridDim.y / job.n_kv_head, n_query = lane.n_row * job.r, lane_end = lane.position + lane.n_row;
    struct rows_place at;
    at.kv_head = blockIdx.y / n_tile_q;
    at.query0 = blockIdx.y % n_tile_q * QUERIES;
    at.n_chunk = (lane_end + CUDA_CHUNK_KEYS - 1) / CUDA_CHUNK_KEYS;
    at.first_key = blockIdx.x * CUDA_CHUNK_KEYS;
    at.end = min(lane_end, at.first_key + CUDA_CHUNK_KEYS);
    at.pages = job.batch.pages + lane.page_at;
    if ((int)blockIdx.x >= at.n_chunk || at.query0 >= n_query) return;
    // The first tile is asked for before what came earlier is waited for, if it holds no row of this batch: all of it
    // was written before the batch's tables were sent.
    bool is_old = at.first_key + CUDA_TILE_KEYS <= lane.position;
    if (!is_old) wait_for_earlier();
    int page = tile_page<WHOLE>(job, at.pages, at.first_key, at.end),
        next_page = tile_page<WHOLE>(job, at.pages, at.first_key + CUDA_TILE_KEYS, at.end);
    find_rows<D, WHOLE>(job, at.pages, page, at.kv_head, at.first_key, at.end, &s->rows[0]);
    __syncthreads();
    fetch_keys<D, WHOLE>(job, at, &s->rows[0], page, at.first_key, 0, s->k[0]);
    copies_commit();
    if (BUFFERS == 2) {
        fetch_keys<D, WHOLE>(job, at, NULL, page, at.first_key, value_offset(job, D), s->v[0]);
        copies_commit();
    }
    if (is_old) wait_for_earlier();

    for (int i = threadIdx.x; i < QUERIES * D / 8; i += THREADS) {
        int q = at.query0 + i / (D / 8);
        uint4 v = make_uint4(0, 0, 0, 0);
        if (q < n_query) v = query_piece<D>(job.q, lane.row0 + q / job.r, at.kv_head * job.r + q % job.r, i % (D / 8));
        *(uint4 *)kv_piece<D>(s->q, i / (D / 8), i % (D / 8)) = v;
    }
    if (threadIdx.x < QUERIES) {
        s->max[threadIdx.x] = -INFINITY;
        s->sum[threadIdx.x] = 0;
    }
    float acc[N][2][4] = {};
    walk_tiles<D, WHOLE, BUFFERS, N>(job, lane, at, s, page, next_page, acc);
    store_parts<D, N>(job, lane, s, at.query0, at.kv_head, at.n_chunk, acc);
}

// One block a query: its chunks' results, folded in order.
template <int D> static __global__ void merge_kernel(const __grid_constant__ attention_job job, int row0) {
    begin_kernel();
    int64_t t = row0 + blockIdx.x;
    int h = blockIdx.y, col = threadIdx.x;
    const struct lane_entry lane = job.batch.lanes[job.batch.lane_of_row[t]];
    int n_chunk = (lane.position + lane.n_row + CUDA_CHUNK_KEYS - 1) / CUDA_CHUNK_KEYS;
    if (col >= D) return;
    const float *part =
        job.parts + ((lane.part_base - job.first_part + (t - lane.row0) * n_chunk) * job.n_head + h) * (D + 2);
    float most = -INFINITY, sum = 0, acc = 0;
#pragma unroll 4
    for (int c = 0; c < n_chunk; c++, part += (int64_t)job.n_head * (D + 2)) {
        float m = part[0], l = part[1], x = part[2 + col];
        if (m == -INFINITY) continue; // it sees nothing of the chunk
        float larger_max = fmaxf(most, m), fade = expf(most - larger_max), weight = expf(m - larger_max);
        acc = acc * fade + x * weight;
        sum = sum * fade + l * weight;
        most = larger_max;
    }
    float gate = tensor_load(job.qg, t, ((int64_t)h * 2 + 1) * D + col);
    tensor_store(job.out, t, (int64_t)h * D + col, acc * (1.0f / sum) * sigmoid_of(gate));
}

template <int D, bool WHOLE, int BUFFERS>
static void launch_buffers(struct cuda_device *d, const struct attention_job *job, dim3 grid) {
    size_t bytes = sizeof(struct rows_shared<D, BUFFERS>);
    cudaFuncSetAttribute(attention_rows_kernel<D, WHOLE, BUFFERS>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         (int)bytes);
    cuda_start(d, "attention, rows", attention_rows_kernel<D, WHOLE, BUFFERS>, grid, THREADS, bytes, *job);
}

// Few blocks have a processor's memory each; many are faster two by two.
template <int D, bool WHOLE>
static void launch_rows(struct cuda_device *d, const struct attention_job *job, dim3 grid) {
    constexpr int BUFFERS = WHOLE ? 2 : 1;
    bool is_few = (int64_t)grid.x * grid.y * grid.z <= d->n_processors;
    if (is_few && sizeof(struct rows_shared<D, BUFFERS>) + 1024 <= d->shared_bytes)
        launch_buffers<D, WHOLE, BUFFERS>(d, job, grid);
    else
        launch_buffers<D, WHOLE, 1>(d, job, grid);
}

// Lanes [first, last) at once: their parts fit into the scratch.
template <int D, bool WHOLE>
static void run_lanes(struct cuda_device *d, struct attention_job *job, const struct batch *b, int first, int last) {
    int64_t n_chunk = 1, n_row = 1;
    for (int i = first; i < last; i++) {
        n_chunk = larger(n_chunk, ceil_div((int64_t)b->lanes[i].position + b->lanes[i].n_row, CUDA_CHUNK_KEYS));
        n_row = larger(n_row, b->lanes[i].n_row);
    }
    job->first_lane = first;
    dim3 grid((unsigned)n_chunk, (unsigned)(job->n_kv_head * ceil_div(n_row * job->r, QUERIES)),
              (unsigned)(last - first));
    launch_rows<D, WHOLE>(d, job, grid);
    int row0 = b->lanes[first].row0, end = b->lanes[last - 1].row0 + b->lanes[last - 1].n_row;
    dim3 merge((unsigned)(end - row0), (unsigned)job->n_head);
    unsigned threads = D < 32 ? 32 : D;
    cuda_start(d, "attention, merge", merge_kernel<D>, merge, threads, 0, *job, row0);
}

static int64_t parts_of(const struct lane *l) {
    return ceil_div((int64_t)l->position + l->n_row, CUDA_CHUNK_KEYS) * l->n_row;
}

static size_t part_bytes(int64_t n_head, int64_t head_dim) { return (size_t)(n_head * (head_dim + 2)) * sizeof(float); }

// Room for one lane of full length and width; a round of many long lanes is worked off in turns.
size_t need_attention(const struct device_limits *l) {
    int64_t window = larger(l->max_window, 1), chunks = ceil_div(l->max_context + window, CUDA_CHUNK_KEYS) + 1;
    int64_t least = larger(chunks * window, l->max_lanes * 32);
    return (size_t)least * part_bytes(l->n_head, l->head_dim);
}

void attention_rows(struct cuda_device *d, const struct attention_args *a, struct attention_job *job) {
    const struct batch *b = a->batch;
    int64_t room = (int64_t)(d->scratch_bytes / part_bytes(a->n_head, a->head_dim)), base = 0;
    job->parts = (float *)d->scratch;
    job->unseen = a->first_key;
    for (int first = 0, last; first < b->n_lane; first = last) {
        int64_t n = parts_of(&b->lanes[first]);
        must(n <= room);
        for (last = first + 1; last < b->n_lane && n + parts_of(&b->lanes[last]) <= room; last++)
            n += parts_of(&b->lanes[last]);
        job->first_part = base;
        base += n;
        switch (a->head_dim) {
#ifndef TF_ATTENTION_FLAT
        case 16: run_lanes<16, false>(d, job, b, first, last); break;
        case 32: run_lanes<32, false>(d, job, b, first, last); break;
        case 64: run_lanes<64, false>(d, job, b, first, last); break;
        case 128: run_lanes<128, false>(d, job, b, first, last); break;
#endif
        default:
            must(a->head_dim == 256);
            (has_whole_tiles(job) ? run_lanes<256, true> : run_lanes<256, false>)(d, job, b, first, last);
            break;
        }
    }
}
