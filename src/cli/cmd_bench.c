// bench: how fast prompts are computed and replies decoded, beside what the memory of this machine allows.
#include "base/clock.h"
#include "base/random.h"
#include "cli/bandwidth.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "format/json.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CELLS_MAX     32
#define STREAMS_MAX   256
#define DEFAULT_CELLS "prompt:512,prompt:2048,decode:128+64,decode:2048+64,decode:128+64x4"

enum cell_kind { CELL_PROMPT, CELL_DECODE };

struct cell {
    enum cell_kind kind;
    int n_prompt, n_decode, n_streams;
    double tokens_per_s, low, high; // median, least and most of the repeats
    double floor_bytes_per_s;       // weights that must be read at that speed
};

// ---- cells from text ----

static bool read_count(const char **at, int most, int *out) {
    char *end;
    long n = strtol(*at, &end, 10);
    if (end == *at || n < 1 || n > most) return false;
    *out = (int)n;
    *at = end;
    return true;
}

static bool read_cell(const char **at, struct cell *c) {
    *c = (struct cell){.kind = CELL_PROMPT, .n_decode = 1, .n_streams = 1};
    if (strncmp(*at, "prompt:", 7) == 0) {
        *at += 7;
        return read_count(at, 262144, &c->n_prompt);
    }
    if (strncmp(*at, "decode:", 7) != 0) return false;
    c->kind = CELL_DECODE;
    *at += 7;
    if (!read_count(at, 262144, &c->n_prompt) || *(*at)++ != '+' || !read_count(at, 262144, &c->n_decode)) return false;
    if (**at != 'x') return true;
    ++*at;
    return read_count(at, STREAMS_MAX, &c->n_streams);
}

static enum status read_cells(const char *text, struct cell *cells, int *n, struct error *e) {
    for (const char *at = text; *n < CELLS_MAX; at++) {
        if (!read_cell(&at, &cells[(*n)++]) || (*at != ',' && *at != 0)) break;
        if (*at == 0) return STATUS_OK;
    }
    return error_set(e, STATUS_INVALID, "--cells must be like " DEFAULT_CELLS ", not \"%s\"", text);
}

// ---- one measurement ----

