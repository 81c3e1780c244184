// Times the CUDA backend's attention and products at the shapes of real models, by events around replayed graphs, over
// data that is larger than the card's caches. Attention on pages stands beside a twin of the same source without pages
// (timer_cuda.h), in ABBA order with an A/A beside it; its share of the floor is that of the keys' and values' bytes at
// the speed at which this card copied in the same run, or of the operations at the rate given.
//
//   tf-cuda-bench [--tflops N] [--rounds N] [attention|attention-rows|attention-prompts|rows|prompts|layers ...]
//
// layers: what stands between the products of a round, and experts. A cell of attention has as many rounds as it takes
// to be told, up to 200, in sets of those asked for.
#include "base/clock.h"
#include "base/random.h"
#include "bench/kernels_cuda.h"
#include "cuda/device_cuda.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SWEEP_BYTES ((size_t)512 << 20) // that one replay reads, as far as there are copies
#define COPIES_MAX  64
#define ROWS_MAX    4096
#define ROUNDS_MAX  200
#define VISIT_S     1e-3 // a visit replays for about so long
#define WARM_S      1e-1 // before a set of rounds, since a card lowers its clocks only under load
#define NARROW      1e-3 // how far the ends of intervals may be from their middle before there are enough rounds
#define HEAD        256
#define PAGE_ROWS   256
#define VOCABULARY  248320
#define LIMIT       0.005 // by which pages may be slower than none

static const struct shape shapes[] = {{"27b", 5120, 17408, 24, 4, 48}, {"35b-a3b", 2048, 512, 16, 2, 32}};

void bench_stop(const struct error *e) {
    fprintf(stderr, "tf-cuda-bench: %s\n", e->text);
    exit(1);
}

// ---- arms in turn ----

// What the rounds of a cell have measured so far.
struct rounds {
    double seconds[ARMS_MAX][ROUNDS_MAX], ratios[ARMS_MAX][ROUNDS_MAX];
    int n;
};

// Times n_round rounds of all arms there and back, beginning with another arm each time. Round i has its arms at
// arms[i * step].
static void add_rounds(struct recording *const *arms, int step, int n_arm, int n_round, struct rounds *r) {
    struct error e;
    double once;
    if (recording_time(arms[0], 1, &once, &e) != STATUS_OK) bench_stop(&e);
    int n = once < VISIT_S ? (int)(VISIT_S / once) + 1 : 1, n_warm = (int)(WARM_S / (once * n)) + 1;
    int n_visit = n_warm + 2 * n_arm * n_round;
    struct recording **visits = malloc((size_t)n_visit * sizeof(struct recording *));
    double *seconds = malloc((size_t)n_visit * sizeof *seconds);
    must(visits != NULL && seconds != NULL && r->n + n_round <= ROUNDS_MAX);
    for (int i = 0; i < n_warm; i++) visits[i] = arms[i / n_arm % n_round * step + i % n_arm];
    for (int i = n_warm; i < n_visit; i++) {
        int round = (i - n_warm) / (2 * n_arm), k = (i - n_warm) % (2 * n_arm);
        visits[i] = arms[round * step + ((k < n_arm ? k : 2 * n_arm - 1 - k) + round) % n_arm];
    }
    if (recordings_time(visits, n_warm, n_visit, n, seconds, &e) != STATUS_OK) bench_stop(&e);
    for (int round = 0; round < n_round; round++, r->n++)
        for (int k = 0; k < n_arm; k++) {
            const double *of = seconds + round * 2 * n_arm;
            int arm = (k + round) % n_arm;
            r->seconds[arm][r->n] = sqrt(of[k] * of[2 * n_arm - 1 - k]);
        }
    for (int i = r->n - n_round; i < r->n; i++)
        for (int arm = 0; arm < n_arm; arm++) r->ratios[arm][i] = log(r->seconds[arm][i] / r->seconds[0][i]);
    free(visits);
    free(seconds);
}

static struct timing sum_up(struct rounds *r, int n_arm) {
    struct timing t;
    struct error e;
    double sorted[ROUNDS_MAX];
    for (int arm = 0; arm < n_arm; arm++) {
        if (statistics_interval(r->ratios[arm], r->n, &t.against_a[arm], &e) != STATUS_OK) bench_stop(&e);
        memcpy(sorted, r->seconds[arm], (size_t)r->n * sizeof *sorted);
        t.seconds[arm] = statistics_median(sorted, r->n);
    }
    return t;
}

