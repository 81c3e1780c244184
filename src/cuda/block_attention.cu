// block_attention: a drafter's rows look at a window before their block and at the block. A block of threads has one
// absolute chunk of 128 keys, one KV head of one lane, and up to 32 of the queries that share it: all rows of the usual
// block, so that a key is read once. It runs their chains over the chunk's tiles of 64 keys; a second kernel merges the
// chunks of each query in order. A key that no row of the lane sees is not read, since a ring has another one there.
#include "cuda/attention_merge.cuh"
#include "cuda/attention_shared.cuh"

#define CHUNK_KEYS 128 // a window is short, and a processor has a chunk at most: short chains
#define THREADS    128 // one for each key of a chunk
#define TILES      (CHUNK_KEYS / CUDA_TILE_KEYS)
#define QUERIES    32
#define PARTS      (THREADS / QUERIES)      // threads that weigh a query's keys
#define OWN_KEYS   (CUDA_TILE_KEYS / PARTS) // keys of such a thread
#define LANE_MOST  64                       // lanes of a launch: their first keys go with its arguments

struct block_job {
    struct batch_view batch;
    struct tensor q, out;
    struct kv_layer kv;
    int n_head, n_kv_head, r; // r: query heads of a KV head
    float scale;
    float *parts;
    struct plane_rows planes;      // of out, for the product that follows; x NULL: none are made
    int first_lane, row0, n_chunk; // of this launch: lanes and rows before it, chunks that a row has room for
    int window, causal;
    int32_t first[LANE_MOST];
};

// Tiles of a chunk that a block has room for at once.
template <int D> __host__ __device__ constexpr int tiles_held() { return D <= 128 ? TILES : 1; }

template <int D> struct block_shared {
    char q[QUERIES * D * 2];
    char k[tiles_held<D>()][CUDA_TILE_KEYS * D * 2], v[tiles_held<D>()][CUDA_TILE_KEYS * D * 2];
    char p[QUERIES * CUDA_TILE_KEYS * 2]; // weights as bf16
    float s[QUERIES][CUDA_TILE_KEYS + 4];
    float max[QUERIES], sum[QUERIES], fade[QUERIES];
    const char *at[CHUNK_KEYS]; // each key of the chunk; NULL: it is not seen
};

// Keys that the lane's row i sees: [first, end).
static __host__ __device__ inline int first_key(int position, int first, int window, int i) {
    return position + i - window + 1 > first ? position + i - window + 1 : first;
}
static __device__ __forceinline__ int end_key(const struct block_job &job, const struct lane_entry &lane, int i) {
    return lane.position + (job.causal ? i + 1 : lane.n_row);
}

// Where this thread's key of the chunk is. It is on its way to the second cache then, with its values, `offset` behind:
// whatever an earlier kernel still writes there comes too.
static __device__ __forceinline__ void find_keys(const struct block_job &job, const struct lane_entry &lane, int head,
                                                 int head_dim, int chunk, int first, int end, int64_t offset,
                                                 const char **at) {
    int key = chunk + (int)threadIdx.x;
    at[threadIdx.x] = NULL;
    if (key < first || key >= end) return;
    int number = key / job.kv.page_rows, slot = key - number * job.kv.page_rows;
    const char *page = (const char *)job.kv.pages + job.batch.pages[lane.page_at + number] * job.kv.page_bytes;
    const char *from = page + job.kv.layer_offset + ((int64_t)head * job.kv.page_rows + slot) * head_dim * 2;
    at[threadIdx.x] = from;
    for (int line = 0; line < head_dim * 2; line += 128) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + line));
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + offset + line));
    }
}

