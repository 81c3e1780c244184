// Owns what kernels with a convolution share: the job, and where rows before the batch lie.
#ifndef TF_CUDA_CONV_CUH
#define TF_CUDA_CONV_CUH

#include "cuda/device.cuh"

struct conv_job {
    struct batch_view batch;
    struct tensor m, out;
    const float *weight;
    int n_tap, ring_rows;
    int64_t ring_offset;
    bool keeps_rows; // store all rows of the batch into the rings at once: none is still to be read there
};

static inline struct conv_job conv_job_of(const struct conv_args *a, const struct batch_view *b) {
    return (struct conv_job){*b, a->m, a->out, a->weight, a->n_tap, a->ring_rows, a->ring_offset, false};
}

__device__ __forceinline__ int64_t conv_ring_element(const struct conv_job &job, int32_t position, int64_t channel) {
    return position % job.ring_rows * job.m.n_col + channel;
}

// m of the lane's row i, which is before the batch when negative.
__device__ __forceinline__ float conv_tap(const struct conv_job &job, const struct lane_entry &lane, int32_t i,
                                          int64_t channel) {
    int32_t position = lane.position + i;
    if (position < 0) return 0;
    if (i >= 0) return tensor_load(job.m, lane.row0 + i, channel);
    return load_float(lane.run + job.ring_offset, job.m.dtype, conv_ring_element(job, position, channel));
}

#endif
