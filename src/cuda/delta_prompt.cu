// The delta rule over a prompt pass: chunks of 64 rows at absolute positions, as the model's specification has it. With
// G the cumulative sum of log decays inside a chunk, K and Q its normalised keys and queries and A the strict lower
// triangle of beta_i e^(G_i - G_j) k_i . k_j, the corrected values are D = (I + A)^-1 (beta V - beta e^G K S), so that
//   1. each chunk and head by itself: U = (I + A)^-1 beta V, W = (I + A)^-1 beta e^G K, and the lower triangle of
//      e^(G_i - G_j) q_i . k_j
//   2. each head and block of columns, one chunk after another, and nothing else: D = U - W S, S = e^(G_n) S + K^T D
//   3. each chunk and head by itself: O = e^G Q S + QK D, and its norm and gate
// Rows after row i enter its sums as products with exact zeros, so that a row of a partial chunk has the bits it has in
// a full one. Products are of fp32 values cut into two terms of bf16 (matrix.cuh), sums and states fp32.
#include "cuda/delta.cuh"

#define N            CUDA_DELTA_ROWS
#define BLOCK_CHUNKS 16 // worked off at a time: bounds the scratch
#define THREADS      256
#define WARPS        (THREADS / 32)
#define ROW_PITCH    (DELTA_MAX_DIM + 4) // of rows that are read by rows: they start in different banks
#define DEEP_PITCH   (DELTA_MAX_DIM + 8) // and of those that are read by columns
#define COLUMNS      32                  // of a state that a block carries
#define STATE_PITCH  (COLUMNS + 8)

// Results of step 1 and 2 of one (chunk, head), in scratch; cut into terms where they are only multiplied.
struct chunk_terms {
    uint32_t *q, *k, *w; // [N][Dk]: e^G q, e^(G_n - G) k, W
    uint32_t *qk;        // [N][N]
    float *u;            // [N][Dv]; step 2 puts D in its place, cut
    uint32_t *s;         // [Dk][Dv]: the state before the chunk
    float *decay;        // e^(G_n)
};

struct prompt_job {
    struct delta_job job;
    float *terms;
    int64_t terms_size;
    int row0, n_row; // of the block, in the pass
};

static __host__ __device__ int64_t terms_size_of(int64_t key_dim, int64_t value_dim) {
    return N * (3 * key_dim + value_dim + N) + key_dim * value_dim + 64;
}

static __device__ __forceinline__ struct chunk_terms terms_of(const struct prompt_job &p, int chunk, int head) {
    const struct delta_shape &s = p.job.shape;
    struct chunk_terms t;
    t.q = (uint32_t *)p.terms + ((int64_t)chunk * s.n_value_head + head) * p.terms_size;
    t.k = t.q + N * s.key_dim;
    t.w = t.k + N * s.key_dim;
    t.qk = t.w + N * s.key_dim;
    t.u = (float *)(t.qk + N * N);
    t.s = (uint32_t *)t.u + N * s.value_dim;
    t.decay = (float *)(t.s + s.key_dim * s.value_dim);
    return t;
}

static __device__ __forceinline__ int rows_of_chunk(const struct prompt_job &p, int chunk) {
    return min(N, p.n_row - chunk * N);
}
static __device__ __forceinline__ int64_t first_row(const struct prompt_job &p, int chunk) {
    return p.job.batch.lanes[0].row0 + p.row0 + chunk * N;
}

// The products with a second term go into sums of their own, so that fewer wait for each other.
static __device__ __forceinline__ void mma_terms_apart(float c[4], float small[4], const struct terms_a &a,
                                                       const struct terms_b &b) {
    mma_bf16(small, a.r[0], b.r[1][0], b.r[1][1]);
    mma_bf16(c, a.r[0], b.r[0][0], b.r[0][1]);
    mma_bf16(small, a.r[1], b.r[0][0], b.r[0][1]);
}

// ---- step 1 ----

struct terms_shared {
    uint32_t q[N][ROW_PITCH], k[N][ROW_PITCH]; // cut
    float a[N][N + 4];
    uint32_t sums[N / 16 - 1][16][16 + 8];
    float sum_g[N], beta[N], grown[N], left[N], key_factor[N]; // G, beta, e^G, e^(G_n - G), beta e^G
};

