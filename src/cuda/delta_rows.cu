// delta in FORM_ROWS, with or without the convolution before it, and delta_commit: one block a value head of a lane,
// the state in its registers. Eight lanes of a warp have a column each, its keys in ranges of 32 that four such eights
// share; sums over keys are added in the order of the ranges. Rows come one after another.
//
// What a round reads and no earlier kernel of it writes (the lane's table, state, log and ring) is asked for before the
// kernel waits: a batch's tables are sent between the kernels that wrote those and this one.
#include "cuda/conv.cuh"
#include "cuda/delta.cuh"

#define KEYS     32 // of a thread
#define COLUMNS  DELTA_MAX_DIM
#define RANGES   (DELTA_MAX_DIM / KEYS)
#define THREADS  (COLUMNS * RANGES)
#define PADDED   (RANGES * (KEYS + 4)) // ranges four banks apart
#define TAPS     4
#define CHANNELS (3 * DELTA_MAX_DIM) // of a head: queries, keys, values

struct rows_shared {
    float q[PADDED], k[PADDED];
    float raw[CHANNELS];
    float squares[COLUMNS / 8];
};

// A thread's place.
struct place {
    int col, key0;
};
static __device__ __forceinline__ struct place place_of_thread() {
    int lane = threadIdx.x % 32;
    return (struct place){(int)threadIdx.x / 32 * 8 + lane % 8, lane / 8 * KEYS};
}
static __device__ __forceinline__ int padded(int key) { return key / KEYS * (KEYS + 4) + key % KEYS; }

// The state before the lane's pending rows; zeros before position 0, where it was never written.
static __device__ __forceinline__ void load_state(const struct delta_shape &s, const float *state, bool is_zero,
                                                  float v[KEYS]) {
    struct place at = place_of_thread();
#pragma unroll
    for (int i = 0; i < KEYS; i++)
        v[i] = !is_zero && at.key0 + i < s.key_dim && at.col < s.value_dim
                   ? state[(int64_t)(at.key0 + i) * s.value_dim + at.col]
                   : 0.0f;
}

static __device__ __forceinline__ void store_state(const struct delta_shape &s, float *state, const float v[KEYS]) {
    struct place at = place_of_thread();
#pragma unroll
    for (int i = 0; i < KEYS; i++)
        if (at.key0 + i < s.key_dim && at.col < s.value_dim)
            state[(int64_t)(at.key0 + i) * s.value_dim + at.col] = v[i];
}

// This thread's range of q or k.
static __device__ __forceinline__ const float4 *range_of(const float *x) {
    return (const float4 *)(x + place_of_thread().key0 / KEYS * (KEYS + 4));
}

// S = decay S + k d^T, by the same instructions whether the row is new or comes out of the log.
static __device__ __forceinline__ void fold_row(const float4 *k, float decay, float d, float v[KEYS]) {
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++) {
        float4 x = k[i];
        v[4 * i] = fmaf(x.x, d, decay * v[4 * i]);
        v[4 * i + 1] = fmaf(x.y, d, decay * v[4 * i + 1]);
        v[4 * i + 2] = fmaf(x.z, d, decay * v[4 * i + 2]);
        v[4 * i + 3] = fmaf(x.w, d, decay * v[4 * i + 3]);
    }
}

// Over all keys of the column, for each of its threads.
static __device__ __forceinline__ float column_product(const float4 *x, const float v[KEYS]) {
    float sum = 0, all;
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++) {
        float4 y = x[i];
        sum = fmaf(v[4 * i], y.x, sum);
        sum = fmaf(v[4 * i + 1], y.y, sum);
        sum = fmaf(v[4 * i + 2], y.z, sum);
        sum = fmaf(v[4 * i + 3], y.w, sum);
    }
    int first = threadIdx.x % 8;
    all = __shfl_sync(0xffffffffu, sum, first);
#pragma unroll
    for (int i = 1; i < RANGES; i++) all += __shfl_sync(0xffffffffu, sum, first + 8 * i);
    return all;
}