static enum status start_request(struct engine *e, const struct cell *c, uint64_t key, struct request **out,
                                 struct error *error) {
    int64_t n_vocab = engine_get_info(e)->config->n_vocab;
    int32_t *ids = malloc((size_t)c->n_prompt * sizeof *ids);
    if (ids == NULL) return error_memory(error);
    for (int i = 0; i < c->n_prompt; i++)
        ids[i] = (int32_t)(random_bits(key, (uint64_t)i, 0) % (uint64_t)(n_vocab < 1000 ? n_vocab : 1000));
    struct request_params p = {.prompt = ids,
                               .n_prompt = c->n_prompt,
                               .max_tokens = c->n_decode + 1, // the first one comes out of the prompt's last pass
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

static int64_t count_tokens(struct request **r, int n) {
    int64_t sum = 0;
    for (int i = 0; i < n; i++) sum += view_of(r[i]).n_tokens;
    return sum;
}

// Of those that have not ended, the one with the most tokens; the first one when all have ended.
static int find_furthest(struct request **r, int n) {
    int best = 0;
    int32_t most = 0;
    for (int i = 0; i < n; i++) {
        struct request_view v = view_of(r[i]);
        if (v.state != REQUEST_DONE && v.n_tokens > most) best = i, most = v.n_tokens;
    }
    return best;
}

// All streams together, from when the last one has its first token to when the one that is the furthest then ends:
// drafts may have brought others to their ends before.
static double measure_decode(struct request **r, const struct cell *c) {
    for (int i = 0; i < c->n_streams; i++) wait_past(r[i], 0);
    int64_t before = count_tokens(r, c->n_streams), start = clock_ns();
    int first = find_furthest(r, c->n_streams);
    wait_past(r[first], request_max_tokens(r[first]) - 1);
    int64_t tokens = count_tokens(r, c->n_streams) - before;
    return (double)tokens * 1e9 / (double)(clock_ns() - start);
}

static enum status measure(struct engine *e, const struct cell *c, uint64_t key, double *tokens_per_s,
                           struct error *error) {
    struct request *r[STREAMS_MAX] = {0};
    enum status s = STATUS_OK;
    for (int i = 0; i < c->n_streams && s == STATUS_OK; i++)
        s = start_request(e, c, key * STREAMS_MAX + (uint64_t)i, &r[i], error);
    if (s == STATUS_OK && c->kind == CELL_PROMPT) {
        struct request_view v = wait_past(r[0], 0);
        *tokens_per_s = (double)c->n_prompt * 1e9 / (double)v.prompt_ns;
    } else if (s == STATUS_OK) {
        *tokens_per_s = measure_decode(r, c);
    }
    for (int i = 0; i < c->n_streams && s == STATUS_OK; i++) {
        struct request_view v = wait_past(r[i], request_max_tokens(r[i]));
        if (v.finish == FINISH_ERROR) s = error_set(error, STATUS_DEVICE, "%s", v.error.text);
    }
    for (int i = 0; i < c->n_streams; i++) request_free(r[i]);
    return s;
}

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static enum status measure_cell(struct engine *e, struct cell *c, int repeats, struct error *error) {
    double *samples = calloc((size_t)repeats, sizeof *samples);
    if (samples == NULL) return error_memory(error);
    enum status s = STATUS_OK;
    for (int i = 0; i < repeats && s == STATUS_OK; i++) s = measure(e, c, (uint64_t)i, &samples[i], error);
    qsort(samples, (size_t)repeats, sizeof *samples, compare_doubles);
    c->low = samples[0];
    c->high = samples[repeats - 1];
    c->tokens_per_s = samples[repeats / 2];
    // A round reads the weights once for all its rows, a prompt pass once for its 4096.
    int64_t rows = c->kind == CELL_PROMPT ? (c->n_prompt < 4096 ? c->n_prompt : 4096) : c->n_streams;
    c->floor_bytes_per_s = c->tokens_per_s / (double)rows * (double)engine_get_info(e)->round_bytes;
    free(samples);
    return s;
}

// ---- report ----

static void name_cell(const struct cell *c, char *out, size_t n) {
    if (c->kind == CELL_PROMPT)
        snprintf(out, n, "prompt %d", c->n_prompt);
    else
        snprintf(out, n, "decode %d at %d, %d stream%s", c->n_decode, c->n_prompt, c->n_streams,
                 c->n_streams == 1 ? "" : "s");
}

static void print_table(const struct engine_info *info, const struct cell *cells, int n, double bandwidth) {
    printf("%s\nmemory reads %.1f GB/s; a round of one row reads %.3f GB of weights: at most %.1f tok/s\n\n",
           info->device_name, bandwidth / 1e9, (double)info->round_bytes / 1e9, bandwidth / (double)info->round_bytes);
    printf("%-32s %10s %22s %8s %12s\n", "cell", "tok/s", "[least, most]", "GB/s", "of memory");
    for (int i = 0; i < n; i++) {
        char name[64];
        name_cell(&cells[i], name, sizeof name);
        printf("%-32s %10.1f   [%8.1f, %8.1f] %8.2f %10.0f %%\n", name, cells[i].tokens_per_s, cells[i].low,
               cells[i].high, cells[i].floor_bytes_per_s / 1e9, 100 * cells[i].floor_bytes_per_s / bandwidth);
    }
}

static enum status print_json(const struct engine_info *info, const struct cell *cells, int n, double bandwidth,
                              struct error *e) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        const struct cell *c = &cells[i];
        json_array_append_new(list,
                              json_pack("{s:s, s:i, s:i, s:i, s:f, s:f, s:f, s:f}", "kind",
                                        c->kind == CELL_PROMPT ? "prompt" : "decode", "prompt", c->n_prompt, "decode",
                                        c->n_decode, "streams", c->n_streams, "tokens_per_s", c->tokens_per_s, "least",
                                        c->low, "most", c->high, "share_of_memory", c->floor_bytes_per_s / bandwidth));
    }
    json_t *all = json_pack("{s:s, s:f, s:I, s:o}", "device", info->device_name, "memory_bytes_per_s", bandwidth,
                            "round_bytes", (json_int_t)info->round_bytes, "cells", list);
    struct buffer b;
    buffer_init(&b, 0);
    enum status s = all != NULL && json_write(&b, all, JSON_STYLE_COMPACT) ? STATUS_OK : error_memory(e);
    if (s == STATUS_OK) puts(b.data);
    buffer_free(&b);
    json_decref(all);
    return s;
}

