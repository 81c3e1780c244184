// The delta rule over a prompt pass: chunks of 64 rows at absolute positions, as the model's specification has it. With
// G the cumulative sum of log decays inside a chunk, K and Q its normalised keys and queries and A the strict lower
// triangle of beta_i e^(G_i - G_j) k_i . k_j, the corrected values are D = (I + A)^-1 (beta V - beta e^G K S), so that
//   1. each chunk and head by itself: U = (I + A)^-1 beta V, W = (I + A)^-1 beta e^G K by forward substitution, and the
//      lower triangle of e^(G_i - G_j) q_i . k_j
//   2. each head and block of columns, one chunk after another: D = U - W S, O = e^G Q S + QK D, S = e^(G_n) S + ...
//   3. each row: output norm and gate
// Rows after row i enter its sums as products with exact zeros, so that a row of a partial chunk has the bits it has in
// a full one. Products are of fp32 values cut into two terms of bf16 (device.cuh), sums and states fp32.
#include "cuda/delta.cuh"

#define N            CUDA_DELTA_ROWS
#define BLOCK_CHUNKS 8 // worked off at a time: bounds the scratch
#define THREADS      256
#define PITCH        (DELTA_MAX_DIM + 4) // of a row in shared memory: rows start in different banks
#define COLUMNS      32                  // of a state that a block carries
#define STATE_PITCH  (COLUMNS + 8)

// Results of step 1 of one (chunk, head), in scratch; cut into terms where they are only multiplied.
struct chunk_terms {
    uint32_t *q, *k, *w; // [N][Dk]: e^G q, e^(G_n - G) k, W
    uint32_t *qk;        // [N][N]
    float *u;            // [N][Dv]
    float *decay;        // e^(G_n)
};

struct prompt_job {
    struct delta_job job;
    float *terms, *o; // o: [BLOCK_CHUNKS * N][Hv * Dv]
    int64_t terms_size;
    int row0, n_row; // of the block, in the pass
};

static __host__ __device__ int64_t terms_size_of(int64_t key_dim, int64_t value_dim) {
    return N * (3 * key_dim + value_dim + N) + 64;
}

static __device__ __forceinline__ struct chunk_terms terms_of(const struct prompt_job &p, int chunk, int head) {
    const struct delta_shape &s = p.job.shape;
    struct chunk_terms t;
    t.q = (uint32_t *)p.terms + ((int64_t)chunk * s.n_value_head + head) * p.terms_size;
    t.k = t.q + N * s.key_dim;
    t.w = t.k + N * s.key_dim;
    t.qk = t.w + N * s.key_dim;
    t.u = (float *)(t.qk + N * N);
    t.decay = t.u + N * s.value_dim;
    return t;
}

struct terms_shared {
    float q[N][PITCH], k[N][PITCH];
    float a[N][N + 4];
    float sum_g[N], beta[N];
};

// Queries, keys and gates of the chunk; rows after the last are zeros with decay 1.
static __device__ __forceinline__ void load_chunk(const struct prompt_job &p, int chunk, int head,
                                                  struct terms_shared *sh) {
    const struct delta_job &job = p.job;
    const struct delta_shape &s = job.shape;
    int64_t t0 = job.batch.lanes[0].row0 + p.row0 + chunk * N, keys = (int64_t)s.n_key_head * s.key_dim;
    int n = min(N, p.n_row - chunk * N), warp = threadIdx.x / 32, lane = threadIdx.x % 32, key_head = head / s.r;
    for (int i = warp; i < N; i += THREADS / 32) {
        if (i < n) {
            unit_row(job.c, t0 + i, (int64_t)key_head * s.key_dim, s.key_dim, rsqrtf((float)s.key_dim), sh->q[i]);
            unit_row(job.c, t0 + i, keys + (int64_t)key_head * s.key_dim, s.key_dim, 1.0f, sh->k[i]);
        } else {
            for (int k = lane; k < DELTA_MAX_DIM; k += 32) sh->q[i][k] = sh->k[i][k] = 0;
        }
    }
    if (threadIdx.x < N) {
        float g = 0, beta = 0;
        if ((int)threadIdx.x < n) delta_gates(job, t0 + threadIdx.x, head, &g, &beta);
        sh->sum_g[threadIdx.x] = g;
        sh->beta[threadIdx.x] = beta;
    }
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 1; i < N; i++) sh->sum_g[i] += sh->sum_g[i - 1];
    __syncthreads();
}

