#include "cli/bench_engine.h"
#include "base/clock.h"
#include "cli/progress.h"
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bench_engine {
    const struct options *options;
    const char *dir;
    bool once;
    struct device *device;
    struct engine *engine;
};

enum status bench_engine_create(const struct options *o, const char *dir, bool once, struct bench_engine **out,
                                struct error *e) {
    struct bench_engine *b = calloc(1, sizeof *b);
    if (b == NULL) return error_memory(e);
    *b = (struct bench_engine){.options = o, .dir = dir, .once = once};
    enum status s = options_open_device(o, dir, &b->device, e);
    if (s != STATUS_OK)
        free(b);
    else
        *out = b;
    return s;
}

void bench_engine_free(struct bench_engine *b) {
    if (b == NULL) return;
    engine_free(b->engine);
    device_free(b->device);
    free(b);
}

const struct engine_info *bench_engine_info(const struct bench_engine *b) { return engine_get_info(b->engine); }

// ---- starting ----

enum status bench_arm_init(struct bench_arm *a, struct bench_engine *shared, const struct arm *arm, struct error *e) {
    static const char *const of_device[] = {"backend", "device", "threads", "compute", "drafter", "drafter-bits"};
    *a = (struct bench_arm){.shared = shared, .arm = arm, .options = *shared->options};
    for (int i = 0; i < arm->n_settings; i++) {
        const struct arm_setting *s = &arm->settings[i];
        if (s->kind != ARM_FLAG) continue;
        for (size_t k = 0; k < sizeof of_device / sizeof *of_device; k++)
            if (strcmp(s->key, of_device[k]) == 0)
                return error_set(e, STATUS_INVALID, "--arm %s: %s needs --fresh, since weights are loaded once else",
                                 arm->name, s->key);
        if (options_set(&a->options, s->key, s->value, e) != STATUS_OK) return error_prefix(e, "--arm %s", arm->name);
    }
    return STATUS_OK;
}

// The settings are the arm's for as long as the profile is read.
static enum status read_profile(struct bench_arm *a, struct engine_options *options, struct error *e) {
    char *before[ARM_SETTINGS_MAX] = {0};
    const struct arm *arm = a->arm;
    struct profile unseen;
    for (int i = 0; i < arm->n_settings; i++) {
        const struct arm_setting *s = &arm->settings[i];
        if (s->kind != ARM_ENVIRONMENT) continue;
        const char *value = getenv(s->key);
        before[i] = value != NULL ? strdup(value) : NULL;
        setenv(s->key, s->value, 1);
    }
    enum status st = options_read_profile(&a->options, a->shared->dir, a->shared->device, options, &unseen, e);
    for (int i = 0; i < arm->n_settings; i++) {
        const struct arm_setting *s = &arm->settings[i];
        if (s->kind != ARM_ENVIRONMENT) continue;
        if (before[i] != NULL)
            setenv(s->key, before[i], 1);
        else
            unsetenv(s->key);
        free(before[i]);
    }
    return st;
}

static enum status start(void *context, const struct cell *cells, int n, struct error *e) {
    struct bench_arm *a = context;
    struct bench_engine *b = a->shared;
    struct engine_options o = options_for_engine(&a->options);
    int streams = cells_streams(cells, n);
    bool warm = false;
    for (int i = 0; i < n; i++) warm |= cells[i].kind == CELL_WARM;
    if (b->once && b->engine != NULL) return STATUS_OK;
    enum status s = read_profile(a, &o, e);
    if (s != STATUS_OK) return s;
    o.model_dir = b->dir;
    o.device = b->device;
    if (o.parallel < streams) o.parallel = streams;
    if (o.context == 0) o.context = cells_longest(cells, n);
    if (o.context < 80) o.context = 80; // the warm-up's
    if (o.queue < streams) o.queue = streams;
    if (warm && isnan(a->options.cache_gib)) o.cache_bytes = PLAN_CACHE_DEFAULT;
    if (b->engine != NULL) return engine_restart(b->engine, &o, e);
    o.progress = a->options.no_progress ? NULL : progress_show;
    return engine_create(&o, &b->engine, e);
}

static void stop(void *context) { (void)context; }

// ---- one measurement ----

// The first n tokens of a key's prompt, then one more where first >= 0, then n_more of the key's.
static enum status submit(struct engine *e, uint64_t key, int n, int32_t first, int n_more, int max_tokens,
                          struct request **out, struct error *error) {
    int64_t n_vocab = engine_get_info(e)->config->n_vocab;
    int total = n + (first >= 0) + n_more, at = 0;
    int32_t *ids = malloc((size_t)total * sizeof *ids);
    if (ids == NULL) return error_memory(error);
    for (int i = 0; i < n; i++) ids[at++] = cell_token(key, i, n_vocab);
    if (first >= 0) ids[at++] = first;
    for (int i = 0; i < n_more; i++) ids[at++] = cell_token(key, n + i, n_vocab);
    struct request_params p = {.prompt = ids,
                               .n_prompt = total,
                               .history_end = total,
                               .max_tokens = max_tokens,
                               .ignore_eos = true,
                               .draft = true,
                               .draw = {.top_p = 1, .repetition = 1, .n_top = -1}};
    enum status s = engine_submit(e, &p, out, error);
    free(ids);
    return s;
}

static struct request_view view_of(struct request *r) {
    struct request_view v;
    request_wait(r, 0, REQUEST_WAITING, 0, &v);
    return v;
}

// Waits until there are more than n tokens, or the request has ended.
static struct request_view wait_past(struct request *r, int32_t n) {
    struct request_view v = view_of(r);
    while (v.state != REQUEST_DONE && v.n_tokens <= n) request_wait(r, n, v.state, 1000000000, &v);
    return v;
}

