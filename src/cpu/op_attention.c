// attention: cuts rows into chains over absolute tiles of 64 keys; the arithmetic of a tile is a kernel's.
//
// FORM_PROMPT: an item is a KV head and a block of rows; each query's chain runs over all its tiles.
// FORM_ROWS: an item is a lane's KV head and one absolute chunk of 512 keys. Partial results go to slots of scratch
// and are merged into the lane's totals in chunk order. There are fewer slots than chunks of a long context, so items
// run in waves; a merge is a left fold, which is why its bits do not depend on where a wave ends. Block attention is
// the same with other bounds of what a row sees.
#include "cpu/ops.h"
#include "cpu/pages.h"
#include <math.h>
#include <string.h>

#define PROMPT_QUERIES   192 // of one item: bounds the scratch, and a tile of keys is read once for so many
#define SLOTS_PER_THREAD 4

// Queries that share a KV head, with their running results.
struct chain {
    float *q, *acc;   // [n_query][head_dim]
    float *max, *sum; // [n_query]
};

static void carve_chain(struct cpu_carver *c, struct chain *chain, int64_t n_query, int64_t head_dim, bool with_q) {
    chain->q = with_q ? cpu_carve(c, (size_t)(n_query * head_dim) * sizeof(float)) : NULL;
    chain->acc = cpu_carve(c, (size_t)(n_query * head_dim) * sizeof(float));
    chain->max = cpu_carve(c, (size_t)n_query * sizeof(float));
    chain->sum = cpu_carve(c, (size_t)n_query * sizeof(float));
}

// A thread's working set for n_query queries.
struct workspace {
    struct chain chain;
    int32_t *visible;
    void *k, *v; // a tile that straddles pages, gathered, or one of e4m3 in fp32
    void *kernel;
};

static void carve_workspace(struct cpu_carver *c, const struct cpu_kernels *k, struct workspace *w, int64_t n_query,
                            int64_t head_dim) {
    carve_chain(c, &w->chain, n_query, head_dim, true);
    w->visible = cpu_carve(c, (size_t)n_query * sizeof(int32_t));
    w->k = cpu_carve(c, (size_t)(CPU_TILE_KEYS * head_dim) * sizeof(float));
    w->v = cpu_carve(c, (size_t)(CPU_TILE_KEYS * head_dim) * sizeof(float));
    w->kernel = cpu_carve(c, k->attend_scratch((int)n_query, (int)head_dim));
}

static int64_t heads_per_group(int64_t n_head, int64_t n_kv_head) { return n_kv_head > 0 ? n_head / n_kv_head : 0; }

static int64_t prompt_rows(int64_t r) { return r < PROMPT_QUERIES ? PROMPT_QUERIES / r : 1; }

// Totals and slots of FORM_ROWS, in shared scratch.
struct rows_layout {
    struct chain *totals; // [n_lane * n_kv_head]
    struct chain *slots;  // [n_slot]
};

static void carve_rows_layout(struct cpu_carver *c, struct rows_layout *layout, int64_t n_total, int64_t n_query,
                              int n_slot, int64_t head_dim) {
    layout->totals = cpu_carve(c, (size_t)n_total * sizeof(struct chain));
    layout->slots = cpu_carve(c, (size_t)n_slot * sizeof(struct chain));
    struct chain unused;
    for (int64_t i = 0; i < n_total; i++)
        carve_chain(c, c->base != NULL ? &layout->totals[i] : &unused, n_query, head_dim, false);
    for (int i = 0; i < n_slot; i++)
        carve_chain(c, c->base != NULL ? &layout->slots[i] : &unused, n_query, head_dim, false);
}

// What rounds of n_lane lanes take, whose rows bring n_query queries to each KV head; a thread has n_thread_query.
static void need_rows(const struct cpu_device *d, int64_t n_lane, int64_t n_kv_head, int64_t head_dim, int64_t n_query,
                      int64_t n_thread_query, struct cpu_need *need) {
    struct cpu_carver shared = {0}, thread = {0};
    struct workspace w;
    struct rows_layout layout;
    carve_workspace(&thread, &d->kernels, &w, n_thread_query, head_dim);
    carve_rows_layout(&shared, &layout, n_lane * n_kv_head, n_query, SLOTS_PER_THREAD * d->n_threads, head_dim);
    cpu_need_raise(need, shared.used, thread.used);
}

