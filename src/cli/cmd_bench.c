// bench: how fast prompts are computed and replies decoded, beside what the memory of this machine allows, or beside
// the same with other settings, another program or another server.
#include "base/clock.h"
#include "cli/bandwidth.h"
#include "cli/bench_engine.h"
#include "cli/commands.h"
#include "measure/record.h"
#include "measure/report.h"
#include "measure/targets.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_CELLS   "prompt:512,prompt:2048,decode:128+64,decode:2048+64,decode:128+64x4"
#define DEFAULT_REPEATS 3 // where there is one arm
#define DEFAULT_ROUNDS  8 // more than the six that an interval of 95 % needs
#define PROGRAM         "/proc/self/exe"

struct bench {
    const struct options *o;
    const char *dir; // NULL where every arm is a URL
    struct arm arms[ARMS_MAX];
    int n_arms;
    bool fresh;
    struct cell_rounds cells[CELLS_MAX];
    int n_cells;
    struct bench_engine *engine; // NULL: no arm is measured in this process
    struct bench_arm in_process[ARMS_MAX];
    struct served served[ARMS_MAX];
    struct client clients[ARMS_MAX];
    char numbers[16][32]; // of the servers' flags
    double bandwidth;
    char what[512];
    char settings[640]; // of the environment; "": every arm is a URL
    char about[ARMS_MAX * ARM_SETTINGS_TEXT + 1024];
};

// ---- what stands behind each arm ----

static const char *url_of(const struct bench *b, int i) {
    const char *url = arm_get(&b->arms[i], "url");
    return url != NULL || arm_get(&b->arms[i], "bin") != NULL ? url : b->o->url;
}

static enum status aim_at_url(struct bench *b, int i, struct target *t, struct error *e) {
    const char *model = arm_get(&b->arms[i], "model"), *key = arm_get(&b->arms[i], "key");
    for (int k = 0; k < b->arms[i].n_settings; k++)
        if (b->arms[i].settings[k].kind != ARM_OWN)
            return error_set(e, STATUS_INVALID, "--arm %s: %s cannot be set on a server that runs already",
                             b->arms[i].name, b->arms[i].settings[k].key);
    b->clients[i].model = model != NULL ? model : b->o->url_model;
    b->clients[i].key = key != NULL ? key : b->o->url_key;
    *t = target_of_url(&b->clients[i]);
    return stream_read_url(url_of(b, i), &b->clients[i].at, e);
}

// What servers are told of what this program was told.
static void pass_on(struct bench *b, struct served *s) {
    const struct options *o = b->o;
    int n = 0;
    const struct {
        const char *flag, *text;
        int64_t number;
    } known[] = {{"--backend", o->backend, 0},
                 {"--compute", o->compute, 0},
                 {"--kv-dtype", o->kv_dtype, 0},
                 {"--threads", NULL, o->threads},
                 {"--device", NULL, o->device},
                 {"--memory", NULL, o->memory_bytes},
                 {"--kv-memory", NULL, o->kv_memory_bytes},
                 {"--context", NULL, o->context},
                 {"--parallel", NULL, o->parallel},
                 {"--mtp-drafts", NULL, o->mtp_drafts}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i].text == NULL && known[i].number == 0) continue;
        if (known[i].text == NULL) snprintf(b->numbers[n], sizeof b->numbers[n], "%lld", (long long)known[i].number);
        s->flags[s->n_flags++] = known[i].flag;
        s->flags[s->n_flags++] = known[i].text != NULL ? known[i].text : b->numbers[n++];
    }
    if (strcmp(o->drafter, "auto") != 0) s->flags[s->n_flags++] = "--drafter", s->flags[s->n_flags++] = o->drafter;
    if (strcmp(o->drafter_bits, "4") != 0) s->flags[s->n_flags++] = "--drafter-bits", s->flags[s->n_flags++] = "0";
    if (o->no_drafts) s->flags[s->n_flags++] = "--no-drafts";
    if (isnan(o->cache_gib)) return;
    snprintf(b->numbers[n], sizeof b->numbers[n], "%.9f", o->cache_gib);
    s->flags[s->n_flags++] = "--prompt-cache-gib";
    s->flags[s->n_flags++] = b->numbers[n];
}

static enum status aim_at_server(struct bench *b, int i, struct target *t, struct error *e) {
    const char *program = arm_get(&b->arms[i], "bin");
    if (program != NULL && access(program, X_OK) != 0)
        return error_set(e, STATUS_INVALID, "--arm %s: bin=%s: %s", b->arms[i].name, program, strerror(errno));
    b->served[i] =
        (struct served){.program = program != NULL ? program : PROGRAM, .model_dir = b->dir, .arm = &b->arms[i]};
    pass_on(b, &b->served[i]);
    *t = target_of_server(&b->served[i]);
    return STATUS_OK;
}

// A warm turn wants a prompt cache, and the others none; arms want an engine each.
static bool is_one_visit(const struct bench *b) {
    for (int i = 0; i < b->n_cells; i++)
        if (b->cells[i].cell.kind == CELL_WARM) return false;
    return b->n_arms == 1;
}