// Both triangles: warp w has rows [16 (w / 2), ...) and columns [32 (w % 2), ...).
static __device__ __forceinline__ void multiply_triangles(const struct delta_shape &s, struct terms_shared *sh,
                                                          uint32_t *qk) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, i0 = warp / 2 * 16,
        j0 = warp % 2 * 32;
    float kk_sum[4][4] = {}, qk_sum[4][4] = {};
    for (int k = 0; k < s.key_dim; k += 16) {
        struct terms_a ak = split_a([&](int row, int i) { return cut_terms(sh->k[i0 + row][k + i]); });
        struct terms_a aq = split_a([&](int row, int i) { return cut_terms(sh->q[i0 + row][k + i]); });
#pragma unroll
        for (int j = 0; j < 4; j++) {
            struct terms_b b = split_b([&](int i, int col) { return cut_terms(sh->k[j0 + 8 * j + col][k + i]); });
            mma_terms(kk_sum[j], ak, b);
            mma_terms(qk_sum[j], aq, b);
        }
    }
    for (int j = 0; j < 4; j++)
        for (int h = 0; h < 4; h++) {
            int row = i0 + g + h / 2 * 8, col = j0 + 8 * j + 2 * c + h % 2;
            float decay = col <= row ? expf(sh->sum_g[row] - sh->sum_g[col]) : 0.0f;
            sh->a[row][col] = col < row ? sh->beta[row] * decay * kk_sum[j][h] : 0.0f;
            qk[row * N + col] = col <= row ? cut_terms(decay * qk_sum[j][h]) : 0;
        }
}

// (I + A) x = b for one column a thread, row by row from the first.
static __device__ __forceinline__ void substitute(const struct terms_shared *sh, float x[N]) {
#pragma unroll
    for (int i = 1; i < N; i++) {
        float sum[4] = {0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < i; j += 4) {
            float4 a = *(const float4 *)&sh->a[i][j]; // zeros from i on
            sum[0] = fmaf(a.x, x[j], sum[0]);
            if (j + 1 < i) sum[1] = fmaf(a.y, x[j + 1], sum[1]);
            if (j + 2 < i) sum[2] = fmaf(a.z, x[j + 2], sum[2]);
            if (j + 3 < i) sum[3] = fmaf(a.w, x[j + 3], sum[3]);
        }
        x[i] -= (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
}

static __global__ void __launch_bounds__(THREADS) delta_terms_kernel(const __grid_constant__ prompt_job p) {
    extern __shared__ __align__(16) char memory[];
    struct terms_shared *sh = (struct terms_shared *)memory;
    const struct delta_job &job = p.job;
    const struct delta_shape &s = job.shape;
    int chunk = blockIdx.x, head = blockIdx.y, n = min(N, p.n_row - chunk * N);
    struct chunk_terms terms = terms_of(p, chunk, head);
    load_chunk(p, chunk, head, sh);
    multiply_triangles(s, sh, terms.qk);
    __syncthreads();
    float last = sh->sum_g[n - 1];
    if (threadIdx.x == 0) *terms.decay = expf(last);
    for (int e = threadIdx.x; e < N * s.key_dim; e += THREADS) {
        int i = e / s.key_dim, k = e % s.key_dim;
        terms.q[e] = cut_terms(expf(sh->sum_g[i]) * sh->q[i][k]);
        terms.k[e] = i < n ? cut_terms(expf(last - sh->sum_g[i]) * sh->k[i][k]) : 0;
    }
    int col = threadIdx.x, key = col - s.value_dim;
    if (key >= s.key_dim) return;
    float x[N];
    int64_t t0 = job.batch.lanes[0].row0 + p.row0 + chunk * N;
    int64_t value = 2 * (int64_t)s.n_key_head * s.key_dim + (int64_t)head * s.value_dim + col;
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (key < 0)
            x[i] = i < n ? sh->beta[i] * tensor_load(job.c, t0 + i, value) : 0.0f;
        else
            x[i] = sh->beta[i] * expf(sh->sum_g[i]) * sh->k[i][key];
    }
    substitute(sh, x);
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (key < 0)
            terms.u[i * s.value_dim + col] = x[i];
        else
            terms.w[i * s.key_dim + key] = cut_terms(x[i]);
    }
}

struct state_shared {
    uint32_t first[N][PITCH], second[N][PITCH]; // W then K; Q
    uint32_t state[DELTA_MAX_DIM][STATE_PITCH], d[N][STATE_PITCH];
};

static __device__ __forceinline__ void fetch_rows(uint32_t (*to)[PITCH], const uint32_t *from, int key_dim) {
    int pieces = key_dim / 4;
    for (int e = threadIdx.x; e < N * pieces; e += THREADS) copy16(&to[e / pieces][e % pieces * 4], from + e * 4, 16);
}

