// attention in FORM_ROWS. A block has one absolute chunk of 512 keys, one KV head of one lane, and up to 16 of the
// queries that share it. Each warp makes the scores of 64 of the keys; the chunk's maxima and sums are put together;
// then each warp adds up its own columns of all values. No warp waits for another's keys or values. A second kernel
// merges the chunks of each query in order. Chunks begin at multiples of 512 whatever the lane's length; queries are
// rows of the matrix product, so that a query's bits depend on itself and its keys only.
#include "cuda/attention_codes.cuh"
#include "cuda/attention_merge.cuh"
#include "cuda/attention_tiles.cuh"

#define WARPS      8
#define THREADS    (32 * WARPS)
#define QUERIES    16
#define WARP_KEYS  (CUDA_CHUNK_KEYS / WARPS)
#define KEY_TILES  (WARP_KEYS / 8) // of a warp, as the matrix instruction takes keys
#define STAGE_KEYS 32              // of values that are fetched together
#define STAGES     4
#define AHEAD      ((int64_t)4 << 20) // bytes of keys, and of values, that all blocks together may ask for ahead
#define FEW_SHARE  4                  // blocks of chunks are few where there are this many processors for each
#define Q_PAD      64 // bytes between rows of queries: the rows that are read together meet different banks

// Columns of a warp; with narrow heads some warps have none.
template <int D> __host__ __device__ constexpr int warp_columns() { return D >= 8 * WARPS ? D / WARPS : 8; }

template <int D> struct chunk_shared {
    char p[QUERIES * CUDA_CHUNK_KEYS * 2]; // weights as bf16
    char v[WARPS][STAGES][STAGE_KEYS * warp_columns<D>() * 2];
    char q[QUERIES][D * 2 + Q_PAD];
    int64_t at[CUDA_CHUNK_KEYS]; // byte offset of the key; its value is value_offset after it
    float k_scale[CUDA_CHUNK_KEYS], v_scale[CUDA_CHUNK_KEYS]; // e4m3 only
    float most[WARPS][QUERIES], sum[WARPS][QUERIES];
};

// What a block works on. Keys are counted from the chunk's first.
struct chunk_place {
    int kv_head, query0, first_key, n_key, n_old, n_chunk; // n_old: keys before the batch's own
    const char *pages;
    int64_t v_offset;
};

// ---- where keys lie ----

#define OWN_KEYS (CUDA_CHUNK_KEYS / THREADS) // whose places a thread finds: neighbours

struct key_place {
    int number; // of its page; -1: that of the key before it
    int slot;   // of that page's rows of a head
};

static __device__ __forceinline__ int own_key(int i) { return (int)threadIdx.x * OWN_KEYS + i; } // of the chunk

// Loads that stay where they stand in the code: the compiler would wait for the first before it asks for the second.
static __device__ __forceinline__ struct lane_reach load_now(const struct lane_reach *from) {
    struct lane_reach lane;
    asm volatile("ld.global.v2.s32 {%0, %1}, [%2];" : "=r"(lane.position), "=r"(lane.n_row) : "l"(from));
    return lane;
}
static __device__ __forceinline__ int load_now(const int32_t *from) {
    int x;
    asm volatile("ld.global.s32 %0, [%1];" : "=r"(x) : "l"(from));
    return x;
}

// How far the lane is, and where this thread's keys of the chunk lie, which is asked for at the same time: a key may be
// none of the lane. A page of whole tiles has neighbours together, and one look-up finds them.
static __device__ __forceinline__ struct lane_reach find_keys(const struct attention_job &job,
                                                              struct key_place own[OWN_KEYS]) {
    int lane = job.first_lane + blockIdx.z, key = blockIdx.x * CUDA_CHUNK_KEYS + own_key(0);
    const int32_t *pages = job.pages + (int64_t)lane * job.widest;
    struct lane_reach reach = load_now(reach_of(pages));
#ifdef TF_ATTENTION_FLAT
#pragma unroll
    for (int i = 0; i < OWN_KEYS; i++) own[i] = {lane, key + i};
#else
    int last = job.widest - 1;
    if (job.page_shift >= 0) {
        int number = key >> job.page_shift;
        own[0] = {load_now(pages + min(number, last)), key - number * job.kv.page_rows};
#pragma unroll
        for (int i = 1; i < OWN_KEYS; i++) own[i] = {-1, own[0].slot + i};
        return reach;
    }
#pragma unroll
    for (int i = 0; i < OWN_KEYS; i++) {
        int number = (key + i) / job.kv.page_rows;
        own[i] = {load_now(pages + min(number, last)), key + i - number * job.kv.page_rows};
    }
#endif
    return reach;
}

