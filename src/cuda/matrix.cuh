// Owns the matrix instructions, and products of fp32 values by them.
#ifndef TF_CUDA_MATRIX_CUH
#define TF_CUDA_MATRIX_CUH

#include <cuda_bf16.h>
#include <stdint.h>

__device__ __forceinline__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

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

__device__ __forceinline__ void mma_f16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
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

// ---- products of fp32 values cut into two terms of bf16, which hold 16 bits of them: three products of terms, all
// but that of the two second ones ----

// The first term above, the second below.
__device__ __forceinline__ uint32_t cut_terms(float x) {
    uint32_t first = __float_as_uint(__bfloat162float(__float2bfloat16_rn(x)));
    __nv_bfloat16 second = __float2bfloat16_rn(x - __uint_as_float(first));
    return first | *(uint16_t *)&second;
}

// Operands of m16n8k16: [0] the first terms, [1] the second. Which input stands at which place of the instruction is
// the same in both, and chosen so that threads read what lies together.
struct terms_a {
    uint32_t r[2][4];
};
struct terms_b {
    uint32_t r[2][2];
};

// at(row, i) and at(i, column): the cut element of row or column and input i.
template <typename AT> __device__ __forceinline__ struct terms_a split_a(AT at) {
    int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    struct terms_a a;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        uint32_t x = at(g + k % 2 * 8, c + k / 2 * 8), y = at(g + k % 2 * 8, c + k / 2 * 8 + 4);
        a.r[0][k] = __byte_perm(x, y, 0x7632);
        a.r[1][k] = __byte_perm(x, y, 0x5410);
    }
    return a;
}
template <typename AT> __device__ __forceinline__ struct terms_b split_b(AT at) {
    int g = threadIdx.x % 32 / 4, c = threadIdx.x % 4;
    struct terms_b b;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        uint32_t x = at(c + k * 8, g), y = at(c + k * 8 + 4, g);
        b.r[0][k] = __byte_perm(x, y, 0x7632);
        b.r[1][k] = __byte_perm(x, y, 0x5410);
    }
    return b;
}

__device__ __forceinline__ void mma_terms(float c[4], const struct terms_a &a, const struct terms_b &b) {
    mma_bf16(c, a.r[0], b.r[0][0], b.r[0][1]);
    mma_bf16(c, a.r[0], b.r[1][0], b.r[1][1]);
    mma_bf16(c, a.r[1], b.r[0][0], b.r[0][1]);
}

#endif