// c += rows [i0, i0 + 16) of x [.., n_inner] times columns [n0, n0 + 16) of y [n_inner, ..]; both cut into terms.
static __device__ __forceinline__ void multiply_16(float c[2][4], const uint32_t *x, int x_pitch, const uint32_t *y,
                                                   int n_inner) {
    for (int k = 0; k < n_inner; k += 16) {
        struct terms_a a = split_a([&](int row, int i) { return x[row * x_pitch + k + i]; });
        for (int j = 0; j < 2; j++)
            mma_terms(c[j], a, split_b([&](int i, int col) { return y[(k + i) * STATE_PITCH + 8 * j + col]; }));
    }
}

// This warp's 16 keys of the state: state = decay * state + K^T D.
static __device__ __forceinline__ void update_state(float state[4][4], float decay, const struct state_shared *sh,
                                                    int key0) {
    for (int j = 0; j < 4; j++)
        for (int h = 0; h < 4; h++) state[j][h] *= decay;
    for (int k = 0; k < N; k += 16) {
        struct terms_a a = split_a([&](int row, int i) { return sh->first[k + i][key0 + row]; });
        for (int j = 0; j < 4; j++)
            mma_terms(state[j], a, split_b([&](int i, int col) { return sh->d[k + i][8 * j + col]; }));
    }
}

// Calls f(key, column, element) for each of this thread's elements of the state that exist.
template <typename F>
static __device__ __forceinline__ void each_element(const struct delta_shape &s, int key0, int col0, float state[4][4],
                                                    F f) {
    int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    if (key0 >= s.key_dim) return;
    for (int j = 0; j < 4; j++)
        for (int h = 0; h < 4; h++) {
            int key = key0 + g + h / 2 * 8, col = 8 * j + 2 * c + h % 2;
            f(key, col, state[j][h], col0 + col < s.value_dim);
        }
}

// D = U - W S, then O = Q S + QK D, for this warp's 16 rows and 16 columns.
static __device__ __forceinline__ void correct_values(const struct prompt_job &p, const struct chunk_terms &terms,
                                                      struct state_shared *sh, int i0, int n0, int col0) {
    int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, value_dim = p.job.shape.value_dim;
    float ws[2][4] = {};
    multiply_16(ws, &sh->first[i0][0], PITCH, &sh->state[0][n0], p.job.shape.key_dim);
    for (int j = 0; j < 2; j++)
        for (int h = 0; h < 4; h++) {
            int row = i0 + g + h / 2 * 8, col = n0 + 8 * j + 2 * c + h % 2;
            float u = col0 + col < value_dim ? terms.u[row * value_dim + col0 + col] : 0.0f;
            sh->d[row][col] = cut_terms(u - ws[j][h]);
        }
}

static __device__ __forceinline__ void output_rows(const struct prompt_job &p, const struct chunk_terms &terms,
                                                   struct state_shared *sh, int chunk, int head, int i0, int n0,
                                                   int col0) {
    const struct delta_shape &s = p.job.shape;
    int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, n = min(N, p.n_row - chunk * N);
    float o[2][4] = {};
    multiply_16(o, &sh->second[i0][0], PITCH, &sh->state[0][n0], s.key_dim);
    multiply_16(o, terms.qk + i0 * N, N, &sh->d[0][n0], N);
    for (int j = 0; j < 2; j++)
        for (int h = 0; h < 4; h++) {
            int row = i0 + g + h / 2 * 8, col = col0 + n0 + 8 * j + 2 * c + h % 2;
            if (row < n && col < s.value_dim)
                p.o[((int64_t)(chunk * N + row) * s.n_value_head + head) * s.value_dim + col] = o[j][h];
        }
}