// A row of the log.
struct log_row {
    float k, d, g;
};
static __device__ __forceinline__ struct log_row load_log(const struct delta_shape &s, char *run, int position,
                                                          int head) {
    int key = threadIdx.x, col = place_of_thread().col;
    struct log_row row = {0, 0, *delta_log_g(s, run, position, head)};
    if (key < s.key_dim) row.k = delta_log_k(s, run, position, head / s.r)[key];
    if (col < s.value_dim) row.d = delta_log_d(s, run, position, head)[col];
    return row;
}

// The state as a lane has it, and the first of its pending rows.
struct lane_state {
    float v[KEYS];
    struct log_row pending;
};
static __device__ __forceinline__ void open_state(const struct delta_shape &s, const struct lane_entry &lane, int head,
                                                  struct lane_state *state) {
    int first = lane.position - lane.n_pending;
    load_state(s, delta_state(s, lane.run, head), first == 0, state->v);
    if (lane.n_pending > 0) state->pending = load_log(s, lane.run, first, head);
}

// Brings the state to the lane's position, and writes it if there were rows to fold in.
static __device__ __forceinline__ void fold_pending(const struct delta_shape &s, const struct lane_entry &lane,
                                                    int head, struct rows_shared *shared, struct lane_state *state) {
    for (int p = lane.position - lane.n_pending; p < lane.position; p++) {
        struct log_row row = state->pending;
        __syncthreads();
        if (threadIdx.x < DELTA_MAX_DIM) shared->k[padded(threadIdx.x)] = row.k;
        if (p + 1 < lane.position) state->pending = load_log(s, lane.run, p + 1, head);
        __syncthreads();
        fold_row(range_of(shared->k), expf(row.g), row.d, state->v);
    }
    if (lane.n_pending > 0) store_state(s, delta_state(s, lane.run, head), state->v);
}

// What a head's rows have in common: of the thread's column, and of all.
struct head_constants {
    float out_norm, neg_a, dt_bias;
};

// What a thread has of the row at hand: of its channel, c or what the convolution makes it of; its column's z.
struct row_inputs {
    float channel, z, a, b;
};

// The head's channel of this thread, counted over the tensor; -1: it has none.
static __device__ __forceinline__ int64_t channel_of(const struct delta_shape &s, int head) {
    int part = threadIdx.x / DELTA_MAX_DIM, i = threadIdx.x % DELTA_MAX_DIM;
    int64_t keys = (int64_t)s.n_key_head * s.key_dim;
    if (part > 2 || i >= (part < 2 ? s.key_dim : s.value_dim)) return -1;
    return part < 2 ? part * keys + (int64_t)(head / s.r) * s.key_dim + i : 2 * keys + (int64_t)head * s.value_dim + i;
}

static __device__ __forceinline__ void load_row(const struct delta_job &job, const struct tensor &c, int64_t t,
                                                int head, int64_t channel, struct row_inputs *in) {
    int col = place_of_thread().col;
    in->channel = channel >= 0 ? tensor_load(c, t, channel) : 0.0f;
    in->z = col < job.shape.value_dim ? tensor_load(job.z, t, (int64_t)head * job.shape.value_dim + col) : 0.0f;
    in->a = tensor_load(job.a, t, head);
    in->b = tensor_load(job.b, t, head);
}

// By one warp: queries or keys of a row, scaled to unit length times `factor`.
static __device__ __forceinline__ void unit_of_raw(const float *raw, float factor, float *x) {
    int lane = threadIdx.x % 32;
    float v[DELTA_MAX_DIM / 32], squares = 0;
#pragma unroll
    for (int k = 0; k < DELTA_MAX_DIM / 32; k++) {
        v[k] = raw[lane + 32 * k];
        squares += v[k] * v[k];
    }
    float inverse = 1.0f / sqrtf(warp_sum(squares) + L2_EPS) * factor;
#pragma unroll
    for (int k = 0; k < DELTA_MAX_DIM / 32; k++) x[padded(lane + 32 * k)] = v[k] * inverse;
}

