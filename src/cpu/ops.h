// Owns the list of the CPU's operations, and of what each takes from the device's scratch.
#ifndef TF_CPU_OPS_H
#define TF_CPU_OPS_H

#include "cpu/internal.h"

// Raises `need` to what an operation takes under the limits. The kernels decide part of it.
struct cpu_need {
    size_t shared, thread;
};

static inline void cpu_need_raise(struct cpu_need *need, size_t shared, size_t thread) {
    if (shared > need->shared) need->shared = shared;
    if (thread > need->thread) need->thread = thread;
}

void cpu_need_rows(const struct cpu_device *d, const struct device_limits *l, struct cpu_need *need);
void cpu_need_linear(const struct cpu_device *d, const struct device_limits *l, struct cpu_need *need);
void cpu_need_qk_store(const struct cpu_device *d, const struct device_limits *l, struct cpu_need *need);
void cpu_need_attention(const struct cpu_device *d, const struct device_limits *l, struct cpu_need *need);
void cpu_need_delta(const struct cpu_device *d, const struct device_limits *l, struct cpu_need *need);
void cpu_need_router(const struct cpu_device *d, const struct device_limits *l, struct cpu_need *need);
void cpu_need_experts(const struct cpu_device *d, const struct device_limits *l, struct cpu_need *need);
void cpu_need_draw(const struct cpu_device *d, const struct device_limits *l, struct cpu_need *need);

void cpu_embed(struct device *d, const struct embed_args *a);
void cpu_norm(struct device *d, const struct norm_args *a);
void cpu_linear(struct device *d, const struct linear_args *a);
void cpu_qk_store(struct device *d, const struct qk_store_args *a);
void cpu_attention(struct device *d, const struct attention_args *a);
void cpu_conv(struct device *d, const struct conv_args *a);
void cpu_delta(struct device *d, const struct delta_args *a);
void cpu_delta_commit(struct device *d, const struct delta_commit_args *a);
void cpu_swiglu(struct device *d, const struct swiglu_args *a);
void cpu_router(struct device *d, const struct router_args *a);
void cpu_experts(struct device *d, const struct experts_args *a);
void cpu_draw(struct device *d, const struct draw_args *a);
void cpu_block_conv(struct device *d, const struct block_conv_args *a);
void cpu_block_attention(struct device *d, const struct block_attention_args *a);

// The scratch blocks; `must` be within what was reserved when the carving is done.
static inline struct cpu_carver cpu_shared_scratch(struct cpu_device *d) {
    return (struct cpu_carver){.base = d->scratch.shared};
}

static inline struct cpu_carver cpu_thread_scratch(struct cpu_device *d, int thread) {
    return (struct cpu_carver){.base = d->scratch.threads + (size_t)thread * d->scratch.thread_bytes};
}

// The lane that row t of a batch belongs to.
static inline const struct lane *cpu_lane_of_row(const struct batch *b, int64_t t) {
    const struct lane *lane = b->lanes;
    while (t >= lane->row0 + lane->n_row) lane++;
    return lane;
}

static inline void *cpu_row(struct tensor t, int64_t row, int64_t col) {
    return (char *)t.data + (size_t)(row * t.stride + col) * dtype_bytes(t.dtype);
}

// n values of a type as fp32: where they lie if that is what they are, else widened into buffer.
static inline const float *cpu_floats(const struct cpu_device *d, enum dtype type, const void *values, int64_t n,
                                      float *buffer) {
    if (type == DTYPE_F32) return values;
    d->kernels.widen(type, values, n, buffer);
    return buffer;
}

// Rounds n values that were made in `buffer` for an output; those of an fp32 output may have been made in place.
static inline void cpu_finish(const struct cpu_device *d, enum dtype type, const float *values, int64_t n, void *out) {
    if (values != out) d->kernels.narrow(type, values, n, out);
}

#endif
