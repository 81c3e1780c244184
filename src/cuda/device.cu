// The CUDA device: finding it, memory, scratch, errors, and the table of operations.
#include "cuda/device.h"
#include "cuda/common.cuh"
extern "C" {
#include "base/machine.h"
}
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum status driver_too_old(struct error *e) {
    int driver = 0;
    cudaDriverGetVersion(&driver); // 0: there is none
    if (driver == 0) return error_set(e, STATUS_UNSUPPORTED, "no NVIDIA driver is installed");
    return error_set(e, STATUS_UNSUPPORTED,
                     "the NVIDIA driver knows CUDA %d.%d and this build needs %d.%d: install a newer driver",
                     driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
}

// Turns what the runtime answered into a sentence, and clears it so that a later call does not report it again.
static enum status device_error(cudaError_t code, const char *doing, struct error *e) {
    cudaGetLastError();
    switch (code) {
    case cudaErrorNoDevice: return error_set(e, STATUS_NOT_FOUND, "no NVIDIA GPU was found");
    case cudaErrorInsufficientDriver: return driver_too_old(e);
    case cudaErrorMemoryAllocation: return error_set(e, STATUS_MEMORY, "the GPU has no memory left to %s", doing);
    default: return error_set(e, STATUS_DEVICE, "the GPU could not %s: %s", doing, cudaGetErrorString(code));
    }
}

// Of something that was opened piece by piece: without a failure of the runtime it is the host that had no memory.
static enum status opening_error(const char *doing, struct error *e) {
    cudaError_t code = cudaGetLastError();
    return code != cudaSuccess ? device_error(code, doing, e) : error_memory(e);
}

extern "C" enum status cuda_device_count(int *n, struct error *e) {
    int count = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess) return device_error(code, "be counted", e);
    if (count == 0) return device_error(cudaErrorNoDevice, "be counted", e);
    *n = count;
    return STATUS_OK;
}

extern "C" enum status cuda_device_probe(int index, struct cuda_device_info *info, struct error *e) {
    int n = 0;
    enum status status = cuda_device_count(&n, e);
    if (status != STATUS_OK) return status;
    if (index < 0 || index >= n)
        return error_set(e, STATUS_INVALID, "there is no CUDA device %d: this machine has %d, counted from 0", index,
                         n);

    cudaDeviceProp properties;
    cudaError_t code = cudaGetDeviceProperties(&properties, index);
    if (code != cudaSuccess) return device_error(code, "be described", e);
    code = cudaSetDevice(index);
    if (code != cudaSuccess) return device_error(code, "be opened", e);
    size_t free_bytes = 0, total_bytes = 0;
    code = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (code != cudaSuccess) return device_error(code, "tell its free memory", e);

    snprintf(info->name, sizeof info->name, "%s", properties.name);
    info->major = properties.major;
    info->minor = properties.minor;
    info->n_processors = properties.multiProcessorCount;
    info->total_bytes = total_bytes;
    info->free_bytes = free_bytes;
    info->unified = properties.integrated != 0;
    return STATUS_OK;
}

// ---- errors: the first failure stays, later operations do nothing ----

void cuda_note(struct cuda_device *d, cudaError_t code, const char *doing) {
    if (code == cudaSuccess || d->failure != cudaSuccess) return;
    d->failure = code;
    d->failed_doing = doing;
}