// Bytes from the first page to this thread's i-th key's.
static __device__ __forceinline__ int64_t page_of_key(const struct attention_job &job,
                                                      const struct key_place own[OWN_KEYS], int i) {
    int number = own[0].number;
#pragma unroll
    for (int k = 1; k <= i; k++)
        if (own[k].number >= 0) number = own[k].number;
    return number * job.kv.page_bytes;
}

// Rows of the page, all heads', before the key's.
static __device__ __forceinline__ int64_t row_of_key(const struct attention_job &job, int kv_head,
                                                     const struct key_place &key) {
    return (int64_t)kv_head * job.kv.page_rows + key.slot;
}

template <int D, bool E4M3>
__device__ __forceinline__ void note_keys(const struct attention_job &job, const struct chunk_place &at,
                                          const struct key_place own[OWN_KEYS], struct chunk_shared<D> *s) {
#pragma unroll
    for (int i = 0; i < OWN_KEYS; i++) {
        if (own_key(i) < at.n_key)
            s->at[own_key(i)] = page_of_key(job, own, i) + job.kv.layer_offset +
                                row_of_key(job, at.kv_head, own[i]) * D * (E4M3 ? 1 : 2);
    }
}

struct key_scales {
    const float *k, *v;
};

static __device__ __forceinline__ struct key_scales scales_of_key(const struct attention_job &job, int kv_head,
                                                                  const struct key_place own[OWN_KEYS], int i) {
    const char *page = (const char *)job.kv.pages + page_of_key(job, own, i);
    const float *k = (const float *)(page + job.kv.scale_offset) + row_of_key(job, kv_head, own[i]);
    return {k, k + (int64_t)job.n_kv_head * job.kv.page_rows};
}

// Starts bringing the scales of this thread's keys before the batch's own, and of their values.
template <int D>
__device__ __forceinline__ void fetch_scales(const struct attention_job &job, const struct chunk_place &at,
                                             const struct key_place own[OWN_KEYS], struct chunk_shared<D> *s) {
#pragma unroll
    for (int i = 0; i < OWN_KEYS; i++) {
        int key = own_key(i);
        if (key >= min(at.n_old, at.n_key)) continue;
        struct key_scales from = scales_of_key(job, at.kv_head, own, i);
        copy4(&s->k_scale[key], from.k, 4);
        copy4(&s->v_scale[key], from.v, 4);
    }
    copies_commit();
}

// Those of the batch's own keys.
template <int D>
__device__ __forceinline__ void load_scales(const struct attention_job &job, const struct chunk_place &at,
                                            const struct key_place own[OWN_KEYS], struct chunk_shared<D> *s) {
#pragma unroll
    for (int i = 0; i < OWN_KEYS; i++) {
        int key = own_key(i);
        if (key < at.n_old || key >= at.n_key) continue;
        struct key_scales from = scales_of_key(job, at.kv_head, own, i);
        s->k_scale[key] = *from.k;
        s->v_scale[key] = *from.v;
    }
}

// ---- scores ----

// Eight inputs of a key as bf16, or as the codes that become those.
template <bool E4M3> struct key_piece { uint4 v; };
template <> struct key_piece<true> { uint2 v; };

static __device__ __forceinline__ uint4 widen(const struct key_piece<false> &p) { return p.v; }
static __device__ __forceinline__ uint4 widen(const struct key_piece<true> &p) { return widen_eight(p.v.x, p.v.y); }

// Of this thread's key of tile n, inputs 32 i + 8 c to 32 i + 8 c + 7 for all i; zeros where there are none.
template <int D, bool E4M3>
__device__ __forceinline__ void load_keys(const struct chunk_place &at, const struct chunk_shared<D> *s, int n,
                                          struct key_piece<E4M3> k[(D + 31) / 32]) {
    int lane = threadIdx.x % 32, key = threadIdx.x / 32 * WARP_KEYS + n * 8 + lane / 4, input = lane % 4 * 8;
    const char *from = at.pages + (key < at.n_key ? s->at[key] : 0) + input * (E4M3 ? 1 : 2);
#pragma unroll
    for (int i = 0; i < (D + 31) / 32; i++) {
        k[i] = {};
        if (key < at.n_key && i * 32 + input < D) k[i] = *(const struct key_piece<E4M3> *)(from + i * (E4M3 ? 32 : 64));
    }
}

