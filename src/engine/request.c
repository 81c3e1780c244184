// A request's life as its client sees it: parameters copied at submit, an append-only reply, and a view under a lock.
#include "base/clock.h"
#include "engine/internal.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// The seed of a request that names none: a resend of the same prompt repeats itself.
static uint64_t seed_of_prompt(const int32_t *ids, int32_t n) { return XXH64(ids, (size_t)n * sizeof *ids, 0); }

static enum status check_params(const struct engine *e, const struct request_params *p, struct error *error) {
    const struct draw_params *d = &p->draw;
    if (p->n_prompt < 1) return error_set(error, STATUS_INVALID, "the prompt has no tokens");
    for (int32_t i = 0; i < p->n_prompt; i++)
        if (p->prompt[i] < 0 || p->prompt[i] >= e->info.config->n_vocab)
            return error_set(error, STATUS_INVALID, "prompt token %d is %d; ids are 0 to %lld", i, p->prompt[i],
                             (long long)e->info.config->n_vocab - 1);
    if (!(d->temperature >= 0) || !(d->top_p > 0 && d->top_p <= 1) || !(d->min_p >= 0 && d->min_p <= 1) ||
        d->top_k < 0 || !(d->repetition > 0) || d->presence != d->presence || d->frequency != d->frequency)
        return error_set(error, STATUS_INVALID, "a sampling parameter is out of range");
    if (d->n_top < -1 || d->n_top > DRAW_MAX_TOP)
        return error_set(error, STATUS_INVALID, "at most %d alternatives can be reported for a token", DRAW_MAX_TOP);
    for (int32_t i = 0; i < d->n_bias; i++)
        if (d->bias[i].id < 0 || d->bias[i].id >= e->n_vocab)
            return error_set(error, STATUS_INVALID, "a logit bias names token %d; ids are 0 to %d", d->bias[i].id,
                             e->n_vocab - 1);
    if (p->n_stop > 0 && e->tokenizer == NULL)
        return error_set(error, STATUS_UNSUPPORTED, "this model has no tokenizer, so stop strings cannot be matched");
    return STATUS_OK;
}

static enum status refuse_length(const struct request_params *p, enum ledger_answer answer, int64_t most,
                                 struct error *error) {
    const char *what = answer == LEDGER_OVER_POOL ? "has memory for" : "serves";
    int64_t room = most - p->n_prompt;
    if (room < 1)
        return error_set(error, STATUS_LIMIT,
                         "the prompt has %d tokens and a reply needs at least 1, but this model %s at most %lld tokens "
                         "of prompt and reply together",
                         p->n_prompt, what, (long long)most);
    return error_set(error, STATUS_LIMIT,
                     "the prompt has %d tokens and the reply may have %lld, but this model %s at most %lld tokens of "
                     "prompt and reply together; a reply of at most %lld would fit",
                     p->n_prompt, (long long)p->max_tokens, what, (long long)most, (long long)room);
}

// prompt + reply must fit the window and the pool; a reply limit that is not named is what fits, up to the engine's
// default.
static enum status reply_limit(const struct engine *e, const struct request_params *p, int32_t *max_tokens,
                               enum refusal *reason, struct error *error) {
    int64_t most, asked = p->max_tokens < 0 ? 1 : p->max_tokens;
    enum ledger_answer answer = ledger_check(e->ledger, p->n_prompt, asked, &most);
    if (answer != LEDGER_FITS) {
        *reason = answer == LEDGER_OVER_POOL ? REFUSED_POOL : REFUSED_WINDOW;
        return refuse_length(p, answer, most, error);
    }
    if (p->max_tokens == 0) return error_set(error, STATUS_INVALID, "a reply needs at least 1 token");
    int64_t room = most - p->n_prompt;
    int64_t n = p->max_tokens > 0 ? p->max_tokens : e->info.max_tokens < room ? e->info.max_tokens : room;
    *max_tokens = (int32_t)n;
    return STATUS_OK;
}

static bool has_penalty(const struct draw_params *d) {
    return d->repetition != 1 || d->presence != 0 || d->frequency != 0;
}

