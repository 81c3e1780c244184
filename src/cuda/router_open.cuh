// Owns what a round's experts begin with, as one launch: router, groups and planes of normed rows.
#ifndef TF_CUDA_ROUTER_OPEN_CUH
#define TF_CUDA_ROUTER_OPEN_CUH

#include "cuda/experts.cuh"
#include "cuda/router.cuh"

struct router_open_job {
    struct router_job router; // of the rows before their norm
    const float *norm_weight;
    float eps;
    struct plane_rows planes; // of the normed rows
    struct pair_ids pairs;
    struct pair_groups groups;
};

// False, with nothing done, for rows that are too wide.
bool router_open(struct cuda_device *d, const struct router_open_job *job);

#endif