static enum status aim(struct bench *b, struct target *targets, struct error *e) {
    enum status s = STATUS_OK;
    for (int i = 0; i < b->n_arms && s == STATUS_OK; i++) {
        if (url_of(b, i) != NULL) {
            s = aim_at_url(b, i, &targets[i], e);
        } else if (b->fresh) {
            s = aim_at_server(b, i, &targets[i], e);
        } else {
            if (b->engine == NULL) s = bench_engine_create(b->o, b->dir, is_one_visit(b), &b->engine, e);
            if (s == STATUS_OK) s = bench_arm_init(&b->in_process[i], b->engine, &b->arms[i], e);
            targets[i] = bench_arm_target(&b->in_process[i]);
        }
    }
    return s;
}

// ---- what is measured ----

static enum status read_cells(struct bench *b, struct error *e) {
    struct cell cells[CELLS_MAX];
    enum status s = cells_read(b->o->cells != NULL ? b->o->cells : DEFAULT_CELLS, cells, &b->n_cells, e);
    if (s != STATUS_OK) b->n_cells = 0;
    for (int i = 0; i < b->n_cells; i++) cell_rounds_init(&b->cells[i], &cells[i]);
    return s;
}

static enum status read_arms(struct bench *b, struct error *e) {
    // What is forced is told beside plain rounds.
    const char *texts[OPTIONS_LIST_MAX + 1];
    int n = (int)b->o->arms.n;
    for (int i = 0; i < n; i++) texts[i] = b->o->arms.values[i];
    if (b->o->force_kept > 0) texts[n++] = PLAIN_ARM ":no-drafts";
    enum status s = arms_read(texts, n, b->arms, &b->n_arms, e);
    bool others = b->o->fresh, servers = false, has_url = false;
    for (int i = 0; i < b->n_arms && s == STATUS_OK; i++) {
        others |= arm_get(&b->arms[i], "bin") != NULL;
        has_url |= url_of(b, i) != NULL;
        servers |= url_of(b, i) == NULL;
    }
    b->fresh = others;
    if (s == STATUS_OK && b->o->in_process && others)
        s = error_set(e, STATUS_INVALID, "--in-process and an arm with a program of its own exclude each other");
    if (s == STATUS_OK && (b->o->pass_rows > 0 || b->o->window > 0) && (others || has_url))
        s = error_set(e, STATUS_INVALID, "--%s is for arms of this process: servers have no such flag",
                      b->o->window > 0 ? "window" : "pass-rows");
    if (s == STATUS_OK && b->o->force_kept > 0 && (others || b->o->url != NULL))
        s = error_set(e, STATUS_INVALID, "--force-accept is for arms of this process: a server keeps what is right");
    if (s == STATUS_OK && servers) s = options_find_model(b->o->n_args == 1 ? b->o->args[0] : NULL, &b->dir, e);
    if (s == STATUS_OK && !servers && b->o->n_args > 0)
        s = error_set(e, STATUS_INVALID, "with --url the server's model is measured, and MODEL %s is none of its own",
                      b->o->args[0]);
    return s;
}

// Of what the weights will be read from. The device is opened for this alone: the engine's has its own thread.
static enum status measure_memory(struct bench *b, struct error *e) {
    struct device *device = NULL;
    struct engine_options unused;
    struct profile profile;
    enum status s = options_open_device(b->o, b->dir, &device, e);
    if (s != STATUS_OK) return s;
    bool is_own = device->memory != NULL;
    s = options_read_profile(b->o, b->dir, device, &unused, &profile, e);
    // Rounds taken where streams had windows without being told are none of this base.
    if (s == STATUS_OK)
        snprintf(b->settings, sizeof b->settings, "%s, pages of %d%s", profile.overrides, profile.page_rows,
                 profile.share ? " shared" : "");
    if (s == STATUS_OK && is_own) s = bandwidth_measure_device(device, &b->bandwidth, e);
    snprintf(b->what, sizeof b->what, "%s on %s%s", b->dir, device->name, b->fresh ? ", fresh servers" : "");
    device_free(device);
    return is_own || s != STATUS_OK ? s : bandwidth_measure((int)b->o->threads, &b->bandwidth, e);
}

// By which rounds of several runs belong together.
static void describe(struct bench *b) {
    const struct options *o = b->o;
    int n = snprintf(b->about, sizeof b->about,
                     "%s; %s; kv %s, context %lld, parallel %lld, memory %lld, kv memory %lld, prompt cache %g, "
                     "pass rows %lld, window %lld, kept %g, drafter %s of %s bits, head %lld%s; settings: %s",
                     b->what, TF_VERSION, o->kv_dtype, (long long)o->context, (long long)o->parallel,
                     (long long)o->memory_bytes, (long long)o->kv_memory_bytes, isnan(o->cache_gib) ? -1 : o->cache_gib,
                     (long long)o->pass_rows, (long long)o->window, o->force_kept, o->drafter, o->drafter_bits,
                     (long long)o->mtp_drafts, o->no_drafts ? ", no drafts" : "", b->settings);
    for (int i = 2; i < b->n_arms && n < (int)sizeof b->about; i++) {
        char text[ARM_SETTINGS_TEXT];
        arm_write(&b->arms[i], text);
        n += snprintf(b->about + n, sizeof b->about - (size_t)n, "; %s:%s", b->arms[i].name, text);
    }
}