static __device__ __forceinline__ void ask_ahead(const char *from) {
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

// Asks for what lies `offset` behind eight keys from `key` on to come into the second cache.
template <int D, bool E4M3>
__device__ __forceinline__ void ask_for_keys(const struct chunk_place &at, const struct chunk_shared<D> *s, int key,
                                             int64_t offset) {
    int lane = threadIdx.x % 32;
    key += lane / 4;
    if (key < at.n_key) ask_ahead(at.pages + s->at[key] + offset + lane % 4 * (D * (E4M3 ? 1 : 2) / 4));
}

// Of this warp's keys, for all queries. Which input stands where in the instruction is the same for both sides.
template <int D, bool E4M3>
__device__ __forceinline__ void make_scores(const struct attention_job &job, const struct chunk_place &at,
                                            const struct chunk_shared<D> *s, struct key_piece<E4M3> next[(D + 31) / 32],
                                            float c[KEY_TILES][4]) {
    constexpr int N = (D + 31) / 32;
    int lane = threadIdx.x % 32, input = lane % 4 * 16;
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++) {
        struct key_piece<E4M3> now[N];
#pragma unroll
        for (int i = 0; i < N; i++) now[i] = next[i];
        if (n + 1 < KEY_TILES) load_keys<D, E4M3>(at, s, n + 1, next);
        if (n + 1 + job.n_ahead < KEY_TILES)
            ask_for_keys<D, E4M3>(at, s, threadIdx.x / 32 * WARP_KEYS + (n + 1 + job.n_ahead) * 8, 0);
        if (n < job.n_ahead)
            ask_for_keys<D, E4M3>(at, s, STAGES * STAGE_KEYS + n * 64 + threadIdx.x / 32 * 8, at.v_offset);
#pragma unroll
        for (int i = 0; i < N; i++) {
            uint4 top = make_uint4(0, 0, 0, 0), bottom = top, k = widen(now[i]);
            if (i * 64 + input < D * 2) {
                top = *(const uint4 *)(s->q[lane / 4] + i * 64 + input);
                bottom = *(const uint4 *)(s->q[lane / 4 + 8] + i * 64 + input);
            }
            const uint32_t a[2][4] = {{top.x, bottom.x, top.y, bottom.y}, {top.z, bottom.z, top.w, bottom.w}};
            mma_bf16(c[n], a[0], k.x, k.y);
            mma_bf16(c[n], a[1], k.z, k.w);
        }
    }
}

// ---- weights ----

struct chunk_sums {
    float most[2], sum[2]; // of the thread's two queries
};

// Over the four lanes that share a query, and in `all` for the other warps.
template <typename MERGE>
static __device__ __forceinline__ void share(float x[2], float all[WARPS][QUERIES], MERGE merge) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        for (int step = 1; step < 4; step *= 2) x[half] = merge(x[half], __shfl_xor_sync(0xffffffffu, x[half], step));
        if (lane % 4 == 0) all[warp][lane / 4 + half * 8] = x[half];
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        x[half] = all[0][lane / 4 + half * 8];
        for (int w = 1; w < WARPS; w++) x[half] = merge(x[half], all[w][lane / 4 + half * 8]);
    }
}

// Scores become weights. visible: keys that each of the thread's queries sees; those before `unseen` it does not.
template <int D, bool E4M3>
__device__ __forceinline__ struct chunk_sums weigh(const struct attention_job &job, struct chunk_shared<D> *s,
                                                   float c[KEY_TILES][4], int unseen, const int visible[2]) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, key0 = warp * WARP_KEYS + 2 * (lane % 4);
    struct chunk_sums r = {{-INFINITY, -INFINITY}, {0, 0}};
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int key = key0 + n * 8 + i % 2;
            bool seen = key >= unseen && key < visible[i / 2];
            float scale = E4M3 && seen ? job.scale * s->k_scale[key] : job.scale;
            c[n][i] = seen ? c[n][i] * scale : -INFINITY;
            r.most[i / 2] = fmaxf(r.most[i / 2], c[n][i]);
        }
    share(r.most, s->most, [](float a, float b) { return fmaxf(a, b); });
