// The largest pieces of scratch that the kernels ask for, in the same terms: what is left out (alignment, counters) is
// far below the hundredth part of a plan by which it may be off.
#include "cuda/paper.h"

#define EXPANDED_MOST    ((int64_t)192 << 20) // bytes of one matrix as fp16, for prompt products
#define CHUNK_KEYS       512                  // keys of a partial result of attention, at absolute positions
#define BLOCK_CHUNK_KEYS 128                  // the same of a block drafter's
#define TABLE_SLOTS      4                    // uploads of a batch's tables that may be under way at once
#define TERM_BYTES       2                    // of a row of a product: one of bf16 or fp16
#define F32_BYTES        4

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

static int64_t linear_bytes(const struct device_limits *l) {
    int64_t terms = larger(l->max_rows * (l->n_expert > 0 ? 2 : 1), l->max_round_rows * 2);
    return terms * l->max_in * TERM_BYTES + smaller(l->max_in * l->max_out * TERM_BYTES, EXPANDED_MOST);
}

static int64_t attention_bytes(const struct device_limits *l) {
    int64_t window = larger(l->max_window, 1), chunks = (l->max_context + window + CHUNK_KEYS - 1) / CHUNK_KEYS + 1;
    return larger(chunks * window, l->max_lanes * 32) * l->n_head * (l->head_dim + 2) * F32_BYTES;
}

static int64_t block_attention_bytes(const struct device_limits *l) {
    int64_t chunks = (l->block_window + l->block_rows) / BLOCK_CHUNK_KEYS + 2;
    return chunks * l->block_rows * l->block_n_head * (l->block_head_dim + 2) * F32_BYTES;
}

// Rows, then for each pair of a row and its expert: what goes in, and gate and up or what comes out.
static int64_t expert_bytes(const struct device_limits *l) {
    if (l->n_expert == 0) return 0;
    int64_t rows = larger(l->max_rows, l->max_round_rows), pairs = rows * l->n_used;
    int64_t products = larger(l->max_in, 2 * l->expert_width) * F32_BYTES;
    return rows * l->max_in * 2 * TERM_BYTES + pairs * (l->expert_width * 2 * TERM_BYTES + products);
}

static int64_t table_bytes(const struct device_limits *l) {
    int64_t pages = larger(l->max_lanes, 8) * (l->max_context + 2 * l->max_window);
    return (pages + 2 * larger(l->max_rows, l->max_round_rows)) * (int64_t)sizeof(int32_t);
}

static size_t paper_reserve_bytes(struct device *d, const struct device_limits *l) {
    (void)d;
    int64_t attention = larger(attention_bytes(l), block_attention_bytes(l));
    int64_t scratch = larger(linear_bytes(l), larger(attention, expert_bytes(l)));
    return (size_t)(scratch + TABLE_SLOTS * table_bytes(l));
}

static int64_t paper_memory(struct device *d, int64_t *total_bytes) {
    (void)d;
    *total_bytes = 0;
    return INT64_MAX / 2;
}

void cuda_paper_device(struct device *out) {
    *out = (struct device){.name = "cuda, a GPU that is not here",
                           .compute = COMPUTE_BF16,
                           .activation = DTYPE_F32,
                           .kv = DTYPE_BF16,
                           .memory = paper_memory,
                           .reserve_bytes = paper_reserve_bytes};
}
