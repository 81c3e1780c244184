// Entries of the prompt cache: the table of kept prefixes, and how a prompt's positions become entries.
#include "memory/prefix.h"
#include "memory/prefix_internal.h"
#include <stdlib.h>
#include <string.h>

#define PROMPT_ROWS 4096 // page sizes that divide this can be shared

static int32_t minimum(int32_t a, int32_t b) { return a < b ? a : b; }

// ---- start and end ----

enum status prefix_create(const struct prefix_settings *s, struct prefix **out, struct error *e) {
    must(s->page_rows > 0 && s->page_bytes > 0 && s->kept_bytes > 0 && s->host_bytes >= 0);
    must(s->grid_rows >= 0 && s->grid_rows % TEXT_CHUNK == 0);
    if (s->share && PROMPT_ROWS % s->page_rows != 0)
        return error_set(e, STATUS_INVALID, "pages of %d positions cannot be shared: the size must divide %d",
                         s->page_rows, PROMPT_ROWS);
    struct prefix *p = calloc(1, sizeof *p);
    if (p == NULL) return error_memory(e);
    p->settings = *s;
    struct pool_shape host = {
        .bytes = s->host_bytes, .page_bytes = s->page_bytes, .run_bytes = s->kept_bytes, .n_run = PREFIX_HOST_RUNS};
    enum status status = s->host_bytes > 0 ? pool_create(&host, &p->host, e) : STATUS_OK;
    if (status == STATUS_OK && p->host != NULL) {
        p->host_pages = calloc((size_t)pool_count_pages(p->host) + 1, sizeof *p->host_pages);
        if (p->host_pages == NULL) status = error_memory(e);
    }
    if (status != STATUS_OK) {
        prefix_free(p);
        return status;
    }
    *out = p;
    return STATUS_OK;
}

void prefix_free(struct prefix *p) {
    if (p == NULL) return;
    for (struct prefix_entry *e; (e = p->entries) != NULL;) {
        while (e->n_pin > 1) e->n_pin--;
        if (e->n_pin == 1) prefix_unpin(p, e);
        if (e != p->entries) continue; // it went with its pin
        if (e->stage == PREFIX_KEPT)
            prefix_drop(p, e);
        else
            prefix_abandon(p, e->lane);
    }
    pool_free(p->host);
    free(p->host_pages);
    free(p);
}

int64_t prefix_host_bytes(const struct prefix *p) { return p->host != NULL ? p->settings.host_bytes : 0; }
int64_t prefix_host_page_offset(const struct prefix *p, int32_t page) { return pool_page_offset(p->host, page); }
int64_t prefix_host_run_offset(const struct prefix *p, int32_t run) { return pool_run_offset(p->host, run); }

// ---- which positions to keep ----

static int32_t add_cut(struct prefix_cut *cuts, int32_t n, int32_t position, enum prefix_kind kind) {
    position -= position % TEXT_CHUNK;
    if (position <= 0) return n;
    int32_t i = 0;
    while (i < n && cuts[i].position < position) i++;
    if (i < n && cuts[i].position == position) {
        if (kind > cuts[i].kind) cuts[i].kind = kind;
        return n;
    }
    if (n == PREFIX_MAX_CUTS) return n;
    memmove(cuts + i + 1, cuts + i, (size_t)(n - i) * sizeof *cuts);
    cuts[i] = (struct prefix_cut){.position = position, .kind = kind};
    return n + 1;
}

int32_t prefix_choose_cuts(const struct prefix *p, int32_t n_prompt, const struct prefix_marks *marks,
                           struct prefix_cut cuts[PREFIX_MAX_CUTS]) {
    if (!prefix_is_on(p)) return 0;
    int32_t end = marks->history_end > 0 ? marks->history_end : n_prompt - 1;
    int32_t n = add_cut(cuts, 0, minimum(marks->system_end, n_prompt), PREFIX_KEEP_SHARED);
    n = add_cut(cuts, n, minimum(marks->last_user, n_prompt), PREFIX_KEEP_TURN);
    n = add_cut(cuts, n, minimum(end, n_prompt), PREFIX_KEEP_TURN);
    // The grid is wide enough for all of a prompt to be covered; where it is not, its end is left out.
    for (int64_t at = p->settings.grid_rows; at > 0 && at < n_prompt; at += p->settings.grid_rows)
        n = add_cut(cuts, n, (int32_t)at, PREFIX_KEEP_GRID);
    return n;
}