#pragma unroll
    for (int n = 0; n < KEY_TILES; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float p[2];
#pragma unroll
            for (int k = 0; k < 2; k++) {
                int key = key0 + n * 8 + k;
                bool seen = key >= unseen && key < visible[half];
                p[k] = seen ? power_of_two((c[n][2 * half + k] - r.most[half]) * LOG2_E) : 0.0f;
                r.sum[half] += p[k];
                if (E4M3 && seen) p[k] *= s->v_scale[key];
            }
            char *to = kv_piece<CUDA_CHUNK_KEYS>(s->p, lane / 4 + half * 8, warp * KEY_TILES + n);
            *(uint32_t *)(to + lane % 4 * 4) = pack_bf16(p[0], p[1]);
        }
    share(r.sum, s->sum, [](float a, float b) { return a + b; });
    return r;
}

// ---- values ----

// Where a piece of eight columns of a key stands in a stage, so that keys that are read together meet different banks.
template <int D> __device__ __forceinline__ char *value_piece(char *stage, int key, int piece) {
    constexpr int PIECES = warp_columns<D>() / 8;
    return stage + (key * PIECES + (piece ^ (key >> (PIECES == 4 ? 1 : 2) & (PIECES - 1)))) * 16;
}

// As copy16, and what lies beside it comes into the second cache: other warps ask for that.
static __device__ __forceinline__ void copy16_ahead(void *to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
                 "r"(bytes));
}

// Starts bringing a stage's keys of this warp's columns: zeros behind the last. Codes lie one key after another.
template <int D, bool E4M3>
__device__ __forceinline__ void fetch_values(const struct chunk_place &at, struct chunk_shared<D> *s, int stage) {
    constexpr int COLUMNS = warp_columns<D>(), PIECES = COLUMNS / 8;
    int warp = threadIdx.x / 32;
    char *to = s->v[warp][stage % STAGES];
    if (warp * COLUMNS < D && stage * STAGE_KEYS < at.n_key)
#pragma unroll
        for (int i = threadIdx.x % 32; i < STAGE_KEYS * PIECES; i += 32) {
            int key = i / PIECES, piece = i % PIECES, in_chunk = stage * STAGE_KEYS + key;
            bool exists = in_chunk < at.n_key;
            const char *from = at.pages + (exists ? s->at[in_chunk] : 0) + at.v_offset;
            int column = warp * COLUMNS + piece * 8;
            if (E4M3)
                copy8(to + i * 8, exists ? from + column : at.pages, exists ? 8 : 0);
            else
                copy16_ahead(value_piece<D>(to, key, piece), exists ? from + column * 2 : at.pages, exists ? 16 : 0);
        }
    copies_commit();
}

// A lane's key of a stage from codes to bf16, in the same place: all lanes have read before one writes.
template <int D> __device__ __forceinline__ void widen_stage(char *stage) {
    constexpr int PIECES = warp_columns<D>() / 8;
    int key = threadIdx.x % 32;
    uint2 codes[PIECES];
#pragma unroll
    for (int k = 0; k < PIECES; k++) codes[k] = *(const uint2 *)(stage + (key * PIECES + k) * 8);
    __syncwarp();
#pragma unroll
    for (int k = 0; k < PIECES; k++) *(uint4 *)value_piece<D>(stage, key, k) = widen_eight(codes[k].x, codes[k].y);
    __syncwarp();
}