// Starts bringing the keys of a tile, or what lies `offset` after them; zeros stand for those that are not seen.
template <int D>
__device__ __forceinline__ void fetch_keys(const struct block_job &job, const char *const *at, int64_t offset,
                                           char *tile) {
    constexpr int PIECES = D / 8;
#pragma unroll 4
    for (int i = threadIdx.x; i < CUDA_TILE_KEYS * PIECES; i += THREADS) {
        const char *from = at[i / PIECES];
        copy16(kv_piece<D>(tile, i / PIECES, i % PIECES),
               from != NULL ? from + offset + i % PIECES * 16 : (const char *)job.kv.pages, from != NULL ? 16 : 0);
    }
    copies_commit();
}

template <int D>
__device__ __forceinline__ void take_queries(const struct block_job &job, const struct lane_entry &lane, int kv_head,
                                             int query0, struct block_shared<D> *s) {
    bool wide = rows_are_wide(job.q);
#pragma unroll 1
    for (int i = threadIdx.x; i < QUERIES * D / 8; i += THREADS) {
        int own = i / (D / 8), piece = i % (D / 8), q = query0 + own, row = q / job.r;
        int64_t t = lane.row0 + row, head = kv_head * job.r + q - row * job.r;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (q < lane.n_row * job.r && wide) {
            const float4 *from = (const float4 *)((const float *)job.q.data + t * job.q.stride + head * D + piece * 8);
            float4 a = from[0], b = from[1];
            v = make_uint4(pack_bf16(a.x, a.y), pack_bf16(a.z, a.w), pack_bf16(b.x, b.y), pack_bf16(b.z, b.w));
        } else if (q < lane.n_row * job.r) {
            v = query_piece<D>(job.q, t, (int)head, piece);
        }
        *(uint4 *)kv_piece<D>(s->q, own, piece) = v;
    }
    if (threadIdx.x >= QUERIES) return;
    s->max[threadIdx.x] = -INFINITY;
    s->sum[threadIdx.x] = 0;
}

// Scores of all queries with this warp's 16 keys.
template <int D> __device__ __forceinline__ void score_keys(struct block_shared<D> *s, int tile, float scale) {
    int lane = threadIdx.x % 32, key0 = threadIdx.x / 32 * 16;
    float c[2][2][4] = {};
#pragma unroll 4
    for (int k = 0; k < D / 16; k++) {
        uint32_t b[4];
        load_matrices(b, kv_piece<D>(s->k[tile], key0 + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
#pragma unroll
        for (int m = 0; m < 2; m++) {
            uint32_t a[4];
            load_matrices(a, kv_piece<D>(s->q, 16 * m + lane % 16, 2 * k + lane / 16));
            mma_bf16(c[m][0], a, b[0], b[1]);
            mma_bf16(c[m][1], a, b[2], b[3]);
        }
    }
#pragma unroll
    for (int i = 0; i < 16; i++)
        s->s[i / 8 * 16 + lane / 4 + i / 2 % 2 * 8][key0 + i / 4 % 2 * 8 + 2 * (lane % 4) + i % 2] =
            c[i / 8][i / 4 % 2][i % 4] * scale;
}

// One step of the chains: the tile's keys from `first` on and before `end` take part. A query that sees none of them
// keeps what it has.
template <int D> __device__ __forceinline__ void weigh_keys(struct block_shared<D> *s, int first, int end) {
    int query = threadIdx.x / PARTS, part = threadIdx.x % PARTS;
    float before = s->max[query], most = before, sum = 0;
#pragma unroll 4
    for (int i = 0; i < OWN_KEYS; i++) {
        int key = part + PARTS * i;
        if (key >= first && key < end) most = fmaxf(most, s->s[query][key]);
    }
    for (int step = 1; step < PARTS; step *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, step));
#pragma unroll 4
    for (int i = 0; i < OWN_KEYS; i++) {
        int key = part + PARTS * i;
        float p = key >= first && key < end ? expf(s->s[query][key] - most) : 0.0f;
        sum += p;
        *(__nv_bfloat16 *)(kv_piece<CUDA_TILE_KEYS>(s->p, query, key / 8) + key % 8 * 2) = __float2bfloat16_rn(p);
    }
    for (int step = 1; step < PARTS; step *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    __syncwarp(); // all threads of the query have read its maximum
    if (part != 0) return;
    float fade = most == before ? 1.0f : expf(before - most);
    s->sum[query] = s->sum[query] * fade + sum;
    s->fade[query] = fade;
    s->max[query] = most;
}

// This warp's columns of the results: 16 at a time, every fourth such group.
template <int D, int N>
__device__ __forceinline__ void add_values(struct block_shared<D> *s, int tile, float acc[N][2][2][4]) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 16; i++) acc[n][i / 8][i / 4 % 2][i % 4] *= s->fade[i / 8 * 16 + lane / 4 + i / 2 % 2 * 8];
#pragma unroll
    for (int k = 0; k < CUDA_TILE_KEYS / 16; k++) {
        uint32_t a[2][4];
#pragma unroll
        for (int m = 0; m < 2; m++)
            load_matrices(a[m], kv_piece<CUDA_TILE_KEYS>(s->p, 16 * m + lane % 16, 2 * k + lane / 16));
#pragma unroll
        for (int n = 0; n < N; n++) {
            int group = warp + 4 * n;
            if (group * 16 >= D) continue;
            uint32_t b[4];
            load_matrices_transposed(b, kv_piece<D>(s->v[tile], 16 * k + lane % 16, 2 * group + lane / 16));
#pragma unroll
            for (int m = 0; m < 2; m++) {
                mma_bf16(acc[n][m][0], a[m], b[0], b[1]);
                mma_bf16(acc[n][m][1], a[m], b[2], b[3]);
            }
        }
    }
}