// ---- what is told ----

static enum status write_file(const char *path, const struct buffer *text, struct error *e) {
    FILE *f = fopen(path, "w");
    bool ok = f != NULL && fwrite(text->data, 1, text->n, f) == text->n;
    if (f != NULL) ok &= fclose(f) == 0;
    return ok ? STATUS_OK : error_set(e, STATUS_IO, "--svg %s: %s", path, strerror(errno));
}

static enum status report(const struct bench *b, bool *red, struct error *e) {
    struct cell_rounds shown[CELLS_MAX];
    memcpy(shown, b->cells, sizeof shown);
    struct report r = {b->what, b->arms, b->n_arms, shown, b->n_cells, b->bandwidth, 0};
    if (b->engine != NULL) r.round_bytes = bench_engine_info(b->engine)->round_bytes;
    struct buffer out;
    buffer_init(&out, 0);
    enum status s = b->o->json ? report_write_json(&r, &out, e) : report_write_table(&r, &out, e);
    if (s == STATUS_OK) printf("%s%s", out.data, b->o->json ? "\n" : "");
    buffer_clear(&out);
    if (s == STATUS_OK && b->o->svg != NULL) {
        s = report_write_svg(&r, &out, e);
        if (s == STATUS_OK) s = write_file(b->o->svg, &out, e);
    }
    buffer_free(&out);
    *red = report_is_red(&r);
    return s;
}

static enum status run(struct bench *b, bool *red, struct error *e) {
    struct rounds_options rounds = {.budget_s = b->o->budget_s, .repeats = (int)b->o->repeats};
    struct record record = {b->o->append, b->about, b->arms, 0};
    int n_other = 0;
    enum status s = read_cells(b, e);
    if (s == STATUS_OK) s = read_arms(b, e);
    if (s == STATUS_OK) s = aim(b, rounds.targets, e);
    snprintf(b->what, sizeof b->what, "%s", b->o->url != NULL ? b->o->url : "");
    if (s == STATUS_OK && b->dir != NULL && b->o->url == NULL) s = measure_memory(b, e);
    if (s != STATUS_OK) return s;
    describe(b);
    record.n_arms = rounds.n_arms = b->n_arms;
    rounds.seed = (uint64_t)clock_ns() << 16;
    rounds.all_cells_a_visit = b->fresh || is_one_visit(b);
    if (rounds.repeats == 0 && rounds.budget_s == 0) rounds.repeats = b->n_arms == 1 ? DEFAULT_REPEATS : DEFAULT_ROUNDS;
    if (b->o->append != NULL) {
        rounds.on_round = record_append;
        rounds.on_round_context = &record;
        s = record_read(&record, b->cells, b->n_cells, &n_other, e);
        if (n_other > 0) fprintf(stderr, "tokenfold: %d lines of %s tell of something else\n", n_other, b->o->append);
    }
    if (s == STATUS_OK) s = rounds_run(&rounds, b->cells, b->n_cells, e);
    return s == STATUS_OK ? report(b, red, e) : s;
}

static int run_acceptance(const struct options *o) {
    struct error e;
    const char *dir;
    enum status s = options_find_model(o->n_args > 1 ? o->args[1] : NULL, &dir, &e);
    if (s == STATUS_OK) s = bench_acceptance(o, dir, &e);
    if (s == STATUS_OK) return 0;
    fprintf(stderr, "tokenfold: %s\n", e.text);
    return s == STATUS_INVALID ? EXIT_USAGE : EXIT_FAILED;
}

int cmd_bench(int argc, char **argv) {
    struct options o;
    struct error e;
    int exit_code;
    bool red = false;
    if (!options_parse(VERB_BENCH, argc, argv, &o, &exit_code)) return exit_code;
    bool acceptance = o.n_args > 0 && strcmp(o.args[0], "acceptance") == 0;
    if (o.n_args > 1 + acceptance) {
        fprintf(stderr, "tokenfold: bench takes one MODEL at most\n");
        return EXIT_USAGE;
    }
    if (acceptance) return run_acceptance(&o);
    struct bench *b = calloc(1, sizeof *b);
    if (b != NULL) b->o = &o;
    enum status s = b != NULL ? run(b, &red, &e) : error_memory(&e);
    for (int i = 0; b != NULL && i < b->n_cells; i++) cell_rounds_free(&b->cells[i]);
    if (b != NULL) bench_engine_free(b->engine);
    free(b);
    if (s == STATUS_OK) return red ? EXIT_FAILED : 0;
    fprintf(stderr, "tokenfold: %s\n", e.text);
    return s == STATUS_INVALID ? EXIT_USAGE : EXIT_FAILED;
}
