// Owns the list of the backend's operations, and of what each takes from the device's scratch.
#ifndef TF_CUDA_OPS_CUH
#define TF_CUDA_OPS_CUH

#include "cuda/device_cuda.h"

struct cuda_device;

// ---- scratch that operations need under the limits ----
size_t need_linear(const struct device_limits *l);
size_t need_attention(const struct device_limits *l);
size_t need_delta(const struct device_limits *l);
size_t need_router(const struct device_limits *l);
size_t need_experts(const struct device_limits *l);
size_t need_block_attention(const struct device_limits *l);
size_t need_moe(const struct device_limits *l);
size_t need_draw(const struct device_limits *l);
size_t draw_list_bytes(const struct device_limits *l);
size_t draw_usual_bytes(const struct device_limits *l);
bool draw_open(struct cuda_device *d, const struct device_limits *l);
void draw_close(struct cuda_device *d);
void draw_wait(struct cuda_device *d);    // for the newest draw
void draw_deliver(struct cuda_device *d); // after a wait: results to where they were asked for

bool series_open(struct cuda_device *d);
void series_close(struct cuda_device *d);
bool transfers_open(struct cuda_device *d); // also starts its thread
void transfers_close(struct cuda_device *d);
bool blas_open(struct cuda_device *d);
void blas_close(struct cuda_device *d);
size_t need_expanded(const struct device_limits *l);

// ---- operations ----
void cuda_embed(struct device *d, const struct embed_args *a);
void cuda_norm(struct device *d, const struct norm_args *a);
void cuda_linear(struct device *d, const struct linear_args *a);
void cuda_qk_store(struct device *d, const struct qk_store_args *a);
void cuda_attention(struct device *d, const struct attention_args *a);
void cuda_conv(struct device *d, const struct conv_args *a);
void cuda_delta(struct device *d, const struct delta_args *a);
void cuda_delta_commit(struct device *d, const struct delta_commit_args *a);
void cuda_swiglu(struct device *d, const struct swiglu_args *a);
void cuda_router(struct device *d, const struct router_args *a);
void cuda_experts(struct device *d, const struct experts_args *a);
void cuda_draw(struct device *d, const struct draw_args *a);
void cuda_arrange(struct device *d, struct weight *w);
void cuda_copy(struct device *d, void *to, const void *from, size_t bytes);
void cuda_transfer(struct device *d, bool to_host, const struct transfer_range *ranges, int n);
bool cuda_transfer_done(struct device *d, bool wait);
void cuda_block_conv(struct device *d, const struct block_conv_args *a);
void cuda_block_attention(struct device *d, const struct block_attention_args *a);
bool cuda_moe(struct device *d, const struct moe_args *a);
bool cuda_conv_delta(struct device *d, const struct conv_delta_args *a);
bool cuda_linear_swiglu(struct device *d, const struct linear_swiglu_args *a);

#endif