static __device__ __forceinline__ float *part_of(const struct block_job &job, int64_t t, int chunk, int h, int D) {
    return job.parts + (((t - job.row0) * job.n_chunk + chunk) * job.n_head + h) * (D + 2);
}

template <int D, int N>
__device__ __forceinline__ void store_parts(const struct block_job &job, const struct lane_entry &lane,
                                            const struct block_shared<D> *s, int query0, int kv_head,
                                            const float acc[N][2][2][4]) {
    int l = threadIdx.x % 32;
#pragma unroll
    for (int m = 0; m < 4; m++) { // of a thread's queries
        int own = m / 2 * 16 + m % 2 * 8 + l / 4, q = query0 + own, row = q / job.r;
        if (q >= lane.n_row * job.r) continue;
        float *to = part_of(job, lane.row0 + row, blockIdx.x, kv_head * job.r + q - row * job.r, D);
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int col = (threadIdx.x / 32 + 4 * n) * 16 + half * 8 + 2 * (l % 4);
                const float *from = acc[n][m / 2][half] + m % 2 * 2;
                if (col < D) *(float2 *)(to + 2 + col) = make_float2(from[0], from[1]);
            }
        if (threadIdx.x / 32 == 0 && l % 4 == 0) *(float2 *)to = make_float2(s->max[own], s->sum[own]);
    }
}