static enum status copy_arrays(struct request *r, const struct request_params *p, struct error *error) {
    size_t n_tops = (size_t)r->max_tokens * (size_t)r->n_top;
    enum status s = text_create(p->salt, p->prompt, p->n_prompt, &r->text, error);
    if (s != STATUS_OK) return s;
    r->prompt = r->text->ids;
    r->tokens = malloc((size_t)r->max_tokens * sizeof *r->tokens);
    if (n_tops > 0) r->tops = malloc(n_tops * sizeof *r->tops);
    if (p->draw.n_bias > 0) r->bias = malloc((size_t)p->draw.n_bias * sizeof *r->bias);
    if (r->tokens == NULL || (n_tops > 0 && r->tops == NULL) || (p->draw.n_bias > 0 && r->bias == NULL))
        return error_memory(error);
    struct prefix_marks marks = {.system_end = p->system_end, .last_user = p->last_turn, .history_end = p->history_end};
    r->n_cut = prefix_choose_cuts(r->engine->prefix, p->n_prompt, &marks, r->cuts);
    if (p->draw.n_bias > 0) memcpy(r->bias, p->draw.bias, (size_t)p->draw.n_bias * sizeof *r->bias);
    r->draw.bias = r->bias;
    return STATUS_OK;
}

static enum status prepare_tracking(struct request *r, const struct request_params *p, struct error *error) {
    if (r->has_penalty) {
        int64_t most = (int64_t)r->n_prompt + r->max_tokens;
        int32_t n_vocab = (int32_t)r->engine->info.config->n_vocab;
        enum status s = seen_init(&r->seen, most < n_vocab ? (int32_t)most : n_vocab, error);
        if (s != STATUS_OK) return s;
        for (int32_t i = 0; i < r->n_prompt; i++) seen_add(&r->seen, r->prompt[i], false);
    }
    return p->n_stop > 0 ? stops_init(r, p->stop, p->n_stop, error) : STATUS_OK;
}

static enum status prepare_drafting(struct request *r, const struct request_params *p, struct error *error) {
    const struct draft_options *o = &r->engine->options.drafts;
    struct drafting *d = &r->drafting;
    r->may_draft = p->draft && r->engine->info.plan.max_window > 1;
    if (!r->may_draft) return STATUS_OK;
    d->n_absorbed = r->n_prompt; // by the prompt's passes
    if ((o->expected || o->taught) && p->n_expected > 0) {
        d->expected = malloc((size_t)p->n_expected * sizeof *d->expected);
        if (d->expected == NULL) return error_memory(error);
        memcpy(d->expected, p->expected, (size_t)p->n_expected * sizeof *d->expected);
        d->n_expected = p->n_expected;
    }
    if (o->taught && (d->kept = calloc((size_t)r->max_tokens, 1)) == NULL) return error_memory(error);
    return o->copies ? copies_init(r, error) : STATUS_OK;
}

enum status request_create(struct engine *e, const struct request_params *p, struct request **out, enum refusal *reason,
                           struct error *error) {
    int32_t max_tokens = 0;
    *reason = REFUSED_INVALID;
    enum status s = check_params(e, p, error);
    if (s == STATUS_OK) s = reply_limit(e, p, &max_tokens, reason, error);
    if (s != STATUS_OK) return s;
    *reason = REFUSED_MEMORY; // all that can still go wrong
    struct request *r = calloc(1, sizeof *r);
    if (r == NULL) return error_memory(error);
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&r->changed, &attr);
    pthread_condattr_destroy(&attr);
    r->engine = e;
    atomic_init(&r->n_owners, 1);
    atomic_init(&r->cancelled, false);
    r->n_prompt = p->n_prompt;
    r->max_tokens = max_tokens;
    r->draw = p->draw;
    r->n_top = p->draw.n_top > 0 ? p->draw.n_top : 0;
    r->ignore_eos = p->ignore_eos;
    r->priority = p->priority;
    r->deadline_ns = p->deadline_ns;
    r->submitted_ns = clock_ns();
    r->has_penalty = has_penalty(&p->draw);
    r->view.waiting_for = "the engine";
    s = copy_arrays(r, p, error);
    if (s == STATUS_OK) s = prepare_tracking(r, p, error);
    if (s == STATUS_OK) s = prepare_drafting(r, p, error);
    // Last: a request that is refused has not taken the masker.
    if (s == STATUS_OK && p->masker != NULL) s = request_mask_open(r, p->masker, error);
    if (s != STATUS_OK) {
        request_release(r);
        return s;
    }
    if (!p->has_seed) r->draw.seed = seed_of_prompt(r->prompt, r->n_prompt);
    *out = r;
    return STATUS_OK;
}

