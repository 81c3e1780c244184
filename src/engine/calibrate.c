// What rounds and proposals take, measured before the first request comes: lanes of made-up tokens go through the same
// calls as replies do, and nothing is kept of them but times. What is not measured for want of time is learned from
// replies (meter.h).
#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "engine/internal.h"
#include "model/mtp.h"
#include <stdlib.h>

// No measurement begins after so long. A CPU's start is quick, and what it serves is often one short reply.
#define GPU_BUDGET_NS ((int64_t)1000000000)
#define CPU_BUDGET_NS ((int64_t)300000000)
#define HOST_BYTES    ((int64_t)1 << 30) // of a round's weights in mapped files: more are slow to come the first time
#define PROMPT_ROWS   4
#define LANES_MOST    64
#define MEASUREMENTS  3 // the first also chooses and loads kernels; the fastest counts
#define N_COUNTS      7
#define DRAFTER_WIDTH (DRAFT_MAX_ROWS - 1)

struct calibration {
    struct engine *e;
    int64_t end_ns;
    int32_t n_lane;            // that are open
    int32_t n_page;            // of a lane
    int32_t *pages;            // [LANES_MOST][n_page]
    bool took_run[LANES_MOST]; // run i is lane i's; some belong to lanes from the start
    struct drafter_lane known[LANES_MOST], now[LANES_MOST];
    int32_t drafts[LANES_MOST][DRAFTER_WIDTH];
    float shares[LANES_MOST][DRAFTER_WIDTH];
};

static int32_t made_up_token(const struct engine *e, int32_t i) {
    return (int32_t)(random_bits(0, (uint64_t)i, 0) % (uint64_t)e->n_vocab);
}

static struct lane lane_of(const struct calibration *c, int32_t i, int32_t row0, int32_t n_row, int32_t position) {
    return (struct lane){.row0 = row0,
                         .n_row = n_row,
                         .position = position,
                         .pages = c->pages + i * c->n_page,
                         .n_page = c->n_page,
                         .run = engine_run(c->e, i)};
}

// ---- lanes ----

static struct drafter_taps taps_of(const struct engine *e) {
    struct drafter_taps taps = {0};
    int32_t n;
    drafter_tap_layers(e->drafter, &n);
    for (int32_t i = 0; i < n; i++) taps.rows[i] = model_tap(e->model, i);
    return taps;
}

static bool take_lane(struct calibration *c) {
    struct pool *pool = c->e->pool;
    struct pool_counts counts;
    int32_t i = c->n_lane;
    pool_get_counts(pool, &counts);
    if (i >= counts.n_run || !(pool_run_is_held(pool, i) || pool_run_is_free(pool, i))) return false;
    c->took_run[i] = !pool_run_is_held(pool, i);
    if (c->took_run[i]) pool_take_run(pool, HOLDER_LANE, i);
    if (!pool_take_pages(pool, HOLDER_LANE, c->n_page, c->pages + i * c->n_page)) {
        if (c->took_run[i]) pool_drop_run(pool, i);
        return false;
    }
    c->n_lane++;
    return true;
}

// False: there is no room for another lane.
static bool open_lane(struct calibration *c, enum status *s, struct error *error) {
    struct engine *e = c->e;
    int32_t i = c->n_lane, ids[PROMPT_ROWS];
    if (!take_lane(c)) return false;
    for (int32_t k = 0; k < PROMPT_ROWS; k++) ids[k] = made_up_token(e, i * PROMPT_ROWS + k);
    struct lane lane = lane_of(c, i, 0, PROMPT_ROWS, 0);
    struct prompt_pass pass = {.lane = &lane, .ids = ids, .pages = e->memory, .want = LOGITS_NONE};
    *s = model_prompt(e->model, &pass, NULL, error);
    if (*s == STATUS_OK && e->has_block) {
        struct drafter_taps taps = taps_of(e);
        drafter_prompt(e->drafter, &pass, &taps, model_lane_drafter(e->model, lane.run), NULL, &c->known[i]);
    }
    if (*s == STATUS_OK) *s = e->device->sync(e->device, error);
    return true;
}

