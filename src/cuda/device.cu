#include "cuda/device.h"
#include <cuda_runtime.h>
#include <stdio.h>

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