template <int D>
static __global__ void __launch_bounds__(THREADS) block_attention_kernel(const __grid_constant__ block_job job) {
    constexpr int N = (D + 63) / 64, HELD = tiles_held<D>();
    extern __shared__ __align__(16) char memory[];
    struct block_shared<D> *s = (struct block_shared<D> *)memory;
    auto fetch = [&](int tile, int64_t offset) {
        fetch_keys<D>(job, s->at + tile * CUDA_TILE_KEYS, 0, s->k[tile % HELD]);
        fetch_keys<D>(job, s->at + tile * CUDA_TILE_KEYS, offset, s->v[tile % HELD]);
    };
    let_next_start();
    const struct lane_entry lane = job.batch.lanes[job.first_lane + blockIdx.z];
    int n_tile_q = (int)gridDim.y / job.n_kv_head, kv_head = blockIdx.y / n_tile_q,
        query0 = blockIdx.y % n_tile_q * QUERIES;
    int lane_first = first_key(lane.position, job.first[blockIdx.z], job.window, 0),
        lane_end = lane.position + lane.n_row;
    int chunk = (lane_first / CHUNK_KEYS + (int)blockIdx.x) * CHUNK_KEYS;
    int end = min(lane_end, chunk + CHUNK_KEYS);
    if (chunk >= lane_end || query0 >= lane.n_row * job.r) return;
    int my_row = min((query0 + (int)threadIdx.x / PARTS) / job.r, lane.n_row - 1);
    int my_first = first_key(lane.position, job.first[blockIdx.z], job.window, my_row),
        my_end = end_key(job, lane, my_row);
    int64_t v_offset = (int64_t)job.n_kv_head * job.kv.page_rows * D * 2;
    float acc[N][2][2][4] = {};
    find_keys(job, lane, kv_head, D, chunk, lane_first, end, v_offset, s->at);
    wait_for_earlier();
    __syncthreads();
#pragma unroll 1
    for (int tile = 0; tile < HELD; tile++) fetch(tile, v_offset);
    take_queries<D>(job, lane, kv_head, query0, s);
#pragma unroll 1 // instructions come from memory as a rule: the fewer, the sooner
    for (int tile = 0; tile < TILES; tile++) {
        int key = chunk + tile * CUDA_TILE_KEYS;
        if (tile >= HELD) {
            copies_wait<0>();
            __syncthreads();
            fetch(tile, v_offset);
        }
        if (tile + 1 < HELD)
            copies_wait<2 * HELD - 1>();
        else
            copies_wait<1>();
        __syncthreads();
        if (key + CUDA_TILE_KEYS <= lane_first || key >= end) continue; // nobody sees a key of it
        score_keys<D>(s, tile % HELD, job.scale);
        __syncthreads();
        weigh_keys<D>(s, my_first - key, my_end - key);
        if (tile + 1 < HELD)
            copies_wait<2 * HELD - 2>();
        else
            copies_wait<0>();
        __syncthreads();
        add_values<D, N>(s, tile % HELD, acc);
    }
    copies_wait<0>();
    store_parts<D, N>(job, lane, s, query0, kv_head, acc);
}

// One block a query. The batch's tables are read before what came earlier is waited for. Heads of whole units leave
// planes of what they write.
template <int D>
static __global__ void __launch_bounds__(MERGE_THREADS(D), MERGE_BLOCKS)
    block_merge_kernel(const __grid_constant__ block_job job) {
    let_next_start();
    int64_t t = job.row0 + blockIdx.x;
    int h = blockIdx.y, col = 2 * threadIdx.x, at = job.batch.lane_of_row[t];
    const struct lane_entry lane = job.batch.lanes[at];
    int chunk0 = first_key(lane.position, job.first[at - job.first_lane], job.window, 0) / CHUNK_KEYS;
    int n_chunk = (lane.position + lane.n_row + CHUNK_KEYS - 1) / CHUNK_KEYS - chunk0;
    wait_for_earlier();
    if (col >= D) return;
    float2 x = merge_chunks(part_of(job, t, 0, h, D), (int64_t)job.n_head * (D + 2), n_chunk, col);
    tensor_store(job.out, t, (int64_t)h * D + col, x.x);
    tensor_store(job.out, t, (int64_t)h * D + col + 1, x.y);
    leave_head<D>(job.planes, t, h, x);
}

static size_t part_bytes(int64_t n_head, int64_t head_dim) { return (size_t)(n_head * (head_dim + 2)) * sizeof(float); }

// Room for one lane; a round of many is worked off in turns.
static size_t lane_bytes(const struct device_limits *l) {
    int64_t chunks = ceil_div(l->block_window + l->block_rows, CHUNK_KEYS) + 1;
    return (size_t)(chunks * l->block_rows) * part_bytes(l->block_n_head, l->block_head_dim);
}

size_t need_block_attention(const struct device_limits *l) {
    struct carver c = {NULL, 0};
    struct plane_rows p;
    carve_planes(&c, l->max_round_rows, l->block_n_head * l->block_head_dim, &p);
    return c.used + lane_bytes(l);
}