void cpu_need_attention(const struct cpu_device *d, const struct device_limits *l, struct cpu_need *need) {
    int64_t r = heads_per_group(l->n_head, l->n_kv_head),
            block_r = heads_per_group(l->block_n_head, l->block_n_kv_head);
    if (r > 0) {
        int64_t window = l->max_window * r, prompt = prompt_rows(r) * r;
        need_rows(d, l->max_lanes, l->n_kv_head, l->head_dim, window, window > prompt ? window : prompt, need);
    }
    int64_t block = l->block_rows * block_r;
    if (block > 0) need_rows(d, l->max_lanes, l->block_n_kv_head, l->block_head_dim, block, block, need);
}

struct attention_task {
    struct cpu_device *d;
    const struct attention_args *a;
    const struct block_attention_args *block; // which keys a row sees, and that there is no gate; NULL: attention's own
    int r;                                    // query heads per KV head
    int64_t row_block;                        // FORM_PROMPT
    struct rows_layout rows;
    // A wave: items [wave_first, wave_last) of the list of all chunks, by lane, then KV head, then chunk.
    int64_t wave_first, wave_last;
};

// The keys that the lane's row i sees: [first, end).
static int64_t first_key(const struct attention_task *task, const struct lane *lane, int64_t i) {
    const struct block_attention_args *b = task->block;
    if (b == NULL) return 0;
    int64_t oldest = lane->position + i - b->window + 1, first = b->first[lane - b->batch->lanes];
    return oldest > first ? oldest : first;
}

static int64_t end_key(const struct attention_task *task, const struct lane *lane, int64_t i) {
    bool whole = task->block != NULL && !task->block->causal;
    return lane->position + (whole ? lane->n_row : i + 1);
}

static int64_t first_chunk(const struct attention_task *task, const struct lane *lane) {
    return first_key(task, lane, 0) / CPU_CHUNK_KEYS;
}

static int64_t chunks_of(const struct attention_task *task, const struct lane *lane) {
    return (lane->position + lane->n_row + CPU_CHUNK_KEYS - 1) / CPU_CHUNK_KEYS - first_chunk(task, lane);
}

// Codes become fp32 once for all queries of the chain.
static const void *tile_of_codes(const struct attention_task *task, const struct lane *lane, int kv_head, int64_t key0,
                                 int n_key, bool is_value, float *copy) {
    const struct attention_args *a = task->a;
    for (int i = 0; i < n_key; i++) {
        const void *codes = cpu_kv_row(&a->kv, lane, a->n_kv_head, a->head_dim, kv_head, key0 + i, is_value);
        float scale = *cpu_kv_scale(&a->kv, lane, a->n_kv_head, kv_head, key0 + i, is_value);
        task->d->kernels.widen_e4m3(codes, scale, a->head_dim, copy + (int64_t)i * a->head_dim);
    }
    return copy;
}

// The tile's rows in one piece: in place when they lie on one page, else copied together.
static const void *tile_rows(const struct attention_task *task, const struct lane *lane, int kv_head, int64_t key0,
                             int n_key, bool is_value, void *copy) {
    const struct attention_args *a = task->a;
    if (a->kv.dtype == DTYPE_E4M3) return tile_of_codes(task, lane, kv_head, key0, n_key, is_value, copy);
    size_t row_bytes = (size_t)a->head_dim * dtype_bytes(a->kv.dtype);
    int64_t slot = key0 % a->kv.page_rows;
    if (slot + n_key <= a->kv.page_rows)
        return cpu_kv_row(&a->kv, lane, a->n_kv_head, a->head_dim, kv_head, key0, is_value);
    for (int i = 0; i < n_key;) {
        int64_t left = a->kv.page_rows - (key0 + i) % a->kv.page_rows;
        int n = left < n_key - i ? (int)left : n_key - i;
        const void *from = cpu_kv_row(&a->kv, lane, a->n_kv_head, a->head_dim, kv_head, key0 + i, is_value);
        memcpy((char *)copy + (size_t)i * row_bytes, from, (size_t)n * row_bytes);
        i += n;
    }
    return copy;
}

static void reset_chain(struct chain *c, int64_t n_query, int64_t head_dim) {
    memset(c->acc, 0, (size_t)(n_query * head_dim) * sizeof(float));
    for (int64_t i = 0; i < n_query; i++) {
        c->max[i] = -INFINITY;
        c->sum[i] = 0;
    }
}

