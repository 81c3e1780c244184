// Planes of rows in global memory: one block a row.
#include "cuda/planes_make.cuh"

#define THREADS 512

static __global__ void __launch_bounds__(THREADS)
    planes_kernel(const __grid_constant__ plane_input in, const __grid_constant__ plane_rows p) {
    let_next_start();
    warm_planes(in, p.n_unit, threadIdx.x / 32, THREADS / 32);
    wait_for_earlier();
    int64_t row = blockIdx.x;
    struct planes at = planes_of_row(p, row);
    make_planes<PLANES_TILE>(in, row, p.n_unit, at, threadIdx.x / 32, THREADS / 32);
    __syncthreads();
    if (threadIdx.x >= 32) return;
    float factor = plane_factor<PLANES_TILE>(in, p.n_unit, at.notes);
    if (threadIdx.x == 0) p.factors[row] = factor;
}

void carve_planes(struct carver *c, int64_t n_row, int64_t n_in, struct plane_rows *p) {
    int64_t n_padded = ceil_div(n_row, PLANES_TILE) * PLANES_TILE;
    p->n_unit = (int)(n_in / PLANES_UNIT);
    p->x = (char *)carve(c, (size_t)(n_padded * p->n_unit * PLANES_UNIT_X));
    p->notes = (struct plane_note *)carve(c, (size_t)(n_padded * p->n_unit) * sizeof(struct plane_note));
    p->factors = (float *)carve(c, (size_t)n_padded * sizeof(float));
}

bool leave_planes(struct cuda_device *d, const struct tensor &out, int64_t n_multiple, struct plane_rows *p) {
    struct carver c = scratch_of(d);
    if (d->form != FORM_ROWS || out.n_row > d->limits.max_round_rows || out.n_col % n_multiple != 0) return false;
    carve_planes(&c, out.n_row, out.n_col, p);
    if (c.used > d->scratch_bytes) return false;
    d->left = (struct left_rows){out.data, out.n_row, out.n_col, out.stride};
    return true;
}

void make_plane_rows(struct cuda_device *d, const struct plane_input &in, const struct plane_rows &p) {
    cuda_start(d, "planes of rows", planes_kernel, dim3((unsigned)in.x.n_row), THREADS, 0, in, p);
}
