// delta in FORM_ROWS, with or without the convolution before it, and delta_commit: the state of a lane's value head is
// in the registers of one block or, where heads are fewer than processors, of a cluster of two, which have half of its
// columns each. Eight lanes of a warp have a column each, its keys in ranges of 32 that four such eights share; sums
// over keys are added in the order of the ranges. Rows change the state one after another; what does not need it,
// before it and behind it, is done for up to CHUNK rows at once. A row's outputs are normed by one warp, which has them
// all: of two blocks that share a head, one finishes the even rows and one the odd ones.
//
// What a round reads and no earlier kernel of it writes (the lane's table, state, log and ring) is asked for before the
// kernel waits, and pending rows are folded in: a batch's tables are sent between the kernels that wrote those and this
// one. So is the state stored then, which nobody else reads.
#include "cuda/conv.cuh"
#include "cuda/delta_state.cuh"
#include "cuda/planes_make.cuh"

// Starts bringing the log of `chunk`, as far as rows are pending, to where rows at hand lie.
template <int BLOCKS>
static __device__ __forceinline__ void fetch_log(const struct delta_shape &s, const struct lane_entry &lane,
                                                 const struct chunk &chunk, const struct head_place &h, int t,
                                                 struct rows_shared<BLOCKS> *shared) {
    constexpr int COLUMNS = columns<BLOCKS>();
#pragma unroll 1
    for (int r = t / DELTA_MAX_DIM; r < chunk.n; r += all_threads<BLOCKS>() / DELTA_MAX_DIM) {
        int x = t % DELTA_MAX_DIM;
        const float *from = delta_log_k(s, lane.run, log_slot(s, chunk, r), h.key_head);
        copy4(&shared->k[r][padded(x)], from + (x < s.key_dim ? x : 0), x < s.key_dim ? 4 : 0);
    }
#pragma unroll 1
    for (int r = t / COLUMNS; r < chunk.n; r += RANGES) {
        int x = h.rank * COLUMNS + t % COLUMNS;
        const float *from = delta_log_d(s, lane.run, log_slot(s, chunk, r), h.head);
        copy4(&shared->value[r][t % COLUMNS], from + (x < s.value_dim ? x : 0), x < s.value_dim ? 4 : 0);
    }
    if (t < chunk.n) copy4(&shared->g[t], delta_log_g(s, lane.run, log_slot(s, chunk, t), h.head), 4);
    copies_commit();
}

// Where a row's outputs are put together. A block that shares its head may still read those of the chunk before.
template <int BLOCKS> static __device__ __forceinline__ int out_of_row(const struct chunk &chunk, int r) {
    return BLOCKS > 1 ? (chunk.first + r) / BLOCKS % CHUNK : r;
}

// The state from row to row: what comes out of S = decay S + k d^T for a query q is decay (q S) + (q k) d, so that the
// state is read once for both products. Of the log only d is wanted.
template <int BLOCKS>
static __device__ __forceinline__ void run_rows(const struct delta_shape &s, char *run, const struct chunk &chunk,
                                                const struct head_place &h, struct rows_shared<BLOCKS> *shared,
                                                float v[KEYS]) {
    constexpr int COLUMNS = columns<BLOCKS>();
    struct place at = place_of_thread();
#pragma unroll 1
    for (int r = 0; r < chunk.n; r++) {
        struct row_keys<(BLOCKS > 1)> k;
        k.open(range_of(shared->k[r]));
        float decay = expf(shared->g[r]), d = shared->value[r][at.col];
        if (chunk.first >= 0) {
            float by_key, by_query;
            column_products(k, range_of(shared->q[r]), v, &by_key, &by_query);
            d = shared->beta[r] * fmaf(-decay, by_key, d);
            float o = fmaf(shared->qk[r], d, decay * by_query);
            if (at.key0 == 0 && h.rank * COLUMNS + at.col < s.value_dim) {
                int col = h.rank * COLUMNS + at.col;
                float *to = shared->out[out_of_row<BLOCKS>(chunk, r)] + col;
                if (BLOCKS > 1)
                    send(to, &shared->arrived[chunk.first / CHUNK % 2], r % BLOCKS, o);
                else
                    *to = o;
                delta_log_d(s, run, log_slot(s, chunk, r), h.head)[col] = d;
            }
        }
        fold_row(k, decay, d, v);
    }
}