// Queries of rows [row0, row0 + n_row) of the lane, in the order row, head.
static void load_queries(const struct attention_task *task, const struct lane *lane, int kv_head, int64_t row0,
                         int64_t n_row, float *q) {
    const struct attention_args *a = task->a;
    for (int64_t i = 0; i < n_row; i++) {
        const void *from = cpu_row(a->q, lane->row0 + row0 + i, (int64_t)kv_head * task->r * a->head_dim);
        task->d->kernels.widen(a->q.dtype, from, (int64_t)task->r * a->head_dim, q + i * task->r * a->head_dim);
    }
}

// A tile that begins before some of the rows' first keys: a row at a time, from its own first key on.
static void run_edge(const struct attention_task *task, const struct lane *lane, int kv_head, int64_t n_row,
                     int64_t key, int n_key, const struct workspace *w, struct cpu_attend tile) {
    const struct attention_args *a = task->a;
    struct cpu_attend one = tile;
    one.n_query = task->r;
    one.again = false;
    for (int64_t i = 0; i < n_row; i++) {
        int64_t first = first_key(task, lane, i) > key ? first_key(task, lane, i) : key;
        int64_t sees = end_key(task, lane, i) - first, skip = i * task->r;
        one.n_key = (int)(key + n_key - first);
        if (one.n_key <= 0 || sees <= 0) continue;
        for (int k = 0; k < task->r; k++) w->visible[k] = sees < one.n_key ? (int32_t)sees : one.n_key;
        one.q = tile.q + skip * a->head_dim;
        one.acc = tile.acc + skip * a->head_dim;
        one.max = tile.max + skip;
        one.sum = tile.sum + skip;
        one.k = tile_rows(task, lane, kv_head, first, one.n_key, false, w->k);
        one.v = tile_rows(task, lane, kv_head, first, one.n_key, true, w->v);
        task->d->kernels.attend[a->batch->form](&one);
    }
}

// Runs the chains of rows [row0, row0 + n_row) over the tiles of keys [key0, key_end).
static void run_chain(const struct attention_task *task, const struct lane *lane, int kv_head, int64_t row0,
                      int64_t n_row, int64_t key0, int64_t key_end, const struct workspace *w, const struct chain *to) {
    const struct attention_args *a = task->a;
    struct cpu_attend tile = {
        .n_query = (int)n_row * task->r,
        .head_dim = a->head_dim,
        .q = w->chain.q,
        .kv = a->kv.dtype == DTYPE_E4M3 ? DTYPE_F32 : a->kv.dtype,
        .visible = w->visible,
        .scale = a->scale,
        .max = to->max,
        .sum = to->sum,
        .acc = to->acc,
        .scratch = w->kernel,
    };
    // Tiles lie at absolute positions; the first one may lack its first key.
    for (int64_t key = key0 + (key0 == 0 ? a->first_key : 0), next; key < key_end; key = next) {
        next = (key / CPU_TILE_KEYS + 1) * CPU_TILE_KEYS;
        tile.n_key = (int)((next < key_end ? next : key_end) - key);
        if (first_key(task, lane, row0 + n_row - 1) > key) { // block drafters only: row0 is 0
            run_edge(task, lane, kv_head, n_row, key, tile.n_key, w, tile);
            tile.again = false;
            continue;
        }
        for (int i = 0; i < tile.n_query; i++) {
            int64_t sees = end_key(task, lane, row0 + i / task->r) - key;
            w->visible[i] = sees < 0 ? 0 : sees < tile.n_key ? (int32_t)sees : tile.n_key;
        }
        tile.k = tile_rows(task, lane, kv_head, key, tile.n_key, false, w->k);
        tile.v = tile_rows(task, lane, kv_head, key, tile.n_key, true, w->v);
        task->d->kernels.attend[a->batch->form](&tile);
        tile.again = true;
    }
}

// Divides by the sum, applies the gate and rounds.
static void finish_queries(const struct attention_task *task, const struct lane *lane, int kv_head, int64_t row0,
                           int64_t n_row, const struct chain *c, float *gate) {
    const struct attention_args *a = task->a;
    const struct cpu_kernels *k = &task->d->kernels;
    int64_t n = a->head_dim;
    for (int64_t i = 0; i < n_row * task->r; i++) {
        int64_t t = lane->row0 + row0 + i / task->r, h = (int64_t)kv_head * task->r + i % task->r;
        float *acc = c->acc + i * n;
        float inverse = 1.0f / c->sum[i];
        for (int64_t j = 0; j < n; j++) acc[j] *= inverse;
        if (task->block == NULL) {
            k->widen(a->qg.dtype, cpu_row(a->qg, t, h * 2 * n + n), n, gate);
            k->mul_sigmoid(acc, gate, n, acc);
        }
        k->narrow(a->out.dtype, acc, n, cpu_row(a->out, t, h * n));
    }
}

