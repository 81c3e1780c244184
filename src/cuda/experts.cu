// experts: rows are grouped by expert on the device, so that an expert's weights are read once for all its rows.
//   1. rows prepared; pairs listed by expert and cut into tiles
//   2. gate and up of all pairs, in fp32; 3. activation, prepared; 4. down of all pairs, in fp32
//   5. each row's sum: residual, experts in slot order, shared expert
// Rounds with weights of the usual kind have 1 to 4 in fewer launches: experts_q4.cu.
// Where a pair stands in a tile has no influence on its bits.
#include "cuda/experts.cuh"
#include "cuda/tile_rows.cuh"
#include "cuda/units_q4.cuh"
#include <stdlib.h>
#include <string.h>

#define THREADS       256
#define GROUP_THREADS 1024

static __global__ void __launch_bounds__(GROUP_THREADS)
    group_kernel(const int32_t *ids, int n_pair, int n_expert, int tile_pairs, struct pair_groups groups) {
    extern __shared__ int32_t shared[];
    begin_kernel();
    group_pairs(ids, n_pair, n_expert, tile_pairs, groups, shared);
}

// h = silu(gate) * up in the terms of FORM_ROWS, zeros up to the stride.
static __global__ void activate_kernel(const float *gate, const float *up, int64_t width, struct prepared h) {
    begin_kernel();
    int64_t pair = blockIdx.x;
    for (int64_t i = threadIdx.x; i < h.stride; i += THREADS) {
        float v = i < width ? silu_of(gate[pair * width + i]) * up[pair * width + i] : 0.0f;
        __nv_bfloat16 first = __float2bfloat16_rn(v);
        h.rows[pair * h.stride + i] = first;
        if (h.second != 0) h.rows[h.second + pair * h.stride + i] = __float2bfloat16_rn(v - __bfloat162float(first));
    }
}

struct combine_job {
    struct tensor residual, shared_out, out;
    const float *y, *weights, *shared; // y: [pair][H]
    int n_used;
};

static __global__ void combine_kernel(const __grid_constant__ combine_job job) {
    begin_kernel();
    int64_t t = blockIdx.y, i = (int64_t)blockIdx.x * THREADS + threadIdx.x, n = job.out.n_col;
    if (i >= n) return;
    float sum = tensor_load(job.residual, t, i);
    for (int s = 0; s < job.n_used; s++) sum += job.weights[t * job.n_used + s] * job.y[(t * job.n_used + s) * n + i];
    if (job.shared_out.data != NULL) sum += job.shared[t] * tensor_load(job.shared_out, t, i);
    tensor_store(job.out, t, i, sum);
}

struct experts_layout {
    struct prepared x, h;                  // FORM_ROWS
    struct plane_rows planes;              // FORM_ROWS, weights of the usual kind
    struct prompt_rows prompt_x, prompt_h; // FORM_PROMPT
    float *gate, *up, *y;                  // FORM_PROMPT: y takes the place of gate and up, which are done with by then
    struct pair_groups groups;
    const char **table; // [3 kinds][E][3]
    int64_t most_tiles;
};

static int tile_pairs(enum form form) { return form == FORM_ROWS ? EXPERT_TILE_ROWS : EXPERT_TILE_PROMPT; }

