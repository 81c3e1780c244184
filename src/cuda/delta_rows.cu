// delta in FORM_ROWS, with or without the convolution before it, and delta_commit: one block a value head of a lane,
// the state in its registers. Eight lanes of a warp have a column each, its keys in ranges of 32 that four such eights
// share; sums over keys are added in the order of the ranges. Rows change the state one after another; what does not
// need the state, before it and behind it, is done for up to CHUNK rows at once.
//
// What a round reads and no earlier kernel of it writes (the lane's table, state, log and ring) is asked for before the
// kernel waits: a batch's tables are sent between the kernels that wrote those and this one.
#include "cuda/conv.cuh"
#include "cuda/delta.cuh"

#define KEYS    32 // of a thread
#define COLUMNS DELTA_MAX_DIM
#define RANGES  (DELTA_MAX_DIM / KEYS)
#define THREADS (COLUMNS * RANGES)
#define PADDED  (RANGES * (KEYS + 4)) // ranges four banks apart
#define TAPS    4
#define PART    DELTA_MAX_DIM // threads with channels of a head's queries; then keys, values, and gates of outputs
#define WARPS   (THREADS / 32)
#define CHUNK   (WARPS / 2)                 // rows at once: a warp for the queries and one for the keys of each
#define OUTPUTS (CHUNK * COLUMNS / THREADS) // of a thread

// Of the rows at hand, new ones or such of the log.
struct rows_shared {
    float q[CHUNK][PADDED], k[CHUNK][PADDED];
    float raw[CHUNK][2 * DELTA_MAX_DIM]; // queries and keys
    float value[CHUNK][COLUMNS];         // then outputs; of the log: d
    float z[CHUNK][COLUMNS];
    float squares[CHUNK][WARPS];
    float g[CHUNK], beta[CHUNK], qk[CHUNK];
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
    for (int i = 0; i < KEYS; i++) v[i] = 0;
    if (is_zero) return;
    state += at.key0 * s.value_dim + at.col;
#pragma unroll
    for (int i = 0; i < KEYS; i++)
        if (at.key0 + i < s.key_dim && at.col < s.value_dim) v[i] = state[i * s.value_dim];
}

static __device__ __forceinline__ void store_state(const struct delta_shape &s, float *state, const float v[KEYS]) {
    struct place at = place_of_thread();
    state += at.key0 * s.value_dim + at.col;
#pragma unroll
    for (int i = 0; i < KEYS; i++)
        if (at.key0 + i < s.key_dim && at.col < s.value_dim) state[i * s.value_dim] = v[i];
}

// This thread's range of q or k.
static __device__ __forceinline__ const float4 *range_of(const float *x) {
    return (const float4 *)(x + place_of_thread().key0 / KEYS * (KEYS + 4));
}

// From shared memory, also if it was read before: beside the state, registers have no room to keep it.
static __device__ __forceinline__ float4 load_again(const float4 *from) {
    float4 v;
    asm volatile("ld.volatile.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(shared_address(from)));
    return v;
}

// S = decay S + k d^T, by the same instructions whether the row is new or comes out of the log.
static __device__ __forceinline__ void fold_row(const float4 *k, float decay, float d, float v[KEYS]) {
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++) {
        float4 x = load_again(k + i);
        v[4 * i] = fmaf(x.x, d, decay * v[4 * i]);
        v[4 * i + 1] = fmaf(x.y, d, decay * v[4 * i + 1]);
        v[4 * i + 2] = fmaf(x.z, d, decay * v[4 * i + 2]);
        v[4 * i + 3] = fmaf(x.w, d, decay * v[4 * i + 3]);
    }
}

// Over all keys of the column, for each of its threads.
static __device__ __forceinline__ float column_sum(float sum) {
    int first = threadIdx.x % 8;
    float all = __shfl_sync(0xffffffffu, sum, first);
#pragma unroll
    for (int i = 1; i < RANGES; i++) all += __shfl_sync(0xffffffffu, sum, first + 8 * i);
    return all;
}