// This warp's columns of all values.
template <int D, bool E4M3>
__device__ __forceinline__ void add_values(const struct chunk_place &at, struct chunk_shared<D> *s,
                                           float c[warp_columns<D>() / 8][4]) {
    constexpr int PIECES = warp_columns<D>() / 8;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, n_stage = (at.n_key + STAGE_KEYS - 1) / STAGE_KEYS;
#pragma unroll 1
    for (int stage = 0; stage < n_stage; stage++) {
        char *v = s->v[warp][stage % STAGES];
        copies_wait<STAGES - 1>();
        __syncwarp();
        if (E4M3) widen_stage<D>(v);
#pragma unroll
        for (int k = 0; k < STAGE_KEYS / 16; k++) {
            uint32_t a[4];
            int key = stage * STAGE_KEYS + k * 16;
            load_matrices(a, kv_piece<CUDA_CHUNK_KEYS>(s->p, lane % 16, key / 8 + lane / 16));
#pragma unroll
            for (int n = 0; n < PIECES; n += 2) {
                uint32_t b[4];
                load_matrices_transposed(b, value_piece<D>(v, k * 16 + lane % 16, min(n + lane / 16, PIECES - 1)));
                mma_bf16(c[n], a, b[0], b[1]);
                if (n + 1 < PIECES) mma_bf16(c[(n + 1) % PIECES], a, b[2], b[3]);
            }
        }
        __syncwarp();
        fetch_values<D, E4M3>(at, s, stage + STAGES);
    }
}

// The chunk's results of this block's queries: a thread has two of them, and pairs of columns of each.
template <int D>
__device__ __forceinline__ void store_parts(const struct attention_job &job, const struct lane_entry &lane, int n_row,
                                            const struct chunk_place &at, const struct chunk_sums &sums,
                                            const float c[warp_columns<D>() / 8][4]) {
    constexpr int COLUMNS = warp_columns<D>();
    int n_query = n_row * job.r, l = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int q = at.query0 + l / 4 + half * 8, row = q / job.r;
        if (q >= n_query) continue;
        int64_t part = (lane.part_base - job.first_part + (int64_t)row * at.n_chunk + blockIdx.x) * job.n_head +
                       at.kv_head * job.r + (q - row * job.r);
        float *to = job.parts + part * (D + 2);
#pragma unroll
        for (int n = 0; n < COLUMNS / 8; n++) {
            int column = warp * COLUMNS + n * 8 + 2 * (l % 4);
            if (column < D) *(float2 *)(to + 2 + column) = make_float2(c[n][2 * half], c[n][2 * half + 1]);
        }
        if (warp == 0 && l % 4 == 0) *(float2 *)to = make_float2(sums.most[half], sums.sum[half]);
    }
}

template <int D, bool E4M3>
static __global__ void __launch_bounds__(THREADS, 2) attention_rows_kernel(const __grid_constant__ attention_job job) {
    extern __shared__ __align__(16) char memory[];
    struct chunk_shared<D> *s = (struct chunk_shared<D> *)memory;
    let_next_start();
    struct chunk_place at;
    at.kv_head = (int)((uint64_t)blockIdx.y * job.query_tile_inverse >> 31);
    at.query0 = ((int)blockIdx.y - at.kv_head * job.n_query_tile) * QUERIES;
    struct key_place own[OWN_KEYS];
    const struct lane_reach reach = find_keys(job, own);
    const struct lane_entry lane = job.lanes[job.first_lane + blockIdx.z];
    int n_query = reach.n_row * job.r, lane_end = reach.position + reach.n_row;
    at.n_chunk = (lane_end + CUDA_CHUNK_KEYS - 1) / CUDA_CHUNK_KEYS;
    if ((int)blockIdx.x >= at.n_chunk || at.query0 >= n_query) return;
    at.first_key = blockIdx.x * CUDA_CHUNK_KEYS;
    at.n_key = min(lane_end - at.first_key, CUDA_CHUNK_KEYS);
    at.n_old = reach.position - at.first_key;
    at.pages = (const char *)job.kv.pages;
    at.v_offset = value_offset(job, D);
    note_keys<D, E4M3>(job, at, own, s);
    __syncthreads();
    // Keys and values that are no rows of this batch were written before its tables were sent: they are asked for
    // before what came earlier is waited for.
    int warp = threadIdx.x / 32, l = threadIdx.x % 32;
    bool old_keys = (warp + 1) * WARP_KEYS <= at.n_old, old_values = STAGES * STAGE_KEYS <= at.n_old;
    struct key_piece<E4M3> first[(D + 31) / 32];
    if (E4M3) fetch_scales<D>(job, at, own, s);
    if (old_keys) load_keys<D, E4M3>(at, s, 0, first);
    if (old_keys)
        for (int n = 1; n <= job.n_ahead; n++) ask_for_keys<D, E4M3>(at, s, warp * WARP_KEYS + n * 8, 0);
    if (old_values)
        for (int stage = 0; stage < STAGES; stage++) fetch_values<D, E4M3>(at, s, stage);
    wait_for_earlier();
    if (!old_keys) load_keys<D, E4M3>(at, s, 0, first);
    if (!old_values)
        for (int stage = 0; stage < STAGES; stage++) fetch_values<D, E4M3>(at, s, stage);
    if (E4M3) load_scales<D>(job, at, own, s);
    for (int i = threadIdx.x; i < QUERIES * D / 8; i += THREADS) {
        int mine = i / (D / 8), q = at.query0 + mine;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (q < n_query) v = query_piece<D>(job.q, lane.row0 + q / job.r, at.kv_head * job.r + q % job.r, i % (D / 8));
        *(uint4 *)(s->q[mine] + i % (D / 8) * 16) = v;
    }
    if (E4M3) copies_wait<STAGES>();
    __syncthreads();
    float c[KEY_TILES][4] = {}, sums[warp_columns<D>() / 8][4] = {};
    make_scores<D, E4M3>(job, at, s, first, c);
    int visible[2];
    for (int half = 0; half < 2; half++)
        visible[half] = min(reach.position + (at.query0 + l / 4 + half * 8) / job.r + 1 - at.first_key, at.n_key);
    struct chunk_sums weights = weigh<D, E4M3>(job, s, c, job.unseen - at.first_key, visible);
    if (warp * warp_columns<D>() < D) add_values<D, E4M3>(at, s, sums);
    copies_wait<0>();
    store_parts<D>(job, lane, reach.n_row, at, weights, sums);
}

