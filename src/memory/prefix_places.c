// Where entries of the prompt cache lie: places in the pool and in the host tier, pins, eviction, and what is written
// behind the replies.
#include "memory/prefix.h"
#include "memory/prefix_internal.h"
#include <string.h>

static struct pool *pool_of(const struct prefix *p, enum prefix_tier tier) {
    return tier == PREFIX_POOL ? p->settings.pool : p->host;
}

// ---- places ----

static void settle(struct prefix *p, struct prefix_entry *e, enum prefix_tier tier) {
    e->places[tier].there = true;
    *(tier == PREFIX_POOL ? &p->counts.n_in_pool : &p->counts.n_in_host) += 1;
}

void prefix_fill_pool(struct prefix *p, struct prefix_entry *e, const int32_t *pages, int32_t run) {
    struct prefix_place *place = &e->places[PREFIX_POOL];
    for (int32_t i = 0; i < e->n_page; i++) pool_hold_page(p->settings.pool, HOLDER_CACHE, place->pages[i] = pages[i]);
    place->run = run;
    pool_pass_run(p->settings.pool, run, HOLDER_CACHE);
    p->n_pinned_runs--;
    settle(p, e, PREFIX_POOL);
}

void prefix_leave(struct prefix *p, struct prefix_entry *e, enum prefix_tier tier) {
    struct prefix_place *place = &e->places[tier];
    struct pool *pool = pool_of(p, tier);
    for (int32_t i = 0; i < e->n_page; i++) pool_drop_page(pool, HOLDER_CACHE, place->pages[i]);
    if (place->run != POOL_NONE) pool_drop_run(pool, place->run);
    place->run = POOL_NONE;
    place->there = false;
    *(tier == PREFIX_POOL ? &p->counts.n_in_pool : &p->counts.n_in_host) -= 1;
    p->version++;
}

static void evict(struct prefix *p, struct prefix_entry *e, enum prefix_tier tier) {
    prefix_leave(p, e, tier);
    if (e->places[PREFIX_POOL].there || e->places[PREFIX_HOST].there) return;
    p->counts.n_evicted++;
    prefix_remove(p, e);
}

// ---- pins ----

void prefix_pin(struct prefix *p, struct prefix_entry *e) {
    struct prefix_place *place = &e->places[PREFIX_POOL];
    if (e->n_pin++ > 0 || !place->there) return;
    for (int32_t i = 0; i < e->n_page; i++) pool_hold_page(p->settings.pool, HOLDER_LANE, place->pages[i]);
    p->n_pinned_refs += e->n_page;
    pool_pass_run(p->settings.pool, place->run, HOLDER_LANE);
    p->n_pinned_runs++;
}

void prefix_unpin(struct prefix *p, struct prefix_entry *e) {
    struct prefix_place *place = &e->places[PREFIX_POOL];
    must(e->n_pin > 0);
    if (--e->n_pin > 0) return;
    p->version++;
    // A place that came while the entry was pinned is not held by the pin.
    if (place->there && !e->coming) {
        for (int32_t i = 0; i < e->n_page; i++) pool_drop_page(p->settings.pool, HOLDER_LANE, place->pages[i]);
        p->n_pinned_refs -= e->n_page;
        if (place->run != POOL_NONE) {
            pool_pass_run(p->settings.pool, place->run, HOLDER_CACHE);
            p->n_pinned_runs--;
        }
    }
    e->coming = false;
    if (e->leaving || e->dropped) {
        bool dropped = e->dropped;
        e->leaving = false;
        if (place->there) prefix_leave(p, e, PREFIX_POOL);
        if (dropped && e->places[PREFIX_HOST].there) prefix_leave(p, e, PREFIX_HOST);
        if (!e->places[PREFIX_HOST].there) prefix_remove(p, e);
    }
}

void prefix_drop(struct prefix *p, struct prefix_entry *e) {
    e->dropped = true;
    if (e->n_pin > 0) return;
    for (int tier = 0; tier < 2; tier++)
        if (e->places[tier].there) prefix_leave(p, e, (enum prefix_tier)tier);
    prefix_remove(p, e);
}

int32_t prefix_give_run(struct prefix *p, struct prefix_entry *e) {
    int32_t run = e->places[PREFIX_POOL].run;
    must(e->n_pin == 1 && run != POOL_NONE);
    e->places[PREFIX_POOL].run = POOL_NONE;
    e->leaving = true;
    p->n_pinned_runs--;
    return run;
}