// The column's products with keys and with queries.
static __device__ __forceinline__ void column_products(const float4 *k, const float4 *q, const float v[KEYS],
                                                       float *by_key, float *by_query) {
    float a = 0, b = 0;
#pragma unroll
    for (int i = 0; i < KEYS / 4; i++) {
        float4 x = k[i], y = q[i];
        a = fmaf(v[4 * i], x.x, a);
        b = fmaf(v[4 * i], y.x, b);
        a = fmaf(v[4 * i + 1], x.y, a);
        b = fmaf(v[4 * i + 1], y.y, b);
        a = fmaf(v[4 * i + 2], x.z, a);
        b = fmaf(v[4 * i + 2], y.z, b);
        a = fmaf(v[4 * i + 3], x.w, a);
        b = fmaf(v[4 * i + 3], y.w, b);
    }
    *by_key = column_sum(a);
    *by_query = column_sum(b);
}

// Rows [first, first + CHUNK) of the log, as far as they are pending, to where rows at hand lie.
static __device__ __forceinline__ void load_log(const struct delta_shape &s, const struct lane_entry &lane, int first,
                                                int head, struct rows_shared *shared) {
    int row0 = threadIdx.x / COLUMNS, x = threadIdx.x % COLUMNS;
    float k[OUTPUTS] = {}, d[OUTPUTS] = {};
#pragma unroll
    for (int j = 0; j < OUTPUTS; j++) {
        int position = first + row0 + j * (THREADS / COLUMNS);
        if (position < lane.position && x < s.key_dim) k[j] = delta_log_k(s, lane.run, position, head / s.r)[x];
        if (position < lane.position && x < s.value_dim) d[j] = delta_log_d(s, lane.run, position, head)[x];
    }
#pragma unroll
    for (int j = 0; j < OUTPUTS; j++) {
        shared->k[row0 + j * (THREADS / COLUMNS)][padded(x)] = k[j];
        shared->value[row0 + j * (THREADS / COLUMNS)][x] = d[j];
    }
    int position = first + (int)threadIdx.x;
    if (threadIdx.x < CHUNK && position < lane.position)
        shared->g[threadIdx.x] = *delta_log_g(s, lane.run, position, head);
}

// The state as a lane has it, zeros before position 0, and the first of its pending rows.
static __device__ __forceinline__ void open_state(const struct delta_shape &s, const struct lane_entry &lane, int head,
                                                  struct rows_shared *shared, float v[KEYS]) {
    int first = lane.position - lane.n_pending;
    load_state(s, delta_state(s, lane.run, head), first == 0, v);
    if (lane.n_pending > 0) load_log(s, lane, first, head, shared);
}

// Brings the state to the lane's position; whether it has changed.
static __device__ __forceinline__ bool fold_pending(const struct delta_shape &s, const struct lane_entry &lane,
                                                    int head, struct rows_shared *shared, float v[KEYS]) {
    int col = place_of_thread().col, oldest = lane.position - lane.n_pending;
    for (int first = oldest; first < lane.position; first += CHUNK) {
        if (first > oldest) {
            __syncthreads();
            load_log(s, lane, first, head, shared);
        }
        __syncthreads();
        int n = min(CHUNK, lane.position - first);
#pragma unroll 1
        for (int r = 0; r < n; r++) fold_row(range_of(shared->k[r]), expf(shared->g[r]), shared->value[r][col], v);
    }
    return lane.n_pending > 0;
}

// The head's channel of this thread, counted over the tensor; -1: it has none, or one of z.
static __device__ __forceinline__ int64_t channel_of(const struct delta_shape &s, int head) {
    int part = threadIdx.x / PART, i = threadIdx.x % PART;
    int64_t keys = (int64_t)s.n_key_head * s.key_dim;
    if (part > 2 || i >= (part < 2 ? s.key_dim : s.value_dim)) return -1;
    return part < 2 ? part * keys + (int64_t)(head / s.r) * s.key_dim + i : 2 * keys + (int64_t)head * s.value_dim + i;
}

