// Owns the small device functions that kernels share: typed loads and stores, reductions, the order of kernels, and
// copies into shared memory.
#ifndef TF_CUDA_DEVICE_CUH
#define TF_CUDA_DEVICE_CUH

#include "cuda/common.cuh"
#include "cuda/matrix.cuh"
#include <cuda_fp16.h>

__device__ __forceinline__ float load_float(const void *p, enum dtype t, int64_t i) {
    if (t == DTYPE_F32) return ((const float *)p)[i];
    if (t == DTYPE_BF16) return __bfloat162float(((const __nv_bfloat16 *)p)[i]);
    return __half2float(((const __half *)p)[i]);
}

__device__ __forceinline__ void store_float(void *p, enum dtype t, int64_t i, float x) {
    if (t == DTYPE_F32)
        ((float *)p)[i] = x;
    else if (t == DTYPE_BF16)
        ((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn(x);
    else
        ((__half *)p)[i] = __float2half_rn(x);
}

__device__ __forceinline__ float tensor_load(const struct tensor &t, int64_t row, int64_t col) {
    return load_float(t.data, t.dtype, row * t.stride + col);
}
__device__ __forceinline__ void tensor_store(const struct tensor &t, int64_t row, int64_t col, float x) {
    store_float(t.data, t.dtype, row * t.stride + col, x);
}

__device__ __forceinline__ float sigmoid_of(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float silu_of(float x) { return x / (1.0f + expf(-x)); }

__device__ __forceinline__ float warp_sum(float x) {
    for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

// fp32 whose rows all start at 16-byte boundaries.
static __host__ __device__ inline bool rows_are_wide(const struct tensor &t) {
    return t.dtype == DTYPE_F32 && (uintptr_t)t.data % 16 == 0 && t.stride % 4 == 0;
}

__device__ __forceinline__ float warp_max(float x) {
    for (int step = 16; step > 0; step >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

// Over a block of whole warps, at most 32; every thread gets the sum. `shared` has 33 floats.
__device__ __forceinline__ float block_sum(float x, float *shared) {
    int warp = threadIdx.x / 32, n_warp = blockDim.x / 32;
    x = warp_sum(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[warp] = x;
    __syncthreads();
    if (warp == 0) {
        float y = warp_sum(threadIdx.x < n_warp ? shared[threadIdx.x] : 0.0f);
        if (threadIdx.x == 0) shared[32] = y;
    }
    __syncthreads();
    return shared[32];
}

// ---- kernels that are started early (cuda_start): nothing that an earlier kernel writes, or reads and this one
// writes, is touched before wait_for_earlier ----

__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
__device__ __forceinline__ void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void begin_kernel() {
    let_next_start();
    wait_for_earlier();
}

// ---- copies from global to shared memory that go on while the thread works ----

// Copies `bytes` (0..16) and fills the rest of the 16 with zeros. Both addresses are 16-byte aligned.
__device__ __forceinline__ void copy16(void *to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes));
}
// As copy16, to an address in shared memory that is held as a number.
__device__ __forceinline__ void copy16_to(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from));
}
__device__ __forceinline__ void copy16_to(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
__device__ __forceinline__ void copy4(void *to, const void *from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes));
}
// Eight bytes, at addresses that are 8-byte aligned.
__device__ __forceinline__ void copy8(void *to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(to)), "l"(from));
}

// How codes of weights are cached in a round, which reads them once: they make room before what every launch reads
// again. A layer's codes would drive instructions, rows and tables out of the second cache otherwise.
__device__ __forceinline__ uint64_t read_once() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;"); }
template <int N> __device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N)); }

// ---- pairs of 16-bit values, and rows ----

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(uint32_t *)&pair;
}
__device__ __forceinline__ float2 unpack_bf16(uint32_t pair) {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
__device__ __forceinline__ uint32_t pack_f16(float low, float high) {
    __half2 pair = __floats2half2_rn(low, high);
    return *(uint32_t *)&pair;
}
__device__ __forceinline__ float2 unpack_f16(uint32_t pair) { return __half22float2(*(__half2 *)&pair); }

// Eight elements from column i on, a multiple of 8; zeros after the last column. wide: rows_are_wide.
__device__ __forceinline__ void load_eight(const struct tensor &x, bool wide, int64_t row, int64_t i, float v[8]) {
    if (wide && i + 8 <= x.n_col) {
        const float4 *from = (const float4 *)((const float *)x.data + row * x.stride + i);
        *(float4 *)v = from[0];
        *(float4 *)(v + 4) = from[1];
        return;
    }
    for (int k = 0; k < 8; k++) v[k] = i + k < x.n_col ? tensor_load(x, row, i + k) : 0.0f;
}

#endif
