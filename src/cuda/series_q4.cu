// Products of a round that follow each other, with the usual kind of weights, as one launch (series.cuh): a block a
// processor, which goes through the products with all others. Before each of them all blocks wait for each other, make
// planes of its rows, a unit a warp, and wait again. Weights need not wait for that: each warp's copies of units go on
// over the end of a product, as far as its stages reach, so that memory is at work meanwhile.
//
// A row's bits are those of linear and swiglu alone: the same units by the same warps, added in the same order.
#include "cuda/series.cuh"
#include "cuda/work_q4.cuh"
#include <atomic>
#include <stdlib.h>

#define ARRIVALS_WRAP 65536 // meetings after which their count begins anew
#define GPUS_MOST     64

static __host__ __device__ inline bool is_gated(const struct series_link &l) { return l.gated.data != NULL; }

// ---- weights ----

// What this thread copies of each unit: 16 bytes of outputs at `even` and at `odd`, and of those a step further; and
// scales or biases of an output (units_q4.cuh), and of that a step of scales further. live: a bit for each piece that
// is fetched.
struct unit_source {
    const char *even, *odd, *scales;
    int step, scale_step;
    unsigned live;
};

// The tile's outputs from unit `unit` on. Of gate and up a tile has eight outputs each by turns.
template <int MT, bool ARRANGED>
static __device__ __forceinline__ void open_tile(const struct series_link &l, int tile, int unit,
                                                 struct unit_source *q) {
    constexpr int N_SCALES = q4_source<MT, ARRANGED>::N_SCALES;
    const struct q4_job &job = l.product;
    bool pair = is_gated(l);
    int lane = threadIdx.x % 32, slot = q4_scale_slot<ARRANGED>(0), o = q4_output_in(pair, slot);
    struct q4_matrix a, b;
    if (pair) {
        a = q4_matrix_of(job.part[0].w, tile * job.tile_outputs, job.tile_outputs);
        b = q4_matrix_of(job.part[1].w, tile * job.tile_outputs, job.tile_outputs);
    } else {
        a = b = q4_matrix_in<MT>(job, tile, 0);
    }
    q->even = q4_codes_of<ARRANGED>(a, lane / 4, unit) + lane % 4 * 16;
    q->odd = q4_codes_of<ARRANGED>(b, lane / 4 + (pair ? 0 : 8), unit) + lane % 4 * 16;
    q->step = (pair ? 8 : 16) * a.row_bytes;
    if (q4_is_second(pair, slot)) a.scales = b.scales, a.biases = b.biases;
    q->scales = q4_scales_from<ARRANGED>(a, o, unit);
    q->scale_step = q4_output_in(pair, ARRANGED ? 32 : 16) * a.scale_bytes;
    q->live = 0;
#pragma unroll
    for (int t = 0; t < 2 * MT; t++)
        if (q4_output_in(pair, t * 8 + lane / 4) <= a.last) q->live |= 1u << t;
#pragma unroll
    for (int t = 0; t < N_SCALES; t++) {
        slot = q4_scale_slot<ARRANGED>(t);
        if (slot < 16 * MT && q4_output_in(pair, slot) <= a.last) q->live |= 1u << (2 * MT + t);
    }
}

// As q4_fetch, where the outputs may be of one matrix or of two.
template <int MT, bool ARRANGED> static __device__ __forceinline__ void fetch_unit(struct unit_source *q, uint32_t to) {
    uint32_t at = to + q4_piece_at();
#pragma unroll
    for (int t = 0; t < 2 * MT; t++)
        if (q->live & 1u << t) q4_copy_codes(at + t * 512, (t % 2 == 0 ? q->even : q->odd) + t / 2 * (int64_t)q->step);
#pragma unroll
    for (int t = 0; t < q4_source<MT, ARRANGED>::N_SCALES; t++)
        if (q->live & 1u << (2 * MT + t))
            q4_copy_scales<ARRANGED>(to + MT * Q4_CODES, q4_scale_slot<ARRANGED>(t),
                                     q->scales + t * (int64_t)q->scale_step);
    q->even += Q4_WARPS * q4_codes_step<ARRANGED>();
    q->odd += Q4_WARPS * q4_codes_step<ARRANGED>();
    q->scales += Q4_WARPS * q4_scales_step<ARRANGED>();
}