static void open_workspace(struct attention_task *task, int thread, int64_t n_query, struct workspace *w) {
    struct cpu_carver c = cpu_thread_scratch(task->d, thread);
    carve_workspace(&c, &task->d->kernels, w, n_query, task->a->head_dim);
    must(c.used <= task->d->scratch.thread_bytes);
}

static void prompt_items(void *context, long first, long last, int thread) {
    struct attention_task *task = context;
    const struct attention_args *a = task->a;
    const struct lane *lane = &a->batch->lanes[0];
    struct workspace w;
    open_workspace(task, thread, task->row_block * task->r, &w);
    int64_t n_block = (lane->n_row + task->row_block - 1) / task->row_block;
    for (long item = first; item < last; item++) {
        // The last rows have the longest chains, so they are handed out first.
        int64_t row0 = (n_block - 1 - item / a->n_kv_head) * task->row_block;
        int kv_head = (int)(item % a->n_kv_head);
        int64_t n_row = lane->n_row - row0 < task->row_block ? lane->n_row - row0 : task->row_block;
        load_queries(task, lane, kv_head, row0, n_row, w.chain.q);
        reset_chain(&w.chain, n_row * task->r, a->head_dim);
        run_chain(task, lane, kv_head, row0, n_row, 0, lane->position + row0 + n_row, &w, &w.chain);
        finish_queries(task, lane, kv_head, row0, n_row, &w.chain, w.chain.q);
    }
}

// Where the chunks of one lane's KV head stand in the list.
struct chunk_span {
    const struct lane *lane;
    int kv_head;
    int64_t total; // index of its running result
    int64_t first, n_chunk;
};

static struct chunk_span span_of_item(const struct attention_task *task, int64_t item) {
    const struct attention_args *a = task->a;
    int64_t first = 0;
    for (int i = 0;; i++) {
        const struct lane *lane = &a->batch->lanes[i];
        int64_t n_chunk = chunks_of(task, lane);
        if (item >= first + n_chunk * a->n_kv_head) {
            first += n_chunk * a->n_kv_head;
            continue;
        }
        int kv_head = (int)((item - first) / n_chunk);
        return (struct chunk_span){lane, kv_head, (int64_t)i * a->n_kv_head + kv_head, first + kv_head * n_chunk,
                                   n_chunk};
    }
}

static struct chunk_span span_of_total(const struct attention_task *task, int64_t total) {
    const struct attention_args *a = task->a;
    int64_t first = 0, i = total / a->n_kv_head;
    for (int64_t before = 0; before < i; before++) first += chunks_of(task, &a->batch->lanes[before]) * a->n_kv_head;
    int64_t n_chunk = chunks_of(task, &a->batch->lanes[i]);
    int kv_head = (int)(total % a->n_kv_head);
    return (struct chunk_span){&a->batch->lanes[i], kv_head, total, first + kv_head * n_chunk, n_chunk};
}

static void chunk_items(void *context, long first, long last, int thread) {
    struct attention_task *task = context;
    const struct attention_args *a = task->a;
    for (long i = first; i < last; i++) {
        int64_t item = task->wave_first + i;
        struct chunk_span span = span_of_item(task, item);
        const struct lane *lane = span.lane;
        struct workspace w;
        open_workspace(task, thread, (int64_t)lane->n_row * task->r, &w);
        int64_t key0 = (first_chunk(task, lane) + item - span.first) * CPU_CHUNK_KEYS,
                end = lane->position + lane->n_row;
        if (end > key0 + CPU_CHUNK_KEYS) end = key0 + CPU_CHUNK_KEYS;
        int64_t first_tile = first_key(task, lane, 0) / CPU_TILE_KEYS * CPU_TILE_KEYS;
        if (key0 < first_tile) key0 = first_tile;
        struct chain *slot = &task->rows.slots[i];
        load_queries(task, lane, span.kv_head, 0, lane->n_row, w.chain.q);
        reset_chain(slot, (int64_t)lane->n_row * task->r, a->head_dim);
        run_chain(task, lane, span.kv_head, 0, lane->n_row, key0, end, &w, slot);
    }
}

