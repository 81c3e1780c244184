// The engine thread: admits requests, computes prompts in passes, and runs rounds for all running streams. Between any
// two passes or rounds it looks at new requests, cancellations and deadlines.
#include "base/clock.h"
#include "base/log.h"
#include "engine/internal.h"
#include <string.h>

// With replies running, a prompt pass is at least this long: shorter ones waste the weights they read.
#define SHORTEST_PASS_ROWS 256
#define AVERAGE_WEIGHT     0.2 // of the newest sample in a moving average

// ---- ends ----

// What ends a request from outside: FINISH_NONE when nothing does.
static enum finish given_up(const struct engine *e, struct request *r, int64_t now) {
    if (atomic_load(&r->cancelled) || atomic_load(&e->cancelling)) return FINISH_CANCELLED;
    return r->deadline_ns != 0 && now >= r->deadline_ns ? FINISH_DEADLINE : FINISH_NONE;
}

static void sweep_waiting(struct engine *e, int64_t now) {
    for (struct claim *c = ledger_first(e->ledger), *next; c != NULL; c = next) {
        struct request *r = admission_request(c);
        enum finish f = given_up(e, r, now);
        next = c->next;
        if (f != FINISH_NONE) admission_end(e, r, f, false, NULL);
    }
}

static void sweep_prompting(struct engine *e, int64_t now) {
    for (struct request **list = &e->prompting; *list != NULL;) {
        struct request *r = *list;
        enum finish f = given_up(e, r, now);
        if (f == FINISH_NONE) {
            list = &r->next;
            continue;
        }
        *list = r->next;
        e->n_prompting--;
        admission_end(e, r, f, false, NULL);
    }
}

// Of a request whose prefix is being brought.
static void end_in_line(struct engine *e, struct request *r, enum finish f, const struct error *error) {
    cache_leave_line(e, r);
    e->n_prompting--;
    admission_end(e, r, f, false, error);
}

static void sweep_line(struct engine *e, int64_t now) {
    for (struct request *r = e->cache.line, *next; r != NULL; r = next) {
        enum finish f = given_up(e, r, now);
        next = r->next;
        if (f != FINISH_NONE) end_in_line(e, r, f, NULL);
    }
}

void schedule_end_running(struct engine *e, int32_t i, enum finish f, bool by_eos) {
    struct request *r = e->running[i];
    memmove(e->running + i, e->running + i + 1, (size_t)(e->n_running - i - 1) * sizeof *e->running);
    e->n_running--;
    if (f == FINISH_STOP || f == FINISH_LENGTH) states_report(e, r);
    admission_end(e, r, f, by_eos, NULL);
}

static void sweep(struct engine *e) {
    int64_t now = clock_ns();
    sweep_waiting(e, now);
    sweep_line(e, now);
    sweep_prompting(e, now);
    for (int32_t i = e->n_running - 1; i >= 0; i--) {
        enum finish f = given_up(e, e->running[i], now);
        if (f != FINISH_NONE) schedule_end_running(e, i, f, false);
    }
}

// A device error is sticky: every live request gets it, and no progress is possible any more.
void schedule_fail(struct engine *e, const struct error *error) {
    log_line(LOG_ERROR, "the engine stops: %s", error->text);
    pthread_mutex_lock(&e->lock);
    e->error = *error;
    e->counts.failed = true;
    pthread_mutex_unlock(&e->lock);
    atomic_store(&e->failed, true);
}

static void end_all_failed(struct engine *e) {
    struct claim *c;
    while (e->n_running > 0) admission_end(e, e->running[--e->n_running], FINISH_ERROR, false, &e->error);
    while (e->prompting != NULL) {
        struct request *r = e->prompting;
        e->prompting = r->next;
        e->n_prompting--;
        admission_end(e, r, FINISH_ERROR, false, &e->error);
    }
    while (e->cache.line != NULL) end_in_line(e, e->cache.line, FINISH_ERROR, &e->error);
    while ((c = ledger_first(e->ledger)) != NULL)
        admission_end(e, admission_request(c), FINISH_ERROR, false, &e->error);
}