// What a warp has of a vector.
struct warp_vector {
    float v[DELTA_MAX_DIM / 32];
};
static __device__ __forceinline__ struct warp_vector load_vector(const float *from) {
    struct warp_vector x;
#pragma unroll
    for (int k = 0; k < DELTA_MAX_DIM / 32; k++) x.v[k] = from[threadIdx.x % 32 + 32 * k];
    return x;
}
static __device__ __forceinline__ float vector_product(const struct warp_vector &a, const struct warp_vector &b) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < DELTA_MAX_DIM / 32; k++) sum += a.v[k] * b.v[k];
    return warp_sum(sum);
}

// The rows at hand of a lane: n of them, the first is row `row0` of the batch, at `position`.
struct chunk {
    int n, position;
    int64_t row0;
};

// By the chunk's warps, a row's queries or keys each, scaled to unit length; and the product of the two.
static __device__ __forceinline__ void take_units(const struct delta_shape &s, const struct chunk &chunk,
                                                  struct rows_shared *shared) {
    int r = threadIdx.x / 64, part = threadIdx.x / 32 % 2;
    if (r >= chunk.n) return;
    struct warp_vector k = load_vector(shared->raw[r] + DELTA_MAX_DIM), x = k;
    float scale_k = 1.0f / sqrtf(vector_product(k, k) + L2_EPS), scale = scale_k, *to = shared->k[r];
    if (part == 0) {
        x = load_vector(shared->raw[r]);
        to = shared->q[r];
        scale = 1.0f / sqrtf(vector_product(x, x) + L2_EPS) * rsqrtf((float)s.key_dim);
        float product = vector_product(k, x);
        if (threadIdx.x % 32 == 0) shared->qk[r] = product * scale_k * scale;
    }
#pragma unroll
    for (int i = 0; i < DELTA_MAX_DIM / 32; i++) to[padded(threadIdx.x % 32 + 32 * i)] = x.v[i] * scale;
}

// The state from row to row: what comes out of S = decay S + k d^T for a query q is decay (q S) + (q k) d, so that the
// state is read once for both products. It goes where the row's values were, which only this warp reads.
static __device__ __forceinline__ void run_rows(const struct delta_shape &s, char *run, const struct chunk &chunk,
                                                int head, struct rows_shared *shared, float v[KEYS]) {
    struct place at = place_of_thread();
    int warp = threadIdx.x / 32;
#pragma unroll 1
    for (int r = 0; r < chunk.n; r++) {
        const float4 *k = range_of(shared->k[r]);
        float decay = expf(shared->g[r]), value = shared->value[r][at.col];
        float by_key, by_query;
        column_products(k, range_of(shared->q[r]), v, &by_key, &by_query);
        float d = shared->beta[r] * (value - decay * by_key), o = fmaf(shared->qk[r], d, decay * by_query);
        fold_row(k, decay, d, v);
        float squares = at.col < s.value_dim ? o * o : 0.0f;
        for (int step = 1; step < 8; step *= 2) squares += __shfl_xor_sync(0xffffffffu, squares, step);
        if (threadIdx.x % 32 == 0) shared->squares[r][warp] = squares;
        if (at.key0 == 0 && at.col < s.value_dim) {
            shared->value[r][at.col] = o;
            delta_log_d(s, run, chunk.position + r, head)[at.col] = d;
        }
    }
}

