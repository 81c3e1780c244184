// The ledger's life, the line of waiting claims, and what happens when a claim ends. Who can be seated: ledger_seat.c.
#include "memory/ledger.h"
#include "memory/ledger_internal.h"
#include "memory/prefix_internal.h"
#include <stdlib.h>

int64_t ledger_pages_for(int64_t rows, int32_t max_window, int32_t page_rows) {
    // Divided before they are added, so that no sum of row counts overflows.
    return rows / page_rows + (rows % page_rows + max_window + page_rows - 1) / page_rows;
}

// ---- start and end ----

int64_t ledger_count_beside(const struct ledger *l, int32_t *runs, int32_t n_run) {
    for (int32_t i = 1; i < n_run; i++)
        for (int32_t k = i; k > 0 && runs[k] < runs[k - 1]; k--) {
            int32_t swap = runs[k];
            runs[k] = runs[k - 1];
            runs[k - 1] = swap;
        }
    int64_t n = pool_count_pages(l->settings.pool);
    int32_t lowest = INT32_MAX; // of the pages that have been taken off; runs go down, and neighbours may share a page
    for (int32_t i = 0; i < n_run; i++) {
        int32_t first, in_run;
        pool_pages_of_run(l->settings.pool, runs[i], &first, &in_run);
        int32_t end = first + in_run < lowest ? first + in_run : lowest;
        if (end > first) n -= end - first;
        if (in_run > 0 && first < lowest) lowest = first;
    }
    return n;
}

static enum status check_room(const struct ledger *l, struct error *e) {
    const struct ledger_settings *s = &l->settings;
    struct pool_counts c;
    pool_get_counts(s->pool, &c);
    int32_t n_run = l->n_fixed > 0 ? l->n_fixed : 1;
    if (c.n_run < n_run)
        return error_set(e, STATUS_LIMIT, "the pool has room for %d lane runs and needs %d", c.n_run, n_run);
    for (int32_t i = 0; i < n_run; i++) l->runs[i] = i;
    int64_t n = ledger_count_beside(l, l->runs, n_run);
    int64_t need = s->windows     ? (int64_t)s->parallel * l->n_window_page
                   : s->pages_all ? ledger_pages_for(1, s->max_window, s->page_rows)
                                  : l->n_window_page;
    if (n < need)
        return error_set(e, STATUS_LIMIT, "the pool has %lld pages beside its runs and needs %lld", (long long)n,
                         (long long)need);
    return STATUS_OK;
}

enum status ledger_create(const struct ledger_settings *s, struct ledger **out, struct error *e) {
    must(s->parallel > 0 && s->context > 0 && s->max_window > 0 && s->page_rows > 0 && s->pool != NULL);
    int64_t n_page = ledger_pages_for(s->context, s->max_window, s->page_rows);
    if (n_page > INT32_MAX) return error_set(e, STATUS_LIMIT, "a window has more pages than can be counted");
    struct ledger *l = calloc(1, sizeof *l);
    if (l == NULL) return error_memory(e);
    l->settings = *s;
    l->n_window_page = (int32_t)n_page;
    l->n_fixed = s->windows ? s->parallel : s->pages_all ? 0 : 1;
    l->target = POOL_NONE;
    l->version = 1;
    l->lanes = calloc((size_t)s->parallel, sizeof *l->lanes);
    l->pages = malloc((size_t)s->parallel * (size_t)n_page * sizeof *l->pages);
    l->runs = malloc(((size_t)s->parallel + 2) * sizeof *l->runs);
    enum status status = l->lanes == NULL || l->pages == NULL || l->runs == NULL ? error_memory(e) : check_room(l, e);
    if (status != STATUS_OK) {
        l->n_fixed = 0; // none is taken yet
        ledger_free(l);
        return status;
    }
    for (int32_t i = 0; i < l->n_fixed; i++) pool_take_run(s->pool, HOLDER_LANE, i);
    *out = l;
    return STATUS_OK;
}