void request_release(struct request *r) {
    if (atomic_fetch_sub(&r->n_owners, 1) != 1) return;
    stops_free(r);
    copies_free(r);
    free(r->drafting.expected);
    free(r->drafting.kept);
    request_mask_close(r);
    seen_free(&r->seen);
    text_free(r->text); // of one that the engine never had: it lets go of the others'
    free(r->tokens);
    free(r->tops);
    free(r->bias);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

void request_set_state(struct request *r, enum request_state state) {
    pthread_mutex_lock(&r->lock);
    r->view.state = state;
    r->view.waiting_for = NULL;
    if (state == REQUEST_PROMPT) r->view.queue_ns = r->seated_ns - r->submitted_ns;
    if (state == REQUEST_RUNNING) r->view.prompt_ns = r->first_ns - r->seated_ns;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

void request_set_waiting(struct request *r, const char *reason) {
    if (r->view.waiting_for == reason) return; // only this thread writes it
    pthread_mutex_lock(&r->lock);
    r->view.waiting_for = reason;
    pthread_mutex_unlock(&r->lock);
}

void request_set_resumed(struct request *r, int32_t position) {
    pthread_mutex_lock(&r->lock);
    r->view.n_cached = r->view.n_prompt_done = position;
    pthread_mutex_unlock(&r->lock);
}

void request_set_progress(struct request *r, int32_t n_prompt_done) {
    pthread_mutex_lock(&r->lock);
    r->view.n_prompt_done = n_prompt_done;
    pthread_mutex_unlock(&r->lock);
}

void request_append(struct request *r, const struct draw_result *result) {
    int32_t n = r->view.n_tokens; // only this thread writes it
    must(n < r->max_tokens);
    r->tokens[n] = (struct request_token){.id = result->id, .logprob = result->logprob};
    // fewer are known only where the vocabulary is smaller than what was asked for
    for (int32_t i = 0; i < r->n_top; i++)
        r->tops[(size_t)n * (size_t)r->n_top + (size_t)i] =
            i < result->n_top ? result->top[i] : (struct draw_top){.id = -1};
    pthread_mutex_lock(&r->lock);
    r->view.n_tokens = n + 1;
    pthread_mutex_unlock(&r->lock);
    r->untold = true;
    if (!r->engine->device->works_behind) request_tell(r); // the next round would be over before it is told
}

void request_tell(struct request *r) {
    if (!r->untold) return;
    r->untold = false;
    pthread_cond_broadcast(&r->changed);
}

void request_count_round(struct request *r, int32_t n_drafted, int32_t n_accepted) {
    pthread_mutex_lock(&r->lock);
    r->view.n_rounds++;
    r->view.n_drafted += n_drafted;
    r->view.n_accepted += n_accepted;
    pthread_mutex_unlock(&r->lock);
}

void request_finish(struct request *r, enum finish finish, bool ended_by_eos, const struct error *error) {
    int64_t now = clock_ns();
    pthread_mutex_lock(&r->lock);
    if (r->view.state == REQUEST_WAITING) r->view.queue_ns = now - r->submitted_ns;
    if (r->view.state == REQUEST_PROMPT) r->view.prompt_ns = now - r->seated_ns;
    if (r->view.state == REQUEST_RUNNING) r->view.decode_ns = now - r->first_ns;
    r->view.state = REQUEST_DONE;
    r->view.finish = finish;
    r->view.ended_by_eos = ended_by_eos;
    r->view.waiting_for = NULL;
    if (error != NULL) r->view.error = *error;
    pthread_cond_broadcast(&r->changed);
    pthread_mutex_unlock(&r->lock);
}

void request_wait(struct request *r, int32_t n_seen, enum request_state seen, int64_t timeout_ns,
                  struct request_view *out) {
    int64_t until = clock_ns() + (timeout_ns < 0 ? 0 : timeout_ns);
    struct timespec ts = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    int waited = 0;
    pthread_mutex_lock(&r->lock);
    while (r->view.n_tokens <= n_seen && r->view.state == seen && waited == 0) {
        if (timeout_ns < 0)
            pthread_cond_wait(&r->changed, &r->lock);
        else
            waited = pthread_cond_timedwait(&r->changed, &r->lock, &ts);
    }
    *out = r->view;
    pthread_mutex_unlock(&r->lock);
}

const struct request_token *request_tokens(const struct request *r) { return r->tokens; }
const struct draw_top *request_tops(const struct request *r) { return r->tops; }
const uint8_t *request_kept(const struct request *r) { return r->drafting.kept; }
int32_t request_max_tokens(const struct request *r) { return r->max_tokens; }
int64_t request_number(const struct request *r) { return r->number; }

uint64_t request_seed(const struct request *r) { return r->draw.seed; }

void request_cancel(struct request *r) {
    atomic_store(&r->cancelled, true);
    pthread_mutex_lock(&r->lock);
    bool live = r->view.state != REQUEST_DONE; // a finished request may outlive its engine
    pthread_mutex_unlock(&r->lock);
    if (live) queue_wake(r->engine->mailbox);
}

void request_free(struct request *r) {
    if (r == NULL) return;
    request_cancel(r);
    request_release(r);
}
