// Experts of a few rows (moe.cuh). Every block of gate and up chooses for all rows itself, and makes a list of the
// experts that were chosen, each with its rows, which down finds made. A block has the same outputs of all those
// experts: it adds up what they are of a row. Weights come through shared memory, some pieces ahead of what a warp
// works on; those of down are on their way before it waits for the activations, which its blocks bring into groups
// themselves.
#include "cuda/moe.cuh"
#include "cuda/router_choice.cuh"

#define MOST_WARPS  16
#define FEW_EXPERTS 256  // at most
#define SET_CODES   1024 // bytes of a set: neighbouring outputs that have 32 groups together
#define SET_SCALES  64   // and of its scales, or biases

// In which slots an expert is. Row t has byte t % 8 of word t / 8: 1 + its slot; 0: the row has it not.
template <int WORDS> struct few_slots { uint64_t word[WORDS]; };

// An expert that was chosen.
template <int WORDS> struct few_tile {
    const char *from[6]; // codes of a piece's halves, and scales and biases of the one, and of the other
    struct few_slots<WORDS> slots;
    int64_t expert;
};

// The same as down finds it.
template <int WORDS> struct few_entry {
    struct few_slots<WORDS> slots;
    int64_t expert; // < 0: behind the last
};
static_assert(sizeof(struct few_entry<2>) <= MOE_FEW_ENTRY && MOE_FEW_ROWS <= 16, "two words");

struct few_shared {
    float weights[MOE_FEW_ROWS][MOE_MOST_PAIRS]; // of slots; the one behind them is the shared expert's
    float factors[MOE_FEW_ROWS];
    int totals[MOST_WARPS];
};

// Where each thing lies in shared memory. rows: in groups, or the activations of all pairs; parts, sums: of down.
struct few_layout {
    int tiles, ring, rows, parts, sums, bytes;
};

template <int WORDS>
static __host__ __device__ inline struct few_layout lay_out(const struct moe_job &job, int slots_bytes, int ring_bytes,
                                                            int rows_bytes, int n_output) {
    int n_pair = job.n_row * (job.n_used + 1), n_tile = job.n_row * job.n_used + 1;
    struct few_layout l;
    l.tiles = slots_bytes;
    l.ring = (l.tiles + n_tile * (int)sizeof(struct few_tile<WORDS>) + 15) / 16 * 16;
    l.rows = l.ring + ring_bytes;
    l.parts = l.rows + rows_bytes;
    l.sums = l.parts + n_pair * n_output * (int)sizeof(float);
    l.bytes = l.sums + job.n_row * n_output * (int)sizeof(float);
    return l;
}

// ---- the choice, and the list ----

template <int WORDS>
static __device__ __forceinline__ void clear_slots(const struct moe_job &job, struct few_slots<WORDS> *slots) {
#pragma unroll 1
    for (int e = threadIdx.x; e < job.n_expert; e += (int)blockDim.x) slots[e] = (struct few_slots<WORDS>){};
    __syncthreads();
}

// By a warp. What others get of it is stored by one block.
template <int WORDS>
static __device__ __forceinline__ void choose_row(const struct moe_job &job, int t, bool stores,
                                                  struct few_slots<WORDS> *slots) {
    const struct router_job &r = job.router;
    int n_expert = (int)r.gate.n_out, lane = threadIdx.x % 32, mine = 0;
    const float *logits = r.logits + (int64_t)t * (n_expert + 1);
    float weight = 0, shared = __ldcg(logits + n_expert);
    float chosen = choose_experts<FEW_EXPERTS / 32>(logits, n_expert, job.n_used, [&](int slot, int id, float p) {
        if (lane != slot) return;
        mine = id;
        weight = p;
    });
    if (lane < job.n_used)
        atomicOr((unsigned long long *)&slots[mine].word[t / 8 % WORDS], (unsigned long long)(lane + 1) << t % 8 * 8);
    if (!stores) return;
    if (lane == job.n_used) r.shared[t] = sigmoid_of(shared);
    if (lane >= job.n_used) return;
    r.ids[t * job.n_used + lane] = mine;
    r.weights[t * job.n_used + lane] = weight / chosen;
}

