// Owns the table of inner kernels: the arithmetic of the CPU backend's operations.
//
// The operations (op_*.c) are portable C. They cut an operation into independent pieces (rows, heads, blocks of
// outputs; never along a sum), run them on the workers, and call the kernels below for the arithmetic. The table is
// first filled with portable kernels, then overlaid by faster ones where the processor has the instructions. So an
// overlay never deals with batches, pages, threads or activation types, and cannot make a row depend on its
// neighbours except inside one kernel.
//
// Rules for every kernel: it writes only its outputs, allocates nothing, reads nothing outside the stated extents (a
// weight's last row may end where the mapping ends), is called on many threads at once, and gives each row the bits it
// would have alone.
#ifndef TF_CPU_KERNEL_TABLE_H
#define TF_CPU_KERNEL_TABLE_H

#include "cpu/device_cpu.h"

#define CPU_ROW_ALIGN  64  // of scratch, and of prepared rows
#define CPU_TILE_KEYS  64  // keys of an attention tile, absolute
#define CPU_CHUNK_KEYS 512 // keys of a partial result in FORM_ROWS, absolute
#define CPU_DELTA_ROWS 64  // rows of a delta-rule chunk, absolute
#define CPU_N_FORM     2   // enum form

enum cpu_weight_class { CPU_F32, CPU_BF16, CPU_F16, CPU_Q2, CPU_Q3, CPU_Q4, CPU_Q5, CPU_Q6, CPU_Q8, CPU_N_CLASS };

// One way to multiply rows by a matrix of one weight class. Rows are prepared first (each once, alone), then blocks of
// outputs are computed. Parts of a linear share prepared rows when `prepare` and the group are the same.
struct cpu_linear_method {
    // Bytes of one prepared row; a multiple of CPU_ROW_ALIGN. group is the weight's, 0 for plain weights.
    size_t (*row_bytes)(int64_t n_in, int group);
    void (*prepare)(const float *x, int64_t n_in, int group, void *row); // x: [n_in], normed
    // y[t * y_stride + o - first] = sum_i x_t[i] w[o][i] for first <= o < last and the n_row prepared rows; y is fp32
    // and not aligned. scratch: scratch_fixed + scratch_per_in * n_in bytes of this thread, aligned to CPU_ROW_ALIGN.
    void (*multiply)(const struct weight *w, int64_t first, int64_t last, const void *rows, int64_t n_row, float *y,
                     int64_t y_stride, void *scratch);
    int out_block; // a power of two: a call has first at a multiple of it, and at most so many outputs
    int row_block; // a call has at most so many rows
    size_t scratch_fixed, scratch_per_in;
};

// One tile of keys, for the queries that share its KV head. Each query's chain over tiles is its own:
//   s_j = scale * q . k_j for j < visible;  m' = max(m, max s);  l = l e^(m - m') + sum e^(s_j - m');
//   acc = acc e^(m - m') + sum_j e^(s_j - m') v_j
// A query with visible 0 is left untouched. At the start of a chain max is -inf, sum and acc are 0.
struct cpu_attend {
    int n_query, n_key, head_dim; // n_key <= CPU_TILE_KEYS
    const float *q;               // [n_query][head_dim], not scaled
    const void *k, *v;            // [n_key][head_dim] of kv, contiguous
    enum dtype kv;                // f32 or bf16
    const int32_t *visible;       // [n_query], 0..n_key; what lies behind is never to reach a result, even as 0 * x
    float scale;
    float *max, *sum, *acc; // [n_query], [n_query], [n_query][head_dim]
    void *scratch;          // cpu_kernels.attend_scratch bytes, aligned to CPU_ROW_ALIGN
    bool again;             // the call before had the same queries, and left the scratch as it is now
};

// Decayed products inside a chunk of one value head, lower triangles with row stride CPU_DELTA_ROWS:
//   kk[i][j] = beta_i e^(G_i - G_j) k_i . k_j for j < i;  qk[i][j] = e^(G_i - G_j) q_i . k_j for j <= i
// where G is the inclusive cumulative sum of the log decays g, and G_i = sum_g[i] + low_g[i]: sums go to the hundreds
// where only their differences near 0 count, and one float would keep too little of those. Only the triangles are
// written.
struct cpu_delta_scores {
    int n_row, key_dim;         // n_row <= CPU_DELTA_ROWS
    const float *q, *k;         // [n_row][key_dim], normalised, q scaled
    const float *sum_g, *low_g; // [n_row]: G to the nearest float, and the rest
    const float *beta;          // [n_row]
    float *kk, *qk;
};

