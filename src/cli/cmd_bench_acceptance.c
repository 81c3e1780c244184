// bench acceptance: how many drafts of the model's own head, and of a block drafter, are kept with the true text of
// held-out answers forced, as tools/train/acceptance.py counts them.
#include "cli/commands.h"
#include "cli/options.h"
#include "format/json.h"
#include <stdio.h>
#include <stdlib.h>

#define DOCUMENTS_BYTES ((size_t)64 << 20)
#define DEFAULT_CHAIN   3 // acceptance.json's
#define STREAMS         4

struct document {
    int32_t *ids;
    int32_t n, first; // first: of the answer, which goes on to the end
};

struct documents {
    struct document *list;
    int32_t n, longest;
};

// Counts of drafters that propose n tokens after each anchor: every token of an answer but the last.
struct tally {
    int32_t n;
    int64_t reached[DRAFT_MAX_ROWS], possible[DRAFT_MAX_ROWS];
    int64_t n_anchor, n_kept, n_round; // rounds as they follow each other: what was kept, and one token
};

// ---- documents ----

static enum status read_document(const struct json_view *v, struct document *d, struct error *e) {
    struct json_view ids;
    int64_t first, id;
    enum status s = json_get_view(v, "ids", JSON_REQUIRED, JSON_ARRAY, &ids, e);
    if (s == STATUS_OK) s = json_get_int(v, "first", JSON_REQUIRED, 1, INT32_MAX, &first, e);
    if (s != STATUS_OK) return s;
    size_t n = json_array_size(ids.value);
    if (n > INT32_MAX || (int64_t)n < first + 2)
        return error_set(e, STATUS_INVALID, "a document has %zu ids, and its answer starts at %lld", n,
                         (long long)first);
    d->ids = calloc(n, sizeof *d->ids);
    if (d->ids == NULL) return error_memory(e);
    d->n = (int32_t)n;
    d->first = (int32_t)first;
    for (size_t i = 0; i < n; i++) {
        id = json_integer_value(json_array_get(ids.value, i)); // the engine refuses what is no id
        d->ids[i] = id < 0 || id > INT32_MAX ? -1 : (int32_t)id;
    }
    return STATUS_OK;
}

static enum status read_documents(const char *path, struct documents *out, struct error *e) {
    json_t *root = NULL;
    if (path == NULL)
        return error_set(e, STATUS_INVALID,
                         "bench acceptance needs --documents FILE, which "
                         "tools/train/acceptance_ids.py writes");
    enum status s = json_parse_file(path, DOCUMENTS_BYTES, JSON_PARSE_DEFAULT, &root, e);
    if (s == STATUS_OK && !json_is_array(root)) s = error_set(e, STATUS_INVALID, "%s is not a list of documents", path);
    size_t n = s == STATUS_OK ? json_array_size(root) : 0;
    out->list = calloc(n + 1, sizeof *out->list);
    if (s == STATUS_OK && out->list == NULL) s = error_memory(e);
    for (size_t i = 0; i < n && s == STATUS_OK; i++) {
        struct json_view v = json_root(json_array_get(root, i));
        s = read_document(&v, &out->list[i], e);
        out->n++;
        if (out->list[i].n > out->longest) out->longest = out->list[i].n;
    }
    json_decref(root);
    return s == STATUS_OK && out->n == 0 ? error_set(e, STATUS_INVALID, "%s has no documents", path) : s;
}

static void free_documents(struct documents *d) {
    for (int32_t i = 0; i < d->n; i++) free(d->list[i].ids);
    free(d->list);
}

// ---- counting ----

static void add(struct tally *t, const uint8_t *kept, int32_t n) {
    t->n_anchor += n;
    for (int32_t at = 0; at < n; at++)
        for (int32_t k = 0; k < t->n && k < n - at; k++) {
            t->possible[k]++;
            t->reached[k] += kept[at] > k;
        }
    for (int32_t at = 0; at < n; at += kept[at] + 1) {
        t->n_kept += kept[at];
        t->n_round++;
    }
}

