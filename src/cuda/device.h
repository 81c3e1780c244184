// Owns the first look at this machine's NVIDIA GPUs. Only src/cuda includes CUDA's headers, and it is compiled only
// where nvcc is found: callers ask `#if TF_CUDA`, which is 0 in a build without it. Every failure is one sentence that
// says why there is no device; none ends the process. One thread at a time.
#ifndef TF_CUDA_DEVICE_H
#define TF_CUDA_DEVICE_H

#ifdef __cplusplus
extern "C" {
#endif

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>

struct cuda_device_info {
    char name[256];
    int major, minor;   // compute capability
    int n_processors;   // streaming multiprocessors
    size_t total_bytes; // of device memory
    size_t free_bytes;  // what no process holds now
    bool unified;       // the GPU has no memory of its own: total and free are the machine's
};

// STATUS_NOT_FOUND: no GPU. STATUS_UNSUPPORTED: the driver is missing or older than this build's CUDA.
// STATUS_DEVICE: the driver answered with an error of its own.
enum status cuda_device_count(int *n, struct error *e);

// Opens device `index` of 0..n-1, which takes some of its memory, and makes it the current one of the calling thread.
enum status cuda_device_probe(int index, struct cuda_device_info *info, struct error *e);

#ifdef __cplusplus
}
#endif

#endif
