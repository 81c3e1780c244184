// What an engine is made of before its thread runs: the loaded model, and, again for each setting, plan and memory.
#include "base/log.h"
#include "base/machine.h"
#include "engine/internal.h"
#include "memory/plan.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define PAGE_ROWS  256
#define MAX_WINDOW 1 // rows of a lane in a round: more come with drafting, and make logs and windows longer

// ---- the model ----

static int32_t find_token(void *tokenizer, const char *text) { return tokenizer_find(tokenizer, text, strlen(text)); }

static bool exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0;
}

// A checkpoint without a tokenizer serves token ids only.
static enum status load_tokenizer(struct engine *e, const char *dir, struct error *error) {
    char path[4096], config_path[4096];
    if (snprintf(path, sizeof path, "%s/tokenizer.json", dir) >= (int)sizeof path ||
        snprintf(config_path, sizeof config_path, "%s/tokenizer_config.json", dir) >= (int)sizeof config_path)
        return error_set(error, STATUS_LIMIT, "the model folder's path is too long");
    if (!exists(path)) return STATUS_OK;
    enum status s = tokenizer_load(path, exists(config_path) ? config_path : NULL, &e->tokenizer, error);
    if (s != STATUS_OK) return s;
    int32_t n = tokenizer_count_ids(e->tokenizer);
    int64_t n_vocab = model_get_config(e->model)->n_vocab;
    if (n > n_vocab)
        return error_set(error, STATUS_INVALID, "%s has ids up to %d, but the model has rows for %lld only", path,
                         n - 1, (long long)n_vocab);
    return config_resolve_eos(&e->config, find_token, e->tokenizer, error);
}

// Only ids that have a token are ever drawn; without a tokenizer, all.
static enum status make_allowed(struct engine *e, struct error *error) {
    int64_t n_vocab = model_get_config(e->model)->n_vocab;
    e->n_vocab = e->tokenizer != NULL ? tokenizer_count_ids(e->tokenizer) : (int32_t)n_vocab;
    e->allowed = calloc((size_t)(n_vocab + 31) / 32, sizeof *e->allowed);
    if (e->allowed == NULL) return error_memory(error);
    for (int32_t i = 0; i < e->n_vocab; i++)
        if (e->tokenizer == NULL || tokenizer_has_id(e->tokenizer, i)) e->allowed[i / 32] |= 1u << i % 32;
    return STATUS_OK;
}

static enum dtype kv_of(const struct engine *e) { return e->options.kv_dtype == KV_FP8 ? DTYPE_E4M3 : e->device->kv; }

static const char *kv_name(enum dtype kv) { return kv == DTYPE_E4M3 ? "fp8" : kv == DTYPE_F32 ? "fp32" : "bf16"; }

static struct model_limits limits_of(const struct engine *e, int32_t context) {
    return (struct model_limits){.max_lanes = e->options.parallel,
                                 .max_window = MAX_WINDOW,
                                 .max_context = context,
                                 .page_rows = PAGE_ROWS,
                                 .pass_rows = PROMPT_MAX_ROWS,
                                 .kv = kv_of(e)};
}

static enum status make_plan(struct engine *e, struct plan *plan, int64_t *reserve, struct error *error) {
    const struct engine_options *o = &e->options;
    int64_t total = machine_memory_total(), available;
    available = e->device->memory != NULL ? e->device->memory(e->device, &total) : machine_memory_available();
    enum status s = plan_reserve(total, PLAN_RESERVE_CPU, reserve, error);
    if (s != STATUS_OK) return s;
    const struct model_config *c = model_get_config(e->model);
    int32_t most = c->n_context < PLAN_CONTEXT_MAX ? (int32_t)c->n_context : PLAN_CONTEXT_MAX;
    struct model_limits limits = limits_of(e, o->context > 0 ? o->context : most);
    e->page_bytes = model_page_bytes(e->model, PAGE_ROWS, kv_of(e));
    e->run_bytes = model_run_bytes(e->model, MAX_WINDOW, e->device->activation);
    struct plan_request r = {.available_bytes = available,
                             .reserve_bytes = *reserve,
                             .memory_cap = o->memory_bytes,
                             .kv_cap = o->kv_memory_bytes,
                             .weight_bytes = model_weight_bytes(e->model),
                             .scratch_bytes = model_scratch_bytes(e->model, e->device, &limits),
                             .page_bytes = e->page_bytes,
                             .run_bytes = e->run_bytes,
                             .page_rows = PAGE_ROWS,
                             .max_window = MAX_WINDOW,
                             .windows = true,
                             .parallel = o->parallel,
                             .context = o->context,
                             .context_max = most};
    return plan_make(&r, plan, error);
}

static enum status take_memory(struct engine *e, const struct plan *plan, struct error *error) {
    struct memory_shape shape = {
        .n_lane = plan->parallel, .context = plan->context, .max_window = MAX_WINDOW, .page_rows = PAGE_ROWS};
    enum status s = memory_create(&shape, &e->memory, error);
    if (s != STATUS_OK) return s;
    e->pages = e->device->alloc(e->device, (size_t)(plan->n_pages * e->page_bytes));
    e->runs = e->device->alloc(e->device, (size_t)(plan->parallel * e->run_bytes));
    size_t n = (size_t)plan->parallel;
    e->running = calloc(n, sizeof *e->running);
    e->lanes = calloc(n, sizeof *e->lanes);
    e->ids = calloc(n, sizeof *e->ids);
    e->params = calloc(n, sizeof *e->params);
    e->results = calloc(n, sizeof *e->results);
    bool ok = e->pages != NULL && e->runs != NULL && e->running != NULL && e->lanes != NULL && e->ids != NULL &&
              e->params != NULL && e->results != NULL;
    return ok ? STATUS_OK : error_memory(error);
}

