// Whether a claim can be seated now: the arithmetic of room, what it may share, and who may pass the head of the line.
#include "memory/ledger.h"
#include "memory/ledger_internal.h"
#include "memory/prefix_internal.h"

// One way to seat a claim.
struct attempt {
    struct claim *claim;
    bool passes;
    int32_t lane, run; // run: POOL_NONE until it is found
    int32_t n_page, n_shared;
    struct prefix_entry *entry; // pinned; NULL: the prompt is computed from row 0
    enum prefix_tier tier;
    bool takes_over; // the entry's own run becomes the lane's
};

// ---- room ----

int32_t ledger_count_set_aside(const struct ledger *l) {
    if (!ledger_sets_aside(l)) return 0;
    // Lane 0 holds part of its window now. A page that others hold too will not come back when it ends; the pin of an
    // entry that a claim is about to share counts as one of them.
    int32_t n = l->n_window_page;
    const struct claim *c = l->lanes[0];
    for (int32_t i = 0; c != NULL && i < c->n_page; i++)
        n -= pool_page_refs(l->settings.pool, HOLDER_LANE, c->pages[i]) == 1;
    return n;
}

// Runs lie over more pages or fewer, as their sizes have it: where the one that is free first lies over more than can
// be spared, those of kept prompts may lie over fewer. A claim of the whole pool would wait for ever otherwise.
static int32_t find_run(const struct ledger *l, const struct attempt *a, int64_t spare) {
    const struct pool *pool = l->settings.pool;
    int32_t run = pool_find_free_run(pool);
    if (run != POOL_NONE && pool_count_open_in_run(pool, run) <= spare) return run;
    struct pool_counts c;
    pool_get_counts(pool, &c);
    for (int32_t i = 0; i < c.n_run && (run == POOL_NONE || spare >= 0); i++) {
        if (!pool_run_is_open(pool, i) || (a->passes && i == l->target)) continue;
        if (run == POOL_NONE) run = i;
        if (pool_count_open_in_run(pool, i) <= spare) return i;
    }
    return run;
}

// Where no run is in one piece: whether as many pages as one takes can be spared, wherever they lie.
static enum ledger_wait wait_for_run(const struct ledger *l, int64_t spare) {
    struct pool_counts c;
    int32_t first, n, least = INT32_MAX;
    pool_get_counts(l->settings.pool, &c);
    for (int32_t i = 0; i < c.n_run; i++) {
        pool_pages_of_run(l->settings.pool, i, &first, &n);
        if (n > 0 && n < least) least = n;
    }
    return spare >= least ? LEDGER_WAIT_RUN : LEDGER_WAIT_PAGES;
}

static enum ledger_wait find_room(const struct ledger *l, struct attempt *a) {
    const struct pool *pool = l->settings.pool;
    int64_t spare = pool_count_open(pool) - (a->n_page - a->n_shared);
    if (a->lane > 0 || !ledger_sets_aside(l)) spare -= ledger_count_set_aside(l);
    if (a->lane < l->n_fixed) {
        a->run = a->lane;
    } else if (a->takes_over) {
        a->run = a->entry->places[PREFIX_POOL].run;
    } else {
        a->run = find_run(l, a, spare);
        if (a->run == POOL_NONE) return wait_for_run(l, spare);
        spare -= pool_count_open_in_run(pool, a->run);
    }
    return spare >= 0 ? LEDGER_WAIT_NONE : LEDGER_WAIT_PAGES;
}

// ---- who may pass the head ----

// Whether the head could have all its pages beside the run, if nobody else were seated.
static bool has_room_beside(struct ledger *l, int32_t run) {
    int32_t n_run = 0;
    if (l->n_fixed > 0) l->runs[n_run++] = 0;
    l->runs[n_run++] = run;
    int64_t room = ledger_count_beside(l, l->runs, n_run) - (ledger_sets_aside(l) ? l->n_window_page : 0);
    return room >= ledger_pages_of(l, l->head);
}