// One token more than the answer has is asked for, so that the window behind its last but one has room.
static enum status start(struct engine *engine, const struct document *d, struct request **out, struct error *e) {
    struct request_params p = {.prompt = d->ids,
                               .n_prompt = d->first,
                               .max_tokens = d->n - d->first + 1,
                               .ignore_eos = true,
                               .draft = true,
                               .draw = {.top_p = 1, .repetition = 1, .n_top = -1},
                               .expected = d->ids + d->first,
                               .n_expected = d->n - d->first};
    return engine_submit(engine, &p, out, e);
}

static enum status finish(struct request *r, const struct document *d, struct tally *t, struct error *e) {
    struct request_view v = {0};
    while (v.state != REQUEST_DONE) request_wait(r, v.n_tokens, v.state, 1000000000, &v);
    if (v.finish == FINISH_ERROR) return error_set(e, STATUS_DEVICE, "%s", v.error.text);
    add(t, request_kept(r), d->n - d->first - 1);
    return STATUS_OK;
}

static enum status measure(struct engine *engine, const struct documents *d, struct tally *t, struct error *e) {
    enum status s = STATUS_OK;
    for (int32_t i = 0; i < d->n && s == STATUS_OK; i += STREAMS) {
        struct request *r[STREAMS] = {0};
        for (int32_t k = 0; k < STREAMS && i + k < d->n && s == STATUS_OK; k++)
            s = start(engine, &d->list[i + k], &r[k], e);
        for (int32_t k = 0; k < STREAMS; k++) {
            if (r[k] != NULL && s == STATUS_OK) s = finish(r[k], &d->list[i + k], t, e);
            request_free(r[k]);
        }
    }
    return s;
}

static void print(const char *name, const struct tally *t) {
    printf("\"%s\":{\"depth_1\":%.4f,\"mean_kept_of_%d\":%.4f,\"kept_to_depth\":[", name,
           (double)t->reached[0] / (double)t->possible[0], t->n, (double)t->n_kept / (double)t->n_round);
    for (int32_t k = 0; k < t->n && t->possible[k] > 0; k++) // short answers have no deeper ones
        printf("%s%.4f", k > 0 ? "," : "", (double)t->reached[k] / (double)t->possible[k]);
    printf("],\"anchors\":%lld,\"rounds\":%lld},", (long long)t->n_anchor, (long long)t->n_round);
}

// Those of one drafter, over the weights that are loaded.
static enum status measure_drafter(struct engine *engine, struct engine_options *options, const char *name,
                                   struct draft_options drafts, const struct documents *d, struct error *e) {
    struct tally t = {.n = drafts.max_window - 1};
    options->drafts = drafts;
    options->progress = NULL;
    enum status s = engine_restart(engine, options, e);
    if (s == STATUS_OK && engine_get_info(engine)->drafter[0] == 0) return STATUS_OK; // there is none
    if (s == STATUS_OK) s = measure(engine, d, &t, e);
    if (s == STATUS_OK) print(name, &t);
    return s;
}

enum status bench_acceptance(const struct options *o, const char *dir, struct error *e) {
    struct documents d = {0};
    struct device *device = NULL;
    struct engine *engine = NULL;
    int32_t chain = o->mtp_drafts > 0 ? (int32_t)o->mtp_drafts : DEFAULT_CHAIN;
    struct draft_options head = {
        .mtp = true, .taught = true, .forced = true, .max_chain = chain, .max_window = chain + 1};
    struct draft_options block = {.block = true, .taught = true, .forced = true};
    struct engine_options options = options_for_engine(o);
    enum status s = read_documents(o->documents, &d, e);
    if (s == STATUS_OK) {
        options.parallel = STREAMS;
        options.context = d.longest + 2;
        s = options_open_engine(o, dir, &options, &device, &engine, NULL, e);
    }
    if (s == STATUS_OK) printf("{");
    if (s == STATUS_OK) s = measure_drafter(engine, &options, "mtp", head, &d, e);
    block.max_window = s == STATUS_OK ? engine_get_info(engine)->drafter_block : 0;
    if (s == STATUS_OK && block.max_window > 1) s = measure_drafter(engine, &options, "dflash2", block, &d, e);
    if (s == STATUS_OK) printf("\"items\":%d}\n", d.n);
    engine_free(engine);
    device_free(device);
    free_documents(&d);
    return s;
}
