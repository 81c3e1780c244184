// Planes of rows in global memory: one block a row.
#include "cuda/planes_make.cuh"

static __global__ void __launch_bounds__(PLANES_THREADS)
    planes_kernel(const __grid_constant__ plane_input in, const __grid_constant__ plane_rows p) {
    __shared__ uint2 shared[PLANES_THREADS / 32];
    begin_kernel();
    make_planes<PLANES_TILE>(in, blockIdx.x, planes_of_row(p, blockIdx.x), shared);
}

void carve_planes(struct carver *c, int64_t n_row, int64_t n_in, struct plane_rows *p) {
    int64_t n_padded = ceil_div(n_row, PLANES_TILE) * PLANES_TILE;
    p->n_group = (int)(n_in / 64);
    p->x = (char *)carve(c, (size_t)(n_padded * planes_x_bytes(p->n_group)));
    p->sums = (char *)carve(c, (size_t)(n_padded * planes_sum_bytes(p->n_group)));
    p->scales = (float *)carve(c, (size_t)n_padded * sizeof(float));
}

void make_plane_rows(struct cuda_device *d, const struct plane_input &in, const struct plane_rows &p) {
    cuda_start(d, "planes of rows", planes_kernel, dim3((unsigned)in.x.n_row), PLANES_THREADS, 0, in, p);
}