// ---- the table ----

static struct prefix_entry **bucket_of(const struct prefix *p, const struct text *t, int32_t position) {
    uint64_t hash = t->hashes[position / TEXT_CHUNK - 1];
    if (p->settings.hash_mask != 0) hash &= p->settings.hash_mask;
    return (struct prefix_entry **)&p->buckets[hash % PREFIX_BUCKETS];
}

static bool is_prefix_of(const struct prefix_entry *e, const struct text *t) {
    return e->position <= t->n && (e->text == t || text_equals(e->text, t, e->position));
}

// The entry of exactly this prefix, whatever its stage; those that are dropped do not count.
static struct prefix_entry *look_up(const struct prefix *p, const struct text *t, int32_t position) {
    for (struct prefix_entry *e = *bucket_of(p, t, position); e != NULL; e = e->next_in_bucket)
        if (e->position == position && !e->dropped && is_prefix_of(e, t)) return e;
    return NULL;
}

static struct prefix_entry *add_entry(struct prefix *p, struct text *t, int32_t position, enum prefix_kind kind) {
    int32_t n_page = (position + p->settings.page_rows - 1) / p->settings.page_rows;
    struct prefix_entry *e = calloc(1, sizeof *e);
    int32_t *pages = malloc(2 * (size_t)n_page * sizeof *pages);
    if (e == NULL || pages == NULL) {
        free(e);
        free(pages);
        return NULL;
    }
    text_hold(t);
    struct prefix_entry **bucket = bucket_of(p, t, position);
    *e = (struct prefix_entry){
        .text = t,
        .position = position,
        .n_page = n_page,
        .kind = kind,
        .places = {{.run = POOL_NONE, .pages = pages}, {.run = POOL_NONE, .pages = pages + n_page}},
        .next_in_bucket = *bucket,
        .next = p->entries};
    *bucket = p->entries = e;
    p->counts.n_entry++;
    return e;
}

void prefix_remove(struct prefix *p, struct prefix_entry *e) {
    must(e->n_pin == 0 && !e->places[PREFIX_POOL].there && !e->places[PREFIX_HOST].there);
    struct prefix_entry **at = bucket_of(p, e->text, e->position);
    while (*at != e) at = &(*at)->next_in_bucket;
    *at = e->next_in_bucket;
    for (at = &p->entries; *at != e; at = &(*at)->next)
        ;
    *at = e->next;
    for (struct prefix_entry *x = p->entries; x != NULL; x = x->next)
        if (x->parent == e) x->parent = e->parent;
    p->counts.n_entry--;
    p->version++;
    text_free(e->text);
    free(e->places[PREFIX_POOL].pages);
    free(e);
}

void prefix_link(struct prefix *p, struct prefix_entry *e) {
    e->parent = NULL;
    for (int32_t at = e->position - TEXT_CHUNK; at > 0 && e->parent == NULL; at -= TEXT_CHUNK) {
        struct prefix_entry *x = look_up(p, e->text, at);
        if (x != NULL && x->stage == PREFIX_KEPT) e->parent = x;
    }
    for (struct prefix_entry *x = p->entries; x != NULL; x = x->next)
        if (x->stage == PREFIX_KEPT && x->parent == e->parent && x->position > e->position && is_prefix_of(e, x->text))
            x->parent = e;
}

// ---- finding ----

void prefix_find(const struct prefix *p, const struct text *t, struct prefix_match *out) {
    *out = (struct prefix_match){0};
    if (p->entries == NULL) return;
    for (int32_t at = (t->n - 1) / TEXT_CHUNK * TEXT_CHUNK; at > 0; at -= TEXT_CHUNK) {
        struct prefix_entry *e = look_up(p, t, at);
        if (e == NULL || e->leaving) continue;
        if (e->stage != PREFIX_KEPT) {
            if (out->expected == 0) out->expected = at;
            continue;
        }
        out->entry = e;
        out->position = at;
        out->tier = e->places[PREFIX_POOL].there ? PREFIX_POOL : PREFIX_HOST;
        out->coming = e->coming;
        return;
    }
}

