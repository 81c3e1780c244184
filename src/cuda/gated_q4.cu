// linear with gate and up, and swiglu of both, as one launch in rounds (work_q4.cuh). A tile has as many outputs of the
// gate as of up, eight by turns, so that a thread has both sums of an activation.
#include "cuda/series.cuh"
#include "cuda/work_q4.cuh"

#define MOST_SHARED (228 * 1024) // of a processor: what the largest of these launches is made for

struct gated_job {
    struct q4_job product; // parts: gate and up; a tile is of the first part alone
    struct tensor out;
};

// As many outputs of both a tile as tile_outputs says.
template <int MT, int NT, q4_place PLACE, bool ARRANGED> struct gated_work : q4_work<MT, NT, PLACE, ARRANGED> {
    const struct gated_job &gated;

    __device__ __forceinline__ struct q4_matrix matrix(int tile, int place) const {
        const struct q4_job &job = this->job;
        return q4_matrix_of(job.part[place].w, tile * job.tile_outputs, job.tile_outputs);
    }
    __device__ __forceinline__ void store(int tile, int m, int n, float gate, float up) const {
        int o = tile * this->job.tile_outputs + m;
        if (m >= this->job.tile_outputs || o >= gated.out.n_col) return;
        float by = this->factor_of(n);
        ((float *)gated.out.data)[(this->t0 + n) * gated.out.stride + o] = silu_of(gate * by) * (up * by);
    }
};

// LEAST: blocks beside each other on a processor.
template <int MT, int NT, q4_place PLACE, int TEAMS, int STAGES, int LEAST, q4_when LOAD, bool ARRANGED>
static __global__ void __launch_bounds__(Q4_THREADS *TEAMS, LEAST)
    gated_q4_kernel(const __grid_constant__ gated_job job) {
    extern __shared__ __align__(16) char shared[];
    constexpr int COLUMNS = q4_columns<NT, PLACE>();
    let_next_start();
    const struct q4_job &product = job.product;
    struct gated_work<MT, NT, PLACE, ARRANGED> work = {
        {product, q4_own_planes<MT, NT, PLACE, TEAMS, STAGES>(shared, product.n_unit), 1, 0}, job
    };
    q4_walk_as<MT, NT, q4_plane_rows<PLACE>(), TEAMS, STAGES, LOAD, true>(
        work, q4_team_tiles<TEAMS>(product.n_tile), product.n_unit, COLUMNS,
        shared + q4_team() * q4_team_bytes<MT, NT, STAGES>(COLUMNS));
}

// Whether there is room for it, and it was started.
template <int MT, int NT, q4_place PLACE, int TEAMS, int STAGES, int LEAST, q4_when LOAD>
static bool launch(struct cuda_device *d, struct gated_job *job) {
    struct q4_job *product = &job->product;
    auto kernel = q4_is_arranged(product) ? gated_q4_kernel<MT, NT, PLACE, TEAMS, STAGES, LEAST, LOAD, true>
                                          : gated_q4_kernel<MT, NT, PLACE, TEAMS, STAGES, LEAST, LOAD, false>;
    size_t bytes = q4_block_bytes<MT, NT, PLACE, TEAMS, STAGES>(product->n_unit);
    if (!q4_has_room(d, bytes)) return false;
    product->n_part = 1;
    q4_cut_evenly(product, 8 * MT, (int64_t)LEAST * TEAMS * d->n_processors);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    dim3 grid(q4_blocks(d, LEAST, bytes, ceil_div(product->n_tile, TEAMS)));
    cuda_start(d, "linear and swiglu, rows", kernel, grid, Q4_THREADS * TEAMS, bytes, *job);
    return true;
}

static bool has_room(const struct cuda_device *d, int64_t n_row, int64_t n_in) {
    size_t one = q4_block_bytes<2, 1, PLANES_OWN, 2, 4>((int)(n_in / PLANES_UNIT));
    size_t many = q4_block_bytes<3, 4, PLANES_GLOBAL, 1, 4>(0);
    return n_row == 1 ? q4_has_room(d, one) : n_row >= 9 && n_row <= 16 && q4_has_room(d, many);
}

// A row's bits are the same in each, and those of linear and swiglu.
static bool choose(struct cuda_device *d, struct gated_job *job) {
    if (job->product.n_row == 1) return launch<2, 1, PLANES_OWN, 2, 4, 1, LOAD_NEAR>(d, job);
    return launch<3, 4, PLANES_GLOBAL, 1, 4, 1, LOAD_AHEAD>(d, job);
}

// Two to eight rows are a link of a series, where that has room.
static bool has_kernels(const struct cuda_device *d, const struct linear_swiglu_args *a) {
    const struct linear_args *l = &a->linear;
    int64_t n_row = l->x.n_row;
    if (l->n_parts != 2 || l->residual.data != NULL || l->form != FORM_ROWS) return false;
    const struct weight *gate = l->part[0].w, *up = l->part[1].w;
    bool usual = is_usual_q4(weight_view_of(gate)) && is_usual_q4(weight_view_of(up)) && gate->n_out == up->n_out;
    bool wide =
        a->gated.out.dtype == DTYPE_F32 && l->part[0].out.dtype == DTYPE_F32 && l->part[1].out.dtype == DTYPE_F32;
    if (gate->arranged != up->arranged || !usual || !wide || l->x.n_col / PLANES_UNIT < Q4_WARPS ||
        d->shared_bytes < MOST_SHARED)
        return false;
    return has_room(d, n_row, l->x.n_col) || series_has_room(d, n_row, l->x.n_col, 2 * gate->n_out);
}

void gated_q4(struct cuda_device *d, const struct q4_job *product, const struct tensor &out) {
    struct gated_job job = {*product, out};
    if (product->n_row > 1) make_plane_rows(d, product->in, product->x);
    must(choose(d, &job));
}

bool cuda_linear_swiglu(struct device *base, const struct linear_swiglu_args *a) {
    struct cuda_device *d = cuda_of_product(base);
    const struct linear_args *l = &a->linear;
    if (!has_kernels(d, a)) return false;
    if (d->failure != cudaSuccess) return true;
    struct q4_job product = {};
    struct carver c = scratch_of(d);
    carve_planes(&c, l->x.n_row, l->x.n_col, &product.x);
    scratch_done(d, &c);
    for (int p = 0; p < 2; p++) product.part[p] = (struct rows_part){weight_view_of(l->part[p].w), {}, 0};
    product.n_part = 2;
    product.in = plane_input_of(l->x, l->norm_weight, l->norm_eps);
    product.n_unit = (int)(l->x.n_col / PLANES_UNIT);
    product.n_row = l->x.n_row;
    if (!series_add(d, &product, &a->gated.out)) gated_q4(d, &product, a->gated.out);
    return true;
}
