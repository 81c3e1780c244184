#include "tests/server/scripted_engine.h"
#include "base/clock.h"
#include "format/detokenizer.h"
#include "format/json.h"
#include "format/stopper.h"
#include "tests/server/scripted_tokenizer.h"
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct engine {
    struct scripted_options options;
    struct model_config config;
    struct tokenizer *tokenizer;
    struct engine_info info;
    pthread_mutex_t lock; // guards what follows, and every request's view
    pthread_cond_t changed;
    struct script script;
    struct engine_counts counts;
    int32_t n_live;       // requests that exist
    int32_t n_unfinished; // of them, what counts against the queue's limit
    bool draining;
    struct request_params last;
    bool last_has_masker;
    int32_t *last_prompt;
};

struct request {
    struct engine *engine;
    struct script script;
    pthread_t thread;
    int32_t max_tokens, n_top;
    bool ignore_eos, cancelled;
    int64_t deadline_ns;
    uint64_t seed;
    struct request_token *tokens;
    struct draw_top *tops;
    struct detokenizer *detokenizer;
    struct stopper *stopper;
    struct request_view view;
};

// ---- scripts ----

void script_init(struct script *s) {
    memset(s, 0, sizeof *s);
    s->fail_at = -1;
}

void script_add(struct script *s, int32_t id) {
    must(s->n < SCRIPT_IDS_MAX);
    s->ids[s->n++] = id;
}

void script_say(struct script *s, const char *text) {
    while (*text != 0) {
        size_t n = 0;
        for (size_t i = 0; i < n_scripted_added && n == 0; i++)
            if (strncmp(text, scripted_added[i], strlen(scripted_added[i])) == 0) {
                n = strlen(scripted_added[i]);
                script_add(s, (int32_t)(ID_ADDED + i));
            }
        if (n == 0) {
            n = 1;
            script_add(s, (unsigned char)*text);
        }
        text += n;
    }
}

void script_end(struct script *s) { script_say(s, "<|im_end|>"); }

// ---- the engine ----

struct engine *scripted_create(const struct scripted_options *options) {
    struct engine *e = calloc(1, sizeof *e);
    must(e != NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&e->lock, NULL);
    pthread_cond_init(&e->changed, &attr);
    pthread_condattr_destroy(&attr);
    if (options != NULL) e->options = *options;
    if (e->options.parallel == 0) e->options.parallel = 4;
    if (e->options.context == 0) e->options.context = 4096;
    if (e->options.max_tokens == 0) e->options.max_tokens = 512;
    if (e->options.queue == 0) e->options.queue = 16;
    e->tokenizer = e->options.no_tokenizer ? NULL : scripted_tokenizer();
    e->config = (struct model_config){.n_vocab = 320, .n_eos = 2, .eos_ids = {ID_ADDED, ID_ADDED + 2}};
    e->config.sampling = (struct sampling_defaults){NAN, NAN, NAN, NAN, NAN, -1};
    e->info = (struct engine_info){.config = &e->config,
                                   .tokenizer = e->tokenizer,
                                   .device_name = "script",
                                   .parallel = e->options.parallel,
                                   .context = e->options.context,
                                   .max_tokens = e->options.max_tokens,
                                   .start_sentence = "scripted replies"};
    script_init(&e->script);
    script_say(&e->script, "Hello.");
    script_end(&e->script);
    return e;
}

enum status engine_create(const struct engine_options *options, struct engine **out, struct error *e) {
    (void)e;
    struct scripted_options o = {options->parallel, options->context, options->max_tokens, options->queue, NULL, false};
    *out = scripted_create(&o);
    return STATUS_OK;
}

void engine_free(struct engine *e) {
    if (e == NULL) return;
    must(e->n_live == 0);
    tokenizer_free(e->tokenizer);
    free(e->last_prompt);
    pthread_cond_destroy(&e->changed);
    pthread_mutex_destroy(&e->lock);
    free(e);
}