static void count(struct engine *e, int32_t prompt, int32_t reply, int32_t passes, int32_t rounds) {
    pthread_mutex_lock(&e->lock);
    e->counts.n_prompt_tokens += prompt;
    e->counts.n_reply_tokens += reply;
    e->counts.n_passes += passes;
    e->counts.n_rounds += rounds;
    pthread_mutex_unlock(&e->lock);
}

void schedule_average(double *mean, double sample) {
    *mean = *mean == 0 ? sample : *mean + AVERAGE_WEIGHT * (sample - *mean);
}

// ---- prompt passes ----

// Bits do not depend on the length of a pass; the wait of running replies does. Between two passes rounds get their
// share F of the time, so a pass as long as (1 - F) / F rounds costs a running reply one longer gap of 1 / F rounds.
int32_t schedule_pass_rows(const struct engine *e, const struct request *r) {
    int32_t left = r->n_prompt - r->n_rows_done;
    int32_t edge = PROMPT_MAX_ROWS - r->n_rows_done % PROMPT_MAX_ROWS;
    int32_t rows = PROMPT_MAX_ROWS;
    double share = e->options.decode_share;
    if (e->options.pass_rows > 0) {
        rows = e->options.pass_rows;
    } else if (e->n_running > 0 && share > 0 && e->row_ns > 0) {
        double budget_ns = e->round_ns * (1 - share) / share;
        double fit = budget_ns / e->row_ns;
        rows = fit < SHORTEST_PASS_ROWS ? SHORTEST_PASS_ROWS : fit > PROMPT_MAX_ROWS ? PROMPT_MAX_ROWS : (int32_t)fit;
        rows -= rows % PROMPT_CHUNK;
    }
    if (rows > edge) rows = edge;
    return rows < left ? rows : left;
}

struct lane schedule_lane(struct engine *e, const struct request *r, int32_t row0, int32_t n_row) {
    struct lane lane = {.row0 = row0,
                        .n_row = n_row,
                        .position = r->n_rows_done,
                        .n_pending = r->n_pending,
                        .pages = r->claim.pages,
                        .n_page = r->claim.n_page,
                        .run = engine_run(e, r->claim.run)};
    fault_change_lane(e, r, &lane);
    return lane;
}

static void first_token(struct engine *e, struct request *r, struct tensor logits) {
    enum finish finish;
    bool by_eos;
    tokens_prepare_draw(r, 0, &e->params[0]);
    tokens_draw(e, logits, 0, 1);
    if (!tokens_wait(e)) return;
    tokens_teach(r, &e->results[0]);
    e->prompting = r->next;
    e->n_prompting--;
    r->first_ns = clock_ns();
    request_set_state(r, REQUEST_RUNNING);
    if (tokens_take(r, &e->results[0], &finish, &by_eos)) {
        admission_end(e, r, finish, by_eos, NULL);
    } else {
        e->running[e->n_running++] = r;
        request_tell(r);
    }
    count(e, 0, 1, 0, 0);
}

// Which states the pass is to keep, and where the prompt cache wants them.
static int32_t prepare_keeps(struct engine *e, const struct request *r, int32_t n_row, struct keep *keeps) {
    struct prefix_keep begun[KEEPS_A_PASS];
    int32_t start = r->n_rows_done;
    int32_t n = prefix_begin_keep(e->prefix, r->claim.lane, start, start + n_row, begun, KEEPS_A_PASS);
    for (int32_t i = 0; i < n; i++)
        keeps[i] = (struct keep){.position = begun[i].position, .run = engine_run(e, begun[i].run)};
    fault_change_keeps(e, start, keeps, n);
    return n;
}