static void carve_experts(struct carver *c, struct experts_layout *l, enum form form, int64_t n_row, int64_t n_used,
                          int64_t n_expert, int64_t hidden, int64_t width) {
    int64_t n_pair = n_row * n_used;
    int64_t least = form == FORM_ROWS ? PLANES_TILE : EXPERT_TILE_PROMPT; // pairs of a tile
    l->most_tiles = n_pair / least + (n_pair < n_expert ? n_pair : n_expert);
    if (form == FORM_ROWS) {
        carve_prepared(c, n_row, hidden, false, &l->x);
        carve_prepared(c, n_pair, width, false, &l->h);
    } else {
        carve_prompt_rows(c, n_row, hidden, 2, &l->prompt_x);
        carve_prompt_rows(c, n_pair, width, 2, &l->prompt_h);
    }
    size_t product = (size_t)(n_pair * width) * sizeof(float), y = (size_t)(n_pair * hidden) * sizeof(float);
    bool is_prompt = form == FORM_PROMPT;
    char *products = (char *)carve(c, (size_t)larger(is_prompt ? (int64_t)y : 0, 2 * (int64_t)product));
    l->gate = (float *)products;
    l->up = (float *)(products + product);
    l->y = is_prompt ? (float *)products : (float *)carve(c, y);
    if (!is_prompt) carve_planes(c, n_row, hidden, &l->planes);
    l->groups.list = (int32_t *)carve(c, (size_t)n_pair * sizeof(int32_t));
    l->groups.tile = (struct pair_tile *)carve(c, (size_t)l->most_tiles * sizeof(struct pair_tile));
    l->groups.n_tile = (int32_t *)carve(c, sizeof(int32_t));
    l->table = (const char **)carve(c, (size_t)(9 * n_expert) * sizeof(char *));
}

size_t need_experts(const struct device_limits *l) {
    if (l->n_expert == 0) return 0;
    struct carver rows = {NULL, 0}, prompt = {NULL, 0};
    struct experts_layout e;
    carve_experts(&rows, &e, FORM_ROWS, l->max_round_rows, l->n_used, l->n_expert, l->max_in, l->expert_width);
    carve_experts(&prompt, &e, FORM_PROMPT, l->max_rows, l->n_used, l->n_expert, l->max_in, l->expert_width);
    return rows.used > prompt.used ? rows.used : prompt.used;
}

static int64_t step_of(const void *a, const void *b) { return (const char *)b - (const char *)a; }

// A model's experts lie one after another; only where they do not is a table sent, from pageable memory, which waits.
struct expert_weights find_expert_weights(struct cuda_device *d, const struct weight *w, int n, bool even,
                                          const char **table) {
    struct expert_weights x;
    memset(&x, 0, sizeof x);
    x.first = rows_view_of(&w[0]);
    x.usual = is_usual_q4(x.first);
    if (n < 2) return x;
    x.data_step = step_of(w[0].data, w[1].data);
    bool affine = w[0].kind == WEIGHT_AFFINE, known = even;
    if (affine) {
        x.scales_step = step_of(w[0].scales, w[1].scales);
        x.biases_step = step_of(w[0].biases, w[1].biases);
    }
    even = true;
    for (int e = 1; e < n && even && !known; e++)
        even = step_of(w[e - 1].data, w[e].data) == x.data_step &&
               (!affine || (step_of(w[e - 1].scales, w[e].scales) == x.scales_step &&
                            step_of(w[e - 1].biases, w[e].biases) == x.biases_step));
    if (even) { // they are alike, so that the steps decide whether all are aligned as the first is
        x.usual = x.usual && x.data_step % 16 == 0 && x.scales_step % 4 == 0 && x.biases_step % 4 == 0;
        return x;
    }
    for (int e = 1; e < n; e++) x.usual = x.usual && is_usual_q4(rows_view_of(&w[e]));
    const void **host = (const void **)malloc((size_t)(3 * n) * sizeof *host);
    must(host != NULL);
    for (int e = 0; e < n; e++) {
        host[3 * e] = w[e].data;
        host[3 * e + 1] = w[e].scales;
        host[3 * e + 2] = w[e].biases;
    }
    cuda_note(d, cudaMemcpyAsync(table, host, (size_t)(3 * n) * sizeof *host, cudaMemcpyHostToDevice, d->stream),
              "upload tables");
    cuda_note(d, cudaStreamSynchronize(d->stream), "upload tables");
    free(host);
    x.table = (const char *const *)table;
    return x;
}

static bool are_alike(const struct weight_view &a, const struct weight_view &b) {
    return a.weight_class == b.weight_class && (a.group == 32) == (b.group == 32);
}

static void run_product(struct cuda_device *d, enum form form, struct expert_product *p, int64_t most_tiles) {
    p->n_warp = rows_warps(p->w[0].first.n_in, p->w[0].first.weight_class);
    if (form == FORM_ROWS)
        experts_product_rows(d, p, most_tiles);
    else
        experts_product_prompt(d, p, most_tiles);
}