// ---- before the state ----

// What a warp has of a vector.
struct warp_vector {
    float v[DELTA_MAX_DIM / 32];
};
static __device__ __forceinline__ struct warp_vector load_vector(const float *from, int lane) {
    struct warp_vector x;
#pragma unroll
    for (int k = 0; k < DELTA_MAX_DIM / 32; k++) x.v[k] = from[lane + 32 * k];
    return x;
}
static __device__ __forceinline__ float vector_product(const struct warp_vector &a, const struct warp_vector &b) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < DELTA_MAX_DIM / 32; k++) sum = fmaf(a.v[k], b.v[k], sum);
    return warp_sum(sum);
}

// By the first warps, a row's queries and keys each, scaled to unit length; and the product of the two.
template <int BLOCKS>
static __device__ __forceinline__ void take_units(const struct delta_shape &s, const struct chunk &chunk, int t,
                                                  struct rows_shared<BLOCKS> *shared) {
    int r = t / 32;
    if (r >= chunk.n) return;
    struct warp_vector q = load_vector(shared->raw[r], t % 32), k = load_vector(shared->raw[r] + DELTA_MAX_DIM, t % 32);
    float scale_k = 1.0f / sqrtf(vector_product(k, k) + L2_EPS);
    float scale = 1.0f / sqrtf(vector_product(q, q) + L2_EPS) * rsqrtf((float)s.key_dim);
    float product = vector_product(k, q);
    if (t % 32 == 0) shared->qk[r] = product * scale_k * scale;
#pragma unroll
    for (int i = 0; i < DELTA_MAX_DIM / 32; i++) {
        int at = padded(t % 32 + 32 * i);
        shared->q[r][at] = q.v[i] * scale;
        shared->k[r][at] = k.v[i] * scale_k;
    }
}

// A channel of the head's queries and keys, counted over the tensor, as threads have them one after another; -1: there
// is none.
static __device__ __forceinline__ int key_channel(const struct delta_shape &s, const struct head_place &h, int t) {
    int part = t / DELTA_MAX_DIM, i = t % DELTA_MAX_DIM;
    return part < 2 && i < s.key_dim ? (part * s.n_key_head + h.key_head) * s.key_dim + i : -1;
}

// And of the block's values.
template <int BLOCKS>
static __device__ __forceinline__ int value_channel(const struct delta_shape &s, const struct head_place &h, int t) {
    int i = h.rank * columns<BLOCKS>() + t % columns<BLOCKS>();
    return i < s.value_dim ? 2 * s.n_key_head * s.key_dim + h.head * s.value_dim + i : -1;
}

// Starts bringing a channel's taps, which in the ring are before `slot`; zeros where there are none.
template <bool WHOLE, int BLOCKS>
static __device__ __forceinline__ void fetch_taps(const struct conv_job &conv, const struct lane_entry &lane, int slot,
                                                  int channel, int at, struct rows_shared<BLOCKS> *shared) {
    const float *weight = conv.weight + max(channel, 0) * TAPS;
    if (WHOLE)
        copy16(&shared->weight[at], weight, 16);
    else
        for (int j = 0; j < TAPS; j++) copy4((float *)&shared->weight[at] + j, weight + j, channel < 0 ? 0 : 4);
    const float *ring = (const float *)(lane.run + conv.ring_offset) + max(channel, 0);
#pragma unroll
    for (int j = TAPS - 2; j >= 0; j--) {
        slot = slot == 0 ? conv.ring_rows - 1 : slot - 1;
        bool exists = channel >= 0 && lane.position + j >= TAPS - 1;
        copy4(&shared->tap[j][at], ring + (int64_t)slot * (int)conv.m.n_col, exists ? 4 : 0);
    }
}