// The shared expert's: all rows have it behind their other slots.
template <int WORDS> static __device__ __forceinline__ struct few_slots<WORDS> shared_slots(const struct moe_job &job) {
    struct few_slots<WORDS> slots;
#pragma unroll
    for (int w = 0; w < WORDS; w++) {
        int n = min(8, job.n_row - 8 * w);
        slots.word[w] = n <= 0 ? 0 : 0x0101010101010101ull * (uint64_t)(job.n_used + 1) >> 8 * (8 - n);
    }
    return slots;
}

// The list: the shared expert, then those that were chosen, by number, so that all blocks have the same. By all
// threads; how many there are is returned. make(expert, tile) fills in where an expert's weights are.
template <int WARPS, int WORDS, typename MAKE>
static __device__ __forceinline__ int list_tiles(const struct moe_job &job, const struct few_slots<WORDS> *slots,
                                                 struct few_tile<WORDS> *tile, struct few_shared *s, MAKE make) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, n = 1;
#pragma unroll 1
    for (int e0 = 0; e0 <= job.n_expert; e0 += 32 * WARPS) {
        int e = e0 + (int)threadIdx.x;
        struct few_slots<WORDS> own = {};
        if (e < job.n_expert) own = slots[e];
        bool is_chosen = (own.word[0] | own.word[WORDS - 1]) != 0, is_shared = e == job.n_expert;
        unsigned chosen = __ballot_sync(0xffffffffu, is_chosen);
        if (lane == 0) s->totals[warp] = __popc(chosen);
        __syncthreads();
        int at = n + __popc(chosen & ((1u << lane) - 1));
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            at += w < warp ? s->totals[w] : 0;
            n += s->totals[w];
        }
        if (is_shared) {
            own = shared_slots<WORDS>(job);
            at = 0;
        }
        if (is_chosen || is_shared) {
            make(e, tile + at);
            tile[at].slots = own;
            tile[at].expert = e;
        }
        __syncthreads();
    }
    return n;
}

// By one block, before it lets the next kernel start: that one's blocks read the list before they wait.
template <int WORDS>
static __device__ __forceinline__ void leave_list(const struct moe_job &job, const struct few_tile<WORDS> *tile,
                                                  int n_tile) {
    struct few_entry<WORDS> *to = (struct few_entry<WORDS> *)job.few_list;
#pragma unroll 1
    for (int i = threadIdx.x; i < job.n_row * job.n_used + 1; i += (int)blockDim.x) {
        struct few_entry<WORDS> entry = {
            {}, -1
        };
        if (i < n_tile) entry = (struct few_entry<WORDS>){tile[i].slots, tile[i].expert};
        to[i] = entry;
    }
    __threadfence();
    __syncthreads();
}

// As list_tiles.
template <int WORDS, typename MAKE>
static __device__ __forceinline__ int find_list(const struct moe_job &job, struct few_tile<WORDS> *tile, MAKE make) {
    const uint64_t *from = (const uint64_t *)job.few_list;
    int most = job.n_row * job.n_used + 1, n = 0;
#pragma unroll 1
    for (int i0 = 0; i0 < most; i0 += (int)blockDim.x) {
        int i = i0 + (int)threadIdx.x;
        struct few_entry<WORDS> entry = {
            {}, -1
        };
        if (i < most) {
#pragma unroll
            for (int w = 0; w < WORDS; w++) entry.slots.word[w] = __ldcg(from + i * (WORDS + 1) + w);
            entry.expert = (int64_t)__ldcg(from + i * (WORDS + 1) + WORDS);
        }
        if (entry.expert >= 0) {
            make((int)entry.expert, tile + i);
            tile[i].slots = entry.slots;
        }
        n += __syncthreads_count(entry.expert >= 0);
    }
    return n;
}

// ---- weights ----

// A warp's pieces in order: every WARPS-th of the block's, which has `per` of each tile.
struct few_walk {
    int tile, piece, per;
};
static __device__ __forceinline__ struct few_walk walk_begin(int per) {
    int warp = threadIdx.x / 32;
    return (struct few_walk){warp / per, warp % per, per};
}
template <int WARPS> static __device__ __forceinline__ void walk_on(struct few_walk *w) {
    w->piece += WARPS;
    while (w->piece >= w->per) {
        w->piece -= w->per;
        w->tile++;
    }
}