void prefix_drop_all(struct prefix *p) {
    for (struct prefix_entry *e = p->entries, *next; e != NULL; e = next) {
        next = e->next;
        if (e->stage == PREFIX_KEPT) prefix_drop(p, e);
    }
}

// ---- what goes first ----

static bool is_in(const struct prefix_entry *e, enum prefix_tier tier) { return e->places[tier].there && !e->gone; }

// Of each entry in a tier, how many others there extend it with none between; `also` counts as if it were there.
static void count_children(struct prefix *p, enum prefix_tier tier, const struct prefix_entry *also) {
    for (struct prefix_entry *e = p->entries; e != NULL; e = e->next) e->n_children = 0;
    for (struct prefix_entry *e = p->entries; e != NULL; e = e->next) {
        struct prefix_entry *up = is_in(e, tier) || e == also ? e->parent : NULL;
        while (up != NULL && !is_in(up, tier) && up != also) up = up->parent;
        if (up != NULL) up->n_children++;
    }
}

// How useful each entry of a tier is. Every conversation leaves a shared cut behind, and few of them are ever shared:
// where they hold more than half of a tier they are as good as the ends of conversations, so that age decides.
static void rate(struct prefix *p, enum prefix_tier tier, const struct prefix_entry *also) {
    int32_t n = 0, n_shared = 0;
    count_children(p, tier, also);
    for (struct prefix_entry *e = p->entries; e != NULL; e = e->next) {
        bool shared = e->kind == PREFIX_KEEP_SHARED || e->n_children > 1, counts = is_in(e, tier) || e == also;
        e->use = shared ? PREFIX_USE_SHARED : e->n_children > 0 ? PREFIX_USE_EXTENDED : PREFIX_USE_LEAF;
        n += counts;
        n_shared += counts && shared;
    }
    for (struct prefix_entry *e = p->entries; e != NULL && 2 * n_shared > n; e = e->next)
        if (e->use == PREFIX_USE_SHARED) e->use = PREFIX_USE_LEAF;
}

static struct prefix_entry *find_victim(struct prefix *p, enum prefix_tier tier, const struct prefix_entry *also) {
    struct prefix_entry *best = NULL;
    rate(p, tier, also);
    for (struct prefix_entry *e = p->entries; e != NULL; e = e->next) {
        if (!is_in(e, tier) || e->n_pin > 0) continue;
        if (best == NULL || e->use < best->use || (e->use == best->use && e->used < best->used)) best = e;
    }
    return best;
}

bool prefix_reclaim(struct prefix *p) {
    struct prefix_entry *e = find_victim(p, PREFIX_POOL, NULL);
    if (e == NULL) return false;
    evict(p, e, PREFIX_POOL);
    return true;
}

// A position of the grid will be extended by the prompt that it is part of, so it takes nothing that is more useful.
static enum prefix_use use_of_kind(enum prefix_kind kind) {
    return kind == PREFIX_KEEP_GRID   ? PREFIX_USE_EXTENDED
           : kind == PREFIX_KEEP_TURN ? PREFIX_USE_LEAF
                                      : PREFIX_USE_SHARED;
}

int32_t prefix_take_run(struct prefix *p, enum prefix_kind kind) {
    int32_t run;
    while ((run = pool_find_free_run(p->settings.pool)) == POOL_NONE) {
        struct prefix_entry *e = find_victim(p, PREFIX_POOL, NULL);
        if (e == NULL || e->use > use_of_kind(kind)) return POOL_NONE;
        evict(p, e, PREFIX_POOL);
    }
    pool_take_run(p->settings.pool, HOLDER_LANE, run);
    p->n_pinned_runs++;
    return run;
}

// ---- the host tier ----

static bool fits_host(const struct prefix *p, const struct prefix_entry *e) {
    struct pool_counts c;
    int32_t first, n;
    pool_get_counts(p->host, &c);
    if (c.n_run == 0) return false;
    pool_pages_of_run(p->host, 0, &first, &n);
    return e->n_page <= c.n_page - n;
}