// Starts bringing what the lane's first rows are made with.
template <bool CONV, bool WHOLE, int BLOCKS>
static __device__ __forceinline__ void
fetch_first(const struct delta_job &job, const struct conv_job &conv, const struct delta_shape &s,
            const struct lane_entry &lane, const struct head_place &h, int slot, struct rows_shared<BLOCKS> *shared) {
    int t = threadIdx.x, row = all_threads<BLOCKS>() - 1 - t;
    if (CONV && t < 2 * DELTA_MAX_DIM) fetch_taps<WHOLE, BLOCKS>(conv, lane, slot, key_channel(s, h, t), t, shared);
    if (CONV && t < columns<BLOCKS>())
        fetch_taps<WHOLE, BLOCKS>(conv, lane, slot, value_channel<BLOCKS>(s, h, t), 2 * DELTA_MAX_DIM + t, shared);
    if (t < s.value_dim) copy4(&shared->norm[t], job.out_norm + t, 4);
    if (row < CHUNK) {
        copy4(&shared->neg_a[row], job.neg_a + h.head, 4);
        copy4(&shared->dt_bias[row], job.dt_bias + h.head, 4);
    }
    copies_commit();
}

// Where an element of fp32 is. Rows and strides fit into 32 bits.
static __device__ __forceinline__ float *element_at(const struct tensor &t, int row, int col) {
    return (float *)t.data + ((int64_t)row * (int)t.stride + col);
}

template <bool WHOLE> static __device__ __forceinline__ float load_element(const struct tensor &t, int row, int col) {
    return WHOLE ? *element_at(t, row, col) : tensor_load(t, row, col);
}

// A channel in rows `row` to `row` + N - 1, of which those from `first` on and before `end` exist. Most rounds have one
// row a lane, which is `only`: the others' places are not worked out then.
template <bool WHOLE, int N>
static __device__ __forceinline__ void load_channel(const struct tensor &from, int row, int only, int first, int end,
                                                    int channel, float x[N]) {
#pragma unroll
    for (int r = 0; r < N; r++) x[r] = 0;
    if (channel < 0 || first >= end) return;
    if (only >= first && only < end) x[only] = load_element<WHOLE>(from, row + only, channel);
    if (end - first < 2) return;
#pragma unroll
    for (int r = 0; r < N; r++)
        if (r != only && r >= first && r < end) x[r] = load_element<WHOLE>(from, row + r, channel);
}

// A row of the channel whose taps stand in x; the ring gets what went into it, if this thread stores that.
template <bool CONV>
static __device__ __forceinline__ float convolve(const struct conv_job &conv, char *run, int slot, int channel,
                                                 bool stores, const float4 &weight, const float *x) {
    if (!CONV) return x[TAPS - 1];
    float sum = 0;
    sum += weight.x * x[0];
    sum += weight.y * x[1];
    sum += weight.z * x[2];
    sum += weight.w * x[3];
    if (stores) ((float *)(run + conv.ring_offset))[(int64_t)slot * (int)conv.m.n_col + channel] = x[TAPS - 1];
    return silu_of(sum);
}

