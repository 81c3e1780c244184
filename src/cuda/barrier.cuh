// Owns the barriers by which warps that fetch and warps that multiply wait for each other, and blocks for what another
// sends; and how a warpgroup leaves its registers to others. Waiting, and phases that count bytes, want compute
// capability 9.0 or a later one; what is for matrix instructions of warpgroups, or with them, 9.0 itself.
#ifndef TF_CUDA_BARRIER_CUH
#define TF_CUDA_BARRIER_CUH

#include "cuda/device.cuh"

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HAS_WGMMA 1
#else
#define HAS_WGMMA 0
#endif

__device__ __forceinline__ void barrier_open(uint64_t *b, unsigned n_arrival) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(n_arrival) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64_t *b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
}
// Arrives when this thread's copies (copy16) so far have arrived.
__device__ __forceinline__ void barrier_arrive_copies(uint64_t *b) {
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(b)) : "memory");
}
// Before a thread ends that has started copies.
__device__ __forceinline__ void copies_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }
// Arrives, and lets the phase wait for so many bytes more.
__device__ __forceinline__ void barrier_arrive_expecting(uint64_t *b, uint32_t n_byte) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(n_byte)
                 : "memory");
#endif
}
// Waits until the phase of this parity is over.
__device__ __forceinline__ void barrier_wait(uint64_t *b, unsigned parity) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    uint32_t done;
    do {
        asm volatile("{.reg .pred p;\n mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;}"
                     : "=r"(done)
                     : "r"(shared_address(b)), "r"(parity)
                     : "memory");
    } while (!done);
#endif
}

// What this thread wrote to shared memory, or has seen of what others wrote, is seen by matrix instructions that are
// started afterwards.
__device__ __forceinline__ void publish_shared() {
#if HAS_WGMMA
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

// Warpgroups that need few registers leave theirs to others. All warps of one call the same.
template <int N> __device__ __forceinline__ void fewer_registers(void) {
#if HAS_WGMMA
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
#endif
}
template <int N> __device__ __forceinline__ void more_registers(void) {
#if HAS_WGMMA
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
#endif
}

#endif