// M sets are a piece. A half of them is of the one and a half of the other matrix, or of the places behind each other.
template <int WORDS, int M, int WARPS, int STAGES> struct few_stream {
    static constexpr int BYTES = M * (SET_CODES + 2 * SET_SCALES);
    static constexpr int RING = WARPS * STAGES * BYTES;

    const struct few_tile<WORDS> *tile;
    char *ring;              // of this warp
    int n_tile, first, sets; // first: of the block's pieces; sets: of a matrix, from one piece to the next
    struct few_walk next;    // to fetch
};

// A code's place in a stage: pieces of 16 bytes that eight lanes read at once are in different banks.
static __device__ __forceinline__ int code_place(int piece16) { return (piece16 ^ (piece16 >> 3 & 1)) * 16; }

static __device__ __forceinline__ void copy16_once(uint32_t to, const char *from) {
    asm volatile("cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "l"(read_once()));
}

template <int WORDS, int M, int WARPS, int STAGES>
static __device__ __forceinline__ void fetch_next(struct few_stream<WORDS, M, WARPS, STAGES> *q, uint32_t stage) {
    if (q->next.tile < q->n_tile) {
        const struct few_tile<WORDS> *t = q->tile + q->next.tile;
        int lane = threadIdx.x % 32, set = (q->first + q->next.piece) * q->sets;
        uint32_t to = stage + code_place(lane);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const char *codes = t->from[h] + (set * SET_CODES + lane * 16);
#pragma unroll
            for (int k = 0; k < M; k++) // halves of sets
                copy16_once(to + (h * M + k) * (SET_CODES / 2), codes + k * (SET_CODES / 2));
        }
        if (lane < 8 * M)
            copy16_to(stage + M * SET_CODES + lane * 16,
                      t->from[2 + lane / (2 * M)] + (set * SET_SCALES + lane % (2 * M) * 16));
        walk_on<WARPS>(&q->next);
    }
    copies_commit();
}

template <int WORDS, int M, int WARPS, int STAGES>
static __device__ __forceinline__ void open_stream(struct few_stream<WORDS, M, WARPS, STAGES> *q,
                                                   const struct few_tile<WORDS> *tile, char *ring, int n_tile,
                                                   int first, int per, int sets) {
    typedef struct few_stream<WORDS, M, WARPS, STAGES> stream;
    *q = (stream){tile, ring + threadIdx.x / 32 * STAGES * stream::BYTES, n_tile, first, sets, walk_begin(per)};
#pragma unroll 1
    for (int s = 0; s < STAGES; s++) fetch_next(q, shared_address(q->ring) + s * stream::BYTES);
}

// Set m of a piece: which half it is of, and its place there. BY_TURNS: the halves have sets by turns.
template <int M, bool BY_TURNS> static __device__ __forceinline__ int half_of(int m) {
    return BY_TURNS ? m % 2 : m / (M / 2);
}
template <int M, bool BY_TURNS> static __device__ __forceinline__ int place_of(int m) {
    return BY_TURNS ? m / 2 : m % (M / 2);
}

// Scales in the lower and biases in the upper half of a word.
template <int M, bool BY_TURNS>
static __device__ __forceinline__ void take_notes(const char *piece, uint32_t notes[M]) {
    constexpr int NOTE = M / 2 * SET_SCALES;
#pragma unroll
    for (int m = 0; m < M; m++) {
        const char *scale = piece + M * SET_CODES + half_of<M, BY_TURNS>(m) * 2 * NOTE +
                            place_of<M, BY_TURNS>(m) * SET_SCALES + threadIdx.x % 32 * 2;
        notes[m] = *(const uint16_t *)scale | (uint32_t) * (const uint16_t *)(scale + NOTE) << 16;
    }
}