// Where it gets none, it waits for lane 0, whose room nothing else takes.
void ledger_protect_head(struct ledger *l) {
    const struct ledger_settings *s = &l->settings;
    l->target = POOL_NONE;
    if (s->windows) return;
    struct pool_counts c;
    pool_get_counts(s->pool, &c);
    int32_t most = INT32_MIN;
    // The uppermost runs: below them there is always one that no lane holds.
    for (int32_t i = l->n_fixed; i < c.n_run && i <= s->parallel; i++) {
        int32_t n = pool_run_is_open(s->pool, i) ? INT32_MAX : pool_count_open_in_run(s->pool, i);
        if (n <= most || !has_room_beside(l, i)) continue;
        most = n;
        l->target = i;
    }
}

static bool holds_page_in(const struct ledger *l, const struct attempt *a, int32_t run) {
    int32_t first, n;
    pool_pages_of_run(l->settings.pool, run, &first, &n);
    for (int32_t i = 0; i < a->n_shared; i++) {
        int32_t page = a->entry->places[PREFIX_POOL].pages[i];
        if (page >= first && page < first + n) return true;
    }
    return false;
}

// True if the head could still be seated when all that it found seated have ended, and all that have passed it, this
// one too, have not.
static bool may_pass(struct ledger *l, const struct attempt *a) {
    const struct ledger_settings *s = &l->settings;
    if (l->n_passers + 1 >= s->parallel) return false;
    if (s->windows) return true;
    if (a->lane < l->n_fixed) return false;
    if (l->target == POOL_NONE) return true; // it waits for lane 0
    if (a->run == l->target || holds_page_in(l, a, l->target)) return false;
    int32_t n_run = 0;
    int64_t taken = a->n_page + (ledger_sets_aside(l) ? l->n_window_page : 0);
    if (l->n_fixed > 0) l->runs[n_run++] = 0;
    l->runs[n_run++] = l->target;
    l->runs[n_run++] = a->run;
    for (int32_t i = l->n_fixed; i < s->parallel; i++) {
        if (l->lanes[i] == NULL || !l->lanes[i]->passer) continue;
        l->runs[n_run++] = l->lanes[i]->run;
        taken += l->lanes[i]->n_page;
    }
    return ledger_count_beside(l, l->runs, n_run) - taken >= ledger_pages_of(l, l->head);
}

// ---- seating ----

static bool reclaim(const struct ledger *l) { return l->settings.prefix != NULL && prefix_reclaim(l->settings.prefix); }

// Entries go by their use, and the run that was found may be one's that goes last: another that is free before is as
// good.
static bool free_run(struct ledger *l, struct attempt *a) {
    while (!pool_run_is_free(l->settings.pool, a->run)) {
        struct attempt now = *a;
        if (!reclaim(l)) return false;
        if (find_room(l, &now) == LEDGER_WAIT_NONE && (!now.passes || may_pass(l, &now))) a->run = now.run;
    }
    return true;
}

static bool take_room(struct ledger *l, struct attempt *a, int32_t *pages) {
    struct pool *pool = l->settings.pool;
    bool takes_run = a->lane >= l->n_fixed && !a->takes_over;
    if (takes_run && !free_run(l, a)) return false;
    if (takes_run) pool_take_run(pool, HOLDER_LANE, a->run);
    while (!pool_take_pages(pool, HOLDER_LANE, a->n_page - a->n_shared, pages + a->n_shared)) {
        if (reclaim(l)) continue;
        if (takes_run) pool_drop_run(pool, a->run);
        return false;
    }
    for (int32_t i = 0; i < a->n_shared; i++)
        pool_hold_page(pool, HOLDER_LANE, pages[i] = a->entry->places[PREFIX_POOL].pages[i]);
    return true;
}

// What is to be copied before the claim's first pass.
static void describe_source(struct ledger *l, struct claim *c, const struct attempt *a) {
    struct prefix *p = l->settings.prefix;
    struct prefix_entry *e = a->entry;
    c->source = (struct prefix_source){.run = POOL_NONE, .also_to = POOL_NONE};
    c->entry = e;
    c->resuming = e != NULL;
    c->resume = e != NULL ? e->position : 0;
    c->n_own_from = a->n_shared;
    c->run_is_kept = a->takes_over;
    l->counts.n_resumed += e != NULL;
    l->counts.n_missed += e == NULL && c->text != NULL;
    l->counts.n_resumed_rows += c->resume;
    if (e == NULL) return;
    e->used = ++p->clock;
    e->stay_here = false; // it is worth more now than when it was refused
    c->source.tier = a->tier;
    c->source.first_page = a->n_shared;
    c->source.n_page = e->n_page;
    c->source.pages = e->places[a->tier].pages;
    if (a->takes_over)
        prefix_give_run(p, e);
    else
        c->source.run = e->places[a->tier].run;
    int32_t run =
        a->tier == PREFIX_HOST && p->settings.share && !e->coming ? pool_find_free_run(l->settings.pool) : POOL_NONE;
    if (run == POOL_NONE) return;
    pool_take_run(l->settings.pool, HOLDER_LANE, c->source.also_to = run);
    p->n_pinned_runs++;
    e->coming = true;
}