// Gates of the chunk; rows after the last have decay 1 and beta 0.
static __device__ __forceinline__ void load_gates(const struct prompt_job &p, int chunk, int head,
                                                  struct terms_shared *sh) {
    int i = threadIdx.x, n = rows_of_chunk(p, chunk);
    if (i < N) {
        float g = 0, beta = 0;
        if (i < n) delta_gates(p.job, first_row(p, chunk) + i, head, &g, &beta);
        for (int step = 1; step < 32; step *= 2) {
            float before = __shfl_up_sync(0xffffffffu, g, step);
            if (i % 32 >= step) g += before;
        }
        sh->sum_g[i] = g;
        sh->beta[i] = beta;
    }
    __syncthreads();
    if (i >= 32 && i < N) sh->sum_g[i] += sh->sum_g[31];
    __syncthreads();
    if (i < N) {
        sh->grown[i] = expf(sh->sum_g[i]);
        sh->key_factor[i] = sh->beta[i] * sh->grown[i];
        sh->left[i] = i < n ? expf(sh->sum_g[n - 1] - sh->sum_g[i]) : 0.0f;
    }
    __syncthreads();
}

// A warp's rows of queries, keys or values, which follow each other by WARPS; zeros after the last row and element.
struct warp_rows {
    float v[N / WARPS][DELTA_MAX_DIM / 32];
};

static __device__ __forceinline__ void load_rows(const struct prompt_job &p, int chunk, int64_t col, int n_col,
                                                 struct warp_rows *x) {
    const struct tensor &c = p.job.c;
    const float *from = (const float *)c.data + first_row(p, chunk) * c.stride + col;
    int n = rows_of_chunk(p, chunk), lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < N / WARPS; i++)
#pragma unroll
        for (int k = 0; k < DELTA_MAX_DIM / 32; k++) {
            int row = threadIdx.x / 32 + WARPS * i, at = lane + 32 * k;
            x->v[i][k] = row < n && at < n_col ? from[row * c.stride + at] : 0.0f;
        }
}

// To unit length times `factor`: cut into shared memory, and times scale[row] into `terms`.
static __device__ __forceinline__ void store_rows(const struct warp_rows &x, float factor, const float *scale,
                                                  int key_dim, uint32_t (*shared)[ROW_PITCH], uint32_t *terms) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < N / WARPS; i++) {
        int row = threadIdx.x / 32 + WARPS * i;
        float squares = 0;
        for (int k = 0; k < DELTA_MAX_DIM / 32; k++) squares += x.v[i][k] * x.v[i][k];
        float inverse = 1.0f / sqrtf(warp_sum(squares) + L2_EPS) * factor;
        for (int k = 0; k < DELTA_MAX_DIM / 32; k++) {
            float v = x.v[i][k] * inverse;
            shared[row][lane + 32 * k] = cut_terms(v);
            if (lane + 32 * k < key_dim) terms[row * key_dim + lane + 32 * k] = cut_terms(scale[row] * v);
        }
    }
}

// Both triangles: warp w has rows [16 (w / 2), ...) and columns [32 (w % 2), ...).
static __device__ __forceinline__ void multiply_triangles(const struct delta_shape &s, struct terms_shared *sh,
                                                          uint32_t *qk) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, i0 = warp / 2 * 16,
        j0 = warp % 2 * 32;
    float kk_sum[4][4] = {}, qk_sum[4][4] = {};
    for (int k = 0; k < s.key_dim && j0 < i0 + 16; k += 16) {
        struct terms_a ak = split_a([&](int row, int i) { return sh->k[i0 + row][k + i]; });
        struct terms_a aq = split_a([&](int row, int i) { return sh->q[i0 + row][k + i]; });
#pragma unroll
        for (int j = 0; j < 4; j++) {
            struct terms_b b = split_b([&](int i, int col) { return sh->k[j0 + 8 * j + col][k + i]; });
            mma_terms(kk_sum[j], ak, b);
            mma_terms(qk_sum[j], aq, b);
        }
    }
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
        for (int h = 0; h < 4; h++) {
            int row = i0 + g + h / 2 * 8, col = j0 + 8 * j + 2 * c + h % 2;
            float decay = col <= row ? expf(sh->sum_g[row] - sh->sum_g[col]) : 0.0f;
            sh->a[row][col] = col < row ? sh->beta[row] * decay * kk_sum[j][h] : 0.0f;
            qk[row * N + col] = col <= row ? cut_terms(decay * qk_sum[j][h]) : 0;
        }
}