struct timing bench_time_arms(struct bench *b, struct recording **arms, int n_arm) {
    static struct rounds r;
    r.n = 0;
    add_rounds(arms, 0, n_arm, b->n_rounds, &r);
    return sum_up(&r, n_arm);
}

double bench_percent(double log_ratio) { return 100 * expm1(log_ratio); }

void bench_print_time(const struct bench *b, double seconds, double bytes, double operations) {
    double memory = bytes / b->copy_rate, arithmetic = operations / b->peak;
    printf("%10.2f us %6.0f GB/s %6.1f TFLOP/s %4.0f %% of %-10s", seconds * 1e6, bytes / seconds * 1e-9,
           operations / seconds * 1e-12, 100 * fmax(memory, arithmetic) / seconds,
           memory > arithmetic ? "memory" : "arithmetic");
}

// ---- attention ----

struct attention_cell {
    struct bench *b;
    const struct shape *shape;
    enum form form;
    enum dtype kv;
    int n_lane, n_row, position; // rows of a lane
    int pages_of_lane, n_copy;
    int64_t page_bytes, region_bytes; // of one copy of all lanes
    int32_t *pages;                   // [n_lane * pages_of_lane], shuffled; and [n_lane] behind it, in order
    struct lane lanes[2][LANES_MAX];  // on pages, and each on one page of its own
    struct batch batch[2];
    struct attention_args args;
    void (*run)(struct device *, const struct attention_args *);
};

static void lay_out(struct attention_cell *c, bool paged) {
    int64_t rows = paged ? PAGE_ROWS : (int64_t)c->pages_of_lane * PAGE_ROWS;
    c->args.batch = &c->batch[!paged];
    c->args.kv.page_rows = (int32_t)rows;
    c->args.kv.page_bytes = paged ? c->page_bytes : c->page_bytes * c->pages_of_lane;
    c->args.kv.scale_offset = 2 * c->shape->n_kv_head * rows * HEAD;
}

static void run_copies(void *context) {
    struct attention_cell *c = context;
    for (int i = 0; i < c->n_copy; i++) {
        c->args.kv.pages = c->b->pool + c->region_bytes * i;
        c->run(c->b->d, &c->args);
    }
}

static void fill_batches(struct attention_cell *c) {
    int n = c->n_lane * c->pages_of_lane;
    c->pages = malloc(((size_t)n + LANES_MAX) * sizeof *c->pages);
    must(c->pages != NULL);
    for (int i = 0; i < n; i++) { // a shuffle, as it grows
        int j = (int)(random_bits(1, (uint64_t)i, 0) % (uint64_t)(i + 1));
        c->pages[i] = c->pages[j];
        c->pages[j] = i;
    }
    for (int i = 0; i < c->n_lane; i++) {
        struct lane lane = {.row0 = i * c->n_row, .n_row = c->n_row, .position = c->position};
        c->pages[n + i] = i;
        lane.pages = c->pages + i * c->pages_of_lane;
        lane.n_page = c->pages_of_lane;
        c->lanes[0][i] = lane;
        lane.pages = c->pages + n + i;
        lane.n_page = 1;
        c->lanes[1][i] = lane;
    }
    for (int k = 0; k < 2; k++)
        c->batch[k] = (struct batch){
            .form = c->form, .n_row = c->n_row * c->n_lane, .n_lane = c->n_lane, .max_window = 1, .lanes = c->lanes[k]};
}

struct tensor bench_next_tensor(struct bench *b, char **at, int64_t n_row, int64_t n_col) {
    struct tensor t = {*at, b->d->activation, n_row, n_col, n_col};
    *at += ((size_t)(n_row * n_col) * dtype_bytes(t.dtype) + 255) / 256 * 256;
    return t;
}

