// Owns what the router's files share.
#ifndef TF_CUDA_ROUTER_CUH
#define TF_CUDA_ROUTER_CUH

#include "cuda/weights.cuh"

#define ROUTER_MOST 1024 // experts

struct router_job {
    struct weight_view gate, shared_gate;
    struct tensor x;
    bool has_shared;
    int n_used;
    float *logits; // [T][E + 1]: the last is the shared gate's
    int32_t *ids;
    float *weights, *shared;
    unsigned *arrived; // blocks that have written their logits; 0 between launches
};

static inline size_t router_logits_bytes(int64_t n_row, int64_t n_expert) {
    return (size_t)(n_row * (n_expert + 1)) * sizeof(float);
}
// With room for the logits.
struct router_job router_job_of(struct cuda_device *d, const struct router_args *a, struct carver *c);

// Logits of a prompt pass on matrix units, where the weights allow it: router_prompt.cu.
bool router_prompt_fits(const struct router_job *job);
void router_prompt_logits(struct cuda_device *d, const struct router_job *job);

#endif