// What this thread has of the chunk's rows: a channel of c, as it is or what the convolution makes of it, in all rows,
// and one of values in some.
template <bool CONV, bool WHOLE, int BLOCKS>
static __device__ __forceinline__ void
take_channels(const struct tensor &from, const struct conv_job &conv, const struct delta_shape &s, char *run,
              const struct chunk &chunk, const struct head_place &h, int t, struct rows_shared<BLOCKS> *shared) {
    constexpr int COLUMNS = columns<BLOCKS>(), AHEAD = BLOCKS > 1 ? CHUNK : 2;
    int ring_rows = CONV ? conv.ring_rows : CHUNK, row0 = t / COLUMNS * ROWS;
    int own = key_channel(s, h, t), column = value_channel<BLOCKS>(s, h, t);
    float x[TAPS - 1 + AHEAD], y[TAPS - 1 + ROWS];
    load_channel<WHOLE, AHEAD>(from, chunk.row, 0, 0, chunk.n, own, x + TAPS - 1);
    load_channel<WHOLE, TAPS - 1 + ROWS>(from, chunk.row + row0 - (TAPS - 1), TAPS - 1,
                                         max(TAPS - 1 - row0 - chunk.first, 0), chunk.n - row0 + TAPS - 1, column, y);
    copies_wait<0>();
    __syncthreads();
    int at = 2 * DELTA_MAX_DIM + t % COLUMNS, slot = chunk.ring_slot + row0;
    if (slot >= ring_rows) slot -= ring_rows;
    if (CONV && chunk.first == 0)
#pragma unroll
        for (int j = 0; j + 1 < TAPS; j++)
            if (row0 + j < TAPS - 1) y[j] = shared->tap[row0 + j][at];
#pragma unroll 1
    for (int r = row0; r < min(row0 + ROWS, chunk.n); r++) {
        shared->value[r][t % COLUMNS] = convolve<CONV>(conv, run, slot, column, column >= 0, shared->weight[at], y);
#pragma unroll
        for (int j = 0; j + 1 < TAPS - 1 + ROWS; j++) y[j] = y[j + 1];
        slot = slot + 1 == ring_rows ? 0 : slot + 1;
    }
    if (t >= 2 * DELTA_MAX_DIM) return;
    bool stores = own >= 0 && h.is_first;
    slot = chunk.ring_slot;
#pragma unroll
    for (int j = 0; j + 1 < TAPS; j++) x[j] = CONV ? shared->tap[j][t] : 0.0f;
    float4 weight = CONV ? shared->weight[t] : make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (int r = 0; r < chunk.n; r++) {
        shared->raw[r][t] = convolve<CONV>(conv, run, slot, own, stores, weight, x);
#pragma unroll
        for (int j = 0; j + 1 < TAPS - 1 + AHEAD; j++) x[j] = x[j + 1];
        if (AHEAD < CHUNK)
            load_channel<WHOLE, 1>(from, chunk.row + r + AHEAD, 0, 0, chunk.n - r - AHEAD, own, x + TAPS - 2 + AHEAD);
        slot = slot + 1 == ring_rows ? 0 : slot + 1;
    }
#pragma unroll
    for (int j = 0; j + 1 < TAPS; j++)
        if (CONV) shared->tap[j][t] = x[j];
}

// ---- behind the state ----

// Keys of the chunk, for the log.
template <int BLOCKS>
static __device__ __forceinline__ void log_keys(const struct delta_shape &s, char *run, const struct chunk &chunk,
                                                const struct head_place &h, int t,
                                                const struct rows_shared<BLOCKS> *shared) {
    int x = t % DELTA_MAX_DIM;
    if (!h.is_first || x >= s.key_dim) return;
#pragma unroll 1
    for (int r = t / DELTA_MAX_DIM; r < chunk.n; r += all_threads<BLOCKS>() / DELTA_MAX_DIM)
        delta_log_k(s, run, log_slot(s, chunk, r), h.key_head)[x] = shared->k[r][padded(x)];
}

// Of this warp's row, if it has one: normed and gated outputs, and planes of them.
template <bool WHOLE, int BLOCKS>
static __device__ __forceinline__ void
finish_row(const struct delta_job &job, const struct delta_shape &s, const struct plane_rows &planes,
           const struct chunk &chunk, const struct head_place &h, int t, struct rows_shared<BLOCKS> *shared) {
    int own = t / 32 - first_finisher<BLOCKS>(), r = own * BLOCKS + h.rank, lane = t % 32;
    if (own < 0 || r >= chunk.n) return;
    int turn = chunk.first / CHUNK;
    if (BLOCKS > 1) barrier_wait(&shared->arrived[turn % 2], turn / 2 % 2);
    float4 o = ((const float4 *)shared->out[out_of_row<BLOCKS>(chunk, r)])[lane];
    float4 norm = ((const float4 *)shared->norm)[lane], gate = ((const float4 *)shared->gate[own])[lane];
    bool exists = WHOLE || lane * 4 < s.value_dim;
    if (!exists) o = make_float4(0, 0, 0, 0);
    // Squares of eight columns at a time are added as a tree, those sums one after another.
    float eight = __fadd_rn(__fadd_rn(__fmul_rn(o.x, o.x), __fmul_rn(o.y, o.y)),
                            __fadd_rn(__fmul_rn(o.z, o.z), __fmul_rn(o.w, o.w)));
    float squares = 0;
    eight += __shfl_xor_sync(0xffffffffu, eight, 1);
#pragma unroll
    for (int k = 0; k < DELTA_MAX_DIM / 8; k++) squares += __shfl_sync(0xffffffffu, eight, 2 * k);
    float inverse = rsqrtf(squares / (float)s.value_dim + job.eps);
    o = make_float4(o.x * inverse * norm.x * gate.x, o.y * inverse * norm.y * gate.y, o.z * inverse * norm.z * gate.z,
                    o.w * inverse * norm.w * gate.w);
    int64_t row = chunk.row + r;
    int col = h.head * s.value_dim + lane * 4;
    if (WHOLE) {
        *(float4 *)element_at(job.out, (int)row, col) = o;
        if (planes.x == NULL) return;
        struct planes at = planes_of_row(planes, row); // a head is a unit
        plane_store<PLANES_TILE>(o, 0, at.x + h.head * (PLANES_TILE * PLANES_UNIT_X), at.notes + h.head * PLANES_TILE);
        if (h.head == 0 && lane == 0) planes.factors[row] = 1;
    } else if (exists) {
        tensor_store(job.out, row, col, o.x);
        tensor_store(job.out, row, col + 1, o.y);
        tensor_store(job.out, row, col + 2, o.z);
        tensor_store(job.out, row, col + 3, o.w);
    }
}

