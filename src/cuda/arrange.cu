// Puts matrices of the usual kind into the order of arranged.cuh, in their own place: a block reads all bytes of eight
// outputs, and writes them back.
#include "cuda/units_q4.cuh"

#define THREADS 256

// Bytes of eight outputs: their codes; their scales, and as many of biases.
static __host__ __device__ inline int64_t codes_of_eight(const struct weight_view &w) {
    return ARRANGED_OUTPUTS * w.row_bytes;
}
static __host__ __device__ inline int64_t scales_of_eight(const struct weight_view &w) {
    return ARRANGED_OUTPUTS * (int64_t)w.n_group * 2;
}

static __device__ void read_all(char *to, const char *from, int64_t bytes) {
    for (int64_t i = threadIdx.x; i < bytes / 8; i += THREADS) ((uint2 *)to)[i] = ((const uint2 *)from)[i];
}

static __global__ void __launch_bounds__(THREADS) arrange_kernel(struct weight_view w) {
    extern __shared__ __align__(16) char shared[];
    int64_t n_codes = codes_of_eight(w), n_scales = scales_of_eight(w);
    char *codes = (char *)w.data + blockIdx.x * n_codes, *scales = (char *)w.scales + blockIdx.x * n_scales,
         *biases = (char *)w.biases + blockIdx.x * n_scales;
    char *old_scales = shared + n_codes, *old_biases = old_scales + n_scales;
    read_all(shared, codes, n_codes);
    read_all(old_scales, scales, n_scales);
    read_all(old_biases, biases, n_scales);
    __syncthreads();
    for (int i = threadIdx.x; i < n_codes / 16; i += THREADS) {
        int output = i / 4 % ARRANGED_OUTPUTS, unit = i / (4 * ARRANGED_OUTPUTS);
        ((uint4 *)codes)[i] = *(const uint4 *)(shared + output * w.row_bytes + unit * 64 + i % 4 * 16);
    }
    for (int i = threadIdx.x; i < n_scales / 4; i += THREADS) {
        int output = i % ARRANGED_OUTPUTS, unit = i / ARRANGED_OUTPUTS;
        int at = (output * w.n_group + 2 * unit) * 2;
        char *to = (unit % 2 == 0 ? scales : biases) + arranged_scales(output, unit, w.n_group * 2);
        *(uint2 *)to = make_uint2(*(const uint32_t *)(old_scales + at), *(const uint32_t *)(old_biases + at));
    }
}

void cuda_arrange(struct device *base, struct weight *weight) {
    struct cuda_device *d = cuda_of(base);
    struct weight_view w = weight_view_of(weight);
    size_t bytes = (size_t)(codes_of_eight(w) + 2 * scales_of_eight(w));
    if (w.arranged || !can_be_arranged(w) || bytes + 1024 > d->shared_bytes || d->failure != cudaSuccess) return;
    cudaFuncSetAttribute(arrange_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    arrange_kernel<<<(unsigned)(w.n_out / ARRANGED_OUTPUTS), THREADS, bytes, d->stream>>>(w);
    cuda_launched(d, "arrange weights");
    weight->arranged = true;
}