static __global__ void __launch_bounds__(THREADS) delta_state_kernel(const __grid_constant__ prompt_job p) {
    extern __shared__ __align__(16) char memory[];
    struct state_shared *sh = (struct state_shared *)memory;
    const struct delta_shape &s = p.job.shape;
    const struct batch_view &b = p.job.batch;
    const struct lane_entry lane = b.lanes[0];
    int head = blockIdx.y, col0 = blockIdx.x * COLUMNS, warp = threadIdx.x / 32, key0 = warp * 16;
    int i0 = warp / 2 * 16, n0 = warp % 2 * 16, position = lane.position + p.row0;
    float *memory_state = delta_state(s, lane.run, head);
    float state[4][4];
    each_element(s, key0, col0, state, [&](int key, int col, float &x, bool exists) {
        x = exists && position > 0 ? memory_state[(int64_t)key * s.value_dim + col0 + col] : 0.0f;
    });
    for (int chunk = 0; chunk * N < p.n_row; chunk++) {
        struct chunk_terms terms = terms_of(p, chunk, head);
        __syncthreads();
        fetch_rows(sh->first, terms.w, s.key_dim);
        fetch_rows(sh->second, terms.q, s.key_dim);
        copies_commit();
        each_element(s, key0, col0, state,
                     [&](int key, int col, float &x, bool) { sh->state[key][col] = cut_terms(x); });
        copies_wait<0>();
        __syncthreads();
        correct_values(p, terms, sh, i0, n0, col0);
        __syncthreads();
        fetch_rows(sh->first, terms.k, s.key_dim);
        copies_commit();
        output_rows(p, terms, sh, chunk, head, i0, n0, col0);
        copies_wait<0>();
        __syncthreads();
        if (key0 < s.key_dim) update_state(state, *terms.decay, sh, key0);
        position += N;
        for (int i = 0; i < b.n_keep; i++) {
            if (b.keeps[i].position != position) continue;
            float *kept = delta_state(s, b.keeps[i].run, head);
            each_element(s, key0, col0, state, [&](int key, int col, float &x, bool exists) {
                if (exists && (chunk + 1) * N <= p.n_row) kept[(int64_t)key * s.value_dim + col0 + col] = x;
            });
        }
    }
    each_element(s, key0, col0, state, [&](int key, int col, float &x, bool exists) {
        if (exists) memory_state[(int64_t)key * s.value_dim + col0 + col] = x;
    });
}

// One warp a head of a row.
static __global__ void delta_finish_kernel(const __grid_constant__ prompt_job p) {
    const struct delta_job &job = p.job;
    const struct delta_shape &s = job.shape;
    int row = blockIdx.x, head = blockIdx.y * (THREADS / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (head >= s.n_value_head) return;
    const float *o = p.o + ((int64_t)row * s.n_value_head + head) * s.value_dim;
    int64_t t = job.batch.lanes[0].row0 + p.row0 + row, col0 = (int64_t)head * s.value_dim;
    float squares = 0;
    for (int i = lane; i < s.value_dim; i += 32) squares += o[i] * o[i];
    float inverse = rsqrtf(warp_sum(squares) / (float)s.value_dim + job.eps);
    for (int i = lane; i < s.value_dim; i += 32)
        tensor_store(job.out, t, col0 + i,
                     o[i] * inverse * job.out_norm[i] * delta_gate(job, tensor_load(job.z, t, col0 + i)));
}

static void carve_prompt(struct carver *c, struct prompt_job *p, int64_t n_head, int64_t key_dim, int64_t value_dim) {
    p->terms_size = terms_size_of(key_dim, value_dim);
    p->terms = (float *)carve(c, (size_t)(BLOCK_CHUNKS * n_head * p->terms_size) * sizeof(float));
    p->o = (float *)carve(c, (size_t)(BLOCK_CHUNKS * N * n_head * value_dim) * sizeof(float));
}

size_t need_delta_prompt(const struct device_limits *l) {
    struct carver c = {NULL, 0};
    struct prompt_job p;
    carve_prompt(&c, &p, l->n_value_head, l->key_dim, l->value_dim);
    return c.used;
}

void delta_prompt(struct cuda_device *d, const struct delta_args *a, const struct batch_view *b) {
    const struct lane *lane = &a->batch->lanes[0];
    must(b->n_lane == 1 && lane->position % N == 0 && lane->n_pending == 0);
    struct carver c = scratch_of(d);
    struct prompt_job p;
    p.job = delta_job_of(a, b);
    carve_prompt(&c, &p, a->n_value_head, a->key_dim, a->value_dim);
    scratch_done(d, &c);
    size_t terms_bytes = sizeof(struct terms_shared), state_bytes = sizeof(struct state_shared);
    cudaFuncSetAttribute(delta_terms_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)terms_bytes);
    cudaFuncSetAttribute(delta_state_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)state_bytes);
    unsigned heads = (unsigned)a->n_value_head;
    for (p.row0 = 0; p.row0 < lane->n_row; p.row0 += BLOCK_CHUNKS * N) {
        int left = lane->n_row - p.row0;
        p.n_row = left < BLOCK_CHUNKS * N ? left : BLOCK_CHUNKS * N;
        delta_terms_kernel<<<dim3((unsigned)ceil_div(p.n_row, N), heads), THREADS, terms_bytes, d->stream>>>(p);
        cuda_launched(d, "delta, chunks");
        delta_state_kernel<<<dim3((unsigned)ceil_div(a->value_dim, COLUMNS), heads), THREADS, state_bytes, d->stream>>>(
            p);
        cuda_launched(d, "delta, states");
        delta_finish_kernel<<<dim3((unsigned)p.n_row, (unsigned)ceil_div(heads, THREADS / 32)), THREADS, 0,
                              d->stream>>>(p);
        cuda_launched(d, "delta, outputs");
    }
}
