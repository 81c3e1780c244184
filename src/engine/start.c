// What an engine is made of before its thread runs: the loaded model, and, again for each setting, plan and memory.
#include "base/log.h"
#include "base/machine.h"
#include "engine/internal.h"
#include "memory/profile.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define WINDOW_PAGE_ROWS 256  // windows are made of pages too, of the size that kernels are best at
#define STAGING_RUNS     4    // states that prompt passes can keep when lanes hold all they may, until they are written
#define GRID_ROWS        8192 // through long prompts a state is kept at multiples of it
#define EXPECT_NS        ((int64_t)120000000000) // a request waits no longer for a prefix that another one computes

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

// ---- the plan ----

// Before anything whose size depends on it is asked for.
static void choose_drafters(struct engine *e) {
    e->has_mtp = e->options.drafts.mtp && model_mtp_absence(e->model) == NULL;
    e->has_block = e->options.drafts.block && e->drafter != NULL;
    struct model_drafts drafts = {.mtp = e->has_mtp};
    if (e->has_block) {
        drafts.drafter = e->drafter;
        drafts.taps = drafter_tap_layers(e->drafter, &drafts.n_taps);
        drafts.lane_bytes = drafter_lane_bytes(e->drafter, e->device->kv, e->device->activation);
    }
    model_set_drafts(e->model, &drafts);
}

// Weights of whoever drafts.
static int64_t drafter_bytes(const struct engine *e) {
    return model_mtp_bytes(e->model) + (e->has_block ? drafter_weight_bytes(e->drafter) : 0);
}

static int64_t scratch_bytes(const struct engine *e, const struct model_limits *limits) {
    int64_t bytes = model_scratch_bytes(e->model, e->device, limits);
    return e->has_block ? bytes + drafter_scratch_bytes(e->drafter, e->device, limits) : bytes;
}

static enum status open_drafter(struct engine *e, struct error *error) {
    const struct engine_options *o = &e->options;
    return o->drafter_dir != NULL ? drafter_open(o->drafter_dir, e->model, o->drafter_bits, &e->drafter, error)
                                  : STATUS_OK;
}

static enum status load_drafter(struct engine *e, const struct model_limits *limits, struct error *error) {
    if (!e->has_block) return STATUS_OK;
    if (e->drafter_is_loaded) return drafter_set_limits(e->drafter, limits, error);
    enum status s = drafter_load(e->drafter, e->device, limits, error);
    e->drafter_is_loaded = s == STATUS_OK;
    return s;
}

// Rows of a lane in a round: more than one make logs and windows longer.
static int32_t max_window(const struct engine *e) {
    const struct draft_options *d = &e->options.drafts;
    if (!d->copies && !d->expected && !e->has_mtp && !e->has_block) return 1;
    return d->max_window > 0 ? d->max_window : DRAFT_UNSET_ROWS;
}

// Logits of every row take memory, and with very many streams a round has rows enough without drafts.
#define ROUND_ROWS 256

static int32_t round_rows(const struct engine *e, int32_t parallel) {
    int64_t rows = (int64_t)parallel * max_window(e);
    return (int32_t)(rows <= ROUND_ROWS ? rows : parallel > ROUND_ROWS ? parallel : ROUND_ROWS);
}

static bool on_pages(const struct engine *e) { return e->options.page_rows > 0; }

static int32_t page_rows_of(const struct engine *e) { return on_pages(e) ? e->options.page_rows : WINDOW_PAGE_ROWS; }

static struct model_limits limits_of(const struct engine *e, int32_t context) {
    return (struct model_limits){.max_lanes = e->options.parallel,
                                 .max_window = max_window(e),
                                 .max_rows = round_rows(e, e->options.parallel),
                                 .max_context = context,
                                 .page_rows = page_rows_of(e),
                                 .pass_rows = PROMPT_MAX_ROWS,
                                 .kv = kv_of(e)};
}