const struct engine_info *engine_get_info(const struct engine *e) { return &e->info; }

void engine_write_facts(const struct engine *e, struct buffer *json) {
    buffer_printf(json, "{\"parallel\":%d}", e->options.parallel);
}

void engine_write_state(struct engine *e, struct buffer *json) {
    pthread_mutex_lock(&e->lock);
    buffer_printf(json,
                  "{\"lanes\":[],\"n_lane\":%d,\"waiting\":[],\"n_waiting\":%d,"
                  "\"pages\":{\"n\":8,\"rows\":64,\"each\":1,\"map\":[[8,\"free\"]]}}",
                  e->options.parallel, e->counts.n_waiting);
    pthread_mutex_unlock(&e->lock);
}

const char *refusal_name(enum refusal reason) { return reason == REFUSED_QUEUE ? "queue" : "other"; }

void engine_get_counts(struct engine *e, struct engine_counts *out) {
    pthread_mutex_lock(&e->lock);
    *out = e->counts;
    pthread_mutex_unlock(&e->lock);
}

void engine_drain(struct engine *e) {
    pthread_mutex_lock(&e->lock);
    e->draining = true;
    pthread_mutex_unlock(&e->lock);
}

bool engine_idle(struct engine *e) {
    pthread_mutex_lock(&e->lock);
    bool idle = e->counts.n_running + e->counts.n_waiting == 0;
    pthread_mutex_unlock(&e->lock);
    return idle;
}

void scripted_set(struct engine *e, const struct script *script) {
    pthread_mutex_lock(&e->lock);
    e->script = *script;
    pthread_mutex_unlock(&e->lock);
}

void scripted_set_failed(struct engine *e) {
    pthread_mutex_lock(&e->lock);
    e->counts.failed = true;
    pthread_mutex_unlock(&e->lock);
}

int32_t scripted_id(const struct engine *e, const char *added) {
    int32_t id = tokenizer_find(e->tokenizer, added, strlen(added));
    must(id >= 0);
    return id;
}

const struct request_params *scripted_last_params(struct engine *e) { return &e->last; }

bool scripted_last_has_masker(struct engine *e) { return e->last_has_masker; }

// ---- the play ----

// Waits `ns`, or until the request is cancelled or late. Called and returns with the lock held; false: it is over.
static bool pause_for(struct request *r, int64_t ns) {
    struct engine *e = r->engine;
    int64_t now = clock_ns(), until = now + ns;
    bool late = false;
    if (r->deadline_ns > 0 && r->deadline_ns < until) until = r->deadline_ns;
    while (!r->cancelled && now < until) {
        struct timespec ts = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
        pthread_cond_timedwait(&e->changed, &e->lock, &ts);
        now = clock_ns();
    }
    late = r->deadline_ns > 0 && now >= r->deadline_ns;
    if (r->cancelled)
        r->view.finish = FINISH_CANCELLED;
    else if (late)
        r->view.finish = FINISH_DEADLINE;
    return r->view.finish == FINISH_NONE;
}

static void set_state(struct request *r, enum request_state state) {
    r->view.state = state;
    pthread_cond_broadcast(&r->engine->changed);
}

static bool wait_for_lane(struct request *r) {
    while (r->engine->counts.n_running >= r->engine->options.parallel)
        if (!pause_for(r, 20000000)) return false;
    return true;
}

static bool is_eos(const struct engine *e, int32_t id) {
    return id == e->config.eos_ids[0] || id == e->config.eos_ids[1];
}

static void append(struct request *r, int32_t id) {
    int32_t n = r->view.n_tokens;
    r->tokens[n] = (struct request_token){.id = id, .logprob = -0.25f * (float)(n + 1)};
    for (int32_t k = 0; k < r->n_top; k++)
        r->tops[n * r->n_top + k] = (struct draw_top){.id = (id < 256 ? id : 33) + k, .logprob = -1.0f - (float)k};
    r->view.n_tokens = n + 1;
    r->view.n_rounds++;
    r->engine->counts.n_reply_tokens++;
    pthread_cond_broadcast(&r->engine->changed);
}