// (I + A)^-1 takes the place of A, 16 rows and columns at a time. First the blocks on the diagonal, a column a thread.
static __device__ __forceinline__ void invert_diagonal(struct terms_shared *sh) {
    int at = threadIdx.x / 16 * 16, col = threadIdx.x % 16;
    float x[16];
    if (threadIdx.x < N) {
#pragma unroll
        for (int i = 0; i < 16; i++) {
            float sum = i == col ? 1.0f : 0.0f;
#pragma unroll
            for (int j = 0; j < i; j++) sum -= sh->a[at + i][at + j] * x[j];
            x[i] = sum;
        }
    }
    __syncthreads();
    if (threadIdx.x < N)
        for (int i = 0; i < 16; i++) sh->a[at + i][at + col] = x[i];
    __syncthreads();
}

// Then those below it, T_ij = -T_ii sum_k A_ik T_kj, one row of blocks after another and a block a warp.
static __device__ __forceinline__ void invert_below(struct terms_shared *sh) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, j0 = warp * 16;
    for (int i0 = 16; i0 < N; i0 += 16) {
        float block[2][4] = {};
        if (j0 < i0) {
            float sum[2][4] = {};
            for (int k = j0; k < i0; k += 16) {
                struct terms_a a = split_a([&](int row, int i) { return cut_terms(sh->a[i0 + row][k + i]); });
                for (int n = 0; n < 2; n++)
                    mma_terms(sum[n], a,
                              split_b([&](int i, int col) { return cut_terms(sh->a[k + i][j0 + 8 * n + col]); }));
            }
            for (int n = 0; n < 2; n++)
                for (int h = 0; h < 4; h++)
                    sh->sums[warp][g + h / 2 * 8][8 * n + 2 * c + h % 2] = cut_terms(-sum[n][h]);
            __syncwarp();
            struct terms_a t = split_a([&](int row, int i) { return cut_terms(sh->a[i0 + row][i0 + i]); });
            for (int n = 0; n < 2; n++)
                mma_terms(block[n], t, split_b([&](int i, int col) { return sh->sums[warp][i][8 * n + col]; }));
        }
        __syncthreads();
        for (int n = 0; n < 2 && j0 < i0; n++)
            for (int h = 0; h < 4; h++) sh->a[i0 + g + h / 2 * 8][j0 + 8 * n + 2 * c + h % 2] = block[n][h];
        __syncthreads();
    }
}

// U and W: (I + A)^-1 times values (in the queries' place) and keys, whose factors beta and beta e^G are the columns'.
// A warp has up to four tiles of 8 columns of either.
static __device__ __forceinline__ void multiply_inverse(const struct delta_shape &s, const struct terms_shared *sh,
                                                        const struct chunk_terms &terms) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    int n_value = (s.value_dim + 7) / 8, n_tile = n_value + s.key_dim / 8;
    for (int first = warp * 4; first < n_tile; first += WARPS * 4) {
        for (int m = 0; m < N; m += 16) {
            float x[4][4] = {};
            for (int k = 0; k <= m; k += 16) {
                struct terms_a a[2];
                for (int is_key = 0; is_key < 2; is_key++) {
                    if (is_key ? first + 3 < n_value : first >= n_value) continue;
                    const float *factor = is_key ? sh->key_factor : sh->beta;
                    a[is_key] =
                        split_a([&](int row, int i) { return cut_terms(sh->a[m + row][k + i] * factor[k + i]); });
                }
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    if (first + n >= n_tile) continue;
                    bool is_key = first + n >= n_value;
                    const uint32_t(*from)[ROW_PITCH] = is_key ? sh->k : sh->q;
                    int col0 = (is_key ? first + n - n_value : first + n) * 8;
                    mma_terms(x[n], is_key ? a[1] : a[0],
                              split_b([&](int i, int col) { return from[k + i][col0 + col]; }));
                }
            }
#pragma unroll
            for (int n = 0; n < 4; n++)
#pragma unroll
                for (int h = 0; h < 4; h += 2) {
                    int row = m + g + h / 2 * 8, col = (first + n) * 8 + 2 * c, key = col - n_value * 8;
                    if (first + n < n_value && col < s.value_dim)
                        *(float2 *)&terms.u[row * s.value_dim + col] = make_float2(x[n][h], x[n][h + 1]);
                    else if (first + n >= n_value && first + n < n_tile)
                        *(uint2 *)&terms.w[row * s.key_dim + key] =
                            make_uint2(cut_terms(x[n][h]), cut_terms(x[n][h + 1]));
                }
        }
    }
}