bool prefix_find_difference(const struct prefix *p, const struct text *t, int32_t *at, int32_t *kept) {
    int32_t most = 0;
    for (const struct prefix_entry *e = p->entries; e != NULL; e = e->next) {
        if (e->stage != PREFIX_KEPT || e->dropped) continue;
        int32_t n = minimum(text_count_common(e->text, t), e->position);
        if (n <= most) continue;
        most = n;
        *kept = e->position;
    }
    if (most > 0) *at = most;
    return most > 0;
}

// ---- keeping ----

void prefix_expect(struct prefix *p, int32_t lane, struct text *t, int32_t from, const struct prefix_cut *cuts,
                   int32_t n_cut) {
    if (!prefix_is_on(p)) return;
    for (int32_t i = 0; i < n_cut; i++) {
        must(cuts[i].position % TEXT_CHUNK == 0 && cuts[i].position > 0 && cuts[i].position <= t->n);
        struct prefix_entry *e = look_up(p, t, cuts[i].position);
        if (e != NULL && cuts[i].kind > e->kind) e->kind = cuts[i].kind;
        if (e != NULL || cuts[i].position <= from) continue; // kept, or another lane does it
        e = add_entry(p, t, cuts[i].position, cuts[i].kind);
        if (e == NULL) {
            p->counts.n_no_run++;
            continue;
        }
        e->stage = PREFIX_EXPECTED;
        e->lane = lane;
        p->counts.n_expected++;
    }
}

// The lane's entry of that stage with the lowest position in (after, end], or NULL.
static struct prefix_entry *next_of(const struct prefix *p, int32_t lane, enum prefix_stage stage, int32_t after,
                                    int32_t end) {
    struct prefix_entry *best = NULL;
    for (struct prefix_entry *e = p->entries; e != NULL; e = e->next)
        if (e->lane == lane && e->stage == stage && e->position > after && e->position <= end &&
            (best == NULL || e->position < best->position))
            best = e;
    return best;
}

static void give_up(struct prefix *p, struct prefix_entry *e) {
    if (e->stage == PREFIX_BEGUN) {
        pool_drop_run(p->settings.pool, e->places[PREFIX_POOL].run);
        p->n_pinned_runs--;
    }
    p->counts.n_expected--;
    prefix_remove(p, e);
}

int32_t prefix_begin_keep(struct prefix *p, int32_t lane, int32_t start, int32_t end, struct prefix_keep *keeps,
                          int32_t most) {
    int32_t n = 0;
    struct prefix_entry *e;
    for (int32_t after = start; (e = next_of(p, lane, PREFIX_EXPECTED, after, end)) != NULL;) {
        after = e->position;
        int32_t run = n < most ? prefix_take_run(p, e->kind) : POOL_NONE;
        if (run == POOL_NONE) {
            p->counts.n_no_run++;
            give_up(p, e);
            continue;
        }
        e->places[PREFIX_POOL].run = run;
        e->stage = PREFIX_BEGUN;
        keeps[n++] = (struct prefix_keep){.position = e->position, .run = run};
    }
    return n;
}

// In order of position: the longest is the newest.
void prefix_end_keep(struct prefix *p, int32_t lane, const int32_t *pages) {
    struct prefix_entry *e;
    while ((e = next_of(p, lane, PREFIX_BEGUN, 0, INT32_MAX)) != NULL) {
        e->stage = PREFIX_KEPT;
        e->used = ++p->clock;
        p->counts.n_expected--;
        p->counts.n_kept++;
        p->version++;
        prefix_fill_pool(p, e, pages, e->places[PREFIX_POOL].run);
        prefix_link(p, e);
    }
}

void prefix_abandon(struct prefix *p, int32_t lane) {
    for (struct prefix_entry *e = p->entries, *next; e != NULL; e = next) {
        next = e->next;
        if (e->stage != PREFIX_KEPT && e->lane == lane) give_up(p, e);
    }
}

void prefix_get_counts(const struct prefix *p, struct prefix_counts *out) {
    *out = p->counts;
    if (p->host == NULL) return;
    struct pool_counts c;
    pool_get_counts(p->host, &c);
    out->host_bytes_used = c.n_page_cached * p->settings.page_bytes + c.n_run_cached * p->settings.kept_bytes;
}