void cuda_launch_fill(const struct cuda_device *d, const cudaLaunchAttribute *more, dim3 grid, dim3 threads,
                      size_t shared_bytes, struct cuda_launch *l) {
    unsigned n_with = d->major < 9 ? 0 : more != NULL ? 2 : 1;
    l->with[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    l->with[0].val.programmaticStreamSerializationAllowed = 1;
    if (more != NULL) l->with[1] = *more;
    l->config = {grid, threads, shared_bytes, d->stream, l->with, n_with};
}

void cuda_launched(struct cuda_device *d, const char *kernel) { cuda_note(d, cudaGetLastError(), kernel); }

static enum status end_wait(struct cuda_device *d, struct error *e) {
    if (d->failure != cudaSuccess)
        return error_set(e, STATUS_DEVICE, "the GPU failed (%s): %s", d->failed_doing, cudaGetErrorString(d->failure));
    draw_deliver(d);
    return STATUS_OK;
}

static enum status cuda_sync(struct device *base, struct error *e) {
    struct cuda_device *d = cuda_of(base);
    if (d->failure == cudaSuccess) cuda_note(d, cudaStreamSynchronize(d->stream), "finish its work");
    return end_wait(d, e);
}

static enum status cuda_wait(struct device *base, struct error *e) {
    struct cuda_device *d = cuda_of(base);
    if (d->failure == cudaSuccess) draw_wait(d);
    return end_wait(d, e);
}

// ---- memory ----

static void *cuda_alloc(struct device *base, size_t bytes) {
    void *p = NULL;
    cuda_of(base);
    if (cudaMalloc(&p, bytes > 0 ? bytes : 1) == cudaSuccess) return p;
    cudaGetLastError(); // out of memory is an answer here, and no failure of the device
    return NULL;
}

// Freeing waits for the device, so that nothing still uses the memory.
static void cuda_release(struct device *base, void *memory) {
    struct cuda_device *d = cuda_of(base); // first: it sends copies that still want the memory
    cuda_note(d, cudaFree(memory), "free memory");
}

static void copy_and_wait(struct cuda_device *d, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    if (bytes == 0 || d->failure != cudaSuccess) return;
    cuda_note(d, cudaMemcpyAsync(to, from, bytes, kind, d->stream), "copy memory");
    cuda_note(d, cudaStreamSynchronize(d->stream), "copy memory");
}

static void cuda_copy_in(struct device *base, void *device_memory, const void *host, size_t bytes) {
    copy_and_wait(cuda_of(base), device_memory, host, bytes, cudaMemcpyHostToDevice);
}

static void cuda_copy_out(struct device *base, void *host, const void *device_memory, size_t bytes) {
    copy_and_wait(cuda_of(base), host, device_memory, bytes, cudaMemcpyDeviceToHost);
}

static int64_t cuda_memory(struct device *base, int64_t *total_bytes) {
    size_t free_bytes = 0, total = 0;
    if (cuda_of(base)->unified) { // what the host can give, which counts what it would take from its file cache
        *total_bytes = machine_memory_total();
        return machine_memory_available();
    }
    cuda_note(cuda_of(base), cudaMemGetInfo(&free_bytes, &total), "tell its free memory");
    *total_bytes = (int64_t)total;
    return (int64_t)free_bytes;
}

static size_t scratch_need(const struct device_limits *l) {
    size_t (*const needs[])(const struct device_limits *) = {
        need_linear, need_attention, need_delta, need_router, need_experts, need_draw, need_block_attention, need_moe};
    size_t most = CUDA_ALIGN;
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++)
        if (needs[i](l) > most) most = needs[i](l);
    return most;
}

static size_t cuda_reserve_bytes(struct device *base, const struct device_limits *l) {
    (void)base;
    return scratch_need(l) + CUDA_TABLE_SLOTS * (batch_table_bytes(l) + draw_list_bytes(l)) + draw_usual_bytes(l);
}

static enum status cuda_reserve(struct device *base, const struct device_limits *l, struct error *e) {
    struct cuda_device *d = cuda_of(base);
    if (l->key_dim > 128 || l->value_dim > 128 || l->key_dim % 16 != 0 || l->value_dim % 4 != 0)
        return error_set(e, STATUS_UNSUPPORTED, "the CUDA backend has no delta rule for heads of %d and %d",
                         (int)l->key_dim, (int)l->value_dim);
    enum status st = cuda_sync(base, e);
    if (st != STATUS_OK) return st;
    cudaFree(d->scratch);
    d->scratch = NULL;
    d->batch = NULL;
    d->scratch_bytes = scratch_need(l);
    d->expanded_bytes = need_expanded(l);
    cudaGetLastError(); // of what was freed
    bool ok = cudaMalloc(&d->scratch, d->scratch_bytes) == cudaSuccess &&
              upload_ring_open(&d->tables, batch_table_bytes(l)) && upload_ring_open(&d->lists, draw_list_bytes(l)) &&
              draw_open(d, l);
    if (!ok) return opening_error("hold the results between operations", e);
    d->limits = *l;
    return STATUS_OK;
}