// One block a query. The batch's tables are read before what came earlier is waited for. Heads of whole units leave
// planes of what they write.
template <int D>
static __global__ void __launch_bounds__(MERGE_THREADS(D), MERGE_BLOCKS)
    merge_kernel(const __grid_constant__ attention_job job, const __grid_constant__ plane_rows planes, int row0) {
    let_next_start();
    int64_t t = row0 + blockIdx.x;
    int h = blockIdx.y, col = 2 * threadIdx.x;
    const struct lane_entry lane = job.lanes[job.lane_of_row[t]];
    int n_chunk = (lane.position + lane.n_row + CUDA_CHUNK_KEYS - 1) / CUDA_CHUNK_KEYS;
    int64_t step = (int64_t)job.n_head * (D + 2);
    const float *part = job.parts + (lane.part_base - job.first_part + (t - lane.row0) * n_chunk) * step + h * (D + 2);
    wait_for_earlier();
    if (col >= D) return;
    float gate[2];
    for (int i = 0; i < 2; i++) gate[i] = tensor_load(job.qg, t, ((int64_t)h * 2 + 1) * D + col + i);
    float2 x = merge_chunks(part, step, n_chunk, col);
    x = make_float2(x.x * sigmoid_of(gate[0]), x.y * sigmoid_of(gate[1]));
    tensor_store(job.out, t, (int64_t)h * D + col, x.x);
    tensor_store(job.out, t, (int64_t)h * D + col + 1, x.y);
    leave_head<D>(planes, t, h, x);
}