// Keys and gates of the chunk, for the log; one of the value heads that share a key logs it.
static __device__ __forceinline__ void log_keys(const struct delta_shape &s, char *run, const struct chunk &chunk,
                                                int head, const struct rows_shared *shared) {
    int x = threadIdx.x % COLUMNS;
    if ((int)threadIdx.x < chunk.n)
        *delta_log_g(s, run, chunk.position + (int)threadIdx.x, head) = shared->g[threadIdx.x];
    if (head % s.r != 0 || x >= s.key_dim) return;
    for (int r = threadIdx.x / COLUMNS; r < chunk.n; r += THREADS / COLUMNS)
        delta_log_k(s, run, chunk.position + r, head / s.r)[x] = shared->k[r][padded(x)];
}

static __device__ __forceinline__ void store_outputs(const struct delta_job &job, const struct delta_shape &s,
                                                     const struct chunk &chunk, int head, float norm,
                                                     const struct rows_shared *shared) {
    int col = threadIdx.x % COLUMNS;
#pragma unroll
    for (int j = 0; j < OUTPUTS; j++) {
        int r = (int)threadIdx.x / COLUMNS + j * (THREADS / COLUMNS);
        if (r >= chunk.n || col >= s.value_dim) continue;
        float squares = 0, o = shared->value[r][col];
#pragma unroll
        for (int k = 0; k < WARPS; k++) squares += shared->squares[r][k];
        o = o * rsqrtf(squares / (float)s.value_dim + job.eps) * norm * delta_gate(job, shared->z[r][col]);
        tensor_store(job.out, chunk.row0 + r, (int64_t)head * s.value_dim + col, o);
    }
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

// The channel of the row whose input is m; the ring gets that, at `slot`. Heads that share a key share its channels:
// the first one's threads store them.
static __device__ __forceinline__ float convolve(const struct conv_job &conv, const struct lane_entry &lane, int slot,
                                                 int64_t channel, bool stores, float m, struct taps *x) {
    float sum = 0;
    x->value[TAPS - 1] = m;
#pragma unroll
    for (int j = 0; j < TAPS; j++) sum += x->weight[j] * x->value[j];
#pragma unroll
    for (int j = 0; j + 1 < TAPS; j++) x->value[j] = x->value[j + 1];
    if (stores) store_float(lane.run + conv.ring_offset, conv.m.dtype, slot * conv.m.n_col + channel, m);
    return silu_of(sum);
}

static __device__ __forceinline__ void put_channel(int r, float x, struct rows_shared *shared) {
    int part = threadIdx.x / PART, i = threadIdx.x % PART;
    float *to = part < 2 ? shared->raw[r] + part * PART : part == 2 ? shared->value[r] : shared->z[r];
    to[i] = x;
}

// What this thread has of the chunk's rows: a channel of c, as it is or what the convolution makes of it, or one of z.
template <bool CONV>
static __device__ __forceinline__ void
take_channels(const struct tensor &from, const struct conv_job &conv, const struct lane_entry &lane,
              const struct chunk &chunk, int64_t channel, bool stores, struct taps *taps, struct rows_shared *shared) {
    constexpr int AHEAD = CHUNK / 2;
    bool convolves = CONV && threadIdx.x < 3 * PART;
    int slot = CONV ? chunk.position % conv.ring_rows : 0;
#pragma unroll 1
    for (int first = 0; first < chunk.n; first += AHEAD) {
        float x[AHEAD];
#pragma unroll
        for (int r = 0; r < AHEAD; r++)
            x[r] = first + r < chunk.n && channel >= 0 ? tensor_load(from, chunk.row0 + first + r, channel) : 0.0f;
#pragma unroll
        for (int r = 0; r < AHEAD; r++) {
            if (first + r >= chunk.n) break;
            if (convolves) x[r] = convolve(conv, lane, slot, channel, stores, x[r], taps);
            put_channel(first + r, x[r], shared);
            slot = slot + 1 == conv.ring_rows ? 0 : slot + 1;
        }
    }
}

// WHOLE: the usual number of keys and values, so that nothing asks whether there is one more.
template <bool WHOLE> static __device__ __forceinline__ struct delta_shape shape_of(struct delta_shape s) {
    if (WHOLE) s.key_dim = s.value_dim = DELTA_MAX_DIM;
    return s;
}

// CONV: c is made of conv.m.
template <bool CONV, bool WHOLE>
static __global__ void __launch_bounds__(THREADS, 2)
    delta_rows_kernel(const __grid_constant__ delta_job job, const __grid_constant__ conv_job conv) {
    __shared__ __align__(16) struct rows_shared shared;
    let_next_start();
    const struct delta_shape s = shape_of<WHOLE>(job.shape);
    const struct lane_entry lane = job.batch.lanes[blockIdx.y];
    int head = blockIdx.x, col = threadIdx.x % COLUMNS;
    int64_t channel = channel_of(s, head);
    bool stores = channel >= 0 && (threadIdx.x >= 2 * DELTA_MAX_DIM || head % s.r == 0);
    float v[KEYS];
    struct taps taps;
    open_state(s, lane, head, &shared, v);
    if (CONV) open_taps(conv, lane, channel, &taps);
    float norm = col < s.value_dim ? job.out_norm[col] : 0.0f;
    bool is_gate = threadIdx.x >= 3 * PART;
    if (is_gate) channel = col < s.value_dim ? (int64_t)head * s.value_dim + col : -1;
    bool changed = fold_pending(s, lane, head, &shared, v);
    wait_for_earlier();
    if (changed) store_state(s, delta_state(s, lane.run, head), v);
    for (int first = 0; first < lane.n_row; first += CHUNK) {
        struct chunk chunk = {min(CHUNK, lane.n_row - first), lane.position + first, lane.row0 + first};
        int row = THREADS - 1 - (int)threadIdx.x; // whose gates this thread makes
        float a = row < chunk.n ? tensor_load(job.a, chunk.row0 + row, head) : 0.0f;
        float b = row < chunk.n ? tensor_load(job.b, chunk.row0 + row, head) : 0.0f;
        float neg_a = row < chunk.n ? job.neg_a[head] : 0.0f, dt_bias = row < chunk.n ? job.dt_bias[head] : 0.0f;
        __syncthreads(); // the rows before have been read
        take_channels<CONV>(is_gate ? job.z
                            : CONV  ? conv.m
                                    : job.c,
                            conv, lane, chunk, channel, stores, &taps, &shared);
        if (row < chunk.n) delta_gates_of(a, b, neg_a, dt_bias, &shared.g[row], &shared.beta[row]);
        __syncthreads();
        take_units(s, chunk, &shared);
        __syncthreads();
        run_rows(s, lane.run, chunk, head, &shared, v);
        log_keys(s, lane.run, chunk, head, &shared);
        __syncthreads();
        store_outputs(job, s, chunk, head, norm, &shared);
    }
}

static __global__ void __launch_bounds__(THREADS)
    delta_commit_kernel(struct delta_shape shape, struct lane_entry lane) {
    __shared__ __align__(16) struct rows_shared shared;
    begin_kernel();
    float v[KEYS];
    open_state(shape, lane, blockIdx.x, &shared, v);
    if (fold_pending(shape, lane, blockIdx.x, &shared, v))
        store_state(shape, delta_state(shape, lane.run, blockIdx.x), v);
}

size_t need_delta(const struct device_limits *l) { return need_delta_prompt(l); }

template <bool CONV>
static void launch_rows(struct cuda_device *d, const struct delta_args *a, const struct batch_view *b,
                        const struct conv_job &conv) {
    dim3 grid((unsigned)a->n_value_head, (unsigned)b->n_lane);
    bool whole = a->key_dim == DELTA_MAX_DIM && a->value_dim == DELTA_MAX_DIM;
    auto kernel = whole ? delta_rows_kernel<CONV, true> : delta_rows_kernel<CONV, false>;
    cuda_start(d, "delta, rows", kernel, grid, THREADS, 0, delta_job_of(a, b), conv);
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