static void cuda_poison(struct device *base) {
    struct cuda_device *d = cuda_of(base);
    if (d->scratch != NULL)
        cuda_note(d, cudaMemsetAsync(d->scratch, 0xff, d->scratch_bytes, d->stream), "overwrite scratch");
}

static void cuda_destroy(struct device *base) {
    struct cuda_device *d = (struct cuda_device *)base;
    cudaSetDevice(d->index);
    if (d->stream != NULL) cudaStreamSynchronize(d->stream);
    draw_close(d);
    series_close(d);
    transfers_close(d);
    blas_close(d);
    upload_ring_close(&d->tables);
    upload_ring_close(&d->lists);
    cudaFree(d->scratch);
    cudaFree(d->arrived);
    if (d->stream != NULL) cudaStreamDestroy(d->stream);
    free(d);
}

// ---- the device ----

static const struct ops cuda_ops = {
    cuda_begin,     cuda_embed,      cuda_norm,          cuda_linear,       cuda_qk_store,
    cuda_attention, cuda_conv,       cuda_delta,         cuda_delta_commit, cuda_swiglu,
    cuda_router,    cuda_experts,    cuda_draw,          cuda_block_conv,   cuda_block_attention,
    cuda_moe,       cuda_conv_delta, cuda_linear_swiglu,
};

static void fill_device(struct cuda_device *d, const struct cuda_device_info *info) {
    snprintf(d->name, sizeof d->name, "cuda %s, compute capability %d.%d%s", info->name, info->major, info->minor,
             info->unified ? ", memory shared with the host" : "");
    d->major = info->major;
    d->minor = info->minor;
    d->n_processors = info->n_processors;
    int shared_bytes = 0;
    cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor, d->index);
    d->shared_bytes = (size_t)shared_bytes;
    d->unified = info->unified;
    d->base.ops = &cuda_ops;
    d->base.name = d->name;
    d->base.compute = COMPUTE_BF16;
    d->base.activation = DTYPE_F32;
    d->base.kv = DTYPE_BF16;
    d->base.works_behind = true;
    d->base.in_host_memory = info->unified;
    d->base.memory = cuda_memory;
    d->base.alloc = cuda_alloc;
    d->base.release = cuda_release;
    d->base.copy_in = cuda_copy_in;
    d->base.copy_out = cuda_copy_out;
    d->base.arrange = cuda_arrange;
    d->base.copy = cuda_copy;
    d->base.transfer = cuda_transfer;
    d->base.transfer_done = cuda_transfer_done;
    d->base.reserve = cuda_reserve;
    d->base.reserve_bytes = cuda_reserve_bytes;
    d->base.sync = cuda_sync;
    d->base.wait = cuda_wait;
    d->base.poison = cuda_poison;
    d->base.destroy = cuda_destroy;
}

extern "C" enum status cuda_device_create(int index, struct device **out, struct error *e) {
    struct cuda_device_info info;
    enum status st = cuda_device_probe(index, &info, e);
    if (st != STATUS_OK) return st;
    if (info.major < 8)
        return error_set(e, STATUS_UNSUPPORTED, "%s has compute capability %d.%d and 8.0 is needed", info.name,
                         info.major, info.minor);
    struct cuda_device *d = (struct cuda_device *)calloc(1, sizeof *d);
    if (d == NULL) return error_memory(e);
    d->index = index;
    fill_device(d, &info);
    cudaError_t code = cudaStreamCreateWithFlags(&d->stream, cudaStreamNonBlocking);
    if (code == cudaSuccess) code = cudaMalloc(&d->arrived, sizeof *d->arrived);
    if (code == cudaSuccess) code = cudaMemsetAsync(d->arrived, 0, sizeof *d->arrived, d->stream);
    st = code == cudaSuccess ? STATUS_OK : device_error(code, "be opened", e);
    if (st == STATUS_OK && !(series_open(d) && transfers_open(d))) st = opening_error("be opened", e);
    if (st != STATUS_OK) {
        cuda_destroy(&d->base);
        return st;
    }
    blas_open(d);
    *out = &d->base;
    return STATUS_OK;
}
