// Runs prompts under one setting of the engine, and compares what came of them with what each gives alone.
#include "base/clock.h"
#include "gate/fresh.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_NS ((int64_t)5000000)

void verdict_red(struct verdict *v, const char *format, ...) {
    if (v->red) return; // the first difference is the one to look at
    v->red = true;
    va_list args;
    va_start(args, format);
    vsnprintf(v->text, sizeof v->text, format, args);
    va_end(args);
}

// ---- passes ----

void arms_add_pass(struct gate *g, const struct pass_report *report) {
    pthread_mutex_lock(&g->lock);
    if (g->n_passes == g->passes_capacity) {
        int32_t capacity = g->passes_capacity > 0 ? 2 * g->passes_capacity : 256;
        struct pass_report *more = realloc(g->passes, (size_t)capacity * sizeof *more);
        g->out_of_memory |= more == NULL;
        if (more != NULL) g->passes = more, g->passes_capacity = capacity;
    }
    if (g->n_passes < g->passes_capacity) g->passes[g->n_passes++] = *report;
    pthread_mutex_unlock(&g->lock);
}

static void on_pass(void *context, const struct pass_report *report) { arms_add_pass(context, report); }

static void on_state(void *context, const struct state_report *report) {
    struct gate *g = context;
    pthread_mutex_lock(&g->lock);
    if (g->n_states < JOBS_MAX) g->states[g->n_states++] = *report;
    pthread_mutex_unlock(&g->lock);
}

// ---- start ----

static struct engine_options options_of(struct gate *g, const struct arm *a) {
    struct engine_options o = g->options->engine;
    o.model_dir = g->options->model_dir;
    o.device = g->options->device;
    o.parallel = a->parallel;
    o.context = a->context > 0 ? a->context : g->context;
    o.max_tokens = REPLY_MOST;
    o.queue = JOBS_MAX;
    o.pass_rows = a->pass_rows;
    o.kv_dtype = a->fp8 ? KV_FP8 : KV_OF_DEVICE;
    o.page_rows = a->page_rows;
    o.pages_all = a->pages_all;
    o.share_pages = a->share;
    o.cache_bytes = a->cache_bytes;
    if (a->kv_memory_bytes > 0) o.kv_memory_bytes = a->kv_memory_bytes;
    o.drafts = a->drafts;
    o.garbage = a->garbage;
    o.fault = a->fault;
    o.on_pass = on_pass;
    o.on_pass_context = g;
    o.on_state = a->states ? on_state : NULL;
    o.gate_logits = NULL;
    return o;
}

enum status arms_open(struct gate *g, struct error *e) {
    struct arm first = {
        .parallel = 1, .context = 256, .drafts = {.mtp = true, .block = true}}; // weights are loaded once
    struct engine_options o = options_of(g, &first);
    pthread_mutex_init(&g->lock, NULL);
    return engine_create(&o, &g->engine, e);
}

void arms_close(struct gate *g) {
    fresh_stop(g);
    free(g->fresh);
    engine_free(g->engine);
    pthread_mutex_destroy(&g->lock);
    free(g->passes);
}

enum status arms_start(struct gate *g, const struct arm *arm, struct error *e) {
    // A server takes no planted faults and no test modes.
    bool in_process = arm->in_process || arm->garbage || arm->fault != FAULT_NONE || g->options->program == NULL;
    g->arm = *arm;
    if (!in_process) return fresh_start(g, arm, e);
    fresh_stop(g);
    struct engine_options o = options_of(g, arm);
    o.progress = NULL;
    enum status s = engine_restart(g->engine, &o, e);
    g->n_passes = g->n_states = 0;
    return s;
}

// ---- jobs ----

// The penalties of cases that have them: as a server is told, too.
static void set_penalties(const struct gate_case *c, struct draw_params *draw) {
    draw->repetition = c->penalties ? CASE_REPETITION : 1;
    draw->presence = c->penalties ? CASE_PRESENCE : 0;
    draw->frequency = c->penalties ? CASE_FREQUENCY : 0;
}

