// What is copied for the prompt cache: an entry into a lane that resumes from it, and entries to host memory. The
// device copies beside passes and rounds, so no reply waits for it. It is given a bounded part at a time: either way
// has its turn, and new requests are looked at between two. Which entries there are and where they lie is what the
// index knows (memory/prefix.h).
#include "base/log.h"
#include "engine/internal.h"

#define WRITE_BYTES ((int64_t)32 << 20)
#define BRING_BYTES ((int64_t)64 << 20)

// What is to be copied between a run and pages of the pool and of host memory.
struct cache_job {
    int32_t run, host_run;
    int32_t first_page, n_page;
    const int32_t *pages, *host_pages;
};

struct part {
    struct transfer_range ranges[DEVICE_TRANSFER_RANGES];
    int n;
    int64_t room;
};

static void add(struct part *p, char *device, char *host, int64_t bytes) {
    p->ranges[p->n++] = (struct transfer_range){device, host, (size_t)bytes};
    p->room -= bytes;
}

// The state goes first: with windows, the run that it leaves is what the next prompt needs. It can be larger than a
// part, so it comes in pieces too.
static void add_state(struct engine *e, const struct cache_job *j, struct cache_progress *asked, struct part *p) {
    int64_t at = asked->run_bytes, left = e->kept_bytes - at, n = left < p->room ? left : p->room;
    if (n == 0) return;
    add(p, engine_run(e, j->run) + at, e->host + prefix_host_run_offset(e->prefix, j->host_run) + at, n);
    asked->run_bytes += n;
}

static void start_part(struct engine *e, enum cache_way way, const struct cache_job *j, struct cache_progress *asked) {
    struct part p = {.n = 0, .room = way == CACHE_WRITES ? WRITE_BYTES : BRING_BYTES};
    add_state(e, j, asked, &p);
    if (asked->n_page < j->first_page) asked->n_page = j->first_page;
    for (; asked->n_page < j->n_page && p.room > 0 && p.n < DEVICE_TRANSFER_RANGES; asked->n_page++) {
        char *page = engine_page(e, j->pages[asked->n_page]);
        add(&p, page, e->host + prefix_host_page_offset(e->prefix, j->host_pages[asked->n_page]), e->page_bytes);
    }
    e->device->transfer(e->device, way == CACHE_WRITES, p.ranges, p.n);
    e->cache.now = e->cache.last = way;
}

static bool is_whole(const struct engine *e, const struct cache_job *j, const struct cache_progress *asked) {
    return asked->run_bytes == e->kept_bytes && asked->n_page >= j->n_page;
}

static struct cache_job job_of_write(const struct prefix_write *w) {
    return (struct cache_job){w->from_run, w->to_run, w->first_page, w->n_page, w->from, w->to};
}

static struct cache_job job_of_claim(const struct claim *c) {
    const struct prefix_source *s = &c->source;
    return (struct cache_job){c->run, s->run, s->first_page, s->n_page, c->pages, s->pages};
}

static void start_write(struct engine *e) {
    struct cache_job job = job_of_write(&e->cache.write);
    start_part(e, CACHE_WRITES, &job, &e->cache.written);
}

// Whether nothing is being copied; wait: not before that is so.
static bool settle(struct engine *e, bool wait) {
    struct cache *k = &e->cache;
    if (k->now == CACHE_RESTS) return true;
    if (!e->device->transfer_done(e->device, wait)) return false;
    struct cache_job job = job_of_write(&k->write);
    if (k->now == CACHE_WRITES && is_whole(e, &job, &k->written)) prefix_end_write(e->prefix, &k->write, true);
    k->now = CACHE_RESTS;
    return true;
}

void cache_wait(struct engine *e) { settle(e, true); }

// ---- resuming ----

bool cache_is_far(const struct request *r) { return r->claim.resume > 0 && r->claim.source.tier == PREFIX_HOST; }

static bool end_copies(struct engine *e) {
    struct error error;
    return e->device->sync(e->device, &error) == STATUS_OK && e->options.fault != FAULT_RESTORE_FAILS;
}

bool cache_copy(struct engine *e, const struct request *r) {
    const struct claim *c = &r->claim;
    const struct prefix_source *s = &c->source;
    if (c->resume == 0) return true;
    for (int32_t i = s->first_page; i < s->n_page; i++)
        e->device->copy(e->device, engine_page(e, c->pages[i]), engine_page(e, s->pages[i]), (size_t)e->page_bytes);
    if (s->run != POOL_NONE)
        e->device->copy(e->device, engine_run(e, c->run), engine_run(e, s->run), (size_t)e->kept_bytes);
    return end_copies(e);
}

void cache_bring(struct engine *e, struct request *r) {
    struct request **line = &e->cache.line;
    while (*line != NULL) line = &(*line)->next;
    r->next = NULL;
    *line = r;
}

// Whether all has come. What is to be written has every second turn: it holds pages that others wait for.
static bool bring(struct engine *e, const struct cache_job *j) {
    struct cache *k = &e->cache;
    while (settle(e, false)) {
        if (is_whole(e, j, &k->brought)) return true;
        if (k->last == CACHE_BRINGS && cache_has_work(e))
            start_write(e);
        else
            start_part(e, CACHE_BRINGS, j, &k->brought);
    }
    return false;
}

struct request *cache_brought(struct engine *e, bool *ok) {
    struct request *r = e->cache.line;
    if (r == NULL) return NULL;
    const struct claim *c = &r->claim;
    struct cache_job job = job_of_claim(c);
    if (!bring(e, &job)) return NULL;
    if (c->source.also_to != POOL_NONE)
        e->device->copy(e->device, engine_run(e, c->source.also_to), engine_run(e, c->run), (size_t)e->kept_bytes);
    *ok = end_copies(e);
    cache_leave_line(e, r);
    return r;
}

void cache_leave_line(struct engine *e, struct request *r) {
    struct cache *k = &e->cache;
    struct request **line = &k->line;
    if (*line == r) {
        if (k->now == CACHE_BRINGS) settle(e, true);
        k->brought = (struct cache_progress){0};
    }
    while (*line != r) line = &(*line)->next;
    *line = r->next;
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
    struct cache *k = &e->cache;
    if (k->write.entry == NULL && prefix_begin_write(e->prefix, &k->write)) k->written = (struct cache_progress){0};
    return k->write.entry != NULL;
}

void cache_write_some(struct engine *e) {
    if (!settle(e, false) || e->cache.line != NULL || !cache_has_work(e)) return;
    start_write(e);
    settle(e, false);
}

void cache_stop(struct engine *e) {
    settle(e, true);
    if (e->cache.write.entry != NULL) prefix_end_write(e->prefix, &e->cache.write, false);
}