static void prepare_attention(struct attention_cell *c) {
    const struct shape *s = c->shape;
    int64_t size = (int64_t)dtype_bytes(c->kv), rows = (int64_t)c->n_lane * c->n_row;
    char *at = c->b->activations;
    c->pages_of_lane = (c->position + c->n_row + PAGE_ROWS - 1) / PAGE_ROWS;
    c->page_bytes = 2 * s->n_kv_head * PAGE_ROWS * (HEAD * size + (c->kv == DTYPE_E4M3 ? (int64_t)sizeof(float) : 0));
    c->region_bytes = c->page_bytes * c->pages_of_lane * c->n_lane;
    c->n_copy = (int)fmin(COPIES_MAX, fmax(2, (double)SWEEP_BYTES / (double)c->region_bytes));
    // A prompt's keys are read many times over; a visit to a long one had better be short.
    if (c->form == FORM_PROMPT) c->n_copy = (int64_t)c->n_row * c->position < (int64_t)1 << 22 ? 2 : 1;
    must((int64_t)POOL_BYTES >= c->region_bytes * c->n_copy);
    // Finite numbers around 1; as scales of e4m3, small ones.
    if (c->kv == DTYPE_E4M3)
        timer_fill(c->b->d, c->b->pool, POOL_BYTES, 0x87878787, 0x30303030);
    else
        timer_fill(c->b->d, c->b->pool, POOL_BYTES, 0x807f807f, 0x3f003f00);
    c->args = (struct attention_args){.n_head = (int)s->n_head,
                                      .n_kv_head = (int)s->n_kv_head,
                                      .head_dim = HEAD,
                                      .scale = 1.0f / 16,
                                      .kv = {.pages = c->b->pool, .dtype = c->kv}};
    c->args.q = bench_next_tensor(c->b, &at, rows, s->n_head * HEAD);
    c->args.qg = bench_next_tensor(c->b, &at, rows, s->n_head * HEAD * 2);
    c->args.out = bench_next_tensor(c->b, &at, rows, s->n_head * HEAD);
    fill_batches(c);
}

void bench_wait(struct bench *b) {
    struct error e;
    if (b->d->sync(b->d, &e) != STATUS_OK) bench_stop(&e);
}

// One page a lane in order is how the twin sees memory, so both must give the same bits there.
static void check_twin(struct attention_cell *c) {
    struct device *d = c->b->d;
    size_t bytes = (size_t)(c->args.out.n_row * c->args.out.n_col) * dtype_bytes(c->args.out.dtype);
    char *out[2] = {malloc(bytes), malloc(bytes)};
    must(out[0] != NULL && out[1] != NULL);
    lay_out(c, false);
    d->ops->begin(d, c->args.batch);
    for (int k = 0; k < 2; k++) {
        (k == 0 ? d->ops->attention : attention_flat)(d, &c->args);
        bench_wait(c->b);
        d->copy_out(d, out[k], c->args.out.data, bytes);
    }
    bench_wait(c->b);
    if (memcmp(out[0], out[1], bytes) != 0) {
        printf("the flat twin computes something else\n");
        c->b->red = true;
    }
    free(out[0]);
    free(out[1]);
}

// Pages are within the limit when their whole interval is, and is so by more than the twin seems to differ from itself
// if that is more than the limit.
static const char *judge(const struct interval *pages, const struct interval *again) {
    double limit = log1p(LIMIT), doubt = fmax(again->high, -again->low);
    if (pages->low > limit) return "RED, slower";
    bool told = pages->is_sure && again->is_sure && (doubt <= limit || pages->high + doubt <= limit);
    return told && pages->high <= limit ? "ok" : "RED, too little can be told";
}

static void report_attention(struct attention_cell *c, const struct timing *t, int n_round) {
    const struct shape *s = c->shape;
    double keys = c->form == FORM_PROMPT ? c->position + (c->n_row + 1) / 2.0 : c->position + c->n_row,
           copies = c->n_copy;
    double rows = (double)c->n_lane * c->n_row;
    double row_bytes = (double)dtype_bytes(c->args.q.dtype) * HEAD * (double)s->n_head;
    double of_key = 2.0 * (double)s->n_kv_head * (HEAD * (double)dtype_bytes(c->kv) + (c->kv == DTYPE_E4M3 ? 4 : 0));
    double bytes = of_key * (c->position + c->n_row) * c->n_lane + 3 * rows * row_bytes;
    const struct interval *pages = &t->against_a[2], *again = &t->against_a[1];
    const char *verdict = judge(pages, again);
    c->b->red |= strcmp(verdict, "ok") != 0;
    printf("%-8s %-6s %4s  %2d x %4d at %5d ", s->name, c->form == FORM_PROMPT ? "prompt" : "rows",
           c->kv == DTYPE_E4M3 ? "e4m3" : "bf16", c->n_lane, c->n_row, c->position);
    bench_print_time(c->b, t->seconds[2] / copies, bytes, 4.0 * HEAD * (double)s->n_head * keys * rows);
    printf(" flat %10.2f us  pages %+.2f %% [%+.2f, %+.2f]  A/A %+.2f %% [%+.2f, %+.2f]  %d rounds: %s\n",
           t->seconds[0] / copies * 1e6, bench_percent(pages->middle), bench_percent(pages->low),
           bench_percent(pages->high), bench_percent(again->middle), bench_percent(again->low),
           bench_percent(again->high), n_round, verdict);
    fflush(stdout);
}