// WHOLE: the usual number of keys and values, so that nothing asks whether there is one more, and rows of fp32 that can
// be loaded four elements at a time.
template <bool WHOLE> static __device__ __forceinline__ struct delta_shape shape_of(struct delta_shape s) {
    if (WHOLE) s.key_dim = s.value_dim = DELTA_MAX_DIM;
    return s;
}

template <int BLOCKS> static __device__ __forceinline__ struct head_place head_of_block(const struct delta_shape &s) {
    int head = blockIdx.x / BLOCKS, rank = blockIdx.x % BLOCKS, key_head = head / s.r;
    return (struct head_place){head, key_head, rank, rank == 0 && key_head * s.r == head};
}

// Four outputs' gates of the row that this warp is to finish.
template <bool WHOLE> static __device__ __forceinline__ float4 load_gates(const struct tensor &z, int row, int col) {
    if (WHOLE) return *(const float4 *)element_at(z, row, col);
    return make_float4(tensor_load(z, row, col), tensor_load(z, row, col + 1), tensor_load(z, row, col + 2),
                       tensor_load(z, row, col + 3));
}

// What is there at once of a chunk's rows: channels, gates of rows and of outputs, then units. c: CONV makes it.
template <bool CONV, bool WHOLE, int BLOCKS>
static __device__ __forceinline__ void
take_rows(const struct delta_job &job, const struct conv_job &conv, const struct delta_shape &s, char *run,
          const struct chunk &chunk, const struct head_place &h, int t, struct rows_shared<BLOCKS> *shared) {
    int row = all_threads<BLOCKS>() - 1 - t, own = t / 32 - first_finisher<BLOCKS>(), col = t % 32 * 4;
    bool gates = row < chunk.n, finishes = own >= 0 && own * BLOCKS + h.rank < chunk.n;
    float a = 0, b = 0, z[4] = {};
    if (gates) {
        a = load_element<WHOLE>(job.a, chunk.row + row, h.head);
        b = load_element<WHOLE>(job.b, chunk.row + row, h.head);
    }
    if (finishes && (WHOLE || col < s.value_dim))
        *(float4 *)z = load_gates<WHOLE>(job.z, chunk.row + own * BLOCKS + h.rank, h.head * s.value_dim + col);
    int n_own = (chunk.n + BLOCKS - 1 - h.rank) / BLOCKS; // rows that this block finishes
    if (BLOCKS > 1 && t == 0 && n_own > 0)
        barrier_arrive_expecting(&shared->arrived[chunk.first / CHUNK % 2], n_own * DELTA_MAX_DIM * (int)sizeof(float));
    take_channels<CONV, WHOLE, BLOCKS>(CONV ? conv.m : job.c, conv, s, run, chunk, h, t, shared);
    if (gates) {
        float g, beta;
        delta_gates_of(a, b, shared->neg_a[row], shared->dt_bias[row], &g, &beta);
        shared->g[row] = g;
        shared->beta[row] = beta;
        if (h.rank == 0) *delta_log_g(s, run, log_slot(s, chunk, row), h.head) = g;
    }
    __syncthreads();
    take_units<BLOCKS>(s, chunk, t, shared);
    if (!finishes) return;
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        shared->gate[own][col + i] = delta_gate(job, z[0]);
        z[0] = z[1];
        z[1] = z[2];
        z[2] = z[3];
    }
}