static __device__ __forceinline__ void log_row_of(const struct delta_shape &s, char *run, int position, int head,
                                                  const struct rows_shared *shared, float d, float g) {
    struct place at = place_of_thread();
    if (at.key0 == 0 && at.col < s.value_dim) delta_log_d(s, run, position, head)[at.col] = d;
    if (threadIdx.x == 0) *delta_log_g(s, run, position, head) = g;
    if (head % s.r == 0 && (int)threadIdx.x < s.key_dim) // one of the value heads that share the key logs it
        delta_log_k(s, run, position, head / s.r)[threadIdx.x] = shared->k[padded(threadIdx.x)];
}

// One row, whose channels are in shared->raw.
static __device__ __forceinline__ void run_row(const struct delta_job &job, const struct lane_entry &lane, int i,
                                               int head, const struct row_inputs &in,
                                               const struct head_constants &constants, struct rows_shared *shared,
                                               float v[KEYS]) {
    const struct delta_shape &s = job.shape;
    struct place at = place_of_thread();
    int warp = threadIdx.x / 32;
    float g, beta;
    __syncthreads();
    if (warp == 0) unit_of_raw(shared->raw, rsqrtf((float)s.key_dim), shared->q);
    if (warp == 1) unit_of_raw(shared->raw + DELTA_MAX_DIM, 1.0f, shared->k);
    delta_gates_of(in.a, in.b, constants.neg_a, constants.dt_bias, &g, &beta);
    float decay = expf(g), value = shared->raw[2 * DELTA_MAX_DIM + at.col];
    __syncthreads();
    float d = beta * (value - decay * column_product(range_of(shared->k), v));
    fold_row(range_of(shared->k), decay, d, v);
    float o = column_product(range_of(shared->q), v);
    float squares = at.col < s.value_dim ? o * o : 0.0f;
    for (int step = 1; step < 8; step *= 2) squares += __shfl_xor_sync(0xffffffffu, squares, step);
    if (threadIdx.x % 32 == 0) shared->squares[warp] = squares;
    log_row_of(s, lane.run, lane.position + i, head, shared, d, g);
    __syncthreads();
    if (at.key0 != 0 || at.col >= s.value_dim) return;
    squares = 0;
#pragma unroll
    for (int k = 0; k < COLUMNS / 8; k++) squares += shared->squares[k];
    o = o * rsqrtf(squares / (float)s.value_dim + job.eps) * constants.out_norm * delta_gate(job, in.z);
    tensor_store(job.out, lane.row0 + i, (int64_t)head * s.value_dim + at.col, o);
}

// A thread's channel of the convolution: weights, and the values before the row at hand.
struct taps {
    float weight[TAPS], value[TAPS];
};

static __device__ __forceinline__ void open_taps(const struct conv_job &conv, const struct lane_entry &lane,
                                                 int64_t channel, struct taps *x) {
#pragma unroll
    for (int j = 0; j < TAPS; j++) {
        x->weight[j] = channel >= 0 ? conv.weight[channel * TAPS + j] : 0.0f;
        x->value[j] = channel >= 0 && j + 1 < TAPS ? conv_tap(conv, lane, j - (TAPS - 1), channel) : 0.0f;
    }
}

// The channel of the row whose input is m; the ring gets that. Heads that share a key share its channels: the first
// one's threads store them.
static __device__ __forceinline__ float convolve(const struct conv_job &conv, const struct lane_entry &lane, int i,
                                                 int64_t channel, bool stores, float m, struct taps *x) {
    float sum = 0;
    x->value[TAPS - 1] = m;
#pragma unroll
    for (int j = 0; j < TAPS; j++) sum += x->weight[j] * x->value[j];
#pragma unroll
    for (int j = 0; j + 1 < TAPS; j++) x->value[j] = x->value[j + 1];
    if (stores)
        store_float(lane.run + conv.ring_offset, conv.m.dtype, conv_ring_element(conv, lane.position + i, channel), m);
    return silu_of(sum);
}