static __device__ __forceinline__ int dp4a_unsigned(int a, uint32_t b, int c) {
    int d;
    asm("dp4a.s32.u32 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
    return d;
}

// As moe_multiply, of a piece. Odd inputs' codes are taken 16 times as large, and what comes of them divided by that.
template <int M, bool BY_TURNS>
static __device__ __forceinline__ void few_multiply(const char *piece, const uint32_t notes[M], const char *row,
                                                    int n_group, int group, float y[M]) {
    const uint32_t low = 0x0f0f0f0fu;
    const uint4 *x = (const uint4 *)row + group;
    int lane = threadIdx.x % 32, high_even[M] = {}, low_even[M] = {}, high_odd[M] = {}, low_odd[M] = {};
#pragma unroll
    for (int part = 0; part < 2; part++) {
        uint4 codes[M];
#pragma unroll
        for (int m = 0; m < M; m++)
            codes[m] =
                *(const uint4 *)(piece + (half_of<M, BY_TURNS>(m) * (M / 2) + place_of<M, BY_TURNS>(m)) * SET_CODES +
                                 code_place(2 * lane + part));
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint4 p = x[(4 * part + j) * n_group];
#pragma unroll
            for (int m = 0; m < M; m++) {
                uint32_t word = j == 0 ? codes[m].x : j == 1 ? codes[m].y : j == 2 ? codes[m].z : codes[m].w;
                high_even[m] = dp4a_unsigned((int)p.x, word & low, high_even[m]);
                low_even[m] = dp4a_unsigned((int)p.y, word & low, low_even[m]);
                high_odd[m] = dp4a_unsigned((int)p.z, word & ~low, high_odd[m]);
                low_odd[m] = dp4a_unsigned((int)p.w, word & ~low, low_odd[m]);
            }
        }
    }
    uint4 note = x[8 * n_group];
#pragma unroll
    for (int m = 0; m < M; m++) {
        int all = high_even[m] * 256 + low_even[m] + ((high_odd[m] * 256 + low_odd[m]) >> 4);
        float scale = __uint_as_float(notes[m] << 16), bias = __uint_as_float(notes[m] & 0xffff0000u);
        float sum = fmaf(scale, (float)all, __fmul_rn(bias, __uint_as_float(note.y)));
        y[m] = __fmul_rn(__uint_as_float(note.x), sum);
    }
}

// Sums over the lanes of a span, in the tree of moe_span_sum: the first half of x becomes its own in the span's lower
// half, and the other half's in its upper half.
template <int M> static __device__ __forceinline__ void span_sums(float x[M], int span) {
    int step = span / 2;
    bool upper = (threadIdx.x & step) != 0;
#pragma unroll
    for (int m = 0; m < M / 2; m++) {
        float give = upper ? x[m] : x[M / 2 + m];
        x[m] = (upper ? x[M / 2 + m] : x[m]) + __shfl_xor_sync(0xffffffffu, give, step);
    }
#pragma unroll
    for (step = 8; step > 0; step /= 2)
        if (4 * step <= span)
#pragma unroll
            for (int m = 0; m < M / 2; m++) x[m] += __shfl_xor_sync(0xffffffffu, x[m], step);
}