// Rows in the form that the products take.
static void take_rows(struct cuda_device *d, const struct experts_args *a, const struct experts_layout *l,
                      struct expert_product *p) {
    if (a->form == FORM_PROMPT) {
        p->rows = l->prompt_x;
        prepare_prompt(d, a->x, NULL, 0, &p->rows);
        return;
    }
    struct prepared x = l->x;
    prepare_rows(d, a->x, NULL, 0, &x);
    p->x = x.rows;
    p->x_stride = x.stride;
    p->x_second = x.second;
}

static void activate(struct cuda_device *d, enum form form, int64_t n_pair, int64_t width,
                     const struct experts_layout *l, struct expert_product *p) {
    if (form == FORM_PROMPT) {
        p->rows = l->prompt_h;
        prepare_activated(d, {l->gate, DTYPE_F32, n_pair, width, width}, {l->up, DTYPE_F32, n_pair, width, width},
                          &p->rows);
        return;
    }
    cuda_start(d, "experts, activation", activate_kernel, dim3((unsigned)n_pair), THREADS, 0, (const float *)l->gate,
               (const float *)l->up, width, l->h);
    p->x = l->h.rows;
    p->x_stride = l->h.stride;
    p->x_second = l->h.second;
}

// Products with weights of any kind.
static void run_any(struct cuda_device *d, const struct experts_args *a, const struct expert_matrices *w,
                    const struct experts_layout *l) {
    int64_t n_pair = a->x.n_row * a->n_used, width = w->gate.first.n_out;
    cuda_start(d, "experts, groups", group_kernel, dim3(1), GROUP_THREADS, group_shared_bytes(a->n_expert), a->ids,
               (int)n_pair, a->n_expert, tile_pairs(a->form), l->groups);

    struct expert_product p;
    memset(&p, 0, sizeof p);
    p.groups = l->groups;
    p.x_divisor = a->n_used;
    take_rows(d, a, l, &p);
    p.w[0] = w->gate;
    p.w[1] = w->up;
    p.y[0] = l->gate;
    p.y[1] = l->up;
    p.n_matrix = are_alike(w->gate.first, w->up.first) ? 2 : 1;
    run_product(d, a->form, &p, l->most_tiles);
    if (p.n_matrix == 1) {
        p.w[0] = w->up;
        p.y[0] = l->up;
        run_product(d, a->form, &p, l->most_tiles);
    }
    activate(d, a->form, n_pair, width, l, &p);
    p.w[0] = w->down;
    p.y[0] = l->y;
    p.n_matrix = p.x_divisor = 1;
    run_product(d, a->form, &p, l->most_tiles);
}

void cuda_experts(struct device *base, const struct experts_args *a) {
    struct cuda_device *d = cuda_of(base);
    int64_t n_row = a->x.n_row, hidden = a->x.n_col, width = a->gate[0].n_out;
    if (d->failure != cudaSuccess || n_row == 0) return;
    struct carver c = scratch_of(d);
    struct experts_layout l;
    carve_experts(&c, &l, a->form, n_row, a->n_used, a->n_expert, hidden, width);
    scratch_done(d, &c);
    struct expert_matrices w = {find_expert_weights(d, a->gate, a->n_expert, a->lie_evenly, l.table),
                                find_expert_weights(d, a->up, a->n_expert, a->lie_evenly, l.table + 3 * a->n_expert),
                                find_expert_weights(d, a->down, a->n_expert, a->lie_evenly, l.table + 6 * a->n_expert)};
    struct expert_q4_room room = {l.planes, l.gate, l.up, l.y, l.groups, l.most_tiles};
    if (a->form == FORM_ROWS && experts_q4_fit(&w))
        experts_q4_rows(d, a, &w, &room);
    else
        run_any(d, a, &w, &l);
    struct combine_job job = {a->residual, a->shared_out, a->out, l.y, a->weights, a->shared, a->n_used};
    cuda_start(d, "experts, sums", combine_kernel, dim3((unsigned)ceil_div(hidden, THREADS), (unsigned)n_row), THREADS,
               0, job);
}
