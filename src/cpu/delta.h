// Owns what the two forms of the delta rule share: the layout of a lane's state and log, and the terms of one row.
#ifndef TF_CPU_DELTA_H
#define TF_CPU_DELTA_H

#include "cpu/ops.h"

// Where a lane's parts lie; head counts and sizes as in delta_args.
struct cpu_delta_shape {
    int n_key_head, n_value_head, key_dim, value_dim;
    int64_t state_offset, log_offset;
    int64_t n_slot; // of the log: 2 W
};

static inline float *cpu_delta_state(const struct cpu_delta_shape *s, void *run, int head) {
    return (float *)((char *)run + s->state_offset) + (int64_t)head * s->key_dim * s->value_dim;
}

static inline float *cpu_delta_log_k(const struct cpu_delta_shape *s, void *run, int64_t position, int key_head) {
    float *log = (float *)((char *)run + s->log_offset);
    return log + (position % s->n_slot * s->n_key_head + key_head) * s->key_dim;
}

static inline float *cpu_delta_log_d(const struct cpu_delta_shape *s, void *run, int64_t position, int head) {
    float *log = (float *)((char *)run + s->log_offset) + s->n_slot * s->n_key_head * s->key_dim;
    return log + (position % s->n_slot * s->n_value_head + head) * s->value_dim;
}

static inline float *cpu_delta_log_g(const struct cpu_delta_shape *s, void *run, int64_t position, int head) {
    float *log = (float *)((char *)run + s->log_offset) + s->n_slot * s->n_key_head * s->key_dim +
                 s->n_slot * s->n_value_head * s->value_dim;
    return log + position % s->n_slot * s->n_value_head + head;
}

// The terms of row t: q' and k' of a key head, g and beta of a value head, and the output from o.
void cpu_delta_qk(const struct cpu_device *d, const struct delta_args *a, int64_t t, int key_head, float *q, float *k);
void cpu_delta_gates(const struct cpu_device *d, const struct delta_args *a, int64_t t, int head, float *g,
                     float *beta);
void cpu_delta_output(const struct cpu_device *d, const struct delta_args *a, int64_t t, int head, float *o, float *z);

// FORM_PROMPT, in op_delta_prompt.c.
void cpu_delta_prompt(struct cpu_device *d, const struct delta_args *a, const struct cpu_delta_shape *shape);
void cpu_need_delta_prompt(const struct cpu_device *d, const struct device_limits *l, struct cpu_need *need);

#endif
