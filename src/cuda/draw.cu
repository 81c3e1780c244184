// draw: parameters go with the kernels, lists where there are any go to the device with one copy before them, and the
// kernels write their answers to the host's memory; the host waits in sync. Nearly all rows may have the same tokens,
// so those ids stay on the device.
#include "cuda/draw.cuh"
#include <stdlib.h>
#include <string.h>

#define LEAST_RESULTS 256

// Results that are under way: where in pinned memory, and where they are wanted.
struct draw_pending {
    struct draw_result *to;
    int first, n;
};

#define OTHERS_MOST 8 // draws in a row that have other ids than the usual ones, before theirs become those

struct draw_state {
    struct draw_result *pinned;
    struct draw_pending pending[LEAST_RESULTS];
    int n_pending, n_result, max_result;
    uint32_t *usual, *usual_on_device; // allowed ids, [n_usual] words
    size_t n_usual;                    // 0: nothing is known yet
    cudaEvent_t drawn;                 // the newest draw
    int n_others;
};

static size_t count_words(int64_t n_vocab) { return (size_t)(n_vocab + 31) / 32; }

bool draw_open(struct cuda_device *d, const struct device_limits *l) {
    draw_close(d);
    d->draw = (struct draw_state *)calloc(1, sizeof *d->draw);
    if (d->draw == NULL) return false;
    struct draw_state *s = d->draw;
    size_t usual_bytes = draw_usual_bytes(l);
    s->max_result = (int)larger(l->max_round_rows, LEAST_RESULTS);
    return cudaMallocHost(&s->pinned, (size_t)s->max_result * sizeof(struct draw_result)) == cudaSuccess &&
           cudaMallocHost(&s->usual, usual_bytes) == cudaSuccess &&
           cudaMalloc(&s->usual_on_device, usual_bytes) == cudaSuccess &&
           cudaEventCreateWithFlags(&s->drawn, cudaEventDisableTiming) == cudaSuccess;
}

void draw_close(struct cuda_device *d) {
    if (d->draw == NULL) return;
    cudaFreeHost(d->draw->pinned);
    cudaFreeHost(d->draw->usual);
    cudaFree(d->draw->usual_on_device);
    if (d->draw->drawn != NULL) cudaEventDestroy(d->draw->drawn);
    free(d->draw);
    d->draw = NULL;
}

void draw_deliver(struct cuda_device *d) {
    struct draw_state *s = d->draw;
    if (s == NULL) return;
    for (int i = 0; i < s->n_pending; i++)
        memcpy(s->pending[i].to, s->pinned + s->pending[i].first, (size_t)s->pending[i].n * sizeof *s->pinned);
    s->n_pending = s->n_result = 0;
}

size_t draw_usual_bytes(const struct device_limits *l) { return (count_words(l->n_vocab) + 1) * sizeof(uint32_t); }

void draw_wait(struct cuda_device *d) {
    if (d->draw != NULL) cuda_note(d, cudaEventSynchronize(d->draw->drawn), "wait for a draw");
}

// Room for one row with every list as long as the vocabulary.
size_t draw_list_bytes(const struct device_limits *l) {
    struct carver c = {NULL, 0};
    carve(&c, (size_t)l->n_vocab * sizeof(struct draw_bias));
    carve(&c, (size_t)l->n_vocab * sizeof(struct draw_seen));
    carve(&c, ((size_t)l->n_vocab / 32 + 1) * sizeof(uint32_t));
    return c.used;
}

static void carve_job(struct carver *c, struct draw_job *job, int64_t n_row, int64_t n_column) {
    int64_t n_block = ceil_div(n_column, DRAW_BLOCK);
    job->n_block = (int32_t)n_block;
    job->changed = (double *)carve(c, (size_t)(n_row * n_column) * sizeof(double));
    job->blocks = (struct draw_block *)carve(c, (size_t)(n_row * n_block) * sizeof(struct draw_block));
    job->tops = (struct draw_top *)carve(c, (size_t)(n_row * DRAW_MAX_TOP * DRAW_MAX_TOP) * sizeof(struct draw_top));
    job->count = (uint32_t *)carve(c, (size_t)n_row * DRAW_BINS * sizeof(uint32_t));
    job->mass = (unsigned long long *)carve(c, (size_t)n_row * DRAW_BINS * sizeof(unsigned long long));
    job->list = (int32_t *)carve(c, (size_t)(n_row * n_column) * sizeof(int32_t));
    job->n_list = (int32_t *)carve(c, (size_t)n_row * sizeof(int32_t));
    job->found = (struct draw_found *)carve(c, (size_t)n_row * sizeof(struct draw_found));
    job->results = (struct draw_result *)carve(c, (size_t)n_row * sizeof(struct draw_result));
}

size_t need_draw(const struct device_limits *l) {
    struct carver c = {NULL, 0};
    struct draw_job job;
    if (l->n_vocab == 0) return 0;
    carve_job(&c, &job, DRAW_ROWS, l->n_vocab);
    return c.used;
}

// A slot of the upload ring being filled, once something has to go there.
struct packer {
    struct cuda_device *d;
    char *base; // NULL: nothing had to
    size_t used;
    const uint32_t *allowed; // the last row's, and where they are
    uint32_t allowed_at;
    bool has_usual; // a row has the usual ids
};

static bool has_penalty(const struct draw_params *p) {
    return p->n_seen > 0 && (p->repetition != 1 || p->presence != 0 || p->frequency != 0);
}

