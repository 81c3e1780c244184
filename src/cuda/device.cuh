// Owns the small device functions that kernels share: typed loads and stores, reductions, copies into shared memory and
// the matrix instructions.
#ifndef TF_CUDA_DEVICE_CUH
#define TF_CUDA_DEVICE_CUH

#include "cuda/common.cuh"
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

__device__ __forceinline__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

// Copies `bytes` (0..16) and fills the rest of the 16 with zeros. Both addresses are 16-byte aligned.
__device__ __forceinline__ void copy16(void *to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes));
}
__device__ __forceinline__ void copy4(void *to, const void *from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes));
}
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;"); }
template <int N> __device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N)); }

// ---- matrix instructions: c += a b, a [16, 16] by rows, b [16, 8] by columns, c [16, 8] ----

__device__ __forceinline__ void mma_bf16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// c = a b
__device__ __forceinline__ void mma_bf16_first(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%10,%10,%10,%10};"
                 : "=f"(c[0]), "=f"(c[1]), "=f"(c[2]), "=f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

// As above over [16, 8] and [8, 8] of fp32 rounded to 10 bits.
__device__ __forceinline__ void mma_tf32(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ uint32_t to_tf32(float x) {
    uint32_t r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
}

__device__ __forceinline__ void load_matrices(uint32_t r[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)));
}
__device__ __forceinline__ void load_matrices_transposed(uint32_t r[4], const void *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row)));
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *(uint32_t *)&pair;
}

#endif