static bool compute_pass(struct engine *e, struct request *r, int32_t n, bool last, struct tensor *logits) {
    bool watched = passes_are_watched(e);
    struct keep keeps[KEEPS_A_PASS];
    struct lane lane = schedule_lane(e, r, 0, n);
    struct prompt_pass pass = {.lane = &lane,
                               .ids = r->prompt + r->n_rows_done,
                               .keeps = keeps,
                               .n_keep = prepare_keeps(e, r, n, keeps),
                               .pages = e->memory,
                               .want = last || watched ? LOGITS_LAST : LOGITS_NONE};
    struct error error;
    enum status s = model_prompt(e->model, &pass, logits, &error);
    if (s == STATUS_OK) block_drafts_prompt(e, r, &pass);
    if (s == STATUS_OK) s = e->device->sync(e->device, &error);
    if (s != STATUS_OK) {
        schedule_fail(e, &error);
        return false;
    }
    prefix_end_keep(e->prefix, r->claim.lane, r->claim.pages);
    if (watched) passes_report(e, r, n, *logits);
    return true;
}

static void prompt_step(struct engine *e) {
    struct request *r = e->prompting;
    int32_t n = schedule_pass_rows(e, r);
    bool last = r->n_rows_done + n == r->n_prompt;
    struct tensor logits;
    int64_t start = clock_ns();
    if (!compute_pass(e, r, n, last, &logits)) return;
    int64_t took = clock_ns() - start;
    if (n >= PROMPT_CHUNK) schedule_average(&e->row_ns, (double)took / n);
    double share = e->options.decode_share;
    e->rounds_owed_ns = (int64_t)((double)took * share / (1 - share));
    r->n_rows_done += n;
    request_set_progress(r, r->n_rows_done);
    count(e, n, 0, 1, 0);
    if (last) first_token(e, r, logits);
}

static void publish_counts(struct engine *e) {
    struct engine_counts *c = &e->counts;
    pthread_mutex_lock(&e->lock);
    pool_get_counts(e->pool, &c->pool);
    prefix_get_counts(e->prefix, &c->prefix);
    ledger_get_counts(e->ledger, &c->ledger);
    c->n_running = e->n_running + e->n_prompting;
    c->n_waiting = c->ledger.n_waiting;
    memset(c->n_waiting_for, 0, sizeof c->n_waiting_for);
    for (struct claim *w = ledger_first(e->ledger); w != NULL; w = w->next) c->n_waiting_for[w->wait]++;
    pthread_mutex_unlock(&e->lock);
}

// Whether the next thing that the engine does is a round, and nothing before it takes long: then readers are told what
// they have got when that round is with the device.
static bool rounds_follow(const struct engine *e) {
    bool masked = false;
    for (int32_t i = 0; i < e->n_running; i++) masked |= e->running[i]->mask != NULL;
    return !masked && e->n_prompting == 0 && ledger_first(e->ledger) == NULL;
}

void *engine_thread(void *context) {
    struct engine *e = context;
    while (!atomic_load(&e->stopping) || atomic_load(&e->n_live) > 0) {
        publish_counts(e);
        state_publish(e);
        admission_receive(e);
        sweep(e);
        if (atomic_load(&e->failed)) end_all_failed(e);
        if (!rounds_follow(e)) tokens_tell(e);
        admission_admit(e);
        publish_counts(e);
        if (!admission_is_idle(e)) state_publish(e); // else the next turn does, before it waits
        mask_maker_choose_lanes(e);
        e->masks_wait = e->n_running > 0 && e->n_ready == 0 && e->n_prompting == 0;
        bool rounds_first = e->n_ready > 0 && (e->prompting == NULL || e->rounds_owed_ns > 0);
        if (rounds_first)
            round_step(e);
        else if (e->prompting != NULL)
            prompt_step(e);
        else
            cache_wait(e);
        if (e->n_running == 0) e->rounds_owed_ns = 0;
        if (!atomic_load(&e->failed)) cache_write_some(e);
    }
    cache_stop(e);
    return NULL;
}
