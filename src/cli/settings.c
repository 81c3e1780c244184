// What flags mean to the parts that are built from them: device, engine, sampling, template.
#include "base/clock.h"
#include "base/log.h"
#include "base/machine.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cpu/device_cpu.h"
#include "hub/cache.h"
#include "memory/plan.h"
#include "model/model.h"
#if TF_CUDA
#include "cuda/device_cuda.h"
#endif
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_MODEL      "fold-s"
#define DEFAULT_MAX_TOKENS 8192

// Beside the working directory's models/, those beside build/, where the program itself lies, and those that were
// installed with it.
const char *options_models_folder(void) {
    static char beside[PATH_MAX + 64];
    if (access("models/" DEFAULT_MODEL "/config.json", R_OK) == 0) return "models";
    char program[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    for (int up = 0; n > 0 && up < 3; up++) {
        while (n > 0 && program[n - 1] != '/') n--;
        program[n > 0 ? --n : 0] = 0;
        static const char *const places[] = {"models", "share/tokenfold/models"};
        for (int i = 0; i < 2; i++) {
            char config[sizeof beside + 64];
            snprintf(beside, sizeof beside, "%s/%s", program, places[i]);
            snprintf(config, sizeof config, "%s/" DEFAULT_MODEL "/config.json", beside);
            if (access(config, R_OK) == 0) return beside;
        }
    }
    return NULL;
}

// In a cache that other programs fill too.
static enum status find_in_cache(const char *named, const char **dir, struct error *e) {
    static char path[HUB_PATH_BYTES];
    char cache[HUB_PATH_BYTES];
    struct hub_name name;
    if (hub_name_read(named, &name, NULL) != STATUS_OK)
        return error_set(e, STATUS_NOT_FOUND, "there is no folder %s", named);
    enum status st = hub_cache_folder(cache, e);
    if (st == STATUS_OK) st = hub_cache_find(cache, &name, path, e);
    if (st == STATUS_OK) *dir = path;
    return st == STATUS_NOT_FOUND ? error_prefix(e, "there is no folder %s", named) : st;
}

enum status options_find_model(const char *named, const char **dir, struct error *e) {
    static char path[PATH_MAX + 128];
    if (named != NULL) {
        if (access(named, F_OK) != 0) return find_in_cache(named, dir, e);
        *dir = named;
        return STATUS_OK;
    }
    const char *folder = options_models_folder();
    if (folder == NULL)
        return error_set(
            e, STATUS_NOT_FOUND,
            "no MODEL was named, and there is no models/" DEFAULT_MODEL
            ": name a checkpoint's folder, pull one with tokenfold pull, or make one with tokenfold synth");
    snprintf(path, sizeof path, "%s/" DEFAULT_MODEL, folder);
    *dir = path;
    return STATUS_OK;
}

static enum compute compute_of(const char *name) {
    if (strcmp(name, "fp32") == 0) return COMPUTE_F32;
    if (strcmp(name, "bf16") == 0) return COMPUTE_BF16;
    return strcmp(name, "int8") == 0 ? COMPUTE_INT8 : COMPUTE_AUTO;
}

bool options_suit_gpu(const struct options *o) {
    return strcmp(o->compute, "auto") == 0 || strcmp(o->compute, "bf16") == 0;
}

// The GPU, where this build has the code for one and there is one.
static enum status open_gpu(const struct options *o, struct device **out, struct error *e) {
    if (!options_suit_gpu(o))
        return error_set(e, STATUS_UNSUPPORTED, "a GPU computes in bf16, and --compute %s was given", o->compute);
#if TF_CUDA
    return cuda_device_create((int)o->device, out, e);
#else
    (void)out;
    return error_set(e, STATUS_UNSUPPORTED, "this build has no CUDA code");
#endif
}

static enum status open_cpu(const struct options *o, const char *dir, struct device **out, struct error *e) {
    struct model *m; // headers only
    enum status st = model_open(dir, &m, e);
    if (st != STATUS_OK) return st;
    bool quantised = model_is_quantised(m);
    model_free(m);
    if (strcmp(o->compute, "int8") == 0 && !quantised)
        return error_set(e, STATUS_UNSUPPORTED,
                         "--compute int8 needs quantised weights, and this checkpoint's are not");
    return cpu_device_create(compute_of(o->compute), quantised, (int)o->threads, ISA_AMX, out, e);
}

enum status options_open_device(const struct options *o, const char *dir, struct device **out, struct error *e) {
    bool any = strcmp(o->backend, "auto") == 0;
    struct error why = {.text = ""};
    if (strcmp(o->backend, "cpu") != 0) {
        enum status st = open_gpu(o, out, &why);
        if (st == STATUS_OK) return STATUS_OK;
        if (!any) return error_set(e, st, "--backend cuda is refused: %s", why.text);
    }
    enum status st = open_cpu(o, dir, out, e);
    if (st == STATUS_OK && any && o->verb == VERB_SERVE) log_line(LOG_INFO, "backend %s: %s", (*out)->name, why.text);
    return st;
}

static bool wants_fp8(const struct options *o) { return strcmp(o->kv_dtype, "fp8") == 0; }

enum dtype options_kv(const struct options *o, const struct device *d) { return wants_fp8(o) ? DTYPE_E4M3 : d->kv; }

// Where one prompt follows another; the other verbs run each prompt once.
static int64_t cache_bytes(const struct options *o) {
    if (o->verb == VERB_BENCH && isnan(o->cache_gib)) return 0; // it sees to its warm turns itself
    if (o->verb != VERB_SERVE && o->verb != VERB_CHAT && o->verb != VERB_PLAN && o->verb != VERB_BENCH) return 0;
    return isnan(o->cache_gib) ? PLAN_CACHE_DEFAULT : (int64_t)llround(o->cache_gib * (1 << 30));
}

static bool drafter_is(const struct options *o, const char *word) { return strcmp(o->drafter, word) == 0; }

// A drafter's folder that lies beside the model's and bears its name; NULL: there is none.
static const char *find_drafter_beside(const char *dir) {
    static const char *const suffixes[] = {"-DFlash2", "-DFlash"};
    static char path[PATH_MAX]; // of the program's only model
    int n = (int)strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    for (int i = 0; i < 2; i++) {
        int end = snprintf(path, sizeof path, "%.*s%s", n, dir, suffixes[i]);
        if (end + (int)sizeof "/config.json" > (int)sizeof path) return NULL;
        strcpy(path + end, "/config.json");
        bool there = access(path, R_OK) == 0;
        path[end] = 0;
        if (there) return path;
    }
    return NULL;
}

// What a drafter takes of every prompt is time that a reply may not give back, so it drafts where it is asked for; what
// tries every kind of draft opens the one beside the model.
void options_choose_drafter(const struct options *o, const char *dir, const struct device *d,
                            struct engine_options *engine) {
    bool named = !drafter_is(o, "auto") && !drafter_is(o, "mtp") && !drafter_is(o, "none");
    bool tries_all = o->verb == VERB_GATE || (o->verb == VERB_BENCH && o->documents != NULL);
    bool has_operations = d->ops != NULL && d->ops->block_conv != NULL && d->ops->block_attention != NULL;
    engine->drafter_bits = strcmp(o->drafter_bits, "4") == 0 ? 4 : 0;
    engine->drafter_dir = NULL;
    if (o->no_drafts) return;
    if (named) engine->drafter_dir = o->drafter;
    if (drafter_is(o, "auto") && tries_all && has_operations) engine->drafter_dir = find_drafter_beside(dir);
    engine->drafts.block = named && o->window != 1;
}

static struct draft_options drafts_of(const struct options *o) {
    if (o->no_drafts || o->window == 1) return (struct draft_options){0};
    // What is forced upon drafts of a model would be forced upon copies, which cost less.
    return (struct draft_options){.copies = o->force_kept == 0,
                                  .mtp = drafter_is(o, "auto") || drafter_is(o, "mtp"),
                                  .max_chain = (int32_t)o->mtp_drafts,
                                  .max_window = (int32_t)o->window,
                                  .forced = o->window > 1 || o->force_kept > 0,
                                  .force_kept = o->force_kept};
}

struct engine_options options_for_engine(const struct options *o) {
    return (struct engine_options){
        // One stream is all that these verbs ever run.
        .parallel = o->verb == VERB_RUN || o->verb == VERB_CHAT ? 1 : (int32_t)o->parallel,
        .context = (int32_t)o->context,
        .max_tokens = o->max_tokens > 0 ? (int32_t)o->max_tokens : DEFAULT_MAX_TOKENS,
        .queue = (int32_t)o->queue,
        .pass_rows = (int32_t)o->pass_rows,
        .decode_share = o->decode_share,
        .memory_bytes = o->memory_bytes,
        .kv_memory_bytes = o->kv_memory_bytes,
        .kv_dtype = wants_fp8(o) ? KV_FP8 : KV_OF_DEVICE,
        .cache_bytes = cache_bytes(o),
        .drafts = drafts_of(o),
        .log_resumes = o->verb == VERB_SERVE,
    };
}

enum status options_read_profile(const struct options *o, const char *dir, struct device *d,
                                 struct engine_options *engine, struct profile *profile, struct error *e) {
    struct model *m; // headers only
    int64_t total = machine_memory_total();
    enum status st = model_open(dir, &m, e);
    if (st != STATUS_OK) return st;
    bool moe = model_get_config(m)->family == MODEL_QWEN35_MOE, cuda = d->memory != NULL;
    model_free(m);
    if (cuda) d->memory(d, &total);
    struct profile_context c = {.family = moe ? PROFILE_QWEN_MOE : PROFILE_QWEN_DENSE,
                                .backend = cuda ? PROFILE_CUDA : PROFILE_CPU,
                                .unset_reserve_bytes =
                                    plan_unset_reserve(total, cuda ? PLAN_RESERVE_GPU : PLAN_RESERVE_CPU)};
    st = profile_read(&c, profile, e);
    if (st != STATUS_OK) return st;
    options_choose_drafter(o, dir, d, engine);
    engine->page_rows = profile->page_rows;
    engine->pages_all = profile->pages_all;
    engine->share_pages = profile->share;
    engine->gate_logits = profile->gate_logits;
    for (int i = 0; i < profile->n_notes && o->verb == VERB_SERVE; i++) log_line(LOG_WARN, "%s", profile->notes[i]);
    return STATUS_OK;
}

enum status options_open_engine(const struct options *o, const char *dir, const struct engine_options *engine,
                                struct device **device, struct engine **out, struct profile *profile, struct error *e) {
    struct engine_options options = *engine;
    struct profile unseen;
    enum status st = options_open_device(o, dir, device, e);
    if (st == STATUS_OK) st = options_read_profile(o, dir, *device, &options, profile != NULL ? profile : &unseen, e);
    if (st != STATUS_OK) return st;
    options.model_dir = dir;
    options.device = *device;
    options.progress = o->no_progress ? NULL : progress_show;
    return engine_create(&options, out, e);
}

static double first_of(double flag, double checkpoint, double otherwise) {
    return !isnan(flag) ? flag : !isnan(checkpoint) ? checkpoint : otherwise;
}

void options_get_sampling(const struct options *o, const struct sampling_defaults *c, struct draw_params *out) {
    *out = (struct draw_params){
        .temperature = first_of(o->temperature, c->temperature, 1),
        .top_p = first_of(o->top_p, c->top_p, 1),
        .min_p = first_of(o->min_p, c->min_p, 0),
        .repetition = first_of(NAN, c->repetition_penalty, 1),
        .presence = first_of(NAN, c->presence_penalty, 0),
        .top_k = (int32_t)(o->top_k >= 0   ? o->top_k
                           : c->top_k >= 0 ? c->top_k
                                           : 0),
        .seed = o->seed >= 0 ? (uint64_t)o->seed : 0,
        .n_top = -1,
    };
    if (out->top_p == 0) out->top_p = DBL_MIN; // a checkpoint may say so, and it leaves one token
}

struct chat_options options_for_chat(const struct options *o) {
    return (struct chat_options){
        .enable_thinking = o->thinking      ? CHAT_ON
                           : o->no_thinking ? CHAT_OFF
                                            : CHAT_UNSET,
        .reasoning_effort = o->reasoning_effort,
        .now_s = clock_unix_seconds(),
    };
}