static uint32_t pack(struct packer *k, const void *data, size_t bytes) {
    uint32_t at = (uint32_t)k->used;
    if (bytes == 0) return at;
    if (k->base == NULL) k->base = upload_take(k->d, &k->d->lists);
    memcpy(k->base + k->used, data, bytes);
    k->used += (bytes + 15) / 16 * 16;
    return at;
}

// Whether the ids are the usual ones. The first ones become that, and later others that come again and again, unless a
// row that is drawn with these has those that are usual now (in_use).
static bool are_usual(struct cuda_device *d, const uint32_t *allowed, size_t n_word, bool in_use) {
    struct draw_state *s = d->draw;
    size_t bytes = n_word * sizeof *allowed;
    if (bytes > draw_usual_bytes(&d->limits)) return false;
    if (s->n_usual == n_word && memcmp(s->usual, allowed, bytes) == 0) {
        s->n_others = 0;
        return true;
    }
    if (s->n_usual > 0 && (++s->n_others < OTHERS_MOST || in_use)) return false;
    if (s->n_usual > 0) cuda_note(d, cudaStreamSynchronize(d->stream), "wait for a copy of ids");
    memcpy(s->usual, allowed, bytes);
    s->n_usual = n_word;
    s->n_others = 0;
    cuda_note(d, cudaMemcpyAsync(s->usual_on_device, s->usual, bytes, cudaMemcpyHostToDevice, d->stream), "bring ids");
    return true;
}

// False when the slot has no room for the row's lists.
static bool pack_row(struct packer *k, const struct draw_params *p, int32_t n_vocab, struct draw_row *row) {
    int n_seen = has_penalty(p) ? p->n_seen : 0;
    size_t bias = (size_t)p->n_bias * sizeof *p->bias, seen = (size_t)n_seen * sizeof *p->seen;
    size_t n_word = count_words(n_vocab), allowed = n_word * sizeof *p->allowed;
    if (k->used + bias + seen + (p->allowed == k->allowed ? 0 : allowed) + 48 > k->d->lists.slot_bytes) return false;
    *row = (struct draw_row){p->temperature,
                             p->top_p,
                             p->min_p,
                             p->repetition,
                             p->presence,
                             p->frequency,
                             p->seed,
                             (uint64_t)p->position,
                             p->top_k,
                             p->n_bias,
                             n_seen,
                             p->n_top < DRAW_MAX_TOP ? p->n_top : DRAW_MAX_TOP,
                             0,
                             0,
                             0};
    row->bias_at = pack(k, p->bias, bias);
    row->seen_at = pack(k, p->seen, seen);
    if (p->allowed != k->allowed) {
        bool usual = are_usual(k->d, p->allowed, n_word, k->has_usual);
        k->allowed_at = usual ? DRAW_USUAL : pack(k, p->allowed, allowed);
        k->has_usual = k->has_usual || usual;
        k->allowed = p->allowed;
    }
    row->allowed_at = k->allowed_at;
    return true;
}

// Draws as many rows from `first` on as fit, and returns how many.
static int draw_some(struct cuda_device *d, const struct draw_args *a, int first) {
    int left = (int)a->logits.n_row - first, n = 0, n_top = 0;
    bool any_listed = false, any_unlisted = false;
    struct packer k = {d, NULL, 0, NULL, 0, false};
    struct draw_job job;
    int32_t n_vocab = a->n_vocab < a->logits.n_col ? a->n_vocab : (int32_t)a->logits.n_col;
    for (; n < left && n < DRAW_ROWS && pack_row(&k, &a->params[first + n], n_vocab, &job.rows[n]); n++) {
        const struct draw_params *p = &a->params[first + n];
        bool listed = p->top_k > 0 || p->top_p < 1;
        n_top = job.rows[n].n_top > n_top ? job.rows[n].n_top : n_top;
        any_listed = any_listed || (p->temperature > 0 && listed);
        any_unlisted = any_unlisted || (p->temperature > 0 && !listed);
    }
    must(n > 0);
    struct draw_state *s = d->draw;
    struct carver c = scratch_of(d);
    bool no_noise = !any_listed && !any_unlisted;
    job.logits = tensor_rows(a->logits, first, n);
    job.n_vocab = n_vocab;
    carve_job(&c, &job, n, a->logits.n_col);
    scratch_done(d, &c);
    job.lists = k.base != NULL ? upload_send(d, &d->lists, k.used) : NULL;
    job.usual = s->usual_on_device;
    job.answers = s->pinned + s->n_result;
    draw_scan(d, &job, n, n_top, no_noise);
    if (!no_noise) draw_pick(d, &job, n, any_listed, any_unlisted);
    cuda_note(d, cudaEventRecord(s->drawn, d->stream), "mark a draw");
    s->pending[s->n_pending++] = (struct draw_pending){a->results + first, s->n_result, n};
    s->n_result += n;
    return n;
}

void cuda_draw(struct device *base, const struct draw_args *a) {
    struct cuda_device *d = cuda_of(base);
    must(a->logits.dtype == DTYPE_F32);
    for (int first = 0; first < (int)a->logits.n_row && d->failure == cudaSuccess;) {
        // Only a caller that never waits fills the room for results.
        struct error e;
        if (d->draw->n_result + DRAW_ROWS > d->draw->max_result && base->sync(base, &e) != STATUS_OK) return;
        first += draw_some(d, a, first);
    }
}
