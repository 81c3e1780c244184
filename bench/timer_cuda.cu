#include "bench/timer_cuda.h"
#include "cuda/common.cuh"
#include <stdlib.h>

struct recording {
    struct cuda_device *device;
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    cudaEvent_t start, end;
};

static enum status failed(cudaError_t code, const char *doing, struct error *e) {
    return error_set(e, STATUS_DEVICE, "the GPU could not %s: %s", doing, cudaGetErrorString(code));
}

enum status recording_make(struct device *base, void (*work)(void *context), void *context, struct recording **out,
                           struct error *e) {
    struct cuda_device *d = cuda_of(base);
    struct recording *r = (struct recording *)calloc(1, sizeof *r);
    if (r == NULL) return error_memory(e);
    r->device = d;
    cudaError_t code = cudaEventCreate(&r->start);
    if (code == cudaSuccess) code = cudaEventCreate(&r->end);
    if (code == cudaSuccess) code = cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeThreadLocal);
    if (code == cudaSuccess) {
        work(context);
        cuda_of(base); // sends what is put aside, which belongs to the work
        code = cudaStreamEndCapture(d->stream, &r->graph);
    }
    if (code == cudaSuccess) code = cudaGraphInstantiate(&r->replay, r->graph, 0);
    if (code == cudaSuccess) code = cudaGraphUpload(r->replay, d->stream); // not by the first replay
    if (code == cudaSuccess && d->failure != cudaSuccess) code = d->failure;
    if (code == cudaSuccess) {
        *out = r;
        return STATUS_OK;
    }
    recording_free(r);
    return failed(code, "record its work", e);
}

void recording_free(struct recording *r) {
    if (r == NULL) return;
    if (r->replay != NULL) cudaGraphExecDestroy(r->replay);
    if (r->graph != NULL) cudaGraphDestroy(r->graph);
    if (r->start != NULL) cudaEventDestroy(r->start);
    if (r->end != NULL) cudaEventDestroy(r->end);
    free(r);
}

enum status recording_time(struct recording *r, int n, double *seconds, struct error *e) {
    cudaStream_t stream = r->device->stream;
    float ms = 0;
    cudaError_t code = cudaGraphLaunch(r->replay, stream);
    if (code == cudaSuccess) code = cudaEventRecord(r->start, stream);
    for (int i = 0; i < n && code == cudaSuccess; i++) code = cudaGraphLaunch(r->replay, stream);
    if (code == cudaSuccess) code = cudaEventRecord(r->end, stream);
    if (code == cudaSuccess) code = cudaEventSynchronize(r->end);
    if (code == cudaSuccess) code = cudaEventElapsedTime(&ms, r->start, r->end);
    if (code != cudaSuccess) return failed(code, "replay its work", e);
    *seconds = (double)ms * 1e-3 / n;
    return STATUS_OK;
}

// Sends all visits, with an event before each that is timed and one behind the last.
static cudaError_t send_visits(struct recording *const *visits, int n_warm, int n_visit, int n, cudaEvent_t *events) {
    cudaStream_t stream = visits[0]->device->stream;
    cudaError_t code = cudaSuccess;
    for (int i = 0; i < n_visit && code == cudaSuccess; i++) {
        if (i >= n_warm) code = cudaEventRecord(events[i - n_warm], stream);
        for (int k = 0; k < n && code == cudaSuccess; k++) code = cudaGraphLaunch(visits[i]->replay, stream);
    }
    if (code == cudaSuccess) code = cudaEventRecord(events[n_visit - n_warm], stream);
    return code;
}

enum status recordings_time(struct recording *const *visits, int n_warm, int n_visit, int n, double *seconds,
                            struct error *e) {
    int n_event = n_visit - n_warm + 1, made = 0;
    cudaEvent_t *events = (cudaEvent_t *)calloc((size_t)n_event, sizeof *events);
    cudaError_t code = cudaSuccess;
    if (events == NULL) return error_memory(e);
    for (; made < n_event && code == cudaSuccess; made++) code = cudaEventCreate(&events[made]);
    if (code == cudaSuccess) code = send_visits(visits, n_warm, n_visit, n, events);
    if (code == cudaSuccess) code = cudaEventSynchronize(events[n_event - 1]);
    for (int i = 0; i + 1 < n_event && code == cudaSuccess; i++) {
        float ms = 0;
        code = cudaEventElapsedTime(&ms, events[i], events[i + 1]);
        seconds[i] = (double)ms * 1e-3 / n;
    }
    for (int i = 0; i < made; i++)
        if (events[i] != NULL) cudaEventDestroy(events[i]);
    free(events);
    return code == cudaSuccess ? STATUS_OK : failed(code, "replay its work", e);
}

static __global__ void fill_kernel(uint32_t *words, size_t n, uint32_t mask, uint32_t bits) {
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        uint32_t h = (uint32_t)i * 2654435761u;
        h = (h ^ h >> 15) * 2246822519u;
        words[i] = ((h ^ h >> 13) & mask) | bits;
    }
}

void timer_fill(struct device *base, void *memory, size_t bytes, uint32_t mask, uint32_t bits) {
    struct cuda_device *d = cuda_of(base);
    fill_kernel<<<1024, 256, 0, d->stream>>>((uint32_t *)memory, bytes / 4, mask, bits);
    cuda_launched(d, "fill memory");
}

static __global__ void copy_kernel(uint4 *to, const uint4 *from, size_t n) {
    size_t stride = (size_t)gridDim.x * blockDim.x;
#pragma unroll 4
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) to[i] = from[i];
}

void timer_copy(struct device *base, void *to, const void *from, size_t bytes) {
    struct cuda_device *d = cuda_of(base);
    copy_kernel<<<8 * d->n_processors, 512, 0, d->stream>>>((uint4 *)to, (const uint4 *)from, bytes / 16);
    cuda_launched(d, "copy memory");
}