// One chunk for n_col columns of one value head:
//   d_i = beta_i (v_i - e^(G_i) S^T k_i) - sum_{j < i} kk[i][j] d_j
//   o_i = e^(G_i) S^T q_i + sum_{j <= i} qk[i][j] d_j
//   S = e^(G_n) S + sum_i e^(G_n - G_i) k_i d_i^T, n being the last row
// Row i takes nothing from rows after it, so a row of a partial chunk has the bits it would have in a full one.
struct cpu_delta_chunk {
    int n_row, key_dim, n_col;
    const float *q, *k;                // [n_row][key_dim]
    const float *sum_g, *low_g, *beta; // [n_row]
    const float *kk, *qk;              // as above
    const float *v;                    // rows v_stride apart
    float *state;                      // [key_dim] rows, state_stride apart
    float *o;                          // rows o_stride apart
    int64_t v_stride, state_stride, o_stride;
    void *scratch; // cpu_kernels.delta_scratch bytes
};

// One row on one value head's state [key_dim][value_dim], in place:
//   S = decay S;  d = beta (v - S^T k);  S = S + k d^T;  o = S^T q
// delta_fold does S = decay S + k d^T, and must give the bits of delta_step with the same k, d and decay.
struct cpu_delta_row {
    int key_dim, value_dim;
    const float *q, *k, *v; // q and v are not read by delta_fold
    float decay, beta;      // decay = e^g
    float *state, *d, *o;   // delta_fold reads d and does not touch o
};

// A draw's noise: of element i it is gumbel(seed, position, first_id + i), ops/draw.h.
struct cpu_noise {
    uint64_t seed, position;
    int32_t first_id;
    double temperature, bound;
};

struct cpu_kernels {
    struct cpu_linear_method linear[CPU_N_FORM][CPU_N_CLASS]; // at the device's compute mode
    struct cpu_linear_method exact[CPU_N_CLASS];              // fp32 products of unrounded x, for the router

    void (*attend[CPU_N_FORM])(const struct cpu_attend *);
    size_t (*attend_scratch)(int n_query, int head_dim); // covers both forms
    void (*delta_scores)(const struct cpu_delta_scores *);
    void (*delta_chunk)(const struct cpu_delta_chunk *);
    size_t (*delta_scratch)(int key_dim, int value_dim);
    void (*delta_step)(const struct cpu_delta_row *);
    void (*delta_fold)(const struct cpu_delta_row *);

    // Rows. Types are f32, bf16 or f16; rounding is to nearest even. Unless said, out may be x itself.
    void (*widen)(enum dtype type, const void *x, int64_t n, float *out);                // no aliasing
    void (*narrow)(enum dtype type, const float *x, int64_t n, void *out);               // no aliasing
    void (*widen_e4m3)(const uint8_t *codes, float scale, int64_t n, float *out);        // code * scale, rounded once
    void (*norm)(const float *x, const float *weight, float eps, int64_t n, float *out); // norm_args' formula
    void (*swiglu)(const float *gate, const float *up, int64_t n, float *out);     // silu(gate) * up; out may be either
    void (*mul_silu)(const float *x, const float *gate, int64_t n, float *out);    // x * silu(gate)
    void (*mul_sigmoid)(const float *x, const float *gate, int64_t n, float *out); // x * sigmoid(gate)
    // out[i][c] = silu(sum_j weight[c * n_tap + j] * rows[i + j][c]) for i < n_row, c < n, j rising; out aliases no row
    void (*conv)(const float *const *rows, const float *weight, int n_tap, int64_t n_row, int64_t n, float *const *out);
    // x * factor / sqrt(sum x^2 + eps)
    void (*unit)(const float *x, float eps, float factor, int64_t n, float *out);
    // Elements >= bound in rising index order: ids[..], values[..]; returns how many, and stops writing at capacity.
    int64_t (*select)(const float *x, int64_t n, float bound, int64_t capacity, int32_t *ids, float *values);
    float (*maximum)(const float *x, int64_t n); // NaN counts as -inf
    // sum of e^((x - shift) * scale) in double, each term to 1e-12; x <= shift; x = -inf gives 0
    double (*sum_exp)(const float *x, int64_t n, float shift, double scale);
    // Writes the rising i for which s + cpu_noise_limit(..) >= bound, s = x[i] / temperature; may write more, never
    // fewer.
    int64_t (*survivors)(const float *x, int64_t n, const struct cpu_noise *noise, int32_t *i);
};

// Fills the table with portable kernels for a compute mode.
void cpu_kernels_fill(struct cpu_kernels *k, enum compute compute);
// Overlays whatever is faster on isa; implemented in x86/overlay.c.
void cpu_x86_overlay(struct cpu_kernels *k, enum cpu_isa isa, enum compute compute);

#endif