// This warp's units of all products and tiles, one after another; left: those of the tile that have not been asked for.
struct unit_walk {
    struct unit_source q;
    int link, tile, left;
    uint32_t base;
    int to;
};

static __device__ __forceinline__ int first_tile() { return (int)blockIdx.x + q4_team() * (int)gridDim.x; }
static __device__ __forceinline__ int tile_step() { return (int)(gridDim.x * (blockDim.x / Q4_THREADS)); }
static __device__ __forceinline__ int units_of_warp(int n_unit, int k) {
    return (n_unit - k + Q4_WARPS - 1) / Q4_WARPS;
}

template <int MT, int STAGES, bool ARRANGED>
static __device__ __forceinline__ void fetch_next(const struct series &s, int k, struct unit_walk *w) {
    while (w->left == 0 && w->link < s.n_link) {
        const struct series_link &l = s.link[w->link];
        if (w->tile < l.product.n_tile) {
            open_tile<MT, ARRANGED>(l, w->tile, k, &w->q);
            w->left = units_of_warp(l.product.n_unit, k);
            w->tile += tile_step();
        } else {
            w->link++;
            w->tile = first_tile();
        }
    }
    if (w->left > 0) {
        constexpr int UNIT = q4_unit_bytes<MT>();
        fetch_unit<MT, ARRANGED>(&w->q, w->base + w->to);
        w->to = w->to + UNIT == STAGES * UNIT ? 0 : w->to + UNIT;
        w->left--;
    }
    copies_commit();
}

// ---- rows ----

// All blocks have come here, and what their threads have written is seen by all. Before any of them has the count is a
// multiple of the blocks, as many in every launch, so that the host need not know it.
static __device__ __forceinline__ void all_meet(const struct series &s) {
    __syncthreads();
    if (threadIdx.x == 0) {
        unsigned last = gridDim.x * ARRIVALS_WRAP - 1, count;
        asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                     : "=r"(count)
                     : "l"(s.arrived), "r"(last)
                     : "memory");
        unsigned before = count % gridDim.x, first = count - before;
        for (count = first + before + 1; count - first < gridDim.x;)
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(count) : "l"(s.arrived) : "memory");
    }
    __syncthreads();
}

// Planes of a product's rows by all blocks together, unless they are there, and what sums are multiplied with.
static __device__ __forceinline__ void take_rows(const struct series &s, const struct q4_job &job, float *factors) {
    int warp = threadIdx.x / 32, n_warp = (int)blockDim.x / 32, n_row = (int)job.n_row;
    if (!job.made) {
        auto place = [&](int i) {
            int row = i % n_row, unit = i / n_row;
            struct planes p = planes_of_row(job.x, row);
            return (struct plane_place){row, unit, p.x + unit * (PLANES_TILE * PLANES_UNIT_X),
                                        p.notes + unit * PLANES_TILE};
        };
        make_units<PLANES_TILE, 1>(job.in, n_row * job.n_unit, (int)blockIdx.x + warp * (int)gridDim.x,
                                   n_warp * (int)gridDim.x, place);
        all_meet(s);
    }
    for (int row = warp; row < n_row; row += n_warp) {
        float by = job.made ? job.x.factors[row]
                            : plane_factor<PLANES_TILE>(job.in, job.n_unit, planes_of_row(job.x, row).notes);
        if (threadIdx.x % 32 == 0) factors[row] = by;
    }
    __syncthreads();
}

// ---- the launch ----

// Of launches for up to 4 NT rows: 16 MT outputs a tile, teams a block, stages of units a warp.
template <int NT> struct series_shape { static constexpr int MT = 2, TEAMS = 2, STAGES = 4; };
template <> struct series_shape<4> { static constexpr int MT = 3, TEAMS = 1, STAGES = 5; };