static bool completes_stop(struct request *r, int32_t id) {
    if (r->stopper == NULL) return false;
    struct buffer shown;
    size_t n, used;
    buffer_init(&shown, 0);
    const char *text = detokenizer_feed(r->detokenizer, id, &n);
    bool hit = stopper_feed(r->stopper, text, n, &shown, &used);
    buffer_free(&shown);
    return hit;
}

static void play_reply(struct request *r) {
    const struct script *s = &r->script;
    for (int32_t i = 0; r->view.finish == FINISH_NONE; i++) {
        if (s->token_ns > 0 && !pause_for(r, s->token_ns)) return;
        if (i == s->fail_at) {
            error_set(&r->view.error, s->fail_code, "the script says that this fails");
            r->view.finish = FINISH_ERROR;
            return;
        }
        if (r->cancelled) r->view.finish = FINISH_CANCELLED;
        if (r->view.finish != FINISH_NONE) return;
        int32_t id = s->ids[i % s->n];
        append(r, id);
        if (is_eos(r->engine, id) && !r->ignore_eos) {
            pthread_mutex_unlock(&r->engine->lock); // clients may see the token before they learn that it is the last
            sched_yield();
            pthread_mutex_lock(&r->engine->lock);
            r->view.ended_by_eos = true;
            r->view.finish = FINISH_STOP;
        } else if (completes_stop(r, id)) {
            r->view.finish = FINISH_STOP;
        } else if (r->view.n_tokens == r->max_tokens) {
            r->view.finish = FINISH_LENGTH;
        }
    }
}

static void *play(void *request) {
    struct request *r = request;
    struct engine *e = r->engine;
    pthread_mutex_lock(&e->lock);
    e->counts.n_waiting++;
    bool seated = pause_for(r, r->script.queue_ns) && wait_for_lane(r);
    e->counts.n_waiting--;
    if (seated) {
        e->counts.n_running++;
        set_state(r, REQUEST_PROMPT);
        if (pause_for(r, r->script.prompt_ns)) {
            set_state(r, REQUEST_RUNNING);
            play_reply(r);
        }
        e->counts.n_running--;
    }
    if (r->view.finish == FINISH_CANCELLED)
        e->counts.n_cancelled++;
    else
        e->counts.n_finished++;
    e->n_unfinished--;
    set_state(r, REQUEST_DONE);
    pthread_mutex_unlock(&e->lock);
    return NULL;
}

// ---- requests ----

static enum status check(struct engine *e, const struct request_params *p, int32_t *max_tokens, struct error *error) {
    if (e->counts.failed) return error_set(error, STATUS_DEVICE, "the device has failed");
    if (e->script.submit != STATUS_OK) return error_set(error, e->script.submit, "the script says no");
    if (e->draining || e->n_unfinished >= e->options.parallel + e->options.queue)
        return error_set(error, STATUS_BUSY, "the queue is full");
    int64_t room = (int64_t)e->options.context - p->n_prompt;
    if (room < 1 || p->max_tokens > room)
        return error_set(error, STATUS_LIMIT, "the prompt has %d tokens, the window %d; a reply of %lld would fit",
                         p->n_prompt, e->options.context, (long long)(room > 0 ? room : 0));
    *max_tokens = (int32_t)(p->max_tokens > 0              ? p->max_tokens
                            : e->options.max_tokens < room ? e->options.max_tokens
                                                           : room);
    return STATUS_OK;
}

static void keep_params(struct engine *e, const struct request_params *p) {
    free(e->last_prompt);
    e->last_prompt = malloc((size_t)p->n_prompt * sizeof *p->prompt);
    must(e->last_prompt != NULL);
    memcpy(e->last_prompt, p->prompt, (size_t)p->n_prompt * sizeof *p->prompt);
    e->last = *p;
    e->last.prompt = e->last_prompt;
    e->last.masker = NULL;
    e->last_has_masker = p->masker != NULL;
}