static enum ledger_wait try(struct ledger *l, struct attempt *a) {
    struct claim *c = a->claim;
    enum ledger_wait wait = find_room(l, a);
    if (wait != LEDGER_WAIT_NONE) return wait;
    if (a->passes && !may_pass(l, a)) return LEDGER_WAIT_TURN;
    int32_t *pages = l->pages + (int64_t)a->lane * l->n_window_page;
    if (!take_room(l, a, pages)) return LEDGER_WAIT_PAGES;
    c->lane = a->lane;
    c->run = a->run;
    c->pages = pages;
    c->n_page = a->n_page;
    describe_source(l, c, a);
    c->seated = true;
    l->lanes[a->lane] = c;
    l->counts.n_seated++;
    if (c->text != NULL && l->settings.prefix != NULL)
        prefix_expect(l->settings.prefix, c->lane, c->text, c->resume, c->cuts, c->n_cut);
    return LEDGER_WAIT_NONE;
}

static int32_t find_lane(const struct ledger *l, int32_t from) {
    for (int32_t i = from; i < l->settings.parallel; i++)
        if (l->lanes[i] == NULL) return i;
    return -1;
}

// On any lane, with the entry or (NULL) without one. Beside what is set aside first: a whole window is not spent on a
// claim that has room elsewhere.
static enum ledger_wait try_lanes(struct ledger *l, struct claim *c, bool passes, const struct prefix_match *match) {
    struct attempt a = {.claim = c, .passes = passes, .n_page = (int32_t)ledger_pages_of(l, c)};
    enum ledger_wait wait = LEDGER_WAIT_LANES;
    bool shares = match != NULL && match->tier == PREFIX_POOL && l->settings.prefix->settings.share;
    if (match != NULL) a.entry = match->entry;
    if (match != NULL) a.tier = match->tier;
    if (shares) a.n_shared = a.entry->position / l->settings.page_rows;
    a.lane = find_lane(l, ledger_sets_aside(l) ? 1 : 0);
    if (a.lane >= 0) wait = try(l, &a);
    // Short of room, the lane goes on in the entry's own run.
    if (shares && a.lane >= l->n_fixed && wait != LEDGER_WAIT_NONE && a.entry->n_pin == 1) {
        a.takes_over = true;
        wait = try(l, &a);
        a.takes_over = false;
    }
    if (wait == LEDGER_WAIT_NONE || !ledger_sets_aside(l) || l->lanes[0] != NULL || passes) return wait;
    a.lane = 0;
    return try(l, &a);
}

enum ledger_wait ledger_seat(struct ledger *l, struct claim *c, bool passes, int64_t now_ns) {
    struct prefix *p = l->settings.prefix;
    struct prefix_match match = {0};
    if (l->counts.n_seated == l->settings.parallel) return LEDGER_WAIT_LANES;
    if (p != NULL && c->text != NULL && !c->cold) prefix_find(p, c->text, &match);
    if (match.expected > 0 || match.coming) {
        if (c->give_up_ns == 0) c->give_up_ns = now_ns + l->settings.expect_wait_ns;
        if (now_ns < c->give_up_ns) return LEDGER_WAIT_PREFIX;
    }
    if (match.entry != NULL) {
        prefix_pin(p, match.entry);
        enum ledger_wait wait = try_lanes(l, c, passes, &match);
        if (wait == LEDGER_WAIT_NONE) return wait;
        prefix_unpin(p, match.entry);
        // Without the entry there may be room that its pin took; but nobody gives an entry up only to go sooner.
        if (wait == LEDGER_WAIT_LANES || wait == LEDGER_WAIT_TURN) return wait;
    }
    return try_lanes(l, c, passes, NULL);
}
