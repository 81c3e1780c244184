// Owns how linear_rows.cu hands parts with the usual kind of weights (units_q4.cuh) to linear_q4.cu.
#ifndef TF_CUDA_LINEAR_Q4_CUH
#define TF_CUDA_LINEAR_Q4_CUH

#include "cuda/planes_input.cuh"
#include "cuda/product_q4.cuh"

struct rows_part {
    struct weight_view w;
    struct tensor out;
    int first_tile; // of the launch's tiles
};

struct q4_job {
    struct rows_part part[LINEAR_MAX_PARTS]; // all are arranged, or none
    int n_part, n_tile, n_unit, tile_outputs;
    struct tensor residual;
    struct plane_input in;
    struct plane_rows x;
    bool made; // x has the rows' planes; else it has room for them
    int64_t n_row;
};

__device__ __forceinline__ void store_sum(const struct tensor &residual, const struct rows_part &part, int64_t n_row,
                                          int64_t t, int64_t o, float sum) {
    if (t >= n_row || o >= part.w.n_out) return;
    if (residual.data != NULL) sum += tensor_load(residual, t, o);
    tensor_store(part.out, t, o, sum);
}

__device__ __forceinline__ const struct rows_part &q4_part_of(const struct q4_job &job, int tile) {
    int p = 0;
    while (p + 1 < job.n_part && tile >= job.part[p + 1].first_tile) p++;
    return job.part[p];
}

// The 16 MT outputs that begin `place` times 16 MT behind the tile's first.
template <int MT>
__device__ __forceinline__ struct q4_matrix q4_matrix_in(const struct q4_job &job, int tile, int place) {
    const struct rows_part &p = q4_part_of(job, tile);
    return q4_matrix_of(p.w, (tile - p.first_tile) * job.tile_outputs + place * 16 * MT,
                        min(16 * MT, job.tile_outputs));
}

static inline bool q4_is_arranged(const struct q4_job *job) { return job->part[0].w.arranged; }

static inline void q4_cut_tiles(struct q4_job *job, int tile_outputs) {
    job->tile_outputs = tile_outputs;
    job->n_tile = 0;
    for (int p = 0; p < job->n_part; p++) {
        job->part[p].first_tile = job->n_tile;
        job->n_tile += (int)ceil_div(job->part[p].w.n_out, tile_outputs);
    }
}

// A block may have all of a processor's shared memory but 1024 bytes, which is 99 KiB where processors have least.
static inline bool q4_has_room(const struct cuda_device *d, size_t bytes) { return bytes + 1024 <= d->shared_bytes; }

// How much of tiles of `most` outputs is used if each of `slots` teams is given as many, in thousandths.
static inline int64_t q4_filling(int64_t n_out, int64_t slots, int64_t most) {
    return n_out * 1000 / (ceil_div(n_out, slots * most) * slots * most);
}

// Tiles of no more outputs than it takes for all of `slots` teams to have as many of them. All warps share a sum.
static inline void q4_cut_evenly(struct q4_job *job, int most_outputs, int64_t slots) {
    int64_t n_out = 0;
    for (int p = 0; p < job->n_part; p++) n_out += job->part[p].w.n_out;
    int64_t turns = ceil_div(n_out, slots * most_outputs);
    int outputs = (int)ceil_div(n_out, slots * turns);
    q4_cut_tiles(job, outputs);
    while (job->n_tile > slots * turns && outputs < most_outputs) q4_cut_tiles(job, ++outputs);
}

void linear_q4(struct cuda_device *d, struct q4_job *job);

#endif