template <int D> static void run_lanes(struct cuda_device *d, const struct block_job &job, int n_lane, int n_row) {
    size_t bytes = sizeof(struct block_shared<D>);
    cudaFuncSetAttribute(block_attention_kernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    int64_t widest = 1;
    for (int i = 0; i < n_lane; i++) widest = larger(widest, d->batch->lanes[job.first_lane + i].n_row);
    dim3 grid((unsigned)job.n_chunk, (unsigned)(job.n_kv_head * ceil_div(widest * job.r, QUERIES)), (unsigned)n_lane);
    cuda_start(d, "block attention", block_attention_kernel<D>, grid, THREADS, bytes, job);
    dim3 merge((unsigned)n_row, (unsigned)job.n_head);
    cuda_start(d, "block attention, merge", block_merge_kernel<D>, merge, MERGE_THREADS(D), 0, job);
}

static int64_t chunks_of(const struct block_attention_args *a, int i) {
    const struct lane *l = &a->batch->lanes[i];
    int64_t first = first_key(l->position, a->first[i], a->window, 0) / CHUNK_KEYS;
    return ceil_div((int64_t)l->position + l->n_row, CHUNK_KEYS) - first;
}

// The next lanes, as many as fit: all of them have room for as many chunks as the longest. Returns their rows.
static int take_lanes(const struct block_attention_args *a, int64_t room, int first, struct block_job *job, int *last) {
    const struct lane *lanes = a->batch->lanes;
    int n_row = 0, i = first;
    job->first_lane = first;
    job->row0 = lanes[first].row0;
    job->n_chunk = 0;
    for (; i < a->batch->n_lane && i - first < LANE_MOST; i++) {
        int64_t n_chunk = larger(job->n_chunk, chunks_of(a, i));
        if ((n_row + lanes[i].n_row) * n_chunk > room) break;
        job->first[i - first] = a->first[i];
        job->n_chunk = (int)n_chunk;
        n_row += lanes[i].n_row;
    }
    must(i > first);
    *last = i;
    return n_row;
}

void cuda_block_attention(struct device *base, const struct block_attention_args *a) {
    struct cuda_device *d = cuda_of(base);
    const struct batch_view *b = cuda_batch(d, a->batch);
    if (d->failure != cudaSuccess || b->n_row == 0) return;
    must(a->batch->form == FORM_ROWS && a->window > 0 && a->kv.dtype == DTYPE_BF16);
    struct block_job job = {
        *b, a->q, a->out, a->kv,     a->n_head, a->n_kv_head, a->n_head / a->n_kv_head, a->scale, NULL, {},
        0,  0,    0,      a->window, a->causal, {0}};
    struct carver c = scratch_of(d); // planes first, where the next call looks for them
    struct plane_rows planes;
    carve_planes(&c, a->out.n_row, a->out.n_col, &planes);
    bool fits =
        c.used + lane_bytes(&d->limits) <= d->scratch_bytes && rows_are_wide(a->out) && a->head_dim % PLANES_UNIT == 0;
    if (fits && leave_planes(d, a->out, PLANES_UNIT, &planes))
        job.planes = planes;
    else
        c.used = 0;
    job.parts = (float *)(d->scratch + c.used);
    int64_t room = (int64_t)((d->scratch_bytes - c.used) / part_bytes(a->n_head, a->head_dim));
    for (int first = 0, last; first < b->n_lane; first = last) {
        int n_row = take_lanes(a, room, first, &job, &last);
        switch (a->head_dim) {
        case 16: run_lanes<16>(d, job, last - first, n_row); break;
        case 32: run_lanes<32>(d, job, last - first, n_row); break;
        case 64: run_lanes<64>(d, job, last - first, n_row); break;
        case 128: run_lanes<128>(d, job, last - first, n_row); break;
        default:
            must(a->head_dim == 256);
            run_lanes<256>(d, job, last - first, n_row);
            break;
        }
    }
}