static enum status make_plan(struct engine *e, struct error *error) {
    const struct engine_options *o = &e->options;
    const struct model_config *c = model_get_config(e->model);
    int64_t total = machine_memory_total(), available;
    available = e->device->memory != NULL ? e->device->memory(e->device, &total) : machine_memory_available();
    int64_t least = e->device->memory != NULL ? PLAN_RESERVE_GPU : PLAN_RESERVE_CPU;
    enum status s = plan_reserve(total, least, &e->info.reserve_bytes, error);
    if (s != STATUS_OK) return s;
    e->info.kv = kv_of(e);
    int32_t most = c->n_context < PLAN_CONTEXT_MAX ? (int32_t)c->n_context : PLAN_CONTEXT_MAX;
    struct model_limits limits = limits_of(e, o->context > 0 ? o->context : most);
    int64_t logits_bytes = (int64_t)limits.max_rows * c->n_vocab * (int64_t)sizeof(float);
    struct plan_request r = {
        .available_bytes = available,
        .reserve_bytes = e->info.reserve_bytes,
        .memory_cap = o->memory_bytes,
        .kv_cap = o->kv_memory_bytes,
        .weight_bytes = model_weight_bytes(e->model),
        .drafter_bytes = drafter_bytes(e),
        .scratch_bytes = scratch_bytes(e, &limits) - logits_bytes,
        .logits_bytes = logits_bytes,
        .page_bytes = model_page_bytes(e->model, limits.page_rows, kv_of(e)),
        .run_bytes = model_run_bytes(e->model, max_window(e), e->device->activation),
        .page_rows = limits.page_rows,
        .max_window = max_window(e),
        .n_staging = o->cache_bytes != 0 ? STAGING_RUNS : 0,
        .windows = !on_pages(e),
        .pages_all = o->pages_all,
        .parallel = o->parallel,
        .context = o->context,
        .context_max = most,
        .cache_bytes = o->cache_bytes,
        .host_is_device = e->device->in_host_memory,
        .host_bytes = e->device->ops != NULL ? machine_memory_available() : 0, // of a GPU that is not here nobody knows
    };
    return plan_make(&r, &e->info.plan, error);
}

// ---- memory, as planned ----

static enum status open_cache(struct engine *e, struct error *error) {
    const struct plan *plan = &e->info.plan;
    e->kept_bytes = model_kept_bytes(e->model, max_window(e), e->device->activation);
    struct prefix_settings settings = {.pool = e->pool,
                                       .share = !plan->windows && e->options.share_pages,
                                       .page_rows = plan->page_rows,
                                       .page_bytes = plan->page_bytes,
                                       .kept_bytes = e->kept_bytes,
                                       .host_bytes = plan->cache_bytes,
                                       .grid_rows = GRID_ROWS};
    enum status s = prefix_create(&settings, &e->prefix, error);
    if (s != STATUS_OK) return s;
    e->host_bytes = prefix_host_bytes(e->prefix);
    if (e->host_bytes == 0) return STATUS_OK;
    e->host = aligned_alloc(4096, (size_t)(e->host_bytes + 4095) / 4096 * 4096);
    return e->host != NULL ? STATUS_OK : error_memory(error);
}

static enum status open_ledger(struct engine *e, struct error *error) {
    const struct plan *plan = &e->info.plan;
    struct ledger_settings settings = {.windows = plan->windows,
                                       .pages_all = plan->pages_all,
                                       .parallel = plan->parallel,
                                       .context = plan->context,
                                       .max_window = plan->max_window,
                                       .page_rows = plan->page_rows,
                                       .pool = e->pool,
                                       .prefix = e->prefix,
                                       .expect_wait_ns = EXPECT_NS};
    return ledger_create(&settings, &e->ledger, error);
}

static enum status take_memory(struct engine *e, struct error *error) {
    const struct plan *plan = &e->info.plan;
    struct pool_shape shape = {
        .bytes = plan->pool_bytes, .page_bytes = plan->page_bytes, .run_bytes = plan->run_bytes, .n_run = plan->n_run};
    e->page_bytes = plan->page_bytes;
    e->run_bytes = plan->run_bytes;
    enum status s = pool_create(&shape, &e->pool, error);
    if (s == STATUS_OK) s = open_cache(e, error);
    if (s == STATUS_OK) s = open_ledger(e, error);
    if (s != STATUS_OK) return s;
    e->memory = e->device->alloc(e->device, (size_t)plan->pool_bytes);
    size_t n = (size_t)plan->parallel;
    e->running = calloc(n, sizeof *e->running);
    e->lanes = calloc(n, sizeof *e->lanes);
    e->windows = calloc(n, sizeof *e->windows);
    e->asking = calloc(n, sizeof *e->asking);
    e->chain = calloc(n, sizeof *e->chain);
    e->choices = calloc(n, sizeof *e->choices);
    e->asks = calloc(n, sizeof *e->asks);
    if (plan->max_window > 1) {
        s = meter_create(plan->parallel, plan->max_window, e->options.drafts.doubted, &e->meter, error);
        if (s != STATUS_OK) return s;
    }
    e->round_rows = round_rows(e, plan->parallel);
    size_t n_row = (size_t)e->round_rows;
    e->ids = calloc(n_row, sizeof *e->ids);
    e->params = calloc(n_row, sizeof *e->params);
    e->results = calloc(n_row, sizeof *e->results);
    bool ok = e->memory != NULL && e->running != NULL && e->lanes != NULL && e->windows != NULL && e->asking != NULL &&
              e->chain != NULL && e->choices != NULL && e->asks != NULL && e->ids != NULL && e->params != NULL &&
              e->results != NULL;
    return ok ? STATUS_OK : error_memory(error);
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
    if (o->drafts.max_window < 0 || o->drafts.max_window > DRAFT_MAX_ROWS)
        return error_set(error, STATUS_INVALID, "a window of a round has at most %d rows, not %d", DRAFT_MAX_ROWS,
                         o->drafts.max_window);
    if (o->page_rows < 0 || o->page_rows > PROFILE_PAGE_ROWS_MAX)
        return error_set(error, STATUS_INVALID, "pages must have 1 to %d positions, not %d", PROFILE_PAGE_ROWS_MAX,
                         o->page_rows);
    return STATUS_OK;
}