template <int D, bool E4M3>
static void launch_chunks(struct cuda_device *d, const struct attention_job *job, dim3 grid) {
    size_t bytes = sizeof(struct chunk_shared<D>);
    cudaFuncSetAttribute(attention_rows_kernel<D, E4M3>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    cuda_start(d, "attention, rows", attention_rows_kernel<D, E4M3>, grid, THREADS, bytes, *job);
}

// A processor divides its memory between shared memory and first cache anew only while it is empty. Behind one lane's
// few blocks of codes merging asks for the division that they have: without that a row takes up to a tenth longer
// (docs/cuda-experiments.md). That was seen on compute capability 9.0; older ones are left alone.
template <int D>
static void launch_merge(struct cuda_device *d, const struct attention_job &job, const struct plane_rows &planes,
                         dim3 chunks, int row0, int n_row) {
    bool few = chunks.z == 1 && (int64_t)chunks.x * chunks.y <= d->n_processors / FEW_SHARE;
    cudaLaunchAttribute division;
    division.id = cudaLaunchAttributePreferredSharedMemoryCarveout;
    division.val.sharedMemCarveout = cudaSharedmemCarveoutMaxShared;
    dim3 grid((unsigned)n_row, (unsigned)job.n_head);
    cuda_start_with(d, "attention, merge", few && job.kv.dtype == DTYPE_E4M3 ? &division : NULL, merge_kernel<D>, grid,
                    MERGE_THREADS(D), 0, job, planes, row0);
}

// Lanes [first, last) at once: their parts fit into the scratch.
template <int D>
static void run_lanes(struct cuda_device *d, struct attention_job *job, const struct plane_rows &planes,
                      const struct batch *b, int first, int last) {
    int64_t n_chunk = 1, n_row = 1;
    for (int i = first; i < last; i++) {
        n_chunk = larger(n_chunk, ceil_div((int64_t)b->lanes[i].position + b->lanes[i].n_row, CUDA_CHUNK_KEYS));
        n_row = larger(n_row, b->lanes[i].n_row);
    }
    job->first_lane = first;
    job->n_query_tile = (int)ceil_div(n_row * job->r, QUERIES);
    job->query_tile_inverse = (uint32_t)ceil_div((int64_t)1 << 31, job->n_query_tile);
    dim3 grid((unsigned)n_chunk, (unsigned)(job->n_kv_head * job->n_query_tile), (unsigned)(last - first));
    int64_t bytes_of_set = (int64_t)64 * D * (job->kv.dtype == DTYPE_E4M3 ? 1 : 2) * grid.x * grid.y * grid.z;
    job->n_ahead = AHEAD / bytes_of_set < KEY_TILES ? (int)(AHEAD / bytes_of_set) : KEY_TILES - 1;
    (job->kv.dtype == DTYPE_E4M3 ? launch_chunks<D, true> : launch_chunks<D, false>)(d, job, grid);
    int row0 = b->lanes[first].row0, end = b->lanes[last - 1].row0 + b->lanes[last - 1].n_row;
    launch_merge<D>(d, *job, planes, grid, row0, end - row0);
}

static int64_t parts_of(const struct lane *l) {
    return ceil_div((int64_t)l->position + l->n_row, CUDA_CHUNK_KEYS) * l->n_row;
}

static size_t part_bytes(int64_t n_head, int64_t head_dim) { return (size_t)(n_head * (head_dim + 2)) * sizeof(float); }

// Room for one lane of full length and width; a round of many long lanes is worked off in turns.
static size_t lane_bytes(const struct device_limits *l) {
    int64_t window = larger(l->max_window, 1), chunks = ceil_div(l->max_context + window, CUDA_CHUNK_KEYS) + 1;
    int64_t least = larger(chunks * window, l->max_lanes * 32);
    return (size_t)least * part_bytes(l->n_head, l->head_dim);
}

size_t need_attention(const struct device_limits *l) {
    struct carver c = {NULL, 0};
    struct plane_rows p;
    carve_planes(&c, l->max_round_rows, l->n_head * l->head_dim, &p);
    return c.used + lane_bytes(l);
}

// Planes come first in the scratch, where the next call looks for them. Returns the bytes that they take.
static size_t make_room(struct cuda_device *d, const struct attention_args *a, struct plane_rows *planes) {
    struct carver c = scratch_of(d);
    carve_planes(&c, a->out.n_row, a->out.n_col, planes);
    bool fits = c.used + lane_bytes(&d->limits) <= d->scratch_bytes && a->out.dtype == DTYPE_F32 &&
                a->head_dim % PLANES_UNIT == 0 && a->out.n_row <= PLANES_HEADS;
    if (fits && leave_planes(d, a->out, PLANES_UNIT, planes)) return c.used;
    planes->x = NULL;
    return 0;
}

void attention_rows(struct cuda_device *d, const struct attention_args *a, struct attention_job *job) {
    const struct batch *b = a->batch;
    struct plane_rows planes;
    size_t used = make_room(d, a, &planes);
    int64_t room = (int64_t)((d->scratch_bytes - used) / part_bytes(a->n_head, a->head_dim)), base = 0;
    job->parts = (float *)(d->scratch + used);
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
        case 16: run_lanes<16>(d, job, planes, b, first, last); break;
        case 32: run_lanes<32>(d, job, planes, b, first, last); break;
        case 64: run_lanes<64>(d, job, planes, b, first, last); break;
        case 128: run_lanes<128>(d, job, planes, b, first, last); break;
#endif
        default:
            must(a->head_dim == 256);
            run_lanes<256>(d, job, planes, b, first, last);
            break;
        }
    }
}