static void make_stopper(struct request *r, const struct request_params *p) {
    struct error e;
    json_t *list = json_array();
    for (int32_t i = 0; i < p->n_stop; i++) json_array_append_new(list, json_string(p->stop[i]));
    struct json_view view = json_root(list);
    if (p->n_stop > 0) {
        must(stopper_create(&view, &r->stopper, &e) == STATUS_OK);
        r->detokenizer = detokenizer_create(r->engine->tokenizer, true);
        must(r->detokenizer != NULL);
    }
    json_decref(list);
}

enum status engine_submit(struct engine *e, const struct request_params *p, struct request **out, struct error *error) {
    int32_t max_tokens = 0;
    pthread_mutex_lock(&e->lock);
    enum status status = check(e, p, &max_tokens, error);
    if (status == STATUS_OK) {
        e->n_live++;
        e->n_unfinished++;
        e->counts.n_requests++;
        keep_params(e, p);
    }
    pthread_mutex_unlock(&e->lock);
    masker_free(p->masker); // a script says what it says
    if (status != STATUS_OK) return status;
    struct request *r = calloc(1, sizeof *r);
    must(r != NULL);
    r->engine = e;
    r->max_tokens = max_tokens;
    r->n_top = p->draw.n_top > 0 ? p->draw.n_top : 0;
    r->ignore_eos = p->ignore_eos;
    r->deadline_ns = p->deadline_ns;
    r->seed = p->has_seed ? p->draw.seed : 1;
    r->tokens = calloc((size_t)max_tokens, sizeof *r->tokens);
    r->tops = calloc((size_t)max_tokens * (size_t)(r->n_top + 1), sizeof *r->tops);
    must(r->tokens != NULL && r->tops != NULL);
    make_stopper(r, p);
    if (e->options.choose != NULL) {
        script_init(&r->script);
        e->options.choose(p, &r->script);
    } else {
        pthread_mutex_lock(&e->lock);
        r->script = e->script;
        pthread_mutex_unlock(&e->lock);
    }
    must(pthread_create(&r->thread, NULL, play, r) == 0);
    *out = r;
    return STATUS_OK;
}

void request_wait(struct request *r, int32_t n_seen, enum request_state seen, int64_t timeout_ns,
                  struct request_view *out) {
    struct engine *e = r->engine;
    int64_t until = clock_ns() + timeout_ns;
    struct timespec ts = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    pthread_mutex_lock(&e->lock);
    while (r->view.n_tokens <= n_seen && r->view.state == seen)
        if (pthread_cond_timedwait(&e->changed, &e->lock, &ts) != 0) break;
    *out = r->view;
    pthread_mutex_unlock(&e->lock);
}

const struct request_token *request_tokens(const struct request *r) { return r->tokens; }
const struct draw_top *request_tops(const struct request *r) { return r->tops; }
int32_t request_max_tokens(const struct request *r) { return r->max_tokens; }
int64_t request_number(const struct request *r) { return r != NULL; }

uint64_t request_seed(const struct request *r) { return r->seed; }

void request_cancel(struct request *r) {
    pthread_mutex_lock(&r->engine->lock);
    r->cancelled = true;
    pthread_cond_broadcast(&r->engine->changed);
    pthread_mutex_unlock(&r->engine->lock);
}

void request_free(struct request *r) {
    if (r == NULL) return;
    request_cancel(r);
    pthread_join(r->thread, NULL);
    pthread_mutex_lock(&r->engine->lock);
    r->engine->n_live--;
    pthread_mutex_unlock(&r->engine->lock);
    stopper_free(r->stopper);
    detokenizer_free(r->detokenizer);
    free(r->tokens);
    free(r->tops);
    free(r);
}