void ledger_free(struct ledger *l) {
    if (l == NULL) return;
    must(l->line == NULL && l->counts.n_seated == 0);
    pool_guard_run(l->settings.pool, POOL_NONE);
    for (int32_t i = 0; i < l->n_fixed; i++) pool_drop_run(l->settings.pool, i);
    free(l->lanes);
    free(l->pages);
    free(l->runs);
    free(l);
}

// ---- what can be claimed at all ----

enum ledger_answer ledger_check(const struct ledger *l, int64_t prompt, int64_t reply, int64_t *most) {
    const struct ledger_settings *s = &l->settings;
    int64_t rows = s->context;
    if (!s->windows && s->pages_all) {
        int32_t run = 0;
        int64_t in_pool = ledger_count_beside(l, &run, 1) * s->page_rows - s->max_window;
        if (in_pool < rows) rows = in_pool;
    }
    *most = rows;
    if (prompt < 0 || reply < 0 || prompt > s->context || reply > s->context - prompt) return LEDGER_OVER_WINDOW;
    return prompt + reply > rows ? LEDGER_OVER_POOL : LEDGER_FITS;
}

// ---- the line ----

static void enter_line(struct ledger *l, struct claim *c, bool in_front) {
    struct claim **at = &l->line;
    while (*at != NULL && ((*at)->priority < c->priority || ((*at)->priority == c->priority && !in_front)))
        at = &(*at)->next;
    c->next = *at;
    *at = c;
    c->waiting = true;
    c->wait = LEDGER_WAIT_NONE;
    c->give_up_ns = 0;
    l->counts.n_waiting++;
    l->version++;
}

static void leave_line(struct ledger *l, struct claim *c) {
    struct claim **at = &l->line;
    while (*at != c) at = &(*at)->next;
    *at = c->next;
    c->next = NULL;
    c->waiting = false;
    l->counts.n_waiting--;
    l->version++;
}

void ledger_enqueue(struct ledger *l, struct claim *c) {
    int64_t most;
    must(!c->waiting && !c->seated && ledger_check(l, c->prompt, c->reply, &most) == LEDGER_FITS);
    must(c->text == NULL || c->text->n == c->prompt);
    enter_line(l, c, false);
}

struct claim *ledger_first(const struct ledger *l) {
    return l->line;
}

// Whoever is seated now was there before the next head.
static void forget_head(struct ledger *l) {
    l->head = NULL;
    l->target = POOL_NONE;
    pool_guard_run(l->settings.pool, POOL_NONE);
    for (int32_t i = 0; i < l->settings.parallel; i++)
        if (l->lanes[i] != NULL) l->lanes[i]->passer = false;
    l->n_passers = 0;
}

void ledger_remove(struct ledger *l, struct claim *c) {
    must(c->waiting);
    leave_line(l, c);
    if (l->head == c) forget_head(l);
}

// ---- admission ----

static uint64_t version_of(const struct ledger *l) {
    return l->version + (l->settings.prefix != NULL ? l->settings.prefix->version : 0);
}

static void settle(struct ledger *l) {
    l->settled = version_of(l);
    l->look_again_ns = INT64_MAX;
    for (struct claim *c = l->line; c != NULL; c = c->next)
        if (c->wait == LEDGER_WAIT_PREFIX && c->give_up_ns < l->look_again_ns) l->look_again_ns = c->give_up_ns;
}

static struct claim *seat_head(struct ledger *l, int64_t now_ns) {
    struct claim *c = l->line;
    if (l->head != c) forget_head(l);
    pool_guard_run(l->settings.pool, POOL_NONE);
    c->wait = ledger_seat(l, c, false, now_ns);
    if (c->wait != LEDGER_WAIT_NONE) return NULL;
    forget_head(l);
    return c;
}

static struct claim *seat_passer(struct ledger *l, int64_t now_ns) {
    for (struct claim *c = l->head->next; c != NULL; c = c->next) {
        c->wait = ledger_seat(l, c, true, now_ns);
        if (c->wait != LEDGER_WAIT_NONE) continue;
        c->passer = true;
        l->n_passers++;
        l->counts.n_passed++;
        return c;
    }
    return NULL;
}