static __device__ __forceinline__ void store_values(const struct warp_rows &x, struct terms_shared *sh) {
#pragma unroll
    for (int i = 0; i < N / WARPS; i++)
#pragma unroll
        for (int k = 0; k < DELTA_MAX_DIM / 32; k++)
            sh->q[threadIdx.x / 32 + WARPS * i][threadIdx.x % 32 + 32 * k] = cut_terms(x.v[i][k]);
}

static __global__ void __launch_bounds__(THREADS, 2) delta_terms_kernel(const __grid_constant__ prompt_job p) {
    extern __shared__ __align__(16) char memory[];
    struct terms_shared *sh = (struct terms_shared *)memory;
    const struct delta_shape &s = p.job.shape;
    int chunk = blockIdx.x, head = blockIdx.y, n = rows_of_chunk(p, chunk), keys = s.n_key_head * s.key_dim;
    struct chunk_terms terms = terms_of(p, chunk, head);
    struct warp_rows q, k;
    load_rows(p, chunk, head / s.r * s.key_dim, s.key_dim, &q);
    load_rows(p, chunk, keys + head / s.r * s.key_dim, s.key_dim, &k);
    load_gates(p, chunk, head, sh);
    store_rows(q, rsqrtf((float)s.key_dim), sh->grown, s.key_dim, sh->q, terms.q);
    store_rows(k, 1.0f, sh->left, s.key_dim, sh->k, terms.k);
    if (threadIdx.x == 0) *terms.decay = sh->grown[n - 1];
    __syncthreads();
    load_rows(p, chunk, 2 * keys + head * s.value_dim, s.value_dim, &q);
    multiply_triangles(s, sh, terms.qk);
    __syncthreads();
    store_values(q, sh);
    invert_diagonal(sh);
    invert_below(sh);
    multiply_inverse(s, sh, terms);
}

// ---- step 2 ----

struct state_shared {
    uint32_t w[N][ROW_PITCH], k[N][DEEP_PITCH];
    uint32_t state[DELTA_MAX_DIM][STATE_PITCH], d[N][STATE_PITCH];
};

// What a thread has of a state: tiles of 8 columns of its warp's 16 keys; and of U: of its warp's 16 rows.
struct state_part {
    float v[COLUMNS / 8][4];
};
struct value_part {
    float v[COLUMNS / 16][4];
};

// n_row rows of n_col elements, a multiple of 4. The real models' by addresses that are held in registers.
static __device__ __forceinline__ void fetch_rows(uint32_t *to, int pitch, const uint32_t *from, int n_row, int n_col) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (n_row == N && n_col == DELTA_MAX_DIM) {
        uint32_t at = shared_address(to + warp * pitch + lane * 4);
        from += warp * DELTA_MAX_DIM + lane * 4;
        asm volatile("" : "+r"(at), "+l"(from));
#pragma unroll
        for (int i = 0; i < N / WARPS; i++) copy16_to(at + i * WARPS * pitch * 4, from + i * WARPS * DELTA_MAX_DIM);
        return;
    }
    for (int row = warp; row < n_row; row += WARPS)
        for (int i = lane * 4; i < n_col; i += 32 * 4) copy16(to + row * pitch + i, from + row * n_col + i, 16);
}

// Where a warp stands in a block's part of one head's state, and what it owns of U and D there.
struct state_place {
    int key0, row0, n0, col0, value_dim, key_dim;

    // Calls f(key, column of the block, element, whether it exists) for this thread's elements of the state.
    template <typename F> __device__ __forceinline__ void each_element(struct state_part &state, F f) const {
        int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
        if (key0 >= key_dim) return;
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j++)
#pragma unroll
            for (int h = 0; h < 4; h++) {
                int col = 8 * j + 2 * c + h % 2;
                f(key0 + g + h / 2 * 8, col, state.v[j][h], col0 + col < value_dim);
            }
    }
    // Calls f(row, column of the block, element, whether it exists) for this thread's elements of U.
    template <typename F> __device__ __forceinline__ void each_value(struct value_part &u, F f) const {
        int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
        for (int j = 0; j < COLUMNS / 16; j++)
#pragma unroll
            for (int h = 0; h < 4; h++) {
                int col = n0 + 8 * j + 2 * c + h % 2;
                f(row0 + g + h / 2 * 8, col, u.v[j][h], col0 + col < value_dim);
            }
    }
};

