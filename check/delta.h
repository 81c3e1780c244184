// Owns what the two delta cases share: a lane's inputs, the oracle, and the layout of a lane run.
#ifndef TF_CHECK_DELTA_H
#define TF_CHECK_DELTA_H

#include "check/check.h"

#define DELTA_WINDOW CHECK_WINDOW
#define DELTA_EPS    1e-6f

struct delta_shape {
    int n_key_head, n_value_head, key_dim, value_dim;
    bool gate_sigmoid;
};

// A lane's rows in order, its state before them, and the parameters of the layer.
struct delta_data {
    struct delta_shape shape;
    int n_row;
    float *c, *a, *b, *z; // [n_row][C], [n_row][Hv], [n_row][Hv], [n_row][Hv * Dv]
    float *neg_a, *dt_bias, *out_norm;
    float *state; // [Hv][Dk][Dv]
};

// What the oracle finds for each row: output, and the log's k', d, g; and the state after all of them.
struct delta_wanted {
    double *out, *k, *d, *g; // [n_row][Hv * Dv], [n_row][Hk * Dk], [n_row][Hv * Dv], [n_row][Hv]
    double *state;           // [Hv][Dk][Dv]
};

// with_state: otherwise the state is zeros, as before position 0.
struct delta_data delta_make(struct run *r, uint64_t seed, const struct delta_shape *shape, int n_row, bool with_state);
struct delta_wanted delta_oracle(struct run *r, const struct delta_data *data);

static inline int64_t delta_state_size(const struct delta_shape *s) {
    return (int64_t)s->n_value_head * s->key_dim * s->value_dim;
}
static inline int64_t delta_channels(const struct delta_shape *s) {
    return 2 * (int64_t)s->n_key_head * s->key_dim + (int64_t)s->n_value_head * s->value_dim;
}

// A lane run in floats: [hole][state][hole][log: k' d g][hole]; the holes belong to others.
#define DELTA_HOLE 64
int64_t delta_run_size(const struct delta_shape *s);
int64_t delta_state_at(const struct delta_shape *s);
int64_t delta_log_k_at(const struct delta_shape *s, int64_t position, int head);
int64_t delta_log_d_at(const struct delta_shape *s, int64_t position, int head);
int64_t delta_log_g_at(const struct delta_shape *s, int64_t position);

// The parameters staged on a device, and arguments but for batch, rows and output.
struct delta_args delta_open(struct stage *s, const struct delta_data *data);

// A run of NaN, but for its state if with_state.
float *delta_blank_run(struct run *r, const struct delta_data *data, bool with_state);

// Calls delta on a batch whose rows are c, a, b and z of `rows`, and copies the output to out, [n_row][Hv * Dv].
void delta_call(struct run *r, struct device *d, struct stage *s, struct delta_args args, const struct batch *batch,
                const struct delta_data *rows, float *out);

extern const struct tolerance delta_f32, delta_bf16, delta_state_f32, delta_state_bf16;
const struct tolerance *delta_tolerance(const struct run *r);
const struct tolerance *delta_state_tolerance(const struct run *r);

#endif