static enum status submit(struct gate *g, struct job *j, struct request **out, struct error *e) {
    const struct gate_case *c = &g->cases.list[j->which];
    const struct reference *ref = &g->references[(g->arm.fp8 ? CASES_MAX : 0) + j->which];
    int32_t expected[REPLY_MOST];
    for (int32_t i = 0; i < ref->n; i++) expected[i] = ref->tokens[i].id;
    struct request_params p = {
        .prompt = c->ids,
        .n_prompt = c->n,
        .system_end = c->turns.first,
        .last_turn = c->turns.previous,
        .history_end = c->turns.last,
        .max_tokens = j->reply,
        .draw = {.temperature = c->temperature, .top_p = 0.95, .n_top = 0},
        .ignore_eos = true,
        .draft = true,
        .expected = expected,
        .n_expected = ref->n,
    };
    set_penalties(c, &p.draw);
    enum status s = engine_submit(g->engine, &p, out, e);
    if (s == STATUS_OK) j->number = request_number(*out);
    return s;
}

static enum status collect(struct job *j, const struct request *r, const struct request_view *v, struct error *e) {
    j->n = v->n_tokens;
    j->finish = v->finish;
    j->n_cached = v->n_cached;
    j->n_drafted = v->n_drafted;
    j->n_accepted = v->n_accepted;
    size_t bytes = (size_t)v->n_tokens * sizeof *j->tokens;
    j->tokens = malloc(bytes > 0 ? bytes : 1);
    if (j->tokens == NULL) return error_memory(e);
    memcpy(j->tokens, request_tokens(r), bytes);
    return v->finish == FINISH_ERROR ? error_set(e, v->error.code, "%s", v->error.text) : STATUS_OK;
}

static enum status wait_for(struct gate *g, struct job *j, struct request *r, struct error *e) {
    struct request_view v = {0};
    while (v.state != REQUEST_DONE) {
        if (j->cancel_at >= 0 && v.n_tokens >= j->cancel_at) request_cancel(r);
        request_wait(r, v.n_tokens, v.state, LOOK_NS, &v);
        struct engine_counts c;
        engine_get_counts(g->engine, &c);
        if (c.n_waiting > g->most_waiting) g->most_waiting = c.n_waiting;
    }
    return collect(j, r, &v, e);
}

enum status arms_run(struct gate *g, struct job *jobs, int32_t n, bool together, struct error *e) {
    if (fresh_runs(g)) return fresh_run(g, jobs, n, together, e);
    struct request *requests[JOBS_MAX] = {0};
    enum status s = STATUS_OK;
    must(n <= JOBS_MAX);
    g->most_waiting = 0;
    for (int32_t i = 0; i < n && s == STATUS_OK; i++) {
        s = submit(g, &jobs[i], &requests[i], e);
        if (s == STATUS_OK && !together) s = wait_for(g, &jobs[i], requests[i], e);
    }
    // Those that are to be cancelled first: others may run long.
    for (int pass = 0; pass < 2 && together; pass++)
        for (int32_t i = 0; i < n && s == STATUS_OK; i++)
            if ((jobs[i].cancel_at >= 0) == (pass == 0)) s = wait_for(g, &jobs[i], requests[i], e);
    for (int32_t i = 0; i < n; i++) request_free(requests[i]);
    return s == STATUS_OK && g->out_of_memory ? error_memory(e) : s;
}

void jobs_free(struct job *jobs, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        free(jobs[i].tokens);
        jobs[i].tokens = NULL;
    }
}

// ---- judging ----

static void judge_reply(const struct gate_case *c, const struct job *j, const struct reference *ref,
                        struct verdict *v) {
    bool cancelled = j->finish == FINISH_CANCELLED;
    if (!cancelled && j->finish != FINISH_LENGTH) verdict_red(v, "%s: the reply ended before its limit", c->name);
    if (!cancelled && j->n != j->reply)
        verdict_red(v, "%s: %d tokens were asked for and %d came", c->name, j->reply, j->n);
    for (int32_t i = 0; i < j->n && i < ref->n; i++) {
        const struct request_token *t = &j->tokens[i], *alone = &ref->tokens[i];
        if (t->id != alone->id)
            verdict_red(v, "%s: token %d of the reply is %d, and %d alone", c->name, i, t->id, alone->id);
        if (memcmp(&t->logprob, &alone->logprob, sizeof t->logprob) != 0)
            verdict_red(v, "%s: token %d of the reply has log probability %.9g, and %.9g alone", c->name, i,
                        (double)t->logprob, (double)alone->logprob);
    }
    v->n_replies += !cancelled;
    v->n_drafted += j->n_drafted;
    v->n_accepted += j->n_accepted;
    v->n_resumed += j->n_cached > 0;
}