// To the end; what came of it goes into the sample.
static enum status finish(struct request *r, struct sample *out, struct error *error) {
    struct request_view v = wait_past(r, request_max_tokens(r));
    const struct request_token *tokens = request_tokens(r);
    if (v.finish == FINISH_ERROR) return error_set(error, v.error.code, "%s", v.error.text);
    for (int i = 0; i < v.n_tokens; i++) out->ids = cell_digest(out->ids, &tokens[i].id, sizeof tokens[i].id);
    out->n_cached = v.n_cached;
    out->drafted.n_rounds += v.n_rounds;
    out->drafted.n_drafted += v.n_drafted;
    out->drafted.n_kept += v.n_accepted;
    return STATUS_OK;
}

static enum status measure_prompt(struct engine *e, const struct cell *c, uint64_t key, struct sample *out,
                                  struct error *error) {
    struct request *r = NULL;
    enum status s = submit(e, key, c->n_prompt, -1, 0, 2, &r, error);
    if (s == STATUS_OK) s = finish(r, out, error);
    if (s == STATUS_OK) out->tokens_per_s = (double)c->n_prompt * 1e9 / (double)view_of(r).prompt_ns;
    request_free(r);
    return s;
}

// The next turn, by the clock of who sends it.
static enum status measure_warm(struct engine *e, const struct cell *c, uint64_t key, struct sample *out,
                                struct error *error) {
    struct request *first = NULL, *second = NULL;
    enum status s = submit(e, key, c->n_prompt, -1, 0, 1, &first, error);
    if (s == STATUS_OK) s = finish(first, out, error);
    if (s == STATUS_OK) {
        clock_sleep_ns(CELL_PAUSE_NS);
        int64_t start_ns = clock_ns();
        s = submit(e, key, c->n_prompt, request_tokens(first)[0].id, c->n_decode, 1, &second, error);
        if (s == STATUS_OK) s = finish(second, out, error);
        out->tokens_per_s = (double)(c->n_prompt + c->n_decode + 1) * 1e9 / (double)(clock_ns() - start_ns);
    }
    request_free(second);
    request_free(first);
    return s;
}

// Writes down when a stream's tokens came; a thread of its own, since none may wait for another.
struct watcher {
    struct request *request;
    pthread_t thread;
    bool started;
    int64_t *times_ns; // [request_max_tokens]
    int32_t *tokens;
    int n;
};

static void *watch(void *context) {
    struct watcher *w = context;
    struct request_view v = {.state = REQUEST_WAITING};
    int32_t seen = 0;
    while (v.state != REQUEST_DONE) {
        request_wait(w->request, seen, v.state, -1, &v);
        if (v.n_tokens == seen) continue;
        w->times_ns[w->n] = clock_ns();
        w->tokens[w->n++] = seen = v.n_tokens;
    }
    return NULL;
}

static enum status start_watcher(struct watcher *w, struct error *error) {
    size_t n = (size_t)request_max_tokens(w->request);
    w->times_ns = calloc(n, sizeof *w->times_ns);
    w->tokens = calloc(n, sizeof *w->tokens);
    if (w->times_ns == NULL || w->tokens == NULL) return error_memory(error);
    w->started = pthread_create(&w->thread, NULL, watch, w) == 0;
    return w->started ? STATUS_OK : error_memory(error);
}

static enum status measure_decode(struct engine *e, const struct cell *c, uint64_t key, struct sample *out,
                                  struct error *error) {
    struct watcher *w = calloc((size_t)c->n_streams, sizeof *w);
    struct stream_record records[CELL_STREAMS_MAX];
    enum status s = w == NULL ? error_memory(error) : STATUS_OK;
    for (int i = 0; i < c->n_streams && s == STATUS_OK; i++)
        s = submit(e, key * CELL_STREAMS_MAX + (uint64_t)i, c->n_prompt, -1, 0, c->n_decode + 1, &w[i].request, error);
    for (int i = 0; i < c->n_streams && s == STATUS_OK; i++) s = start_watcher(&w[i], error);
    for (int i = 0; i < c->n_streams && w != NULL; i++) {
        if (s != STATUS_OK && w[i].request != NULL) request_cancel(w[i].request);
        if (w[i].started) pthread_join(w[i].thread, NULL);
        if (s == STATUS_OK) s = finish(w[i].request, out, error);
        records[i] = (struct stream_record){w[i].times_ns, w[i].tokens, w[i].n};
    }
    if (s == STATUS_OK) out->tokens_per_s = cell_decode_rate(records, c->n_streams);
    for (int i = 0; i < c->n_streams && w != NULL; i++) {
        request_free(w[i].request);
        free(w[i].times_ns);
        free(w[i].tokens);
    }
    free(w);
    return s;
}

static enum status measure(void *context, const struct cell *c, uint64_t key, struct sample *out, struct error *error) {
    const struct bench_arm *a = context;
    struct engine *e = a->shared->engine;
    struct sample sample = {0};
    enum status s = c->kind == CELL_PROMPT ? measure_prompt(e, c, key, &sample, error)
                    : c->kind == CELL_WARM ? measure_warm(e, c, key, &sample, error)
                                           : measure_decode(e, c, key, &sample, error);
    if (a->options.force_kept > 0 && !a->options.no_drafts) {
        int32_t rows = c->n_streams * engine_get_info(e)->plan.max_window;
        sample.drafted.round_bytes = engine_round_bytes(e, c->n_streams, rows);
        sample.ids = 0; // which tokens come then, says nothing
    }
    if (s == STATUS_OK) *out = sample;
    return s;
}

struct target bench_arm_target(struct bench_arm *a) {
    return (struct target){a, start, measure, stop, false};
}
