// delta in FORM_ROWS, and delta_commit: one block a value head of a lane, the state in its registers. A thread has one
// column and 32 keys of it; rows come one after another, and sums over keys are added in the order of the key ranges.
#include "cuda/delta.cuh"

#define KEYS    32                     // of a thread
#define COLUMNS DELTA_MAX_DIM          // threads of one range of keys
#define RANGES  (DELTA_MAX_DIM / KEYS) // at most
#define THREADS (COLUMNS * RANGES)

struct rows_shared {
    float q[DELTA_MAX_DIM], k[DELTA_MAX_DIM];
    float predicted[RANGES][COLUMNS], o[RANGES][COLUMNS];
    float squares[COLUMNS / 32];
};

// The state before the lane's pending rows; zeros before position 0, where it was never written.
static __device__ __forceinline__ void load_state(const struct delta_shape &s, const float *state, bool is_zero,
                                                  float v[KEYS]) {
    int col = threadIdx.x % COLUMNS, key0 = threadIdx.x / COLUMNS * KEYS;
#pragma unroll
    for (int i = 0; i < KEYS; i++)
        v[i] = !is_zero && key0 + i < s.key_dim && col < s.value_dim ? state[(int64_t)(key0 + i) * s.value_dim + col]
                                                                     : 0.0f;
}

static __device__ __forceinline__ void store_state(const struct delta_shape &s, float *state, const float v[KEYS]) {
    int col = threadIdx.x % COLUMNS, key0 = threadIdx.x / COLUMNS * KEYS;
#pragma unroll
    for (int i = 0; i < KEYS; i++)
        if (key0 + i < s.key_dim && col < s.value_dim) state[(int64_t)(key0 + i) * s.value_dim + col] = v[i];
}

// S = decay S + k d^T, by the same instructions whether the row is new or comes out of the log.
static __device__ __forceinline__ void fold_row(const float *k, float decay, float d, float v[KEYS]) {
    int key0 = threadIdx.x / COLUMNS * KEYS;
#pragma unroll
    for (int i = 0; i < KEYS; i++) v[i] = fmaf(k[key0 + i], d, decay * v[i]);
}

// Brings the state to the lane's position, and writes it if there were rows to fold in.
static __device__ __forceinline__ void fold_pending(const struct delta_shape &s, const struct lane_entry &lane,
                                                    int head, struct rows_shared *shared, float v[KEYS]) {
    float *state = delta_state(s, lane.run, head);
    int col = threadIdx.x % COLUMNS, first = lane.position - lane.n_pending;
    load_state(s, state, first == 0, v);
    for (int p = first; p < lane.position; p++) {
        const float *k = delta_log_k(s, lane.run, p, head / s.r);
        __syncthreads();
        if (threadIdx.x < DELTA_MAX_DIM) shared->k[threadIdx.x] = (int)threadIdx.x < s.key_dim ? k[threadIdx.x] : 0.0f;
        float d = col < s.value_dim ? delta_log_d(s, lane.run, p, head)[col] : 0.0f;
        float decay = expf(*delta_log_g(s, lane.run, p, head));
        __syncthreads();
        fold_row(shared->k, decay, d, v);
    }
    if (lane.n_pending > 0) store_state(s, state, v);
}

static __device__ __forceinline__ float sum_ranges(const float part[RANGES][COLUMNS], int n_range, int col) {
    float sum = part[0][col];
    for (int i = 1; i < n_range; i++) sum += part[i][col];
    return sum;
}

static __device__ __forceinline__ void run_row(const struct delta_job &job, const struct lane_entry &lane, int i,
                                               int head, struct rows_shared *shared, float v[KEYS]) {
    const struct delta_shape &s = job.shape;
    int col = threadIdx.x % COLUMNS, range = threadIdx.x / COLUMNS, n_range = blockDim.x / COLUMNS, key0 = range * KEYS;
    int64_t t = lane.row0 + i, keys = (int64_t)s.n_key_head * s.key_dim;
    int key_head = head / s.r, position = lane.position + i, warp = threadIdx.x / 32;
    bool has_column = col < s.value_dim;
    __syncthreads(); // the row before is done with shared memory
    if (warp == 0) unit_row(job.c, t, (int64_t)key_head * s.key_dim, s.key_dim, rsqrtf((float)s.key_dim), shared->q);
    if (warp == 1) unit_row(job.c, t, keys + (int64_t)key_head * s.key_dim, s.key_dim, 1.0f, shared->k);
    float g, beta, value = has_column ? tensor_load(job.c, t, 2 * keys + (int64_t)head * s.value_dim + col) : 0.0f;
    delta_gates(job, t, head, &g, &beta);
    float decay = expf(g), sum = 0;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < KEYS; j++) sum = fmaf(v[j], shared->k[key0 + j], sum);
    shared->predicted[range][col] = sum;
    __syncthreads();
    float d = beta * (value - decay * sum_ranges(shared->predicted, n_range, col));
    fold_row(shared->k, decay, d, v);
    sum = 0;
