// Owns what the CUDA backend's files share on the host's side: the device, its scratch, launches and errors.
#ifndef TF_CUDA_COMMON_CUH
#define TF_CUDA_COMMON_CUH

#include "cuda/batch.cuh"
#include "cuda/ops.cuh"
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#define CUDA_ALIGN      256 // of device memory
#define CUDA_TILE_KEYS  64  // keys of an attention tile, at absolute positions
#define CUDA_CHUNK_KEYS 512 // keys of a partial result in FORM_ROWS, at absolute positions
#define CUDA_DELTA_ROWS 64  // rows of a delta-rule chunk, at absolute positions
#define CUDA_ROW_PAD    128 // prepared rows are zeros up to a multiple of so many elements

struct draw_state; // draw.cu
struct series;     // series.cuh
struct transfers;  // transfers.cu
struct blas_state; // linear_expanded.cu

// Copies on the device that wait for the next operation: copies.cu.
#define COPIES_MOST 64

struct copy_entry {
    char *to;
    const char *from;
    size_t bytes;
};

// A tensor whose rows an operation has left as planes at the front of the scratch, beside writing it (planes.cuh).
struct left_rows {
    const void *data; // NULL: there are none
    int64_t n_row, n_col, stride;
};

struct cuda_device {
    struct device base;
    int index, n_processors, major, minor;
    size_t shared_bytes; // of a processor
    unsigned *arrived;   // on the device: blocks of a kernel that are done, 0 between kernels
    bool unified;
    cudaStream_t stream;
    cudaError_t failure; // the first; later calls do nothing
    const char *failed_doing;
    struct device_limits limits;
    char *scratch;
    size_t scratch_bytes;
    struct upload_ring tables, lists;
    const struct batch *batch; // whose tables are on the device
    struct batch_view view;
    enum form form;               // of the batch
    struct left_rows left, found; // by this call of the table, and by the call before it
    struct draw_state *draw;
    struct series *series; // products that wait for the next operation
    struct transfers *transfers;
    struct blas_state *blas; // NULL: the library is not there
    size_t expanded_bytes;   // of scratch, for one matrix as bf16
    struct copy_entry copies[COPIES_MOST];
    int n_copy;
    char name[384];
};

// What waits: of copies and of products one at most does.
void copies_send(struct cuda_device *d);
void series_send(struct cuda_device *d);

// Every entry of the table comes through here: the runtime's current device belongs to a thread, and another than the
// one that opened the device may use it. What a call leaves is there for the next call alone: nothing stale is found.
// Before another product those that wait may go on waiting.
static inline struct cuda_device *cuda_of_product(struct device *base) {
    struct cuda_device *d = (struct cuda_device *)base;
    cudaSetDevice(d->index);
    if (d->n_copy > 0) copies_send(d);
    d->found = d->left;
    d->left.data = NULL;
    return d;
}
static inline struct cuda_device *cuda_of(struct device *base) {
    struct cuda_device *d = cuda_of_product(base);
    series_send(d);
    return d;
}

// Keeps the first failure, which is reported by sync.
void cuda_note(struct cuda_device *d, cudaError_t code, const char *doing);
// After each launch.
void cuda_launched(struct cuda_device *d, const char *kernel);

struct cuda_launch {
    cudaLaunchAttribute with[2];
    cudaLaunchConfig_t config; // which points to them: not to be copied
};
void cuda_launch_fill(const struct cuda_device *d, const cudaLaunchAttribute *more, dim3 grid, dim3 threads,
                      size_t shared_bytes, struct cuda_launch *l);

// Starts a kernel that calls begin_kernel (device.cuh). On compute capability 9.0 and newer its blocks take their
// places while the kernel before still runs, and the launch has one attribute more, unless that is NULL.
template <typename... P, typename... A>
static inline void cuda_start_with(struct cuda_device *d, const char *name, const cudaLaunchAttribute *more,
                                   void (*kernel)(P...), dim3 grid, dim3 threads, size_t shared_bytes, A... arguments) {
    struct cuda_launch l;
    cuda_launch_fill(d, more, grid, threads, shared_bytes, &l);
    cuda_note(d, cudaLaunchKernelEx(&l.config, kernel, arguments...), name);
    cuda_launched(d, name);
}
template <typename... P, typename... A>
static inline void cuda_start(struct cuda_device *d, const char *name, void (*kernel)(P...), dim3 grid, dim3 threads,
                              size_t shared_bytes, A... arguments) {
    struct cuda_launch l;
    cuda_launch_fill(d, NULL, grid, threads, shared_bytes, &l);
    cuda_note(d, cudaLaunchKernelEx(&l.config, kernel, arguments...), name);
    cuda_launched(d, name);
}

// Hands out scratch from the front of the block; with base NULL it only adds up.
struct carver {
    char *base;
    size_t used;
};

static inline void *carve(struct carver *c, size_t bytes) {
    void *p = c->base != NULL ? c->base + c->used : NULL;
    c->used += (bytes + CUDA_ALIGN - 1) / CUDA_ALIGN * CUDA_ALIGN;
    return p;
}

static inline struct carver scratch_of(struct cuda_device *d) { return (struct carver){d->scratch, 0}; }
static inline void scratch_done(const struct cuda_device *d, const struct carver *c) {
    must(c->used <= d->scratch_bytes);
}

static inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

// ---- batch.cu ----
bool upload_ring_open(struct upload_ring *r, size_t slot_bytes);
void upload_ring_close(struct upload_ring *r);
// Waits until the next slot is free, and returns its pinned side; upload_send copies `bytes` and returns the device's.
char *upload_take(struct cuda_device *d, struct upload_ring *r);
char *upload_send(struct cuda_device *d, struct upload_ring *r, size_t bytes);
size_t batch_table_bytes(const struct device_limits *l);
void cuda_begin(struct device *d, const struct batch *batch);
// The batch's tables: those that begin brought, or brought now for a batch that it has not seen.
const struct batch_view *cuda_batch(struct cuda_device *d, const struct batch *batch);

#endif