static void describe(struct engine *e, const struct plan *plan, int64_t reserve) {
    const double gib = 1024.0 * 1024.0 * 1024.0;
    struct engine_info *i = &e->info;
    i->config = &e->config;
    i->tokenizer = e->tokenizer;
    i->device_name = e->device->name;
    i->parallel = plan->parallel;
    i->context = plan->context;
    i->page_rows = PAGE_ROWS;
    i->kv = kv_of(e);
    i->max_tokens = e->options.max_tokens;
    i->weight_bytes = model_weight_bytes(e->model);
    i->round_bytes = model_round_bytes(e->model);
    i->scratch_bytes = plan->parts[PLAN_SCRATCH];
    i->window_bytes = plan->window_bytes;
    i->reserve_bytes = reserve;
    snprintf(i->start_sentence, sizeof i->start_sentence,
             "%s; model %.2f GiB, scratch %.2f GiB; %d stream%s of up to %d tokens, %.2f GiB each with %s keys and "
             "values; %.2f GiB left after a reserve of %.2f GiB; prompt passes of up to %d rows; no prompt cache; no "
             "drafter",
             e->device->name, (double)i->weight_bytes / gib, (double)i->scratch_bytes / gib, plan->parallel,
             plan->parallel == 1 ? "" : "s", plan->context, (double)plan->window_bytes / gib, kv_name(i->kv),
             (double)plan->unused_bytes / gib, (double)reserve / gib,
             e->options.pass_rows > 0 ? e->options.pass_rows : PROMPT_MAX_ROWS);
}

static enum status check_options(const struct engine_options *o, struct error *error) {
    if (o->parallel < 1 || o->queue < 0 || o->max_tokens < 1 || o->context < 0)
        return error_set(error, STATUS_INVALID,
                         "--parallel and --max-tokens must be at least 1, --queue and --context at least 0");
    if (!(o->decode_share >= 0 && o->decode_share < 1))
        return error_set(error, STATUS_INVALID, "--decode-share must be at least 0 and less than 1");
    if (o->pass_rows < 0 || o->pass_rows % PROMPT_CHUNK != 0 || o->pass_rows > PROMPT_MAX_ROWS)
        return error_set(error, STATUS_INVALID, "--pass-rows must be a multiple of %d up to %d", PROMPT_CHUNK,
                         PROMPT_MAX_ROWS);
    return STATUS_OK;
}

enum status engine_open_model(struct engine *e, struct error *error) {
    enum status s = model_open(e->options.model_dir, &e->model, error);
    if (s != STATUS_OK) return s;
    e->config = *model_get_config(e->model);
    e->info.config = &e->config;
    s = load_tokenizer(e, e->options.model_dir, error);
    return s == STATUS_OK ? make_allowed(e, error) : s;
}

enum status engine_open_streams(struct engine *e, bool loaded, struct error *error) {
    const struct engine_options *o = &e->options;
    struct plan plan;
    int64_t reserve;
    enum status s = check_options(o, error);
    if (s == STATUS_OK) s = make_plan(e, &plan, &reserve, error);
    if (s != STATUS_OK) return s;
    struct model_limits limits = limits_of(e, plan.context);
    s = loaded ? model_set_limits(e->model, &limits, error)
               : model_load(e->model, e->device, &limits, o->progress, o->progress_context, error);
    if (s == STATUS_OK) s = take_memory(e, &plan, error);
    if (s == STATUS_OK)
        s = queue_create((size_t)o->queue + (size_t)o->parallel, sizeof(struct request *), &e->mailbox, error);
    if (s == STATUS_OK) s = passes_open(e, error);
    if (s != STATUS_OK) return s;
    describe(e, &plan, reserve);
    if (pthread_create(&e->thread, NULL, engine_thread, e) != 0)
        return error_set(error, STATUS_IO, "the engine's thread could not be started");
    e->started = true;
    return STATUS_OK;
}

void engine_close_streams(struct engine *e) {
    if (e->started) {
        atomic_store(&e->draining, true);
        atomic_store(&e->stopping, true);
        queue_wake(e->mailbox);
        pthread_join(e->thread, NULL);
        e->started = false;
    }
    passes_close(e);
    queue_free(e->mailbox);
    memory_free(e->memory);
    if (e->pages != NULL) e->device->release(e->device, e->pages);
    if (e->runs != NULL) e->device->release(e->device, e->runs);
    free(e->running);
    free(e->lanes);
    free(e->ids);
    free(e->params);
    free(e->results);
    e->mailbox = NULL;
    e->memory = NULL;
    e->pages = e->runs = NULL;
    e->running = NULL;
    e->lanes = NULL;
    e->ids = NULL;
    e->params = NULL;
    e->results = NULL;
}