#pragma unroll
    for (int j = 0; j < KEYS; j++) sum = fmaf(v[j], shared->q[key0 + j], sum);
    shared->o[range][col] = sum;
    if (range == 0 && has_column) delta_log_d(s, lane.run, position, head)[col] = d;
    if (threadIdx.x == 0) *delta_log_g(s, lane.run, position, head) = g;
    if (head % s.r == 0 && (int)threadIdx.x < s.key_dim) // one of the value heads that share the key logs it
        delta_log_k(s, lane.run, position, key_head)[threadIdx.x] = shared->k[threadIdx.x];
    __syncthreads();
    float o = range == 0 && has_column ? sum_ranges(shared->o, n_range, col) : 0.0f;
    float squares = warp_sum(o * o);
    if (range == 0 && threadIdx.x % 32 == 0) shared->squares[warp] = squares;
    __syncthreads();
    if (range != 0 || !has_column) return;
    squares = 0;
    for (int k = 0; k < COLUMNS / 32; k++) squares += shared->squares[k];
    float z = tensor_load(job.z, t, (int64_t)head * s.value_dim + col);
    o = o * rsqrtf(squares / (float)s.value_dim + job.eps) * job.out_norm[col] * delta_gate(job, z);
    tensor_store(job.out, t, (int64_t)head * s.value_dim + col, o);
}

static __global__ void __launch_bounds__(THREADS) delta_rows_kernel(const __grid_constant__ delta_job job) {
    __shared__ struct rows_shared shared;
    begin_kernel();
    const struct lane_entry lane = job.batch.lanes[blockIdx.y];
    float v[KEYS];
    fold_pending(job.shape, lane, blockIdx.x, &shared, v);
    for (int i = 0; i < lane.n_row; i++) run_row(job, lane, i, blockIdx.x, &shared, v);
}

static __global__ void __launch_bounds__(THREADS)
    delta_commit_kernel(struct delta_shape shape, struct lane_entry lane) {
    __shared__ struct rows_shared shared;
    begin_kernel();
    float v[KEYS];
    fold_pending(shape, lane, blockIdx.x, &shared, v);
}

static unsigned threads_of(int key_dim) { return (unsigned)(COLUMNS * ceil_div(key_dim, KEYS)); }

size_t need_delta(const struct device_limits *l) { return need_delta_prompt(l); }

void cuda_delta(struct device *base, const struct delta_args *a) {
    struct cuda_device *d = cuda_of(base);
    const struct batch_view *b = cuda_batch(d, a->batch);
    if (d->failure != cudaSuccess || b->n_row == 0) return;
    must(a->key_dim <= DELTA_MAX_DIM && a->value_dim <= DELTA_MAX_DIM && a->key_dim % 16 == 0);
    if (a->batch->form == FORM_PROMPT) {
        delta_prompt(d, a, b);
        return;
    }
    dim3 grid((unsigned)a->n_value_head, (unsigned)b->n_lane);
    cuda_start(d, "delta, rows", delta_rows_kernel, grid, threads_of(a->key_dim), 0, delta_job_of(a, b));
}

void cuda_delta_commit(struct device *base, const struct delta_commit_args *a) {
    struct cuda_device *d = cuda_of(base);
    if (d->failure != cudaSuccess || a->lane->n_pending == 0) return;
    struct delta_shape shape = {
        a->n_key_head,   a->n_value_head, a->key_dim,       a->value_dim, a->n_value_head / a->n_key_head,
        a->state_offset, a->log_offset,   2 * a->max_window};
    struct lane_entry lane = {0, 0, a->lane->position, a->lane->n_pending, 0, 0, (char *)a->lane->run};
    cuda_start(d, "delta, commit", delta_commit_kernel, dim3((unsigned)a->n_value_head), threads_of(a->key_dim), 0,
               shape, lane);
}
