// plan MODEL: what a model and its streams would take of a device's memory, from headers alone, on any machine.
#include "base/buffer.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/plan_text.h"
#include "cli/progress.h"
#include "cuda/paper.h"
#include "model/layout.h"
#include "model/model.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- the device ----

// A GPU that is not here can be planned for, when something says how much there is.
static enum status choose_device(const struct options *o, const char *dir, struct device *paper, struct device **out,
                                 struct error *e) {
    struct error why;
    enum status s = options_open_device(o, dir, out, &why);
    if (s == STATUS_OK) return s;
    if (strcmp(o->backend, "cuda") != 0 || !options_suit_gpu(o)) return error_set(e, s, "%s", why.text);
    if (o->check) return error_set(e, s, "--check needs the device: %s", why.text);
    if (o->memory_bytes == 0 && o->kv_memory_bytes == 0)
        return error_set(e, s, "there is no GPU here to ask for its memory: give --memory SIZE or --kv-memory SIZE");
    cuda_paper_device(paper);
    *out = paper;
    return STATUS_OK;
}

// ---- what was really taken ----

// The check counts what goes through the device's own calls, so it replaces them; one device at a time.
static struct {
    void *(*alloc)(struct device *, size_t);
    enum status (*reserve)(struct device *, const struct device_limits *, struct error *);
    int64_t bytes;
} meter;

static void *count_alloc(struct device *d, size_t bytes) {
    void *memory = meter.alloc(d, bytes);
    if (memory != NULL) meter.bytes += (int64_t)bytes;
    return memory;
}

static enum status count_reserve(struct device *d, const struct device_limits *l, struct error *e) {
    enum status s = meter.reserve(d, l, e);
    if (s == STATUS_OK) meter.bytes += (int64_t)d->reserve_bytes(d, l);
    return s;
}

static enum status measure(const struct options *o, struct engine_options *options, struct plan_report *r,
                           struct error *e) {
    struct engine *engine;
    struct device *d = options->device;
    meter.alloc = d->alloc;
    meter.reserve = d->reserve;
    meter.bytes = 0;
    d->alloc = count_alloc;
    d->reserve = count_reserve;
    options->progress = o->no_progress ? NULL : progress_show;
    enum status s = engine_create(options, &engine, e);
    d->alloc = meter.alloc;
    d->reserve = meter.reserve;
    if (s != STATUS_OK) return s;
    r->taken_bytes = meter.bytes;
    if (d->memory == NULL) r->taken_bytes += r->info.plan.parts[PLAN_WEIGHTS]; // the files, mapped
    r->checked = true;
    engine_free(engine);
    return STATUS_OK;
}

// ---- the verb ----

static enum status fill_report(const char *dir, struct plan_report *r, struct error *e) {
    struct model *m;
    enum status s = model_open(dir, &m, e);
    if (s != STATUS_OK) return s;
    struct model_config with_mtp = *model_get_config(m);
    const struct plan *plan = &r->info.plan;
    r->model_dir = dir;
    r->position_bytes = (double)plan->page_bytes / plan->page_rows;
    with_mtp.n_attention_layers++; // a multi-token head is one more attention layer in the page
    r->position_bytes_mtp = (double)page_lay_out(&with_mtp, plan->page_rows, r->info.kv).page_bytes / plan->page_rows;
    model_free(m);
    return STATUS_OK;
}

static enum status plan(const struct options *o, const char *dir, struct plan_report *r, struct error *e) {
    struct device paper, *device = NULL;
    struct engine_options options = options_for_engine(o);
    struct profile profile;
    enum status s = choose_device(o, dir, &paper, &device, e);
    if (s == STATUS_OK) s = options_read_profile(o, dir, device, &options, &profile, e);
    options.model_dir = dir;
    options.device = device;
    if (s == STATUS_OK) s = engine_plan(&options, &r->info, e);
    if (s == STATUS_OK) s = fill_report(dir, r, e);
    if (s == STATUS_OK && o->check) s = measure(o, &options, r, e);
    if (s == STATUS_OK) {
        r->parallel_asked = options.parallel;
        r->on_paper = device == &paper;
        snprintf(r->device, sizeof r->device, "%s", device->name);
        snprintf(r->overrides, sizeof r->overrides, "%s", profile.overrides);
    }
    if (device != &paper) device_free(device);
    return s;
}

int cmd_plan(int argc, char **argv) {
    struct options o;
    int exit_code;
    if (!options_parse(VERB_PLAN, argc, argv, &o, &exit_code)) return exit_code;
    if (o.n_args > 1) {
        fprintf(stderr, "tokenfold: plan takes one MODEL\n");
        return EXIT_USAGE;
    }
    struct plan_report r = {0};
    struct error e;
    const char *dir = o.n_args > 0 ? o.args[0] : NULL;
    enum status s = options_find_model(dir, &dir, &e);
    if (s == STATUS_OK) s = plan(&o, dir, &r, &e);
    struct buffer b;
    buffer_init(&b, 0);
    if (s == STATUS_OK) (o.json ? plan_write_json : plan_write_table)(&r, &b);
    if (s == STATUS_OK && b.failed) s = error_memory(&e);
    if (s == STATUS_OK) printf("%s", b.data);
    buffer_free(&b);
    if (s == STATUS_OK && r.checked && !plan_check_passes(&r))
        s = error_set(&e, STATUS_LIMIT, "the plan and what was really taken are more than 1 %% apart");
    if (s != STATUS_OK) fprintf(stderr, "tokenfold: %s\n", e.text);
    return s == STATUS_OK ? 0 : EXIT_FAILED;
}