// CONV: c is made of conv.m.
template <bool CONV, bool WHOLE, int BLOCKS>
static __global__ void __launch_bounds__(all_threads<BLOCKS>(), 2)
    delta_rows_kernel(const __grid_constant__ delta_job job, const __grid_constant__ conv_job conv,
                      const __grid_constant__ plane_rows planes) {
    __shared__ __align__(16) struct rows_shared<BLOCKS> shared;
    int t = threadIdx.x;
    let_next_start();
    meet_begin<BLOCKS>(shared.arrived);
    const struct delta_shape s = shape_of<WHOLE>(job.shape);
    const struct lane_entry lane = job.batch.lanes[blockIdx.y];
    const struct head_place h = head_of_block<BLOCKS>(s);
    int ring_rows = CONV ? conv.ring_rows : CHUNK;
    float *state = delta_state(s, lane.run, h.head), v[KEYS];
    bool is_zero = lane.position == lane.n_pending;
    // A whole state has more registers than there are: what some of it goes to memory for waits for it.
    if (BLOCKS == 1)
        near_state(s, state);
    else
        load_state<BLOCKS>(s, state, h.rank, is_zero, v);
    struct chunk chunk = first_chunk(s, lane, ring_rows);
    if (chunk.first < 0) fetch_log<BLOCKS>(s, lane, chunk, h, t, &shared);
    fetch_first<CONV, WHOLE, BLOCKS>(job, conv, s, lane, h, chunk.ring_slot, &shared);
    if (BLOCKS == 1) load_state<BLOCKS>(s, state, h.rank, is_zero, v);
    meet_end<BLOCKS>();
#pragma unroll 1
    while (chunk.first < lane.n_row) {
        asm volatile("" : "+r"(t)); // what follows from it is worked out anew: the state has the registers
        bool is_new = chunk.first >= 0;
        if (is_new) {
            if (chunk.first == 0) wait_for_earlier();
            take_rows<CONV, WHOLE, BLOCKS>(job, conv, s, lane.run, chunk, h, t, &shared);
        } else {
            copies_wait<0>();
        }
        __syncthreads();
        run_rows<BLOCKS>(s, lane.run, chunk, h, &shared, v);
        if (is_new) {
            log_keys<BLOCKS>(s, lane.run, chunk, h, t, &shared);
            if (BLOCKS == 1) __syncthreads();
            finish_row<WHOLE, BLOCKS>(job, s, planes, chunk, h, t, &shared);
        }
        next_chunk(s, lane, ring_rows, &chunk);
        if (chunk.first < lane.n_row) __syncthreads(); // the rows at hand have been read
        if (chunk.first < 0) fetch_log<BLOCKS>(s, lane, chunk, h, t, &shared);
        if (chunk.first == 0) store_state<BLOCKS>(s, state, h.rank, v);
    }
}

static __global__ void __launch_bounds__(all_threads<1>())
    delta_commit_kernel(struct delta_shape s, struct lane_entry lane) {
    __shared__ __align__(16) struct rows_shared<1> shared;
    begin_kernel();
    const struct head_place h = head_of_block<1>(s);
    float v[KEYS];
    load_state<1>(s, delta_state(s, lane.run, h.head), 0, lane.position == lane.n_pending, v);
    struct chunk chunk = first_chunk(s, lane, 1);
    while (chunk.first < 0) {
        fetch_log<1>(s, lane, chunk, h, threadIdx.x, &shared);
        copies_wait<0>();
        __syncthreads();
        run_rows<1>(s, lane.run, chunk, h, &shared, v);
        __syncthreads();
        next_chunk(s, lane, 1, &chunk);
    }
    store_state<1>(s, delta_state(s, lane.run, h.head), 0, v);
}

size_t need_delta(const struct device_limits *l) { return need_delta_prompt(l); }

// ---- launches ----