enum status engine_plan(const struct engine_options *options, struct engine_info *info, struct error *error) {
    struct engine *e = calloc(1, sizeof *e);
    if (e == NULL) return error_memory(error);
    e->options = *options;
    e->device = options->device;
    enum status s = check_options(options, error);
    if (s == STATUS_OK) s = model_open(options->model_dir, &e->model, error);
    if (s == STATUS_OK) s = open_drafter(e, error);
    if (s == STATUS_OK) choose_drafters(e);
    if (s == STATUS_OK) s = make_plan(e, error);
    if (s == STATUS_OK) {
        report_describe(e);
        *info = e->info;
        info->tokenizer = NULL;
        info->config = NULL;
    }
    drafter_free(e->drafter);
    model_free(e->model);
    free(e);
    return s;
}

enum status engine_open_model(struct engine *e, struct error *error) {
    enum status s = model_open(e->options.model_dir, &e->model, error);
    if (s == STATUS_OK) s = open_drafter(e, error);
    if (s != STATUS_OK) return s;
    e->config = *model_get_config(e->model);
    e->info.config = &e->config;
    s = load_tokenizer(e, e->options.model_dir, error);
    return s == STATUS_OK ? make_allowed(e, error) : s;
}

enum status engine_open_streams(struct engine *e, bool loaded, struct error *error) {
    const struct engine_options *o = &e->options;
    enum status s = check_options(o, error);
    if (s == STATUS_OK) choose_drafters(e);
    if (s == STATUS_OK) s = forced_check(e, error);
    if (s == STATUS_OK) s = make_plan(e, error);
    if (s != STATUS_OK) return s;
    if (e->info.plan.parallel < o->parallel)
        log_line(LOG_INFO, "--parallel %d is cut to %d: the pool has room for no more streams at once, however short",
                 o->parallel, e->info.plan.parallel);
    struct model_limits limits = limits_of(e, e->info.plan.context);
    s = loaded ? model_set_limits(e->model, &limits, error)
               : model_load(e->model, e->device, &limits, o->progress, o->progress_context, error);
    if (s == STATUS_OK) s = load_drafter(e, &limits, error);
    if (s == STATUS_OK) s = take_memory(e, error);
    e->info.taken_bytes = model_weight_bytes(e->model) + drafter_bytes(e) + scratch_bytes(e, &limits) +
                          e->info.plan.pool_bytes + e->host_bytes;
    if (s == STATUS_OK)
        s = queue_create((size_t)o->queue + (size_t)o->parallel, sizeof(struct request *), &e->mailbox, error);
    if (s == STATUS_OK) s = mask_maker_create(2 * o->parallel, e->mailbox, &e->mask_maker, error);
    if (s == STATUS_OK) s = passes_open(e, error);
    if (s == STATUS_OK) s = fault_open(e, error);
    if (s == STATUS_OK) s = calibrate(e, error);
    if (s != STATUS_OK) return s;
    report_describe(e);
    if (pthread_create(&e->thread, NULL, engine_thread, e) != 0)
        return error_set(error, STATUS_IO, "the engine's thread could not be started");
    e->started = true;
    return STATUS_OK;
}

void engine_close_streams(struct engine *e) {
    if (e->started) {
        atomic_store(&e->stopping, true);
        engine_end_all(e);
        pthread_join(e->thread, NULL);
        e->started = false;
    }
    mask_maker_free(e->mask_maker);
    passes_close(e);
    fault_close(e);
    queue_free(e->mailbox);
    ledger_free(e->ledger);
    prefix_free(e->prefix);
    pool_free(e->pool);
    if (e->memory != NULL) e->device->release(e->device, e->memory);
    free(e->host);
    free(e->running);
    free(e->lanes);
    free(e->windows);
    free(e->asking);
    free(e->chain);
    free(e->choices);
    free(e->asks);
    meter_free(e->meter);
    free(e->ids);
    free(e->params);
    free(e->results);
    e->mask_maker = NULL;
    e->mailbox = NULL;
    e->ledger = NULL;
    e->prefix = NULL;
    e->pool = NULL;
    e->memory = NULL;
    e->host = NULL;
    e->running = NULL;
    e->lanes = NULL;
    e->windows = NULL;
    e->asking = NULL;
    e->chain = NULL;
    e->choices = NULL;
    e->asks = NULL;
    e->meter = NULL;
    e->ids = NULL;
    e->params = NULL;
    e->results = NULL;
}