// Rounds of the twin, the twin again, and pages. Each round has recordings of its own, made in another order each time,
// since where one lies is not what is measured.
static void sit(struct attention_cell *c, int n_round, struct rounds *r) {
    struct recording *arms[ROUNDS_MAX * ARMS_MAX] = {0};
    struct error e;
    for (int i = 0; i < ARMS_MAX; i++) {
        int arm = (i + r->n) % ARMS_MAX;
        lay_out(c, arm == 2);
        c->run = arm == 2 ? c->b->d->ops->attention : attention_flat;
        c->b->d->ops->begin(c->b->d, c->args.batch); // what is recorded must not upload
        bench_wait(c->b);
        for (int round = 0; round < n_round; round++)
            if (recording_make(c->b->d, run_copies, c, &arms[round * ARMS_MAX + arm], &e) != STATUS_OK) bench_stop(&e);
    }
    add_rounds(arms, ARMS_MAX, ARMS_MAX, n_round, r);
    for (int i = 0; i < n_round * ARMS_MAX; i++) recording_free(arms[i]);
}

static bool is_narrow(const struct interval *i) {
    return i->is_sure && i->high - i->middle <= NARROW && i->middle - i->low <= NARROW;
}

static void bench_attention_cell(struct bench *b, const struct shape *s, enum dtype kv, enum form form, int n_lane,
                                 int n_row, int position) {
    struct attention_cell c = {
        .b = b, .shape = s, .form = form, .kv = kv, .n_lane = n_lane, .n_row = n_row, .position = position};
    static struct rounds r;
    r.n = 0;
    prepare_attention(&c);
    check_twin(&c);
    struct timing t;
    do {
        sit(&c, b->n_rounds, &r);
        t = sum_up(&r, ARMS_MAX);
    } while (!(is_narrow(&t.against_a[1]) && is_narrow(&t.against_a[2])) && r.n + b->n_rounds <= ROUNDS_MAX);
    report_attention(&c, &t, r.n);
    free(c.pages);
}

static void bench_attention(struct bench *b, bool rows, bool prompts) {
    static const struct {
        enum form form;
        int n_lane, n_row, position;
    } cells[] = {{FORM_ROWS, 1, 1, 2047},      {FORM_ROWS, 1, 1, 16383},      {FORM_ROWS, 4, 1, 2047},
                 {FORM_ROWS, 16, 1, 2047},     {FORM_ROWS, 1, 5, 16379},      {FORM_PROMPT, 1, 2048, 0},
                 {FORM_PROMPT, 1, 4096, 4096}, {FORM_PROMPT, 1, 4096, 28672}, {FORM_PROMPT, 1, 64, 16320}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int fp8 = 0; fp8 < 2; fp8++)
            for (size_t k = 0; k < sizeof cells / sizeof *cells; k++)
                if (cells[k].form == FORM_PROMPT ? prompts : rows)
                    bench_attention_cell(b, &shapes[i], fp8 ? DTYPE_E4M3 : DTYPE_BF16, cells[k].form, cells[k].n_lane,
                                         cells[k].n_row, cells[k].position);
}

// ---- products ----

struct product_cell {
    struct bench *b;
    const char *name;
    int n_part;
    int64_t n_out[4], n_in;
    struct linear_args args;
    struct weight w[4];
    size_t used; // of the pool
    int n_copy;
};