// Of what the weights will be read from. The device is opened for this alone: the engine's has its own thread.
static enum status measure_memory(const struct options *o, const char *dir, double *bandwidth, struct error *e) {
    struct device *device = NULL;
    enum status s = options_open_device(o, dir, &device, e);
    if (s != STATUS_OK) return s;
    bool is_own = device->memory != NULL;
    if (is_own) s = bandwidth_measure_device(device, bandwidth, e);
    device_free(device);
    return is_own ? s : bandwidth_measure((int)o->threads, bandwidth, e);
}

static enum status run_bench(const struct options *o, const char *dir, struct error *e) {
    struct cell cells[CELLS_MAX];
    struct device *device = NULL;
    struct engine *engine = NULL;
    int n = 0, longest = 1, streams = 1;
    double bandwidth = 0;
    enum status s = read_cells(o->cells != NULL ? o->cells : DEFAULT_CELLS, cells, &n, e);
    for (int i = 0; i < n; i++) {
        int need = cells[i].n_prompt + cells[i].n_decode + 1;
        if (need > longest) longest = need;
        if (cells[i].n_streams > streams) streams = cells[i].n_streams;
    }
    if (s == STATUS_OK) s = measure_memory(o, dir, &bandwidth, e);
    if (s == STATUS_OK) {
        struct engine_options options = options_for_engine(o);
        options.parallel = streams;
        if (options.context == 0) options.context = longest;
        s = options_open_engine(o, dir, &options, &device, &engine, NULL, e);
    }
    struct cell warm = {.kind = CELL_DECODE, .n_prompt = 64, .n_decode = 4, .n_streams = 1};
    if (s == STATUS_OK) s = measure_cell(engine, &warm, 1, e); // brings the weights into memory
    for (int i = 0; i < n && s == STATUS_OK; i++) s = measure_cell(engine, &cells[i], (int)o->repeats, e);
    if (s == STATUS_OK && o->json) s = print_json(engine_get_info(engine), cells, n, bandwidth, e);
    if (s == STATUS_OK && !o->json) print_table(engine_get_info(engine), cells, n, bandwidth);
    engine_free(engine);
    device_free(device);
    return s;
}

int cmd_bench(int argc, char **argv) {
    struct options o;
    struct error e;
    int exit_code;
    const char *dir = NULL;
    if (!options_parse(VERB_BENCH, argc, argv, &o, &exit_code)) return exit_code;
    bool acceptance = o.n_args > 0 && strcmp(o.args[0], "acceptance") == 0;
    if (o.n_args > 1 + acceptance) {
        fprintf(stderr, "tokenfold: bench takes one MODEL at most\n");
        return EXIT_USAGE;
    }
    enum status s = options_find_model(o.n_args > acceptance ? o.args[acceptance] : NULL, &dir, &e);
    if (s == STATUS_OK) s = acceptance ? bench_acceptance(&o, dir, &e) : run_bench(&o, dir, &e);
    if (s == STATUS_OK) return 0;
    fprintf(stderr, "tokenfold: %s\n", e.text);
    return s == STATUS_INVALID ? EXIT_USAGE : EXIT_FAILED;
}