// Leading chunks with equal hashes; those of a longer prefix are equal only if those of a shorter one are.
static int32_t count_common_chunks(const struct prefix_entry *a, const struct prefix_entry *b) {
    int32_t low = 0, high = (a->position < b->position ? a->position : b->position) / TEXT_CHUNK;
    while (low < high) {
        int32_t middle = (low + high + 1) / 2;
        if (a->text->hashes[middle - 1] == b->text->hashes[middle - 1])
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

// The entry in the host tier with the most full pages in common with e, and how many those are.
static struct prefix_entry *find_donor(const struct prefix *p, const struct prefix_entry *e, int32_t *n_page) {
    struct prefix_entry *best = NULL;
    *n_page = 0;
    for (struct prefix_entry *x = p->entries; x != NULL; x = x->next) {
        if (!x->places[PREFIX_HOST].there || x->dropped) continue;
        int32_t n = count_common_chunks(x, e) * TEXT_CHUNK / p->settings.page_rows;
        if (n <= *n_page || !text_equals(x->text, e->text, n * p->settings.page_rows)) continue;
        *n_page = n;
        best = x;
    }
    return best;
}

static bool gives_way(const struct prefix_entry *e, const struct prefix_entry *wanted) {
    return e->n_pin == 0 && (e->use < wanted->use || (e->use == wanted->use && e->used < wanted->used));
}

// Evicts from the host tier what is less useful than the entry that needs room. What is evicted may still be in the
// pool: it is not written again before it is used, or where the pool holds more than the tier, two entries would take
// turns for ever.
static bool make_host_room(struct prefix *p, const struct prefix_entry *wanted) {
    struct prefix_entry *e = find_victim(p, PREFIX_HOST, wanted);
    if (e == NULL || !gives_way(e, wanted)) return false;
    e->stay_here = true;
    evict(p, e, PREFIX_HOST);
    return true;
}

// ---- what would have to go: the host tier with entries taken out of it in thought, in the order of eviction ----

// Adds or takes off what the entry's run covers. Returns by how many pages there are more that nobody has.
static int32_t cover(struct prefix *p, int32_t run, int32_t by) {
    int32_t first, n, more = 0;
    pool_pages_of_run(p->host, run, &first, &n);
    for (int32_t i = first; i < first + n; i++) {
        struct prefix_host_page *g = &p->host_pages[i];
        more -= g->refs + g->covers == 0;
        g->covers += by;
        more += g->refs + g->covers == 0;
    }
    return more;
}

// All that is there, and how many pages are free.
static int32_t begin_thought(struct prefix *p) {
    int32_t n_page = pool_count_pages(p->host), n_free = 0;
    for (int32_t i = 0; i < n_page; i++)
        p->host_pages[i] = (struct prefix_host_page){.refs = pool_page_refs(p->host, HOLDER_CACHE, i)};
    for (int32_t i = 0; i < n_page; i++) n_free += p->host_pages[i].refs == 0;
    memset(p->host_runs, 0, PREFIX_HOST_RUNS);
    for (const struct prefix_entry *e = p->entries; e != NULL; e = e->next) {
        if (!e->places[PREFIX_HOST].there) continue;
        p->host_runs[e->places[PREFIX_HOST].run] = true;
        n_free += cover(p, e->places[PREFIX_HOST].run, 1);
    }
    return n_free;
}

// Returns how many pages that frees.
static int32_t take_out(struct prefix *p, struct prefix_entry *e) {
    const struct prefix_place *place = &e->places[PREFIX_HOST];
    int32_t n_free = cover(p, place->run, -1);
    for (int32_t i = 0; i < e->n_page; i++) {
        struct prefix_host_page *g = &p->host_pages[place->pages[i]];
        n_free += --g->refs + g->covers == 0;
    }
    p->host_runs[place->run] = false;
    e->gone = true;
    return n_free;
}

// Whether the run could be had, and covers no more of the free pages than can be spared.
static bool fits_in_run(const struct prefix *p, int32_t run, int32_t spare) {
    int32_t first, n;
    pool_pages_of_run(p->host, run, &first, &n);
    for (int32_t i = first; i < first + n; i++) {
        if (p->host_pages[i].refs > 0) return false;
        spare -= p->host_pages[i].covers == 0;
    }
    return spare >= 0 && !p->host_runs[run];
}

static int32_t find_run_in_thought(const struct prefix *p, int32_t spare) {
    int32_t run = pool_find_free_run(p->host);
    struct pool_counts c;
    pool_get_counts(p->host, &c);
    if (spare < 0) return POOL_NONE;
    if (run != POOL_NONE && fits_in_run(p, run, spare)) return run;
    for (run = 0; run < c.n_run; run++)
        if (fits_in_run(p, run, spare)) return run;
    return POOL_NONE;
}

// The run that the entry gets, when all has gone that has to go for it; POOL_NONE: it cannot be had, and nothing is to
// go in vain.
static int32_t find_host_run(struct prefix *p, const struct prefix_entry *wanted, int32_t n_shared) {
    int32_t spare = begin_thought(p) - (wanted->n_page - n_shared), run;
    while ((run = find_run_in_thought(p, spare)) == POOL_NONE) {
        struct prefix_entry *e = find_victim(p, PREFIX_HOST, wanted);
        if (e == NULL || !gives_way(e, wanted)) break;
        spare += take_out(p, e);
    }
    for (struct prefix_entry *e = p->entries; e != NULL; e = e->next) e->gone = false;
    return run;
}

// The entry keeps only where it is now, or goes if that was for the write alone.
static void keep_from_host(struct prefix *p, struct prefix_entry *e) {
    e->stay_here = true;
    if (!p->settings.share) prefix_drop(p, e);
}

static bool take_host_place(struct prefix *p, struct prefix_entry *e, int32_t *n_shared) {
    struct prefix_place *place = &e->places[PREFIX_HOST];
    struct prefix_entry *donor = find_donor(p, e, n_shared);
    for (int32_t i = 0; i < *n_shared; i++)
        pool_hold_page(p->host, HOLDER_CACHE, place->pages[i] = donor->places[PREFIX_HOST].pages[i]);
    int32_t run = find_host_run(p, e, *n_shared), n = e->n_page - *n_shared;
    bool ok = run != POOL_NONE;
    while (ok && !pool_run_is_free(p->host, run)) ok = make_host_room(p, e);
    if (ok) pool_take_run(p->host, HOLDER_CACHE, place->run = run);
    while (ok && !pool_take_pages(p->host, HOLDER_CACHE, n, place->pages + *n_shared)) ok = make_host_room(p, e);
    if (ok) return true;
    for (int32_t i = 0; i < *n_shared; i++) pool_drop_page(p->host, HOLDER_CACHE, place->pages[i]);
    if (place->run != POOL_NONE) pool_drop_run(p->host, place->run);
    place->run = POOL_NONE;
    return false;
}

static struct prefix_entry *next_to_write(const struct prefix *p) {
    struct prefix_entry *best = NULL;
    for (struct prefix_entry *e = p->entries; e != NULL; e = e->next) {
        bool wanted = e->places[PREFIX_POOL].there && !e->places[PREFIX_HOST].there && !e->dropped && !e->leaving &&
                      !e->stay_here;
        if (wanted && (best == NULL || e->used > best->used)) best = e;
    }
    return best;
}

bool prefix_begin_write(struct prefix *p, struct prefix_write *out) {
    struct prefix_entry *e;
    while (p->host != NULL && (e = next_to_write(p)) != NULL) {
        int32_t n_shared = 0;
        bool fits = fits_host(p, e);
        p->counts.n_refused += !fits;
        if (!fits || !take_host_place(p, e, &n_shared)) {
            keep_from_host(p, e);
            continue;
        }
        prefix_pin(p, e);
        *out = (struct prefix_write){.entry = e,
                                     .position = e->position,
                                     .from_run = e->places[PREFIX_POOL].run,
                                     .to_run = e->places[PREFIX_HOST].run,
                                     .from = e->places[PREFIX_POOL].pages,
                                     .to = e->places[PREFIX_HOST].pages,
                                     .first_page = n_shared,
                                     .n_page = e->n_page};
        return true;
    }
    return false;
}

void prefix_end_write(struct prefix *p, struct prefix_write *w, bool ok) {
    struct prefix_entry *e = w->entry;
    settle(p, e, PREFIX_HOST);
    if (!ok) prefix_leave(p, e, PREFIX_HOST);
    e->stay_here = !ok;
    // Without sharing, the place in the pool was for this write alone.
    if (!p->settings.share && ok) e->leaving = true;
    if (!p->settings.share && !ok) e->dropped = true;
    prefix_unpin(p, e);
    w->entry = NULL;
}
