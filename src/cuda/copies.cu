// Copies on the device: rows that wait for a drafter, or that it is given. A round has several of each stream, and each
// would be an order of its own between kernels, so those that do not touch each other are put aside and go together
// before the next operation (cuda_of).
#include "cuda/device.cuh"

#define THREADS   256
#define MOST      ((size_t)256 << 10) // bytes of a copy that is put aside; larger ones go by themselves
#define ROW_BYTES (THREADS * sizeof(uint4))

struct copies_job {
    struct copy_entry copies[COPIES_MOST];
};

static __global__ void __launch_bounds__(THREADS) copies_kernel(const __grid_constant__ copies_job job) {
    begin_kernel();
    const struct copy_entry &c = job.copies[blockIdx.y];
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < c.bytes / sizeof(uint4)) ((uint4 *)c.to)[i] = ((const uint4 *)c.from)[i];
}

void copies_send(struct cuda_device *d) {
    struct copies_job job;
    size_t most = 0;
    int n = d->n_copy;
    d->n_copy = 0;
    if (d->failure != cudaSuccess) return;
    for (int i = 0; i < n; i++) {
        job.copies[i] = d->copies[i];
        if (d->copies[i].bytes > most) most = d->copies[i].bytes;
    }
    dim3 grid((unsigned)ceil_div((int64_t)most, ROW_BYTES), (unsigned)n);
    cuda_start(d, "copies", copies_kernel, grid, THREADS, 0, job);
}

static bool overlap(const char *a, size_t a_bytes, const char *b, size_t b_bytes) {
    return a < b + b_bytes && b < a + a_bytes;
}

// Whether two copies may be made in any order.
static bool are_apart(const struct copy_entry &a, const struct copy_entry &b) {
    return !overlap(a.to, a.bytes, b.to, b.bytes) && !overlap(a.to, a.bytes, b.from, b.bytes) &&
           !overlap(a.from, a.bytes, b.to, b.bytes);
}

void cuda_copy(struct device *base, void *to, const void *from, size_t bytes) {
    struct cuda_device *d = (struct cuda_device *)base;
    struct copy_entry c = {(char *)to, (const char *)from, bytes};
    if (bytes == 0 || d->failure != cudaSuccess) return;
    cudaSetDevice(d->index);
    series_send(d);
    d->left.data = NULL; // what is put aside has not come through cuda_of, and may be written over what was left
    bool apart = d->n_copy < COPIES_MOST;
    for (int i = 0; i < d->n_copy && apart; i++) apart = are_apart(d->copies[i], c);
    if (!apart) cuda_of(base); // sends what is put aside
    if (bytes <= MOST && ((uintptr_t)to | (uintptr_t)from | bytes) % sizeof(uint4) == 0) {
        d->copies[d->n_copy++] = c;
        return;
    }
    cuda_of(base);
    cuda_note(d, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, d->stream), "copy memory");
}