static __device__ __forceinline__ void load_values(const struct state_place &at, const struct chunk_terms &terms,
                                                   struct value_part &u) {
    at.each_value(u, [&](int row, int col, float &x, bool exists) {
        x = exists ? terms.u[row * at.value_dim + at.col0 + col] : 0.0f;
    });
}

// D = U - W S
static __device__ __forceinline__ void correct_values(const struct state_place &at, const struct chunk_terms &terms,
                                                      struct state_shared *sh, struct value_part &u) {
    struct value_part ws = {}, small = {};
#pragma unroll 4
    for (int k = 0; k < at.key_dim; k += 16) {
        struct terms_a a = split_a([&](int row, int i) { return sh->w[at.row0 + row][k + i]; });
#pragma unroll
        for (int j = 0; j < COLUMNS / 16; j++)
            mma_terms_apart(ws.v[j], small.v[j], a,
                            split_b([&](int i, int col) { return sh->state[k + i][at.n0 + 8 * j + col]; }));
    }
#pragma unroll
    for (int j = 0; j < COLUMNS / 16; j++)
        for (int h = 0; h < 4; h++) u.v[j][h] -= ws.v[j][h] + small.v[j][h];
    at.each_value(u, [&](int row, int col, float &x, bool exists) {
        uint32_t d = cut_terms(x);
        sh->d[row][col] = d;
        if (exists) ((uint32_t *)terms.u)[row * at.value_dim + at.col0 + col] = d;
    });
}

// This warp's 16 keys of the state: state = decay * state + K^T D.
static __device__ __forceinline__ void update_state(const struct state_place &at, float decay,
                                                    const struct state_shared *sh, struct state_part &state) {
    if (at.key0 >= at.key_dim) return;
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++)
        for (int h = 0; h < 4; h++) state.v[j][h] *= decay;
    struct state_part small = {};
#pragma unroll
    for (int k = 0; k < N; k += 16) {
        struct terms_a a = split_a([&](int row, int i) { return sh->k[k + i][at.key0 + row]; });
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j++)
            mma_terms_apart(state.v[j], small.v[j], a,
                            split_b([&](int i, int col) { return sh->d[k + i][8 * j + col]; }));
    }
#pragma unroll
    for (int j = 0; j < COLUMNS / 8; j++)
        for (int h = 0; h < 4; h++) state.v[j][h] += small.v[j][h];
}

static __device__ __forceinline__ void publish_state(const struct state_place &at, struct state_shared *sh,
                                                     struct state_part &state, uint32_t *to) {
    at.each_element(state, [&](int key, int col, float &x, bool exists) {
        uint32_t v = cut_terms(x);
        sh->state[key][col] = v;
        if (exists && to != NULL) to[key * at.value_dim + at.col0 + col] = v;
    });
}

static __device__ __forceinline__ void store_state(const struct state_place &at, struct state_part &state, float *to) {
    at.each_element(state, [&](int key, int col, float &x, bool exists) {
        if (exists) to[key * at.value_dim + at.col0 + col] = x;
    });
}