static void judge_pass(const struct gate_case *c, const struct pass_report *p, const struct reference *ref,
                       struct verdict *v) {
    for (int32_t i = 0; i < ref->n_passes; i++) {
        const struct pass_report *r = &ref->passes[i];
        if (r->start + r->n_row != p->start + p->n_row) continue;
        v->n_passes++;
        if (memcmp(r->sha256, p->sha256, sizeof p->sha256) != 0)
            verdict_red(v, "%s: the logits behind rows %d to %d differ from those alone", c->name, p->start,
                        p->start + p->n_row - 1);
    }
}

// A model that drafts as it pays may have been given only the beginning of a reply.
static bool has_given_up(const struct gate *g, const unsigned char sha256[32]) {
    static const unsigned char zeros[32];
    return !g->arm.drafts.forced && memcmp(sha256, zeros, sizeof zeros) == 0;
}

// Only a reply as long as the reference's ends in the same state.
static void judge_state(const struct gate *g, const struct gate_case *c, const struct job *j,
                        const struct reference *ref, struct verdict *v) {
    if (fresh_runs(g) || j->finish == FINISH_CANCELLED || j->reply != ref->n) return;
    for (int32_t i = 0; i < g->n_states; i++) {
        const struct state_report *s = &g->states[i];
        if (s->request != j->number) continue;
        v->n_states++;
        if (s->position != ref->state.position)
            verdict_red(v, "%s: its lane ends with %d rows, and with %d alone", c->name, s->position,
                        ref->state.position);
        if (memcmp(s->sha256, ref->state.sha256, sizeof s->sha256) != 0)
            verdict_red(v, "%s: its lane ends with other bytes than alone", c->name);
        if (g->arm.drafts.mtp && ref->head_known && !has_given_up(g, s->mtp_sha256) &&
            memcmp(s->mtp_sha256, ref->state.mtp_sha256, sizeof s->mtp_sha256) != 0)
            verdict_red(v, "%s: the model's head ends with other bytes than alone", c->name);
        if (g->arm.drafts.block && ref->block_known && !has_given_up(g, s->block_sha256) &&
            memcmp(s->block_sha256, ref->state.block_sha256, sizeof s->block_sha256) != 0)
            verdict_red(v, "%s: the drafter ends with other bytes than alone", c->name);
        return;
    }
    verdict_red(v, "%s: nothing is known of the state that its lane ends with", c->name);
}

enum status arms_judge(struct gate *g, const struct arm *arm, const struct job *jobs, int32_t n, struct verdict *v,
                       struct error *e) {
    for (int32_t i = 0; i < n; i++) {
        const struct gate_case *c = &g->cases.list[jobs[i].which];
        const struct reference *ref = &g->references[(arm->fp8 ? CASES_MAX : 0) + jobs[i].which];
        if (!ref->known) return error_set(e, STATUS_INVALID, "%s: what it gives alone is not known", c->name);
        judge_reply(c, &jobs[i], ref, v);
        pthread_mutex_lock(&g->lock);
        for (int32_t k = 0; k < g->n_passes; k++)
            if (g->passes[k].request == jobs[i].number) judge_pass(c, &g->passes[k], ref, v);
        judge_state(g, c, &jobs[i], ref, v);
        pthread_mutex_unlock(&g->lock);
    }
    return STATUS_OK;
}

void arms_judge_idle(struct gate *g, struct verdict *v) {
    if (fresh_runs(g)) {
        fresh_judge_idle(g, v);
        return;
    }
    struct engine_counts c;
    int64_t give_up = clock_ns() + 10000000000;
    do { // what is being written to host memory is held until it is there
        engine_get_counts(g->engine, &c);
        bool idle = c.n_running == 0 && c.n_waiting == 0 && engine_idle(g->engine);
        if (idle && c.pool.n_page_lane == 0 && c.ledger.n_leaked == 0 && c.ledger.n_seated == 0) return;
        clock_sleep_ns(LOOK_NS);
    } while (clock_ns() < give_up);
    verdict_red(v, "no request lives, and %lld pages and %d lanes are held; %lld leaked", (long long)c.pool.n_page_lane,
                c.ledger.n_seated, (long long)c.ledger.n_leaked);
}
