// The engine thread: admits requests, computes prompts in passes, and runs rounds for all running streams. Between any
// two passes or rounds it looks at new requests, cancellations and deadlines.
#include "base/clock.h"
#include "base/log.h"
#include "engine/internal.h"
#include <string.h>

// With replies running, a prompt pass is at least this long: shorter ones waste the weights they read.
#define SHORTEST_PASS_ROWS 256
#define AVERAGE_WEIGHT     0.2 // of the newest sample in a moving average

// ---- lists ----

static void append(struct request **list, struct request *r) {
    while (*list != NULL) list = &(*list)->next;
    r->next = NULL;
    *list = r;
}

static void append_by_priority(struct request **list, struct request *r) {
    while (*list != NULL && (*list)->priority <= r->priority) list = &(*list)->next;
    r->next = *list;
    *list = r;
}

// ---- ends ----

// Everything a request held is free before the next admission.
static void end_request(struct engine *e, struct request *r, enum finish finish, bool by_eos,
                        const struct error *error) {
    if (r->seated) memory_release(e->memory, &r->seat);
    r->seated = false;
    pthread_mutex_lock(&e->lock);
    e->counts.n_finished += finish == FINISH_STOP || finish == FINISH_LENGTH;
    e->counts.n_cancelled += finish == FINISH_CANCELLED || finish == FINISH_DEADLINE;
    e->counts.n_failed += finish == FINISH_ERROR;
    pthread_mutex_unlock(&e->lock);
    request_finish(r, finish, by_eos, error);
    atomic_fetch_sub(&e->n_live, 1);
    request_release(r);
}

// What ends a request from outside: FINISH_NONE when nothing does.
static enum finish given_up(const struct engine *e, struct request *r, int64_t now) {
    if (atomic_load(&r->cancelled) || atomic_load(&e->stopping)) return FINISH_CANCELLED;
    return r->deadline_ns != 0 && now >= r->deadline_ns ? FINISH_DEADLINE : FINISH_NONE;
}

static void sweep_list(struct engine *e, struct request **list, int64_t now) {
    while (*list != NULL) {
        struct request *r = *list;
        enum finish f = given_up(e, r, now);
        if (f == FINISH_NONE) {
            list = &r->next;
            continue;
        }
        *list = r->next;
        if (r->seated) e->n_prompting--;
        end_request(e, r, f, false, NULL);
    }
}

static void end_running(struct engine *e, int32_t i, enum finish f, bool by_eos) {
    struct request *r = e->running[i];
    memmove(e->running + i, e->running + i + 1, (size_t)(e->n_running - i - 1) * sizeof *e->running);
    e->n_running--;
    end_request(e, r, f, by_eos, NULL);
}

static void sweep(struct engine *e) {
    int64_t now = clock_ns();
    sweep_list(e, &e->waiting, now);
    sweep_list(e, &e->prompting, now);
    for (int32_t i = e->n_running - 1; i >= 0; i--) {
        enum finish f = given_up(e, e->running[i], now);
        if (f != FINISH_NONE) end_running(e, i, f, false);
    }
}

// A device error is sticky: every live request gets it, and no progress is possible any more.
static void fail_all(struct engine *e, const struct error *error) {
    log_line(LOG_ERROR, "the engine stops: %s", error->text);
    pthread_mutex_lock(&e->lock);
    e->error = *error;
    e->counts.failed = true;
    pthread_mutex_unlock(&e->lock);
    atomic_store(&e->failed, true);
}

static void end_all_failed(struct engine *e) {
    struct request *r;
    while (e->n_running > 0) {
        r = e->running[--e->n_running];
        end_request(e, r, FINISH_ERROR, false, &e->error);
    }
    for (int list = 0; list < 2; list++) {
        struct request **head = list == 0 ? &e->prompting : &e->waiting;
        while ((r = *head) != NULL) {
            *head = r->next;
            end_request(e, r, FINISH_ERROR, false, &e->error);
        }
    }
    e->n_prompting = 0;
}