// The team's sums of a tile go where the link wants them.
template <int MT, int NT, int TEAMS>
static __device__ __forceinline__ void finish_tile(const struct series_link &l, int tile, int turn, float *parts,
                                                   const float *factors, const float y[MT][NT][2]) {
    const struct q4_job &job = l.product;
    int n_row = (int)job.n_row;
    if (q4_part_buffers<MT, NT>() == 2)
        parts += turn % 2 * (Q4_WARPS * 4 * NT * 16 * MT);
    else
        q4_barrier<TEAMS>(); // the tile before has been read
    q4_put_part<MT, NT>(parts, threadIdx.x / 32 % Q4_WARPS, n_row, y);
    q4_barrier<TEAMS>();
    if (is_gated(l)) {
        q4_add_pairs<MT>(parts, n_row, [&](int m, int n, float gate, float up) {
            int o = tile * job.tile_outputs + m;
            if (m >= job.tile_outputs || o >= l.gated.n_col) return;
            ((float *)l.gated.data)[n * l.gated.stride + o] = silu_of(gate * factors[n]) * (up * factors[n]);
        });
        return;
    }
    const struct rows_part &p = q4_part_of(job, tile);
    int o0 = (tile - p.first_tile) * job.tile_outputs;
    q4_add_some<MT>(parts, n_row, Q4_WARPS, [&](int m, int n, float sum) {
        if (m < job.tile_outputs) store_sum(job.residual, p, n_row, n, o0 + m, sum * factors[n]);
    });
}

template <int NT, bool ARRANGED>
static __global__ void __launch_bounds__(series_shape<NT>::TEAMS *Q4_THREADS, 1)
    series_kernel(const __grid_constant__ series s) {
    extern __shared__ __align__(16) char shared[];
    constexpr int MT = series_shape<NT>::MT, TEAMS = series_shape<NT>::TEAMS, STAGES = series_shape<NT>::STAGES;
    constexpr int UNIT = q4_unit_bytes<MT>(), ALL = STAGES * UNIT, TEAM = q4_team_bytes<MT, NT, STAGES>(4 * NT);
    let_next_start();
    int k = threadIdx.x / 32 % Q4_WARPS, stage = 0, turn = 0;
    const char *stages = shared + q4_team() * TEAM + k * ALL;
    float *parts = (float *)(shared + q4_team() * TEAM + Q4_WARPS * ALL), *factors = (float *)(shared + TEAMS * TEAM);
    struct unit_walk w;
    w.link = w.left = w.to = 0;
    w.tile = first_tile();
    w.base = shared_address(stages);
#pragma unroll 1
    for (int i = 0; i < STAGES - 1; i++) fetch_next<MT, STAGES, ARRANGED>(s, k, &w);
#pragma unroll 1
    for (int nth = 0; nth < s.n_link; nth++) {
        const struct series_link &l = s.link[nth];
        const struct q4_job &job = l.product;
        if (nth == 0)
            wait_for_earlier();
        else
            all_meet(s);
        take_rows(s, job, factors);
        int n_mine = units_of_warp(job.n_unit, k);
#pragma unroll 1
        for (int tile = first_tile(); tile < job.n_tile; tile += tile_step(), turn++) {
            struct q4_rows<NT> rows;
            struct q4_inputs<NT> in, next;
            q4_take_rows<NT>(job.x, &rows, [&](int n) { return min(n, (int)job.n_row - 1); });
            float y[MT][NT][2];
#pragma unroll
            for (int t = 0; t < MT; t++)
#pragma unroll
                for (int j = 0; j < NT; j++) y[t][j][0] = y[t][j][1] = 0;
            q4_step<NT, PLANES_TILE>(&rows, k);
            q4_load<NT, PLANES_TILE>(rows, &in);
#pragma unroll 1
            for (int i = 0; i < n_mine; i++) {
                if (i + 1 < n_mine) q4_step<NT, PLANES_TILE>(&rows, Q4_WARPS);
                q4_load<NT, PLANES_TILE>(rows, &next);
                copies_wait<STAGES - 2>();
                __syncwarp();
                fetch_next<MT, STAGES, ARRANGED>(s, k, &w);
                q4_multiply<MT, NT>(stages + stage, in, y);
                in = next;
                stage = stage + UNIT == ALL ? 0 : stage + UNIT;
            }
            finish_tile<MT, NT, TEAMS>(l, tile, turn, parts, factors, y);
        }
    }
}

template <int NT> static size_t block_bytes() {
    typedef series_shape<NT> shape;
    return (size_t)shape::TEAMS * q4_team_bytes<shape::MT, NT, shape::STAGES>(4 * NT) + 4 * NT * sizeof(float);
}