// The next matrix of the pool: codes, then scales and biases. Its values are any, so it is as good as arranged.
static struct weight next_weight(struct product_cell *c, int64_t n_out, int64_t n_in) {
    struct weight w = {WEIGHT_AFFINE, DTYPE_BF16, 4, 64, n_out, n_in, NULL, NULL, NULL, true};
    must(n_out % 8 == 0 && n_in % 256 == 0); // what can be
    size_t codes = (weight_row_bytes(&w) * (size_t)n_out + 255) / 256 * 256, scales = codes / 8;
    scales = (scales / 2 + 255) / 256 * 256;
    if (c->used + codes + 2 * scales > POOL_BYTES) c->used = 0;
    w.data = c->b->pool + c->used;
    w.scales = c->b->pool + c->used + codes;
    w.biases = c->b->pool + c->used + codes + scales;
    c->used += codes + 2 * scales;
    return w;
}

static void run_products(void *context) {
    struct product_cell *c = context;
    for (int i = 0; i < c->n_copy; i++) {
        for (int p = 0; p < c->n_part; p++) {
            c->w[p] = next_weight(c, c->n_out[p], c->n_in);
            c->args.part[p].w = &c->w[p];
        }
        c->b->d->ops->linear(c->b->d, &c->args);
    }
}

static void bench_product(struct bench *b, const struct shape *s, struct product_cell *c, enum form form, int n_row) {
    struct recording *arms[2];
    struct error e;
    char *at = b->activations;
    double weights = 0, operations = 0, activations = 0;
    c->b = b;
    c->used = 0;
    c->args = (struct linear_args){.form = form, .n_parts = c->n_part};
    c->args.x = bench_next_tensor(b, &at, n_row, c->n_in);
    for (int p = 0; p < c->n_part; p++) {
        c->args.part[p].out = bench_next_tensor(b, &at, n_row, c->n_out[p]);
        weights += (double)c->n_out[p] * (double)c->n_in;
        activations += (double)n_row * (double)c->n_out[p] * (double)dtype_bytes(b->d->activation);
    }
    operations = 2 * weights * n_row;
    double bytes = weights * (0.5 + 4.0 / 64) + activations + (double)n_row * (double)c->n_in * 4;
    c->n_copy = (int)fmin(COPIES_MAX, fmax(1, 0.9 * (double)POOL_BYTES / (weights * (0.5 + 4.0 / 64))));
    if (form == FORM_PROMPT && c->n_copy > 4) c->n_copy = 4;
    run_products(c); // what a shape needs once
    bench_wait(b);
    for (int arm = 0; arm < 2; arm++)
        if (recording_make(b->d, run_products, c, &arms[arm], &e) != STATUS_OK) bench_stop(&e);
    struct timing t = bench_time_arms(b, arms, 2);
    const struct interval *again = &t.against_a[1];
    printf("%-8s %-6s %-18s %4d rows ", s->name, form == FORM_PROMPT ? "prompt" : "rows", c->name, n_row);
    bench_print_time(b, t.seconds[0] / c->n_copy, bytes, operations);
    printf(" A/A %+.2f %% [%+.2f, %+.2f]\n", bench_percent(again->middle), bench_percent(again->low),
           bench_percent(again->high));
    fflush(stdout);
    for (int arm = 0; arm < 2; arm++) recording_free(arms[arm]);
}

static void bench_products(struct bench *b, enum form form) {
    static const int rows[] = {1, 4, 16}, prompts[] = {256, 4096};
    const int *counts = form == FORM_ROWS ? rows : prompts;
    timer_fill(b->d, b->pool, POOL_BYTES, 0xb87fb87f, 0x38003800);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct shape *s = &shapes[i];
        int64_t keys = 16 * 128, values = s->n_value_head * 128, heads = s->n_head * HEAD, kv = s->n_kv_head * HEAD;
        struct product_cell cells[] = {
            {.name = "gate up", .n_part = 2, .n_out = {s->inner, s->inner}, .n_in = s->hidden},
            {.name = "down", .n_part = 1, .n_out = {s->hidden}, .n_in = s->inner},
            {.name = "q k v", .n_part = 3, .n_out = {2 * heads, kv, kv}, .n_in = s->hidden},
            {.name = "qkv z a b",
             .n_part = 4,
             .n_out = {2 * keys + values, values, s->n_value_head, s->n_value_head},
             .n_in = s->hidden},
            {.name = "attention out", .n_part = 1, .n_out = {s->hidden}, .n_in = heads},
            {.name = "head", .n_part = 1, .n_out = {VOCABULARY}, .n_in = s->hidden},
        };
        int n = form == FORM_ROWS ? 6 : 5; // only rows of rounds have logits
        for (int k = 0; k < n; k++)
            for (int j = 0; j < (form == FORM_ROWS ? 3 : 2); j++) bench_product(b, s, &cells[k], form, counts[j]);
    }
}