static void close_lanes(struct calibration *c) {
    for (int32_t i = 0; i < c->n_lane; i++) {
        for (int32_t k = 0; k < c->n_page; k++) pool_drop_page(c->e->pool, HOLDER_LANE, c->pages[i * c->n_page + k]);
        if (c->took_run[i]) pool_drop_run(c->e->pool, i);
    }
}

// ---- one measurement: begins when nothing is under way, and waits for all of it ----

typedef enum status step_fn(struct calibration *c, int32_t n_lane, int32_t n_row, struct error *error);

static struct round prepare(struct calibration *c, int32_t n_lane, int32_t n_row, int32_t position) {
    struct engine *e = c->e;
    for (int32_t i = 0; i < n_lane; i++) e->lanes[i] = lane_of(c, i, i * n_row, n_row, position);
    for (int32_t k = 0; k < n_lane * n_row; k++) {
        e->ids[k] = made_up_token(e, k);
        e->params[k] = (struct draw_params){
            .top_p = 1, .repetition = 1, .position = position + k, .allowed = e->allowed, .n_top = -1};
    }
    return (struct round){
        .lanes = e->lanes, .n_lane = n_lane, .n_row = n_lane * n_row, .ids = e->ids, .pages = e->memory};
}

static enum status draw_all(struct calibration *c, struct tensor logits, struct error *error) {
    tokens_draw(c->e, logits, 0, (int32_t)logits.n_row);
    return c->e->device->sync(c->e->device, error);
}

static enum status run_round(struct calibration *c, int32_t n_lane, int32_t n_row, struct error *error) {
    struct tensor logits;
    struct round round = prepare(c, n_lane, n_row, PROMPT_ROWS);
    enum status s = model_round(c->e->model, &round, &logits, error);
    return s == STATUS_OK ? draw_all(c, logits, error) : s;
}

// Everything that the head needs is there: the prompt's last hidden row, and then its own.
static enum status run_first_step(struct calibration *c, int32_t n_lane, int32_t n_row, struct error *error) {
    struct tensor logits;
    struct round round = prepare(c, n_lane, n_row, PROMPT_ROWS);
    mtp_absorb(c->e->model, &round, &logits);
    return draw_all(c, logits, error);
}

static enum status run_next_step(struct calibration *c, int32_t n_lane, int32_t n_row, struct error *error) {
    struct tensor logits;
    struct round round = prepare(c, n_lane, n_row, PROMPT_ROWS + 1);
    for (int32_t i = 0; i < n_lane; i++) c->e->chain[i] = i;
    mtp_chain(c->e->model, &round, c->e->chain, &logits);
    return draw_all(c, logits, error);
}

static enum status run_block(struct calibration *c, int32_t n_lane, int32_t n_row, struct error *error) {
    struct engine *e = c->e;
    prepare(c, n_lane, 1, PROMPT_ROWS);
    for (int32_t i = 0; i < n_lane; i++) {
        c->now[i] = c->known[i];
        e->asks[i] = (struct drafter_ask){.position = PROMPT_ROWS,
                                          .last = e->ids[i],
                                          .own = model_lane_drafter(e->model, e->lanes[i].run),
                                          .state = &c->now[i],
                                          .draw = &e->params[i],
                                          .n_want = n_row,
                                          .ids = c->drafts[i],
                                          .confidence = c->shares[i]};
    }
    return drafter_propose(e->drafter, e->asks, n_lane, error);
}

// *ns: the fastest; 0: there was no time left.
static enum status measure(struct calibration *c, step_fn *step, int32_t n_lane, int32_t n_row, double *ns,
                           struct error *error) {
    enum status s = STATUS_OK;
    *ns = 0;
    for (int i = 0; i < MEASUREMENTS && s == STATUS_OK; i++) {
        int64_t start = clock_ns();
        if (start > c->end_ns) break;
        s = step(c, n_lane, n_row, error);
        double took = (double)(clock_ns() - start);
        if (*ns == 0 || took < *ns) *ns = took;
    }
    return s;
}

// ---- all of them ----