struct claim *ledger_admit(struct ledger *l, int64_t now_ns) {
    if (l->line == NULL || (version_of(l) == l->settled && now_ns < l->look_again_ns)) return NULL;
    struct claim *c = seat_head(l, now_ns);
    if (c == NULL) {
        if (l->head == NULL) {
            l->head = l->line;
            ledger_protect_head(l);
        }
        pool_guard_run(l->settings.pool, l->target);
        c = seat_passer(l, now_ns);
    }
    if (c != NULL)
        leave_line(l, c);
    else
        settle(l);
    return c;
}

// ---- the end of a claim ----

static void leave_lane(struct ledger *l, struct claim *c) {
    const struct ledger_settings *s = &l->settings;
    must(c->seated && l->lanes[c->lane] == c);
    if (s->prefix != NULL) prefix_abandon(s->prefix, c->lane);
    for (int32_t i = 0; i < c->n_page; i++) pool_drop_page(s->pool, HOLDER_LANE, c->pages[i]);
    if (c->lane >= l->n_fixed) pool_drop_run(s->pool, c->run);
    l->n_passers -= c->passer;
    l->lanes[c->lane] = NULL;
    c->seated = c->passer = false;
    l->counts.n_seated--;
    l->version++;
}

static void end_resume(struct ledger *l, struct claim *c, bool ok) {
    struct prefix *p = l->settings.prefix;
    if (!c->resuming) return;
    if (c->source.also_to != POOL_NONE) {
        if (ok) {
            prefix_fill_pool(p, c->entry, c->pages, c->source.also_to);
        } else {
            pool_drop_run(l->settings.pool, c->source.also_to);
            p->n_pinned_runs--;
        }
    }
    prefix_unpin(p, c->entry);
    c->entry = NULL;
    c->resuming = false;
}

void ledger_end_resume(struct ledger *l, struct claim *c, bool ok) {
    must(c->seated);
    if (!ok && c->resuming) prefix_drop(l->settings.prefix, c->entry); // it goes with the last pin
    end_resume(l, c, ok);
    if (ok) return;
    leave_lane(l, c);
    c->cold = true;
    enter_line(l, c, true);
}

void ledger_release(struct ledger *l, struct claim *c) {
    end_resume(l, c, false); // which only a claim that ended before its first pass still has to do
    leave_lane(l, c);
}

// ---- counters ----

void ledger_get_counts(const struct ledger *l, struct ledger_counts *out) {
    struct pool_counts pool;
    pool_get_counts(l->settings.pool, &pool);
    int64_t refs = pool.n_lane_refs, runs = pool.n_run_lane - l->n_fixed;
    for (int32_t i = 0; i < l->settings.parallel; i++) {
        if (l->lanes[i] == NULL) continue;
        refs -= l->lanes[i]->n_page;
        runs -= i >= l->n_fixed;
    }
    if (l->settings.prefix != NULL) {
        refs -= l->settings.prefix->n_pinned_refs;
        runs -= l->settings.prefix->n_pinned_runs;
    }
    *out = l->counts;
    out->n_lane = l->settings.parallel;
    out->n_leaked = (refs < 0 ? -refs : refs) + (runs < 0 ? -runs : runs);
    out->n_set_aside = ledger_count_set_aside(l);
}

const char *ledger_wait_text(enum ledger_wait wait) {
    switch (wait) {
    case LEDGER_WAIT_LANES: return "lanes busy";
    case LEDGER_WAIT_PAGES: return "LaneMemory: the pool is full";
    case LEDGER_WAIT_RUN: return "LaneMemory: the pool is fragmented";
    case LEDGER_WAIT_PREFIX: return "its prefix is being computed or brought";
    case LEDGER_WAIT_TURN: return "an earlier request goes first";
    case LEDGER_WAIT_NONE:
    case LEDGER_WAIT_N: break;
    }
    return "admission";
}
