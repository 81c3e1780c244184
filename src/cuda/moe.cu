// moe: whether the kernels take the weights, and where what they hand on to each other lies.
#include "cuda/moe.cuh"
#include "cuda/units_q4.cuh"
#include <string.h>

struct moe_layout {
    float *h, *y, *factors;
    char *x, *h_rows, *few_list;
    struct pair_groups groups;
    const char **table; // [3 kinds][E][3]
    int64_t most_tiles;
};

static void carve_moe(struct carver *c, struct moe_layout *l, int64_t n_row, int64_t n_used, int64_t n_expert,
                      int64_t hidden, int64_t width) {
    int64_t n_pair = n_row * (n_used + 1), n_tile = n_pair < n_expert + 1 ? n_pair : n_expert + 1;
    l->most_tiles = n_pair / MOE_TILE_PAIRS + n_tile;
    l->h = (float *)carve(c, (size_t)(n_pair * width) * sizeof(float));
    l->y = (float *)carve(c, (size_t)(n_pair * hidden) * sizeof(float));
    l->x = (char *)carve(c, (size_t)(n_row * moe_row_bytes((int)ceil_div(hidden, MOE_GROUP))));
    l->h_rows = (char *)carve(c, (size_t)(n_pair * moe_row_bytes((int)ceil_div(width, MOE_GROUP))));
    l->factors = (float *)carve(c, (size_t)n_row * sizeof(float));
    l->groups.list = (int32_t *)carve(c, (size_t)n_pair * sizeof(int32_t));
    l->groups.tile = (struct pair_tile *)carve(c, (size_t)l->most_tiles * sizeof(struct pair_tile));
    l->groups.n_tile = (int32_t *)carve(c, sizeof(int32_t));
    l->few_list = (char *)carve(c, (size_t)((n_pair + 1) * MOE_FEW_ENTRY));
    l->table = (const char **)carve(c, (size_t)(9 * n_expert) * sizeof(char *));
}

size_t need_moe(const struct device_limits *l) {
    if (l->n_expert == 0) return 0;
    struct carver c = {NULL, 0};
    struct moe_layout m;
    int64_t most = MOE_MOST_GROUPS * MOE_GROUP, hidden = l->max_in < most ? l->max_in : most;
    int64_t width = l->expert_width < most ? l->expert_width : most;
    carve_moe(&c, &m, l->max_round_rows, l->n_used, l->n_expert, hidden, width);
    return c.used + router_logits_bytes(l->max_round_rows, l->n_expert) + CUDA_ALIGN;
}

// Of the usual kind, and as a lane has its groups.
static bool fits(const struct expert_weights &w, const struct weight *shared) {
    struct weight_view v = rows_view_of(shared);
    return w.usual && is_usual_q4(v) && v.n_in == w.first.n_in && v.n_out == w.first.n_out &&
           v.n_in <= MOE_MOST_GROUPS * MOE_GROUP;
}

static bool rows_fit(const struct moe_args *a) {
    const struct experts_args *e = &a->experts;
    return rows_are_wide(a->norm.x) && (uintptr_t)a->norm.weight % 16 == 0 && e->n_used < MOE_MOST_PAIRS &&
           e->x.n_row * (e->n_used + 1) < MOE_MOST_LIST && a->router.shared_gate != NULL &&
           a->norm.x.n_col <= MOE_MOST_GROUPS * MOE_GROUP && e->gate[0].n_out <= MOE_MOST_GROUPS * MOE_GROUP &&
           a->norm.x.n_col % 128 == 0 && e->gate[0].n_out % 128 == 0;
}

static void fill_job(struct moe_job *job, const struct moe_args *a, const struct moe_layout *l) {
    const struct experts_args *e = &a->experts;
    job->router.x = a->norm.x;
    job->norm_weight = a->norm.weight;
    job->eps = a->norm.eps;
    job->shared_gate = moe_matrix_of(rows_view_of(a->gate));
    job->shared_up = moe_matrix_of(rows_view_of(a->up));
    job->shared_down = moe_matrix_of(rows_view_of(a->down));
    job->n_expert = e->n_expert;
    job->n_used = e->n_used;
    job->n_row = (int)e->x.n_row;
    job->tile_pairs = job->n_row <= 8 ? MOE_TILE_PAIRS : 2 * MOE_TILE_PAIRS; // a few rows want all the warps there are
    job->x_groups = (int)(a->norm.x.n_col / MOE_GROUP);
    job->h_groups = (int)(e->gate[0].n_out / MOE_GROUP);
    job->residual = e->residual;
    job->out = e->out;
    job->h = l->h;
    job->y = l->y;
    job->x = l->x;
    job->h_rows = l->h_rows;
    job->factors = l->factors;
    job->groups = l->groups;
    job->few_list = l->few_list;
}

bool cuda_moe(struct device *base, const struct moe_args *a) {
    struct cuda_device *d = cuda_of(base);
    const struct experts_args *e = &a->experts;
    if (d->failure != cudaSuccess || e->x.n_row == 0) return true;
    if (e->form != FORM_ROWS || !rows_fit(a)) return false;
    struct carver c = scratch_of(d);
    struct moe_layout l;
    struct moe_job job;
    memset(&job, 0, sizeof job);
    carve_moe(&c, &l, e->x.n_row, e->n_used, e->n_expert, a->norm.x.n_col, e->gate[0].n_out);
    job.router = router_job_of(d, &a->router, &c);
    scratch_done(d, &c);
    job.gate = find_expert_weights(d, e->gate, e->n_expert, e->lie_evenly, l.table);
    job.up = find_expert_weights(d, e->up, e->n_expert, e->lie_evenly, l.table + 3 * e->n_expert);
    job.down = find_expert_weights(d, e->down, e->n_expert, e->lie_evenly, l.table + 6 * e->n_expert);
    if (!fits(job.gate, a->gate) || !fits(job.up, a->up) || !fits(job.down, a->down)) return false;
    fill_job(&job, a, &l);
    job.is_few = job.n_row > 1 && moe_few_fits(d, a, &job);
    moe_open(d, &job);
    if (job.n_row == 1)
        moe_one(d, &job);
    else if (job.is_few)
        moe_few(d, &job);
    else
        moe_many(d, &job, l.most_tiles);
    return true;
}