template <bool CONV, bool WHOLE, int BLOCKS>
static void launch(struct cuda_device *d, const struct delta_job &job, int n_lane, const struct conv_job &conv,
                   const struct plane_rows &planes) {
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {BLOCKS, 1, 1};
    dim3 grid((unsigned)(job.shape.n_key_head * job.shape.r * BLOCKS), (unsigned)n_lane);
    cuda_start_with(d, "delta, rows", BLOCKS > 1 ? &cluster : NULL, delta_rows_kernel<CONV, WHOLE, BLOCKS>, grid,
                    all_threads<BLOCKS>(), 0, job, conv, planes);
}

// Two blocks a head, where there are processors for them: they come into clusters with compute capability 9.0.
static bool shares_heads(const struct cuda_device *d, const struct delta_args *a, const struct batch_view *b) {
    return d->major >= 9 && 4 * (int64_t)a->n_value_head * b->n_lane <= 3 * d->n_processors;
}

static void launch_rows(struct cuda_device *d, const struct delta_args *a, const struct batch_view *b,
                        const struct conv_args *c) {
    struct delta_job job = delta_job_of(a, b);
    struct conv_job conv = c != NULL ? conv_job_of(c, b) : (struct conv_job){};
    const struct tensor &from = c != NULL ? c->m : a->c;
    bool whole = a->key_dim == DELTA_MAX_DIM && a->value_dim == DELTA_MAX_DIM && from.dtype == DTYPE_F32 &&
                 a->a.dtype == DTYPE_F32 && a->b.dtype == DTYPE_F32 && rows_are_wide(a->z) && rows_are_wide(a->out) &&
                 (uintptr_t)conv.weight % 16 == 0;
    struct plane_rows planes = {}, leaves;
    if (whole && b->n_row <= PLANES_HEADS && leave_planes(d, a->out, PLANES_UNIT, &leaves)) planes = leaves;
    if (c == NULL)
        (whole ? launch<false, true, 1> : launch<false, false, 1>)(d, job, b->n_lane, conv, planes);
    else if (whole && shares_heads(d, a, b))
        launch<true, true, 2>(d, job, b->n_lane, conv, planes);
    else
        (whole ? launch<true, true, 1> : launch<true, false, 1>)(d, job, b->n_lane, conv, planes);
}

void cuda_delta(struct device *base, const struct delta_args *a) {
    struct cuda_device *d = cuda_of(base);
    const struct batch_view *b = cuda_batch(d, a->batch);
    if (d->failure != cudaSuccess || b->n_row == 0) return;
    must(a->key_dim <= DELTA_MAX_DIM && a->value_dim <= DELTA_MAX_DIM && a->key_dim % 16 == 0 && a->value_dim % 4 == 0);
    if (a->batch->form == FORM_PROMPT)
        delta_prompt(d, a, b);
    else
        launch_rows(d, a, b, NULL);
}

bool cuda_conv_delta(struct device *base, const struct conv_delta_args *a) {
    struct cuda_device *d = cuda_of(base);
    const struct batch_view *b = cuda_batch(d, a->delta.batch);
    if (d->failure != cudaSuccess || b->n_row == 0) return true;
    if (a->delta.batch->form != FORM_ROWS || a->conv.n_tap != TAPS || a->delta.key_dim > DELTA_MAX_DIM ||
        a->delta.value_dim > DELTA_MAX_DIM || a->delta.value_dim % 4 != 0 || a->conv.m.dtype != DTYPE_F32)
        return false;
    // Rows before the batch must still be there when its own are stored.
    if (a->delta.batch->max_window + TAPS - 1 > a->conv.ring_rows) return false;
    launch_rows(d, &a->delta, b, &a->conv);
    return true;
}

void cuda_delta_commit(struct device *base, const struct delta_commit_args *a) {
    struct cuda_device *d = cuda_of(base);
    if (d->failure != cudaSuccess || a->lane->n_pending == 0) return;
    struct delta_shape shape = {
        a->n_key_head,   a->n_value_head, a->key_dim,       a->value_dim, a->n_value_head / a->n_key_head,
        a->state_offset, a->log_offset,   2 * a->max_window};
    struct lane_entry lane = {0, 0, a->lane->position, a->lane->n_pending, 0, 0, (char *)a->lane->run};
    cuda_start(d, "delta, commit", delta_commit_kernel, dim3((unsigned)a->n_value_head), all_threads<1>(), 0, shape,
               lane);
}