// total = total merged with part. A query that sees nothing of the chunk has sum 0 and changes nothing.
static void merge_chain(struct chain *total, const struct chain *part, int64_t n_query, int64_t head_dim) {
    for (int64_t i = 0; i < n_query; i++) {
        if (part->max[i] == -INFINITY) continue;
        float max = fmaxf(total->max[i], part->max[i]);
        float fade = expf(total->max[i] - max), weight = expf(part->max[i] - max);
        float *acc = total->acc + i * head_dim;
        const float *more = part->acc + i * head_dim;
        for (int64_t j = 0; j < head_dim; j++) acc[j] = acc[j] * fade + more[j] * weight;
        total->sum[i] = total->sum[i] * fade + part->sum[i] * weight;
        total->max[i] = max;
    }
}

// Folds the wave's slots into the running results, and finishes those that were waiting for no other chunk.
static void merge_totals(void *context, long first, long last, int thread) {
    struct attention_task *task = context;
    const struct attention_args *a = task->a;
    struct workspace w;
    open_workspace(task, thread, 1, &w);
    for (long total = first; total < last; total++) {
        struct chunk_span span = span_of_total(task, total);
        int64_t end = span.first + span.n_chunk;
        int64_t from = span.first > task->wave_first ? span.first : task->wave_first;
        int64_t to = end < task->wave_last ? end : task->wave_last;
        struct chain *running = &task->rows.totals[total];
        int64_t n_query = (int64_t)span.lane->n_row * task->r;
        if (from == span.first && from < to) reset_chain(running, n_query, a->head_dim);
        for (int64_t item = from; item < to; item++)
            merge_chain(running, &task->rows.slots[item - task->wave_first], n_query, a->head_dim);
        if (from < to && to == end)
            finish_queries(task, span.lane, span.kv_head, 0, span.lane->n_row, running, w.chain.q);
    }
}

static void rows_attention(struct attention_task *task) {
    const struct attention_args *a = task->a;
    const struct batch *b = a->batch;
    int64_t n_item = 0, widest = 0, n_total = (int64_t)b->n_lane * a->n_kv_head;
    for (int i = 0; i < b->n_lane; i++) {
        n_item += chunks_of(task, &b->lanes[i]) * a->n_kv_head;
        if (b->lanes[i].n_row > widest) widest = b->lanes[i].n_row;
    }
    int64_t n_query = widest * task->r, n_slot = (int64_t)SLOTS_PER_THREAD * task->d->n_threads;
    struct cpu_carver c = cpu_shared_scratch(task->d);
    carve_rows_layout(&c, &task->rows, n_total, n_query, (int)n_slot, a->head_dim);
    must(c.used <= task->d->scratch.shared_bytes);
    for (task->wave_first = 0; task->wave_first < n_item; task->wave_first = task->wave_last) {
        task->wave_last = task->wave_first + n_slot < n_item ? task->wave_first + n_slot : n_item;
        workers_run(task->d->workers, (long)(task->wave_last - task->wave_first), 1, chunk_items, task);
        workers_run(task->d->workers, (long)n_total, 1, merge_totals, task);
    }
}

void cpu_block_attention(struct device *base, const struct block_attention_args *b) {
    struct attention_args a = {.batch = b->batch,
                               .q = b->q,
                               .n_head = b->n_head,
                               .n_kv_head = b->n_kv_head,
                               .head_dim = b->head_dim,
                               .scale = b->scale,
                               .kv = b->kv,
                               .out = b->out};
    struct attention_task task = {.d = cpu_device_of(base), .a = &a, .block = b, .r = b->n_head / b->n_kv_head};
    must(b->batch->form == FORM_ROWS && b->window > 0);
    rows_attention(&task);
}

void cpu_attention(struct device *base, const struct attention_args *a) {
    struct attention_task task = {.d = cpu_device_of(base), .a = a, .r = a->n_head / a->n_kv_head};
    if (a->batch->form == FORM_ROWS) {
        rows_attention(&task);
        return;
    }
    must(a->batch->n_lane == 1);
    task.row_block = prompt_rows(task.r);
    int64_t n_block = (a->batch->lanes[0].n_row + task.row_block - 1) / task.row_block;
    workers_run(task.d->workers, n_block * a->n_kv_head, 1, prompt_items, &task);
}