// One block carries its columns of a head's state through the chunks. Keys arrive while W is multiplied, and the next W
// while keys are.
static __global__ void __launch_bounds__(THREADS) delta_state_kernel(const __grid_constant__ prompt_job p) {
    extern __shared__ __align__(16) char memory[];
    struct state_shared *sh = (struct state_shared *)memory;
    const struct delta_shape &s = p.job.shape;
    const struct batch_view &b = p.job.batch;
    const struct lane_entry lane = b.lanes[0];
    int head = blockIdx.y, warp = threadIdx.x / 32, position = lane.position + p.row0;
    const struct state_place at = {warp * 16,   warp / 2 * 16, warp % 2 * (COLUMNS / 2), (int)blockIdx.x * COLUMNS,
                                   s.value_dim, s.key_dim};
    float *memory_state = delta_state(s, lane.run, head);
    struct state_part state;
    struct value_part u;
    struct chunk_terms terms = terms_of(p, 0, head);
    float decay = *terms.decay;
    fetch_rows(&sh->w[0][0], ROW_PITCH, terms.w, N, s.key_dim);
    copies_commit();
    load_values(at, terms, u);
    at.each_element(state, [&](int key, int col, float &x, bool exists) {
        x = exists && position > 0 ? memory_state[key * s.value_dim + at.col0 + col] : 0.0f;
    });
    publish_state(at, sh, state, terms.s);
    for (int chunk = 0; chunk * N < p.n_row; chunk++) {
        bool more = (chunk + 1) * N < p.n_row;
        struct chunk_terms next = terms_of(p, more ? chunk + 1 : chunk, head);
        copies_wait<0>();
        __syncthreads(); // W and the state are there, and nobody reads the keys before any more
        fetch_rows(&sh->k[0][0], DEEP_PITCH, terms.k, N, s.key_dim);
        copies_commit();
        correct_values(at, terms, sh, u);
        copies_wait<0>();
        __syncthreads(); // D and the keys are there, and nobody reads W and the state any more
        if (more) fetch_rows(&sh->w[0][0], ROW_PITCH, next.w, N, s.key_dim);
        copies_commit();
        float next_decay = *next.decay;
        if (more) load_values(at, next, u);
        update_state(at, decay, sh, state);
        publish_state(at, sh, state, more ? next.s : NULL);
        position += N;
        for (int i = 0; i < b.n_keep && (chunk + 1) * N <= p.n_row; i++)
            if (b.keeps[i].position == position) store_state(at, state, delta_state(s, b.keeps[i].run, head));
        terms = next;
        decay = next_decay;
    }
    store_state(at, state, memory_state);
}

// ---- step 3 ----

struct output_shared {
    uint32_t rows[N][ROW_PITCH];     // of Q, then of QK
    uint32_t columns[N][DEEP_PITCH]; // of the state, N keys at a time, then of D
    float squares[N][2];
};

// This warp's 16 rows from i0 and 64 columns from n0 on: o += n_inner elements of rows, from `first` on, times columns.
static __device__ __forceinline__ void multiply_output(const struct output_shared *sh, int i0, int n0, int first,
                                                       int n_inner, int value_dim, float o[8][4]) {
    for (int k = 0; k < n_inner; k += 16) {
        struct terms_a a = split_a([&](int row, int i) { return sh->rows[i0 + row][first + k + i]; });
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (n0 + 8 * j < value_dim)
                mma_terms(o[j], a, split_b([&](int i, int col) { return sh->columns[k + i][n0 + 8 * j + col]; }));
    }
}

// Norm and gate.
static __device__ __forceinline__ void finish_rows(const struct prompt_job &p, int chunk, int head,
                                                   struct output_shared *sh, int i0, int n0, const float o[8][4]) {
    const struct delta_job &job = p.job;
    int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4, value_dim = job.shape.value_dim;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float squares = 0;
#pragma unroll
        for (int j = 0; j < 8; j++)
            for (int i = 0; i < 2; i++)
                if (n0 + 8 * j + 2 * c + i < value_dim) squares += o[j][2 * half + i] * o[j][2 * half + i];
        squares += __shfl_xor_sync(0xffffffffu, squares, 1);
        squares += __shfl_xor_sync(0xffffffffu, squares, 2);
        if (c == 0) sh->squares[i0 + g + 8 * half][n0 > 0] = squares;
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = i0 + g + 8 * half;
        if (row >= rows_of_chunk(p, chunk)) continue;
        float inverse = rsqrtf((sh->squares[row][0] + sh->squares[row][1]) / (float)value_dim + job.eps);
        int64_t t = first_row(p, chunk) + row, col0 = (int64_t)head * value_dim;
        const float *z = (const float *)job.z.data + t * job.z.stride + col0;
        float *out = (float *)job.out.data + t * job.out.stride + col0;
#pragma unroll
        for (int j = 0; j < 8; j++)
            for (int i = 0; i < 2; i++) {
                int col = n0 + 8 * j + 2 * c + i;
                if (col < value_dim)
                    out[col] = o[j][2 * half + i] * inverse * job.out_norm[col] * delta_gate(job, z[col]);
            }
    }
}

static __device__ __forceinline__ void copies_have_arrived(void) {
    copies_commit();
    copies_wait<0>();
    __syncthreads();
}