static enum status measure_rounds(struct calibration *c, int32_t n_lane, struct error *error) {
    struct engine *e = c->e;
    enum status s = STATUS_OK;
    for (int32_t n_row = 1; n_row <= e->info.plan.max_window && s == STATUS_OK; n_row *= 2) {
        double ns;
        if (n_lane * n_row > e->round_rows) break;
        s = measure(c, run_round, n_lane, n_row, &ns, error);
        if (s != STATUS_OK || ns == 0) continue;
        log_line(LOG_DEBUG, "a round of %d streams with %d rows each takes %.3f ms", n_lane, n_row, ns * 1e-6);
        meter_set_round(e->meter, n_lane, n_lane * n_row, ns);
    }
    return s;
}

static enum status measure_proposals(struct calibration *c, int32_t n_lane, struct error *error) {
    struct engine *e = c->e;
    double first = 0, next = 0;
    enum status s = STATUS_OK;
    if (e->has_block) {
        int32_t most = drafter_block(e->drafter) - 1, room = e->info.plan.max_window - 1;
        s = measure(c, run_block, n_lane, most < room ? most : room, &first, error);
    } else if (e->has_mtp) {
        s = measure(c, run_first_step, n_lane, 1, &first, error);
        if (s == STATUS_OK) s = measure(c, run_next_step, n_lane, 1, &next, error);
    }
    if (s != STATUS_OK || first == 0) return s;
    log_line(LOG_DEBUG, "proposing for %d streams takes %.3f ms, and %.3f ms a step more", n_lane, first * 1e-6,
             next * 1e-6);
    meter_set_head(e->meter, n_lane, first, next);
    return s;
}

// One stream first, then as many as there may be, then what lies between.
static int list_counts(const struct engine *e, int32_t counts[N_COUNTS]) {
    static const int32_t between[] = {4, 2, 8, 16, 32};
    int32_t most = e->info.plan.parallel < LANES_MOST ? e->info.plan.parallel : LANES_MOST;
    int n = 0;
    counts[n++] = 1;
    if (most > 1) counts[n++] = most;
    for (int i = 0; i < 5; i++)
        if (between[i] < most) counts[n++] = between[i];
    return n;
}

static enum status run_all(struct calibration *c, struct error *error) {
    int32_t counts[N_COUNTS];
    int n = list_counts(c->e, counts);
    enum status s = STATUS_OK;
    for (int i = 0; i < n && s == STATUS_OK && clock_ns() < c->end_ns; i++) {
        bool room = true;
        while (room && c->n_lane < counts[i] && s == STATUS_OK && clock_ns() < c->end_ns)
            room = open_lane(c, &s, error);
        if (c->n_lane < counts[i]) continue;
        if (s == STATUS_OK) s = measure_rounds(c, counts[i], error);
        if (s == STATUS_OK) s = measure_proposals(c, counts[i], error);
    }
    return s;
}

static bool is_wanted(const struct engine *e) {
    const struct draft_options *d = &e->options.drafts;
    if (e->meter == NULL || d->forced || d->expected || d->taught || e->options.fault != FAULT_NONE) return false;
    return e->device->memory != NULL || model_round_bytes(e->model) <= HOST_BYTES;
}

enum status calibrate(struct engine *e, struct error *error) {
    if (!is_wanted(e)) return STATUS_OK;
    const struct plan *p = &e->info.plan;
    int32_t n_page = (PROMPT_ROWS + p->max_window + p->page_rows) / p->page_rows;
    struct calibration *c = calloc(1, sizeof *c);
    int32_t *pages = calloc((size_t)(LANES_MOST * n_page), sizeof *pages);
    enum status s = c != NULL && pages != NULL ? STATUS_OK : error_memory(error);
    if (s == STATUS_OK) {
        int64_t budget_ns = e->device->memory != NULL ? GPU_BUDGET_NS : CPU_BUDGET_NS;
        *c = (struct calibration){.e = e, .end_ns = clock_ns() + budget_ns, .n_page = n_page, .pages = pages};
        s = run_all(c, error);
        close_lanes(c);
        meter_fill(e->meter);
    }
    free(pages);
    free(c);
    return s;
}