// All blocks wait for each other, so all must have a place at once: one on each processor.
template <int NT> static void launch(struct cuda_device *d, struct series *s) {
    typedef series_shape<NT> shape;
    int64_t slots = (int64_t)shape::TEAMS * d->n_processors;
    for (int i = 0; i < s->n_link; i++) {
        struct q4_job *job = &s->link[i].product;
        bool gated = is_gated(s->link[i]);
        if (gated) job->n_part = 1; // a tile is of the first part alone
        q4_cut_evenly(job, gated ? 8 * shape::MT : 16 * shape::MT, slots);
    }
    auto kernel = q4_is_arranged(&s->link[0].product) ? series_kernel<NT, true> : series_kernel<NT, false>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)block_bytes<NT>());
    cuda_start(d, "products in series", kernel, dim3((unsigned)d->n_processors), shape::TEAMS * Q4_THREADS,
               block_bytes<NT>(), *s);
}

static void start(struct cuda_device *d, struct series *s) {
    int64_t n_row = s->link[0].product.n_row;
    if (n_row <= 4)
        launch<1>(d, s);
    else if (n_row <= 8)
        launch<2>(d, s);
    else
        launch<4>(d, s);
}

// ---- what waits ----

// A single row's products are faster alone: they make its planes where they need them, and launches overlap.
bool series_has_room(const struct cuda_device *d, int64_t n_row, int64_t n_in, int64_t n_out) {
    size_t bytes = n_row <= 4 ? block_bytes<1>() : n_row <= 8 ? block_bytes<2>() : block_bytes<4>();
    bool rows = n_row > 1 && n_row <= SERIES_ROWS && n_in % PLANES_UNIT == 0;
    bool large = n_in / PLANES_UNIT >= Q4_WARPS && n_out >= 16 * d->n_processors;
    return d->series->arrived != NULL && rows && large && q4_has_room(d, bytes);
}

void series_send(struct cuda_device *d) {
    struct series *s = d->series;
    struct series_link *first = &s->link[0];
    int n_link = d->failure == cudaSuccess ? s->n_link : 0;
    // What is alone has kernels for its shape.
    if (n_link == 1 && !is_gated(*first))
        linear_q4(d, &first->product);
    else if (n_link == 1 && first->product.n_row > 8)
        gated_q4(d, &first->product, first->gated);
    else if (n_link > 0)
        start(d, s);
    s->n_link = 0;
}

bool series_add(struct cuda_device *d, const struct q4_job *product, const struct tensor *gated) {
    struct series *s = d->series;
    int64_t n_row = product->n_row, n_out = 0;
    for (int p = 0; p < product->n_part; p++) n_out += product->part[p].w.n_out;
    bool usual = series_has_room(d, n_row, (int64_t)product->n_unit * PLANES_UNIT, n_out);
    const struct q4_job *waiting = &s->link[0].product;
    bool alike = waiting->n_row == n_row && q4_is_arranged(waiting) == q4_is_arranged(product);
    if (s->n_link > 0 && (!usual || s->n_link == SERIES_MOST || !alike)) series_send(d);
    if (!usual) return false;
    s->link[s->n_link].product = *product;
    s->link[s->n_link].gated = gated != NULL ? *gated : (struct tensor){};
    s->n_link++;
    return true;
}

// Blocks of two series at once could keep each other from their places: of a process's devices on one GPU the first has
// series. (Processes take turns on a GPU.)
static std::atomic<bool> taken[GPUS_MOST];

bool series_open(struct cuda_device *d) {
    d->series = (struct series *)calloc(1, sizeof *d->series);
    if (d->series == NULL) return false;
    if (d->major < 9 || d->index >= GPUS_MOST || taken[d->index].exchange(true)) return true;
    if (cudaMalloc(&d->series->arrived, sizeof(unsigned)) == cudaSuccess)
        return cudaMemsetAsync(d->series->arrived, 0, sizeof(unsigned), d->stream) == cudaSuccess;
    taken[d->index] = false;
    return false;
}

void series_close(struct cuda_device *d) {
    if (d->series == NULL) return;
    if (d->series->arrived != NULL) taken[d->index] = false;
    cudaFree(d->series->arrived);
    free(d->series);
}