static __global__ void __launch_bounds__(THREADS, 2) delta_output_kernel(const __grid_constant__ prompt_job p) {
    extern __shared__ __align__(16) char memory[];
    struct output_shared *sh = (struct output_shared *)memory;
    const struct delta_shape &s = p.job.shape;
    int chunk = blockIdx.x, head = blockIdx.y, warp = threadIdx.x / 32, i0 = warp / 2 * 16, n0 = warp % 2 * 64;
    struct chunk_terms terms = terms_of(p, chunk, head);
    float o[8][4] = {};
    fetch_rows(&sh->rows[0][0], ROW_PITCH, terms.q, N, s.key_dim);
    for (int k = 0; k < s.key_dim; k += N) {
        int n = min(N, s.key_dim - k);
        fetch_rows(&sh->columns[0][0], DEEP_PITCH, terms.s + k * s.value_dim, n, s.value_dim);
        copies_have_arrived();
        multiply_output(sh, i0, n0, k, n, s.value_dim, o);
        __syncthreads();
    }
    fetch_rows(&sh->rows[0][0], ROW_PITCH, terms.qk, N, N);
    fetch_rows(&sh->columns[0][0], DEEP_PITCH, (const uint32_t *)terms.u, N, s.value_dim);
    copies_have_arrived();
    multiply_output(sh, i0, n0, 0, i0 + 16, s.value_dim, o); // what follows are zeros
    finish_rows(p, chunk, head, sh, i0, n0, o);
}

// ---- the pass ----

static void carve_prompt(struct carver *c, struct prompt_job *p, int64_t n_row, int64_t n_head, int64_t key_dim,
                         int64_t value_dim) {
    int64_t n_chunk = ceil_div(n_row, N);
    p->terms_size = terms_size_of(key_dim, value_dim);
    p->terms = (float *)carve(c, (size_t)((n_chunk < BLOCK_CHUNKS ? n_chunk : BLOCK_CHUNKS) * n_head * p->terms_size) *
                                     sizeof(float));
}

size_t need_delta_prompt(const struct device_limits *l) {
    struct carver c = {NULL, 0};
    struct prompt_job p;
    carve_prompt(&c, &p, l->max_rows, l->n_value_head, l->key_dim, l->value_dim);
    return c.used;
}

static void run_block(struct cuda_device *d, const struct prompt_job &p) {
    size_t terms_bytes = sizeof(struct terms_shared), state_bytes = sizeof(struct state_shared),
           output_bytes = sizeof(struct output_shared);
    unsigned heads = (unsigned)p.job.shape.n_value_head;
    dim3 chunks((unsigned)ceil_div(p.n_row, N), heads);
    cudaFuncSetAttribute(delta_terms_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)terms_bytes);
    cudaFuncSetAttribute(delta_state_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)state_bytes);
    cudaFuncSetAttribute(delta_output_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)output_bytes);
    delta_terms_kernel<<<chunks, THREADS, terms_bytes, d->stream>>>(p);
    cuda_launched(d, "delta, chunks");
    delta_state_kernel<<<dim3((unsigned)ceil_div(p.job.shape.value_dim, COLUMNS), heads), THREADS, state_bytes,
                         d->stream>>>(p);
    cuda_launched(d, "delta, states");
    delta_output_kernel<<<chunks, THREADS, output_bytes, d->stream>>>(p);
    cuda_launched(d, "delta, outputs");
}

void delta_prompt(struct cuda_device *d, const struct delta_args *a, const struct batch_view *b) {
    const struct lane *lane = &a->batch->lanes[0];
    must(b->n_lane == 1 && lane->position % N == 0 && lane->n_pending == 0);
    must(a->c.dtype == DTYPE_F32 && a->z.dtype == DTYPE_F32 && a->out.dtype == DTYPE_F32 && a->value_dim % 4 == 0);
    struct carver c = scratch_of(d);
    struct prompt_job p;
    p.job = delta_job_of(a, b);
    carve_prompt(&c, &p, lane->n_row, a->n_value_head, a->key_dim, a->value_dim);
    scratch_done(d, &c);
    for (p.row0 = 0; p.row0 < lane->n_row; p.row0 += BLOCK_CHUNKS * N) {
        int left = lane->n_row - p.row0;
        p.n_row = left < BLOCK_CHUNKS * N ? left : BLOCK_CHUNKS * N;
        run_block(d, p);
    }
}
