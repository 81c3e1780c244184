// Owns the CUDA backend's device: the operations of ops/ops.h as kernels on one NVIDIA GPU of compute capability 8.0 or
// newer. Activations are bf16, sums and recurrent states fp32. One thread at a time, as ops/device.h says.
#ifndef TF_CUDA_DEVICE_CUDA_H
#define TF_CUDA_DEVICE_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "ops/device.h"

// Opens GPU `index`. STATUS_NOT_FOUND or STATUS_UNSUPPORTED: there is none that can be used, and the sentence says why.
enum status cuda_device_create(int index, struct device **out, struct error *e);

#ifdef __cplusplus
}
#endif

#endif
