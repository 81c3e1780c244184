// Products in rounds with the usual kind of weights: which tiles, and how many warps.
#include "cuda/work_q4.cuh"

// BESIDE: blocks for which a processor has registers.
template <int MT, int NT, q4_place PLACE, int TEAMS, int STAGES, int BESIDE, q4_when LOAD, bool ARRANGED>
static __global__ void __launch_bounds__(Q4_THREADS *TEAMS, BESIDE)
    linear_q4_kernel(const __grid_constant__ q4_job job) {
    extern __shared__ __align__(16) char shared[];
    constexpr int COLUMNS = q4_columns<NT, PLACE>();
    let_next_start();
    struct q4_work<MT, NT, PLACE, ARRANGED> work = {
        job, q4_own_planes<MT, NT, PLACE, TEAMS, STAGES>(shared, job.n_unit), 1, (int)blockIdx.y * 4 * NT
    };
    q4_walk_as<MT, NT, q4_plane_rows<PLACE>(), TEAMS, STAGES, LOAD, false>(
        work, q4_team_tiles<TEAMS>(job.n_tile), job.n_unit, COLUMNS,
        shared + q4_team() * q4_team_bytes<MT, NT, STAGES>(COLUMNS));
}

// Whether there is room for it, and it was started. LEAST: its blocks on a processor; with registers for more, smaller
// blocks of the next launch find room beside them. EVEN: tiles are cut for all teams to have as many.
template <int MT, int NT, q4_place PLACE, int TEAMS, int STAGES, int LEAST, q4_when LOAD, bool EVEN, int BESIDE = LEAST>
static bool launch(struct cuda_device *d, struct q4_job *job) {
    auto kernel = q4_is_arranged(job) ? linear_q4_kernel<MT, NT, PLACE, TEAMS, STAGES, BESIDE, LOAD, true>
                                      : linear_q4_kernel<MT, NT, PLACE, TEAMS, STAGES, BESIDE, LOAD, false>;
    size_t bytes = q4_block_bytes<MT, NT, PLACE, TEAMS, STAGES>(job->n_unit);
    if (!q4_has_room(d, bytes)) return false;
    int most_outputs = q4_tile_outputs(job->n_unit, MT);
    if (EVEN && q4_sharing(job->n_unit) == Q4_WARPS)
        q4_cut_evenly(job, most_outputs, (int64_t)LEAST * TEAMS * d->n_processors);
    else
        q4_cut_tiles(job, most_outputs);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    dim3 grid(q4_blocks(d, LEAST, bytes, ceil_div(job->n_tile, TEAMS)), (unsigned)ceil_div(job->n_row, 4 * NT));
    cuda_start(d, "linear, rows", kernel, grid, Q4_THREADS * TEAMS, bytes, *job);
    return true;
}

// A row's bits are the same in each. What needs much shared memory comes before what fits everywhere; n: processors.
static bool one_row(struct cuda_device *d, struct q4_job *job, int64_t n_out, int64_t n) {
    if (n_out > 16 * n && n_out <= 48 * n) return launch<1, 1, PLANES_OWN, 3, 3, 1, LOAD_NEAR, true>(d, job);
    // The delta rule starts beside it, and has its state by the time that it is done.
    return n_out > 96 * n && launch<2, 1, PLANES_OWN, 2, 4, 1, LOAD_NEAR, true, 2>(d, job);
}

// With long sums two blocks beside each other are faster: the next launch finds room when one of them is done.
static bool to_4_rows(struct cuda_device *d, struct q4_job *job, int64_t n_out, int64_t n) {
    if (job->n_unit > 32) return false;
    if (n_out <= 48 * n) return launch<3, 1, PLANES_GLOBAL, 1, 6, 1, LOAD_AHEAD, true>(d, job);
    if (q4_filling(n_out, 3 * n, 32) > q4_filling(n_out, 2 * n, 32))
        return launch<2, 1, PLANES_GLOBAL, 3, 3, 1, LOAD_EARLY, true>(d, job);
    return launch<2, 1, PLANES_GLOBAL, 2, 4, 1, LOAD_AHEAD, true>(d, job);
}

static bool to_8_rows(struct cuda_device *d, struct q4_job *job, int64_t n_out, int64_t n) {
    if (n_out <= 96 * n) return false;
    if (q4_filling(n_out, 2 * n, 48) > q4_filling(n_out, 2 * n, 32))
        return launch<3, 2, PLANES_GLOBAL, 2, 3, 1, LOAD_EARLY, true>(d, job);
    return launch<2, 2, PLANES_GLOBAL, 2, 4, 1, LOAD_AHEAD, true>(d, job);
}

// Of few outputs only those with long sums gain.
static bool to_16_rows(struct cuda_device *d, struct q4_job *job, int64_t n_out, int64_t n) {
    bool few = n_out > 16 * n && n_out <= 48 * n && job->n_unit > 64;
    return (few || n_out > 96 * n) && launch<3, 4, PLANES_GLOBAL, 1, 4, 1, LOAD_AHEAD, true>(d, job);
}

static bool roomy(struct cuda_device *d, struct q4_job *job, int64_t n_out) {
    int64_t n = d->n_processors;
    if (job->n_row <= 4) return to_4_rows(d, job, n_out, n);
    if (job->n_row <= 8) return to_8_rows(d, job, n_out, n);
    if (job->n_row <= 16) return to_16_rows(d, job, n_out, n);
    return launch<2, 8, PLANES_GLOBAL, 1, 4, 1, LOAD_LATE, false>(d, job);
}

void linear_q4(struct cuda_device *d, struct q4_job *job) {
    int64_t n_out = 0, n_row = job->n_row, n = d->n_processors;
    for (int p = 0; p < job->n_part; p++) n_out += job->part[p].w.n_out;
    if (n_row == 1 && one_row(d, job, n_out, n)) return;
    if (n_row == 1 && launch<1, 1, PLANES_OWN, 2, 4, 2, LOAD_NEAR, false>(d, job)) return;
    if (!job->made) make_plane_rows(d, job->in, job->x);
    job->made = true;
    if (roomy(d, job, n_out)) return;
    if (n_row <= 4)
        must((launch<1, 1, PLANES_GLOBAL, 2, 4, 2, LOAD_EARLY, false>(d, job)));
    else if (n_row <= 8)
        must((launch<1, 2, PLANES_GLOBAL, 1, 4, 3, LOAD_EARLY, false>(d, job)));
    else if (n_row <= 16 && n_out <= 48 * n)
        must((launch<1, 4, PLANES_GLOBAL, 1, 4, 3, LOAD_LATE, false>(d, job)));
    else
        must((launch<1, 4, PLANES_GLOBAL, 1, 4, 2, LOAD_LATE, false>(d, job)));
}