// Works off the warp's pieces: use(piece, row, slot, y) for each pair of a tile, with what span_sums made of it;
// row_of(row, slot): its inputs in groups.
template <bool BY_TURNS, int WORDS, int M, int WARPS, int STAGES, typename ROW, typename USE>
static __device__ __forceinline__ void run_stream(struct few_stream<WORDS, M, WARPS, STAGES> *q, int span, ROW row_of,
                                                  USE use) {
    typedef struct few_stream<WORDS, M, WARPS, STAGES> stream;
    struct few_walk now = walk_begin(q->next.per);
    int group = (int)threadIdx.x % 32 % span, stage = 0;
#pragma unroll 1
    for (; now.tile < q->n_tile; walk_on<WARPS>(&now)) {
        const char *piece = q->ring + stage * stream::BYTES;
        uint32_t notes[M];
        copies_wait<STAGES - 1>();
        __syncwarp();
        take_notes<M, BY_TURNS>(piece, notes);
        uint64_t left = q->tile[now.tile].slots.word[0];
#pragma unroll 1
        for (int w = 0;;) {
            if (left == 0) {
                if (++w >= WORDS) break;
                left = q->tile[now.tile].slots.word[w];
                continue;
            }
            int shift = (__ffsll((long long)left) - 1) & ~7, row = 8 * w + shift / 8;
            int slot = (int)(left >> shift & 0xff) - 1;
            float y[M];
            left &= ~(0xffull << shift);
            few_multiply<M, BY_TURNS>(piece, notes, row_of(row, slot), span, group, y);
            span_sums<M>(y, span);
            use(now.piece, row, slot, y);
        }
        __syncwarp();
        fetch_next(q, shared_address(q->ring) + stage * stream::BYTES);
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
    copies_wait<0>();
}

// Pieces that the block has of each tile.
static __device__ __forceinline__ int block_pieces(int most, int n_piece) {
    return min(most, n_piece - (int)blockIdx.x * most);
}

// ---- gate and up ----

// What down reads before it waits is there: all blocks have waited for the kernel before, and the one that leaves the
// list has left it, when the last of them lets the next kernel start.
template <int WORDS, int M, int WARPS, int STAGES, int BESIDE>
static __global__ void __launch_bounds__(32 * WARPS, BESIDE)
    moe_few_widen_kernel(const __grid_constant__ moe_job job, int most_pieces) {
    static_assert(M == 4, "a lane has gate and up of an output");
    extern __shared__ __align__(16) char memory[];
    __shared__ struct few_shared s;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, span = job.x_groups, n_all = job.n_used + 1;
    int width = job.h_groups * MOE_GROUP, row_bytes = moe_row_bytes(job.x_groups);
    int first = (int)blockIdx.x * most_pieces, per = block_pieces(most_pieces, width * span / 32 / (M / 2));
    struct few_stream<WORDS, M, WARPS, STAGES> q;
    struct few_slots<WORDS> *slots = (struct few_slots<WORDS> *)memory;
    struct few_layout l = lay_out<WORDS>(job, job.n_expert * (int)sizeof *slots, q.RING, job.n_row * row_bytes, 0);
    struct few_tile<WORDS> *tile = (struct few_tile<WORDS> *)(memory + l.tiles);
    const char *rows = memory + l.rows;
    clear_slots(job, slots);
    wait_for_earlier();
#pragma unroll 1
    for (int i = threadIdx.x; i < job.n_row * row_bytes / 16; i += 32 * WARPS)
        copy16_to(shared_address(rows) + i * 16, job.x + i * 16);
    copies_commit();
    if ((int)threadIdx.x < job.n_row) s.factors[threadIdx.x] = __ldcg(job.factors + threadIdx.x);
    for (int t = warp; t < job.n_row; t += WARPS) choose_row(job, t, blockIdx.x == 0, slots);
    __syncthreads();
    int n_tile = list_tiles<WARPS>(job, slots, tile, &s, [&](int e, struct few_tile<WORDS> *t) {
        struct moe_matrix gate = moe_matrix_of_expert(job.gate, job.shared_gate, e, job.n_expert);
        struct moe_matrix up = moe_matrix_of_expert(job.up, job.shared_up, e, job.n_expert);
        t->from[0] = gate.data;
        t->from[1] = up.data;
        t->from[2] = gate.scales;
        t->from[3] = gate.biases;
        t->from[4] = up.scales;
        t->from[5] = up.biases;
    });
    open_stream(&q, tile, memory + l.ring, n_tile, first, per, M / 2);
    if (blockIdx.x == 0) leave_list(job, tile, n_tile);
    let_next_start();
    copies_wait<STAGES>();
    __syncthreads(); // the rows are there
    int half = lane % span / (span / 2), rest = lane % (span / 2);
    run_stream<true>(
        &q, span, [&](int row, int) { return rows + row * row_bytes; },
        [&](int piece, int row, int slot, float y[M]) {
            float factor = s.factors[row];
            int output = ((first + piece) * (M / 2) + half) * (32 / span) + lane / span;
            if (rest == 0)
                job.h[(int64_t)(row * n_all + slot) * width + output] = silu_of(y[0] * factor) * (y[1] * factor);
        });
}

// ---- down and the sums ----

// What a block's outputs begin with; the weights of their sums; the sums.
static __device__ __forceinline__ void take_residual(const struct moe_job &job, int first, int n_output, float *sums) {
#pragma unroll 1
    for (int i = threadIdx.x; i < job.n_row * n_output; i += (int)blockDim.x) {
        int row = i / n_output, output = first + i % n_output;
        sums[i] = output < job.out.n_col ? tensor_load(job.residual, row, output) : 0.0f;
    }
}
static __device__ __forceinline__ void take_weights(const struct moe_job &job, struct few_shared *s) {
    int n_used = job.n_used;
#pragma unroll 1
    for (int i = threadIdx.x; i < job.n_row * (n_used + 1); i += (int)blockDim.x) {
        int row = i / (n_used + 1), slot = i % (n_used + 1);
        const float *from = slot < n_used ? job.router.weights + row * n_used + slot : job.router.shared + row;
        s->weights[row][slot] = __ldcg(from);
    }
}
static __device__ __forceinline__ void store_sums(const struct moe_job &job, int first, int n_output, const float *sums,
                                                  const float *parts, const struct few_shared *s) {
    int n_all = job.n_used + 1;
#pragma unroll 1
    for (int i = threadIdx.x; i < job.n_row * n_output; i += (int)blockDim.x) {
        int row = i / n_output, output = i % n_output;
        if (first + output >= job.out.n_col) continue;
        const float *part = parts + row * n_all * n_output + output;
        float sum = sums[i];
        for (int slot = 0; slot < n_all; slot++) sum = fmaf(s->weights[row][slot], part[slot * n_output], sum);
        tensor_store(job.out, row, first + output, sum);
    }
}

template <int WORDS, int M, int WARPS, int STAGES, int BESIDE>
static __global__ void __launch_bounds__(32 * WARPS, BESIDE)
    moe_few_down_kernel(const __grid_constant__ moe_job job, int most_pieces) {
    extern __shared__ __align__(16) char memory[];
    __shared__ struct few_shared s;
    let_next_start();
    int lane = threadIdx.x % 32, span = job.h_groups, n_all = job.n_used + 1, n_pair = job.n_row * n_all;
    int row_bytes = moe_row_bytes(job.h_groups), set_outputs = 32 / span, n_output = M * most_pieces * set_outputs;
    int first = (int)blockIdx.x * most_pieces, first_output = M * first * set_outputs;
    int per = block_pieces(most_pieces, (int)job.out.n_col * span / 32 / M);
    struct few_stream<WORDS, M, WARPS, STAGES> q;
    struct few_layout l = lay_out<WORDS>(job, 0, q.RING, n_pair * row_bytes, n_output);
    struct few_tile<WORDS> *tile = (struct few_tile<WORDS> *)(memory + l.tiles);
    char *rows = memory + l.rows;
    float *parts = (float *)(memory + l.parts), *sums = (float *)(memory + l.sums);
    int n_tile = find_list(job, tile, [&](int e, struct few_tile<WORDS> *t) {
        struct moe_matrix down = moe_matrix_of_expert(job.down, job.shared_down, e, job.n_expert);
        t->from[0] = down.data;
        t->from[1] = down.data + M / 2 * SET_CODES;
        t->from[2] = down.scales;
        t->from[3] = down.biases;
        t->from[4] = down.scales + M / 2 * SET_SCALES;
        t->from[5] = down.biases + M / 2 * SET_SCALES;
    });
    open_stream(&q, tile, memory + l.ring, n_tile, first, per, M);
    take_residual(job, first_output, n_output, sums);
    wait_for_earlier();
    take_weights(job, &s);
    moe_take_activations<32 * WARPS, BESIDE == 1 ? 5 : 3>(job, n_pair, rows);
    __syncthreads();
    int half = lane % span / (span / 2), rest = lane % (span / 2);
    run_stream<false>(
        &q, span, [&](int row, int slot) { return rows + (row * n_all + slot) * row_bytes; },
        [&](int piece, int row, int slot, float y[M]) {
            float *to = parts + (row * n_all + slot) * n_output + lane / span;
            if (rest != 0) return;
#pragma unroll
            for (int m = 0; m < M / 2; m++) to[(M * piece + half * (M / 2) + m) * set_outputs] = y[m];
        });
    __syncthreads();
    store_sums(job, first_output, n_output, sums, parts, &s);
}

// ---- launches ----

// A kernel with its pieces' sets, its warps and the bytes of their rings.
struct few_kernel {
    void (*run)(const moe_job, int);
    int sets, warps, ring;
};

template <int WORDS, int M, int WARPS, int STAGES, int BESIDE> static struct few_kernel widen_by() {
    return (struct few_kernel){moe_few_widen_kernel<WORDS, M, WARPS, STAGES, BESIDE>, M, WARPS,
                               few_stream<WORDS, M, WARPS, STAGES>::RING};
}
template <int WORDS, int M, int WARPS, int STAGES, int BESIDE> static struct few_kernel down_by() {
    return (struct few_kernel){moe_few_down_kernel<WORDS, M, WARPS, STAGES, BESIDE>, M, WARPS,
                               few_stream<WORDS, M, WARPS, STAGES>::RING};
}

// Starts both if their blocks have room; tries: only says whether they have.
template <int WORDS>
static bool start_few(struct cuda_device *d, const struct moe_job *job, const struct few_kernel &widen,
                      const struct few_kernel &down, bool tries) {
    int n_pair = job->n_row * (job->n_used + 1);
    int64_t width = (int64_t)job->h_groups * MOE_GROUP, hidden = job->out.n_col;
    int64_t n_widen = width * job->x_groups / 32 / (widen.sets / 2), n_down = hidden * job->h_groups / 32 / down.sets;
    // Of a block, so that all processors have as many.
    int of_widen = (int)ceil_div(n_widen, d->n_processors), of_down = (int)ceil_div(n_down, d->n_processors);
    struct few_layout w = lay_out<WORDS>(*job, job->n_expert * (int)sizeof(struct few_slots<WORDS>), widen.ring,
                                         job->n_row * moe_row_bytes(job->x_groups), 0);
    struct few_layout n = lay_out<WORDS>(*job, 0, down.ring, n_pair * moe_row_bytes(job->h_groups),
                                         down.sets * of_down * 32 / job->h_groups);
    size_t beside = sizeof(struct few_shared) + 1024, most = (size_t)(w.bytes > n.bytes ? w.bytes : n.bytes);
    if (most + beside > d->shared_bytes) return false;
    if (tries) return true;
    cudaFuncSetAttribute(widen.run, cudaFuncAttributeMaxDynamicSharedMemorySize, w.bytes);
    cudaFuncSetAttribute(down.run, cudaFuncAttributeMaxDynamicSharedMemorySize, n.bytes);
    cuda_start(d, "experts, gate and up of a few rows", widen.run, dim3((unsigned)ceil_div(n_widen, of_widen)),
               32 * widen.warps, (size_t)w.bytes, *job, of_widen);
    cuda_start(d, "experts, down of a few rows", down.run, dim3((unsigned)ceil_div(n_down, of_down)), 32 * down.warps,
               (size_t)n.bytes, *job, of_down);
    return true;
}

// More rows leave less room for weights on their way.
static bool run_few(struct cuda_device *d, const struct moe_job *job, bool tries) {
    if (job->n_row > 8) return start_few<2>(d, job, widen_by<2, 4, 16, 1, 1>(), down_by<2, 2, 16, 1, 1>(), tries);
    struct few_kernel down = job->n_row > 4 ? down_by<1, 4, 16, 1, 1>() : down_by<1, 4, 8, 2, 2>();
    return start_few<1>(d, job, widen_by<1, 4, 12, 2, 2>(), down, tries);
}

static bool is_power_of_two(int n) { return (n & (n - 1)) == 0; }

static bool sets_are_aligned(const struct weight *w) {
    return (uintptr_t)w->data % 16 == 0 && (uintptr_t)w->scales % 16 == 0 && (uintptr_t)w->biases % 16 == 0;
}

// Those at equal distances are as the first two.
static bool experts_are_aligned(const struct experts_args *e, const struct weight *w) {
    for (int i = 0; i < (e->lie_evenly && e->n_expert > 2 ? 2 : e->n_expert); i++)
        if (!sets_are_aligned(&w[i])) return false;
    return true;
}

bool moe_few_fits(struct cuda_device *d, const struct moe_args *a, const struct moe_job *job) {
    const struct experts_args *e = &a->experts;
    if (job->n_row > MOE_FEW_ROWS || job->n_expert > FEW_EXPERTS) return false;
    if (!is_power_of_two(job->x_groups) || !is_power_of_two(job->h_groups)) return false;
    if (!sets_are_aligned(a->gate) || !sets_are_aligned(a->up) || !sets_are_aligned(a->down)) return false;
    if (!experts_are_aligned(e, e->gate) || !experts_are_aligned(e, e->up) || !experts_are_aligned(e, e->down))
        return false;
    return run_few(d, job, true);
}

void moe_few(struct cuda_device *d, const struct moe_job *job) { must(run_few(d, job, false)); }