// CONV: c is made of conv.m.
template <bool CONV>
static __global__ void __launch_bounds__(THREADS, 2)
    delta_rows_kernel(const __grid_constant__ delta_job job, const __grid_constant__ conv_job conv) {
    __shared__ struct rows_shared shared;
    let_next_start();
    const struct delta_shape &s = job.shape;
    const struct lane_entry lane = job.batch.lanes[blockIdx.y];
    int head = blockIdx.x;
    int64_t channel = channel_of(s, head);
    bool stores = channel >= 0 && (threadIdx.x >= 2 * DELTA_MAX_DIM || head % s.r == 0);
    struct lane_state state;
    struct taps taps;
    struct row_inputs in;
    open_state(s, lane, head, &state);
    if (CONV) open_taps(conv, lane, channel, &taps);
    int col = place_of_thread().col;
    struct head_constants constants = {col < s.value_dim ? job.out_norm[col] : 0.0f, job.neg_a[head],
                                       job.dt_bias[head]};
    wait_for_earlier();
    const struct tensor &c = CONV ? conv.m : job.c;
    load_row(job, c, lane.row0, head, channel, &in);
    fold_pending(s, lane, head, &shared, &state);
    for (int i = 0; i < lane.n_row; i++) {
        struct row_inputs now = in;
        if (i + 1 < lane.n_row) load_row(job, c, lane.row0 + i + 1, head, channel, &in);
        if (CONV) now.channel = convolve(conv, lane, i, channel, stores, now.channel, &taps);
        if (threadIdx.x < CHANNELS) shared.raw[threadIdx.x] = channel >= 0 ? now.channel : 0.0f;
        run_row(job, lane, i, head, now, constants, &shared, state.v);
    }
}

static __global__ void __launch_bounds__(THREADS)
    delta_commit_kernel(struct delta_shape shape, struct lane_entry lane) {
    __shared__ struct rows_shared shared;
    begin_kernel();
    struct lane_state state;
    open_state(shape, lane, blockIdx.x, &state);
    fold_pending(shape, lane, blockIdx.x, &shared, &state);
}

size_t need_delta(const struct device_limits *l) { return need_delta_prompt(l); }

template <bool CONV>
static void launch_rows(struct cuda_device *d, const struct delta_args *a, const struct batch_view *b,
                        const struct conv_job &conv) {
    dim3 grid((unsigned)a->n_value_head, (unsigned)b->n_lane);
    cuda_start(d, "delta, rows", delta_rows_kernel<CONV>, grid, THREADS, 0, delta_job_of(a, b), conv);
}

void cuda_delta(struct device *base, const struct delta_args *a) {
    struct cuda_device *d = cuda_of(base);
    const struct batch_view *b = cuda_batch(d, a->batch);
    if (d->failure != cudaSuccess || b->n_row == 0) return;
    must(a->key_dim <= DELTA_MAX_DIM && a->value_dim <= DELTA_MAX_DIM && a->key_dim % 16 == 0);
    struct conv_job none = {};
    if (a->batch->form == FORM_PROMPT)
        delta_prompt(d, a, b);
    else
        launch_rows<false>(d, a, b, none);
}

bool cuda_conv_delta(struct device *base, const struct conv_delta_args *a) {
    struct cuda_device *d = cuda_of(base);
    const struct batch_view *b = cuda_batch(d, a->delta.batch);
    if (d->failure != cudaSuccess || b->n_row == 0) return true;
    if (a->delta.batch->form != FORM_ROWS || a->conv.n_tap != TAPS || a->delta.key_dim > DELTA_MAX_DIM ||
        a->delta.value_dim > DELTA_MAX_DIM)
        return false;
    // Rows before the batch must still be there when its own are stored.
    if (a->delta.batch->max_window + TAPS - 1 > a->conv.ring_rows) return false;
    launch_rows<true>(d, &a->delta, b, conv_job_of(&a->conv, b));
    return true;
}

void cuda_delta_commit(struct device *base, const struct delta_commit_args *a) {
    struct cuda_device *d = cuda_of(base);
    if (d->failure != cudaSuccess || a->lane->n_pending == 0) return;
    struct delta_shape shape = {
        a->n_key_head,   a->n_value_head, a->key_dim,       a->value_dim, a->n_value_head / a->n_key_head,
        a->state_offset, a->log_offset,   2 * a->max_window};
    struct lane_entry lane = {0, 0, a->lane->position, a->lane->n_pending, 0, 0, (char *)a->lane->run};
    cuda_start(d, "delta, commit", delta_commit_kernel, dim3((unsigned)a->n_value_head), THREADS, 0, shape, lane);
}