// ---- the program ----

static void copy_pool(void *context) {
    struct bench *b = context;
    timer_copy(b->d, b->pool, b->pool + POOL_BYTES / 2, POOL_BYTES / 2);
}

static void open_bench(struct bench *b) {
    const struct device_limits limits = {
        .max_rows = ROWS_MAX,
        .max_round_rows = 16,
        .max_in = 17408,
        .max_out = VOCABULARY,
        .n_vocab = VOCABULARY,
        .head_dim = HEAD,
        .n_head = 24,
        .n_kv_head = 4,
        .key_dim = 128,
        .value_dim = 128,
        .n_key_head = 16,
        .n_value_head = 48,
        .n_expert = 256,
        .n_used = 8,
        .expert_width = 512,
        .max_context = 32768,
        .max_lanes = LANES_MAX,
        .max_window = 5,
    };
    struct recording *copy;
    struct error e;
    double seconds;
    // As wide as the two halves of a prompt's gate and up, in fp32.
    size_t bytes = (size_t)ROWS_MAX * 4 * (2 * 17408 + 5120 + 4096);
    if (cuda_device_create(0, &b->d, &e) != STATUS_OK || b->d->reserve(b->d, &limits, &e) != STATUS_OK) bench_stop(&e);
    b->pool = b->d->alloc(b->d, POOL_BYTES);
    b->activations = b->d->alloc(b->d, bytes);
    if (b->pool == NULL || b->activations == NULL) {
        error_memory(&e);
        bench_stop(&e);
    }
    timer_fill(b->d, b->pool, POOL_BYTES, 0x807f807f, 0x3f003f00);
    timer_fill(b->d, b->activations, bytes, 0x807f807f, 0x3f003f00);
    bench_wait(b);
    if (recording_make(b->d, copy_pool, b, &copy, &e) != STATUS_OK) bench_stop(&e);
    if (recording_time(copy, 20, &seconds, &e) != STATUS_OK) bench_stop(&e);
    recording_free(copy);
    b->copy_rate = (double)POOL_BYTES / seconds;
    printf("%s: copies %.2f TB/s; floors of arithmetic are at %.0f TFLOP/s\n", b->d->name, b->copy_rate * 1e-12,
           b->peak * 1e-12);
}

static bool is_asked(int argc, char **argv, int first, const char *what) {
    for (int i = first; i < argc; i++)
        if (strcmp(argv[i], what) == 0) return true;
    return first >= argc;
}

int main(int argc, char **argv) {
    struct bench b = {.peak = INFINITY, .n_rounds = 20};
    int at = 1;
    for (; at + 1 < argc && argv[at][0] == '-'; at += 2) {
        double value = strtod(argv[at + 1], NULL);
        if (strcmp(argv[at], "--tflops") == 0 && value > 0)
            b.peak = value * 1e12;
        else if (strcmp(argv[at], "--rounds") == 0 && value >= 1 && value <= ROUNDS_MAX)
            b.n_rounds = (int)value;
        else
            break;
    }
    if (at < argc && argv[at][0] == '-') {
        fprintf(stderr,
                "tf-cuda-bench [--tflops N] [--rounds N] [attention|attention-rows|attention-prompts|rows|prompts|"
                "layers ...]\n");
        return 2;
    }
    open_bench(&b);
    bool attention = is_asked(argc, argv, at, "attention");
    bench_attention(&b, attention || is_asked(argc, argv, at, "attention-rows"),
                    attention || is_asked(argc, argv, at, "attention-prompts"));
    if (is_asked(argc, argv, at, "rows")) bench_products(&b, FORM_ROWS);
    if (is_asked(argc, argv, at, "prompts")) bench_products(&b, FORM_PROMPT);
    if (is_asked(argc, argv, at, "layers")) bench_layers(&b, shapes, sizeof shapes / sizeof *shapes);
    bench_wait(&b);
    printf("%s\n",
           b.red ? "RED: pages cost more than they may, or the twin is none" : "pages are within 0.5 % of none");
    b.d->release(b.d, b.pool);
    b.d->release(b.d, b.activations);
    device_free(b.d);
    return b.red;
}