// ---- admission ----

// First come first served within a priority; the head of the line is never passed.
static void admit(struct engine *e) {
    while (e->waiting != NULL) {
        struct request *r = e->waiting;
        const char *reason = "lanes busy";
        enum claim c = memory_claim(e->memory, r->n_prompt, r->max_tokens, &r->seat, &reason);
        must(c != CLAIM_NEVER); // refused at submit
        if (c == CLAIM_NOT_NOW) {
            for (; r != NULL; r = r->next) request_set_waiting(r, reason);
            return;
        }
        e->waiting = r->next;
        r->seated = true;
        r->seated_ns = clock_ns();
        append(&e->prompting, r);
        e->n_prompting++;
        engine_fill_garbage(e, &r->seat);
        request_set_state(r, REQUEST_PROMPT);
    }
}

// Takes what the mailbox holds; waits for something when there is nothing to do.
static void receive(struct engine *e) {
    bool idle = e->waiting == NULL && e->prompting == NULL && e->n_running == 0;
    struct request *r;
    if (idle && !atomic_load(&e->stopping) && queue_pop(e->mailbox, &r, -1)) append_by_priority(&e->waiting, r);
    while (queue_pop(e->mailbox, &r, 0)) append_by_priority(&e->waiting, r);
}

// ---- tokens ----

static void prepare_draw(const struct request *r, struct draw_params *p) {
    *p = r->draw;
    p->position = r->n_rows_done; // the drawn token's own position: one after the row's
    p->seen = r->seen.entries;
    p->n_seen = r->seen.n;
    p->allowed = r->engine->allowed;
}

// Takes a drawn token into the reply; true when the reply has ended.
static bool take_token(struct request *r, const struct draw_result *result, bool by_round, enum finish *finish,
                       bool *by_eos) {
    bool eos = config_is_eos(r->engine->info.config, result->id);
    if (r->has_penalty) seen_add(&r->seen, result->id, true);
    request_append(r, result, by_round);
    *by_eos = eos && !r->ignore_eos;
    *finish = FINISH_STOP;
    if (*by_eos || (r->stopper != NULL && !eos && stops_hit(r, result->id))) return true;
    *finish = FINISH_LENGTH;
    return r->view.n_tokens == r->max_tokens;
}

static bool draw(struct engine *e, struct tensor logits) {
    struct draw_args args = {.logits = logits, .n_vocab = e->n_vocab, .params = e->params, .results = e->results};
    struct error error;
    e->device->ops->draw(e->device, &args);
    if (e->device->sync(e->device, &error) == STATUS_OK) return true;
    fail_all(e, &error);
    return false;
}

static void count(struct engine *e, int32_t prompt, int32_t reply, int32_t passes, int32_t rounds) {
    pthread_mutex_lock(&e->lock);
    e->counts.n_prompt_tokens += prompt;
    e->counts.n_reply_tokens += reply;
    e->counts.n_passes += passes;
    e->counts.n_rounds += rounds;
    pthread_mutex_unlock(&e->lock);
}

