// What is copied for the prompt cache: an entry into a lane that resumes from it, and entries to host memory, a part at
// a time between passes and rounds, so that no reply waits for a whole one. Which entries there are and where they lie
// is the index's knowledge (memory/prefix.h).
#include "base/log.h"
#include "engine/internal.h"

// Of one entry, between two steps of the engine while there is other work.
#define WRITE_BYTES ((int64_t)32 << 20)

// ---- resuming ----

static void copy_page(struct engine *e, const struct claim *c, int32_t i) {
    const struct prefix_source *s = &c->source;
    char *to = engine_page(e, c->pages[i]);
    size_t n = (size_t)e->page_bytes;
    if (s->tier == PREFIX_HOST)
        e->device->copy_in(e->device, to, e->host + prefix_host_page_offset(e->prefix, s->pages[i]), n);
    else
        e->device->copy(e->device, to, engine_page(e, s->pages[i]), n);
}

static void copy_state(struct engine *e, const struct prefix_source *s, int32_t run) {
    char *to = engine_run(e, run);
    size_t n = (size_t)e->kept_bytes;
    if (s->tier == PREFIX_HOST)
        e->device->copy_in(e->device, to, e->host + prefix_host_run_offset(e->prefix, s->run), n);
    else
        e->device->copy(e->device, to, engine_run(e, s->run), n);
}

bool cache_restore(struct engine *e, struct request *r) {
    const struct claim *c = &r->claim;
    const struct prefix_source *s = &c->source;
    if (c->resume == 0) return true;
    for (int32_t i = s->first_page; i < s->n_page; i++) copy_page(e, c, i);
    if (s->run != POOL_NONE) copy_state(e, s, c->run);
    if (s->also_to != POOL_NONE) copy_state(e, s, s->also_to);
    struct error error;
    return e->device->sync(e->device, &error) == STATUS_OK && e->options.fault != FAULT_RESTORE_FAILS;
}

void cache_log_start(const struct engine *e, const struct request *r) {
    int32_t at, kept;
    if (!e->options.log_resumes) return;
    if (r->claim.resume > 0)
        log_line(LOG_INFO, "request %lld resumes at token %d of %d", (long long)r->number, r->claim.resume,
                 r->n_prompt);
    else if (prefix_find_difference(e->prefix, r->text, &at, &kept))
        log_line(LOG_INFO, "request %lld starts at token 0 of %d: the closest kept prompt has %d tokens in common",
                 (long long)r->number, r->n_prompt, at);
}

// ---- writing behind ----

bool cache_has_work(struct engine *e) {
    struct cache_write *w = &e->write;
    if (w->job.entry == NULL && prefix_begin_write(e->prefix, &w->job)) {
        w->run_bytes_done = 0;
        w->n_page_done = w->job.first_page;
    }
    return w->job.entry != NULL;
}

// The state goes first: with windows, the run that it leaves is what the next prompt needs. It can be larger than a
// part, so it comes in pieces too. Returns what is left of the budget.
static int64_t write_state(struct engine *e, struct cache_write *w, int64_t budget) {
    int64_t at = w->run_bytes_done, left = e->kept_bytes - at, n = left < budget ? left : budget;
    if (n == 0) return budget;
    e->device->copy_out(e->device, e->host + prefix_host_run_offset(e->prefix, w->job.to_run) + at,
                        engine_run(e, w->job.from_run) + at, (size_t)n);
    w->run_bytes_done += n;
    return budget - n;
}

void cache_write_some(struct engine *e, bool idle) {
    struct cache_write *w = &e->write;
    if (!cache_has_work(e)) return;
    int64_t budget = write_state(e, w, idle ? INT64_MAX : WRITE_BYTES);
    while (w->n_page_done < w->job.n_page && budget > 0) {
        int32_t i = w->n_page_done++;
        e->device->copy_out(e->device, e->host + prefix_host_page_offset(e->prefix, w->job.to[i]),
                            engine_page(e, w->job.from[i]), (size_t)e->page_bytes);
        budget -= e->page_bytes;
    }
    if (w->run_bytes_done < e->kept_bytes || w->n_page_done < w->job.n_page) return;
    prefix_end_write(e->prefix, &w->job, true);
}

void cache_stop(struct engine *e) {
    if (e->write.job.entry != NULL) prefix_end_write(e->prefix, &e->write.job, false);
}