static void average(double *mean, double sample) {
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

static struct lane lane_of(const struct engine *e, const struct request *r, int32_t row0, int32_t n_row) {
    return (struct lane){.row0 = row0,
                         .n_row = n_row,
                         .position = r->n_rows_done,
                         .n_pending = r->n_pending,
                         .pages = r->seat.pages,
                         .n_page = r->seat.n_page,
                         .run = engine_run(e, &r->seat)};
}

static void first_token(struct engine *e, struct request *r, struct tensor logits) {
    enum finish finish;
    bool by_eos;
    prepare_draw(r, &e->params[0]);
    if (!draw(e, logits)) return;
    e->prompting = r->next;
    e->n_prompting--;
    r->first_ns = clock_ns();
    request_set_state(r, REQUEST_RUNNING);
    if (take_token(r, &e->results[0], false, &finish, &by_eos))
        end_request(e, r, finish, by_eos, NULL);
    else
        e->running[e->n_running++] = r;
    count(e, 0, 1, 0, 0);
}

static void prompt_step(struct engine *e) {
    struct request *r = e->prompting;
    int32_t n = schedule_pass_rows(e, r);
    bool last = r->n_rows_done + n == r->n_prompt;
    struct lane lane = lane_of(e, r, 0, n);
    bool watched = passes_are_watched(e);
    struct prompt_pass pass = {.lane = &lane,
                               .ids = r->prompt + r->n_rows_done,
                               .pages = e->pages,
                               .want = last || watched ? LOGITS_LAST : LOGITS_NONE};
    struct tensor logits;
    struct error error;
    int64_t start = clock_ns();
    enum status s = model_prompt(e->model, &pass, &logits, &error);
    if (s == STATUS_OK) s = e->device->sync(e->device, &error);
    if (s != STATUS_OK) {
        fail_all(e, &error);
        return;
    }
    int64_t took = clock_ns() - start;
    if (watched) passes_report(e, r, n, logits);
    if (n >= PROMPT_CHUNK) average(&e->row_ns, (double)took / n);
    double share = e->options.decode_share;
    e->rounds_owed_ns = (int64_t)((double)took * share / (1 - share));
    r->n_rows_done += n;
    request_set_progress(r, r->n_rows_done);
    count(e, n, 0, 1, 0);
    if (last) first_token(e, r, logits);
}

// ---- rounds ----

static void round_step(struct engine *e) {
    int32_t n = e->n_running;
    for (int32_t i = 0; i < n; i++) {
        struct request *r = e->running[i];
        e->lanes[i] = lane_of(e, r, i, 1);
        e->ids[i] = r->tokens[r->view.n_tokens - 1].id;
    }
    struct round round = {.lanes = e->lanes, .n_lane = n, .n_row = n, .ids = e->ids, .pages = e->pages};
    struct tensor logits;
    struct error error;
    int64_t start = clock_ns();
    if (model_round(e->model, &round, &logits, &error) != STATUS_OK) {
        fail_all(e, &error);
        return;
    }
    for (int32_t i = 0; i < n; i++) {
        struct request *r = e->running[i];
        r->n_rows_done++; // the row that was computed waits in the log until the next round folds it in
        r->n_pending = 1;
        prepare_draw(r, &e->params[i]);
    }
    if (!draw(e, logits)) return;
    int64_t took = clock_ns() - start;
    average(&e->round_ns, (double)took);
    e->rounds_owed_ns -= took;
    count(e, 0, n, 0, 1);
    for (int32_t i = n - 1; i >= 0; i--) {
        enum finish finish;
        bool by_eos;
        if (take_token(e->running[i], &e->results[i], true, &finish, &by_eos)) end_running(e, i, finish, by_eos);
    }
}

static void publish_counts(struct engine *e) {
    struct memory_counts m;
    memory_get_counts(e->memory, &m);
    int32_t n_waiting = 0;
    for (struct request *r = e->waiting; r != NULL; r = r->next) n_waiting++;
    pthread_mutex_lock(&e->lock);
    e->counts.n_running = e->n_running + e->n_prompting;
    e->counts.n_waiting = n_waiting;
    e->counts.n_pages_used = m.n_pages_used;
    e->counts.n_pages_free = m.n_pages - m.n_pages_used;
    pthread_mutex_unlock(&e->lock);
}

void *engine_thread(void *context) {
    struct engine *e = context;
    while (!atomic_load(&e->stopping) || atomic_load(&e->n_live) > 0) {
        publish_counts(e);
        receive(e);
        sweep(e);
        if (atomic_load(&e->failed)) end_all_failed(e);
        admit(e);
        publish_counts(e);
        bool rounds_first = e->n_running > 0 && (e->prompting == NULL || e->rounds_owed_ns > 0);
        if (rounds_first)
            round_step(e);
        else if (e->prompting != NULL)
            prompt_step(e);
        if (e->n_running == 0) e->rounds_owed_ns = 0;
    }
    return NULL;
}
