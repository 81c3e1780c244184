#include "memory/pool.h"
#include <stdlib.h>

// For each page: references by holder, and by how many held runs it is covered, by any or by those of lanes (a guarded
// run counts as a lane's here). For each run: its holder, and how many of the pages that cover it are held, by any or
// by lanes. So whether something is free or open is one comparison, and no search crosses from pages to runs.
struct page {
    int32_t refs[2];
    int32_t covers, lane_covers;
};

struct run {
    bool held, by_lane;
    int32_t pages, lane_pages;
};

struct pool {
    struct pool_shape shape;
    int32_t n_page, n_run;
    struct page *pages;
    struct run *runs;
    uint64_t *free_words; // a bit a page: 1 where it could be taken now
    int32_t first_word;   // words before it are 0
    int32_t guarded;
    int32_t n_open;
    struct pool_counts counts;
};

static bool page_is_free(const struct page *g) { return g->refs[0] + g->refs[1] == 0 && g->covers == 0; }
static bool page_is_open(const struct page *g) { return g->refs[HOLDER_LANE] == 0 && g->lane_covers == 0; }

// ---- start and end ----

enum status pool_create(const struct pool_shape *s, struct pool **out, struct error *e) {
    must(s->bytes >= 0 && s->page_bytes > 0 && s->run_bytes > 0 && s->n_run >= 0);
    if (s->bytes / s->page_bytes > INT32_MAX - 64)
        return error_set(e, STATUS_LIMIT, "a pool of %lld bytes has more pages of %lld bytes than can be counted",
                         (long long)s->bytes, (long long)s->page_bytes);
    struct pool *p = calloc(1, sizeof *p);
    if (p == NULL) return error_memory(e);
    p->shape = *s;
    p->guarded = POOL_NONE;
    p->n_page = (int32_t)(s->bytes / s->page_bytes);
    p->n_run = s->bytes / s->run_bytes < s->n_run ? (int32_t)(s->bytes / s->run_bytes) : s->n_run;
    size_t n_word = (size_t)p->n_page / 64 + 1;
    p->pages = calloc((size_t)p->n_page + 1, sizeof *p->pages);
    p->runs = calloc((size_t)p->n_run + 1, sizeof *p->runs);
    p->free_words = calloc(n_word, sizeof *p->free_words);
    if (p->pages == NULL || p->runs == NULL || p->free_words == NULL) {
        pool_free(p);
        return error_memory(e);
    }
    for (int32_t i = 0; i < p->n_page; i++) p->free_words[i / 64] |= 1ull << i % 64;
    p->n_open = p->n_page;
    p->counts = (struct pool_counts){.n_page = p->n_page, .n_page_free = p->n_page, .n_run = p->n_run};
    *out = p;
    return STATUS_OK;
}

void pool_free(struct pool *p) {
    if (p == NULL) return;
    free(p->pages);
    free(p->runs);
    free(p->free_words);
    free(p);
}

// ---- where things lie ----

int32_t pool_count_pages(const struct pool *p) { return p->n_page; }

int64_t pool_page_offset(const struct pool *p, int32_t page) { return page * p->shape.page_bytes; }

int64_t pool_run_offset(const struct pool *p, int32_t run) { return p->shape.bytes - (run + 1) * p->shape.run_bytes; }

void pool_pages_of_run(const struct pool *p, int32_t run, int32_t *first, int32_t *n) {
    must(run >= 0 && run < p->n_run);
    int64_t start = pool_run_offset(p, run), end = start + p->shape.run_bytes;
    int64_t a = start / p->shape.page_bytes, b = (end + p->shape.page_bytes - 1) / p->shape.page_bytes;
    if (b > p->n_page) b = p->n_page; // the bytes above the last whole page belong to runs alone
    *first = (int32_t)a;
    *n = a < b ? (int32_t)(b - a) : 0;
}

// The runs that share bytes with a page: [*first, *end).
static void runs_of_page(const struct pool *p, int32_t page, int32_t *first, int32_t *end) {
    int64_t low = pool_page_offset(p, page), high = low + p->shape.page_bytes, top = p->shape.bytes;
    int64_t a = (top - high) / p->shape.run_bytes, b = (top - low + p->shape.run_bytes - 1) / p->shape.run_bytes;
    *first = a < p->n_run ? (int32_t)a : p->n_run;
    *end = b < p->n_run ? (int32_t)b : p->n_run;
}

// ---- pages ----

// Every change of a page goes through here: what follows from it (bits, counters) is taken back before and done again
// after it.
static void count_page(struct pool *p, int32_t page, int sign) {
    const struct page *g = &p->pages[page];
    struct pool_counts *c = &p->counts;
    c->n_page_free += sign * page_is_free(g);
    c->n_page_lane += sign * (g->refs[HOLDER_LANE] > 0);
    c->n_page_shared += sign * (g->refs[HOLDER_LANE] > 1);
    c->n_page_cached += sign * (g->refs[HOLDER_LANE] == 0 && g->refs[HOLDER_CACHE] > 0);
    p->n_open += sign * page_is_open(g);
}

static void set_free_bit(struct pool *p, int32_t page) {
    uint64_t bit = 1ull << page % 64;
    if (!page_is_free(&p->pages[page])) {
        p->free_words[page / 64] &= ~bit;
        return;
    }
    p->free_words[page / 64] |= bit;
    if (page / 64 < p->first_word) p->first_word = page / 64;
}

static void add_refs(struct pool *p, enum holder holder, int32_t page, int32_t n) {
    struct page *g = &p->pages[page];
    bool was_held = g->refs[0] + g->refs[1] > 0, was_lane = g->refs[HOLDER_LANE] > 0;
    count_page(p, page, -1);
    g->refs[holder] += n;
    count_page(p, page, 1);
    set_free_bit(p, page);
    *(holder == HOLDER_LANE ? &p->counts.n_lane_refs : &p->counts.n_cache_refs) += n;
    int held = (g->refs[0] + g->refs[1] > 0) - was_held, lane = (g->refs[HOLDER_LANE] > 0) - was_lane;
    if (held == 0 && lane == 0) return;
    int32_t first, end;
    runs_of_page(p, page, &first, &end);
    for (int32_t i = first; i < end; i++) {
        p->runs[i].pages += held;
        p->runs[i].lane_pages += lane;
    }
}

bool pool_take_pages(struct pool *p, enum holder holder, int32_t n, int32_t *pages) {
    if (n > p->counts.n_page_free) return false;
    for (int32_t i = 0; i < n; i++) {
        while (p->free_words[p->first_word] == 0) p->first_word++;
        pages[i] = p->first_word * 64 + __builtin_ctzll(p->free_words[p->first_word]);
        add_refs(p, holder, pages[i], 1);
    }
    return true;
}

void pool_hold_page(struct pool *p, enum holder holder, int32_t page) {
    must(page >= 0 && page < p->n_page && p->pages[page].refs[0] + p->pages[page].refs[1] > 0);
    add_refs(p, holder, page, 1);
}

void pool_drop_page(struct pool *p, enum holder holder, int32_t page) {
    must(page >= 0 && page < p->n_page && p->pages[page].refs[holder] > 0);
    add_refs(p, holder, page, -1);
}

int32_t pool_page_refs(const struct pool *p, enum holder holder, int32_t page) { return p->pages[page].refs[holder]; }

// ---- runs ----

static void cover_pages(struct pool *p, int32_t run, int by_any, int by_lane) {
    int32_t first, n;
    pool_pages_of_run(p, run, &first, &n);
    for (int32_t i = first; i < first + n; i++) {
        count_page(p, i, -1);
        p->pages[i].covers += by_any;
        p->pages[i].lane_covers += by_lane;
        count_page(p, i, 1);
        set_free_bit(p, i);
    }
}

bool pool_run_is_free(const struct pool *p, int32_t run) {
    must(run >= 0 && run < p->n_run);
    return !p->runs[run].held && p->runs[run].pages == 0;
}

bool pool_run_is_held(const struct pool *p, int32_t run) {
    must(run >= 0 && run < p->n_run);
    return p->runs[run].held;
}

bool pool_run_is_open(const struct pool *p, int32_t run) {
    must(run >= 0 && run < p->n_run);
    return !p->runs[run].by_lane && p->runs[run].lane_pages == 0;
}

int32_t pool_find_free_run(const struct pool *p) {
    for (int32_t i = 0; i < p->n_run; i++)
        if (i != p->guarded && pool_run_is_free(p, i)) return i;
    return POOL_NONE;
}

static void count_run(struct pool *p, int32_t run, int sign) {
    *(p->runs[run].by_lane ? &p->counts.n_run_lane : &p->counts.n_run_cached) += sign;
}

void pool_take_run(struct pool *p, enum holder holder, int32_t run) {
    must(pool_run_is_free(p, run));
    p->runs[run].held = true;
    p->runs[run].by_lane = holder == HOLDER_LANE;
    count_run(p, run, 1);
    cover_pages(p, run, 1, holder == HOLDER_LANE);
}

void pool_pass_run(struct pool *p, int32_t run, enum holder to) {
    must(run >= 0 && run < p->n_run && p->runs[run].held && p->runs[run].by_lane != (to == HOLDER_LANE));
    count_run(p, run, -1);
    p->runs[run].by_lane = to == HOLDER_LANE;
    count_run(p, run, 1);
    cover_pages(p, run, 0, to == HOLDER_LANE ? 1 : -1);
}

void pool_drop_run(struct pool *p, int32_t run) {
    must(run >= 0 && run < p->n_run && p->runs[run].held);
    bool by_lane = p->runs[run].by_lane;
    count_run(p, run, -1);
    p->runs[run].held = p->runs[run].by_lane = false;
    cover_pages(p, run, -1, by_lane ? -1 : 0);
}

void pool_guard_run(struct pool *p, int32_t run) {
    if (run == p->guarded) return;
    if (p->guarded != POOL_NONE) cover_pages(p, p->guarded, -1, -1);
    p->guarded = run;
    if (run != POOL_NONE) cover_pages(p, run, 1, 1);
}

int32_t pool_count_open(const struct pool *p) { return p->n_open; }

int32_t pool_count_open_in_run(const struct pool *p, int32_t run) {
    int32_t first, n, n_open = 0;
    pool_pages_of_run(p, run, &first, &n);
    for (int32_t i = first; i < first + n; i++) n_open += page_is_open(&p->pages[i]);
    return n_open;
}

// ---- counters ----

void pool_get_counts(const struct pool *p, struct pool_counts *out) { *out = p->counts; }

static bool page_is_consistent(const struct pool *p, int32_t page, struct pool_counts *sum) {
    const struct page *g = &p->pages[page];
    int32_t first, end, covers = 0, lane_covers = 0;
    runs_of_page(p, page, &first, &end);
    for (int32_t i = first; i < end; i++) {
        covers += p->runs[i].held + (i == p->guarded);
        lane_covers += p->runs[i].by_lane + (i == p->guarded);
    }
    sum->n_page_free += page_is_free(g);
    sum->n_page_lane += g->refs[HOLDER_LANE] > 0;
    sum->n_page_shared += g->refs[HOLDER_LANE] > 1;
    sum->n_page_cached += g->refs[HOLDER_LANE] == 0 && g->refs[HOLDER_CACHE] > 0;
    sum->n_lane_refs += g->refs[HOLDER_LANE];
    sum->n_cache_refs += g->refs[HOLDER_CACHE];
    bool bit = p->free_words[page / 64] >> page % 64 & 1;
    return covers == g->covers && lane_covers == g->lane_covers && bit == page_is_free(g) &&
           (!bit || page / 64 >= p->first_word);
}

static bool run_is_consistent(const struct pool *p, int32_t run, struct pool_counts *sum) {
    const struct run *r = &p->runs[run];
    int32_t first, n, pages = 0, lane_pages = 0;
    pool_pages_of_run(p, run, &first, &n);
    for (int32_t i = first; i < first + n; i++) {
        pages += p->pages[i].refs[0] + p->pages[i].refs[1] > 0;
        lane_pages += p->pages[i].refs[HOLDER_LANE] > 0;
    }
    sum->n_run_lane += r->held && r->by_lane;
    sum->n_run_cached += r->held && !r->by_lane;
    return pages == r->pages && lane_pages == r->lane_pages && !(r->held && pages > 0);
}

static bool counts_are_equal(const struct pool_counts *a, const struct pool_counts *b) {
    return a->n_page == b->n_page && a->n_page_free == b->n_page_free && a->n_page_lane == b->n_page_lane &&
           a->n_page_cached == b->n_page_cached && a->n_page_shared == b->n_page_shared &&
           a->n_lane_refs == b->n_lane_refs && a->n_cache_refs == b->n_cache_refs && a->n_run == b->n_run &&
           a->n_run_lane == b->n_run_lane && a->n_run_cached == b->n_run_cached;
}

bool pool_is_consistent(const struct pool *p) {
    struct pool_counts sum = {.n_page = p->n_page, .n_run = p->n_run};
    bool ok = true;
    int32_t n_open = 0;
    for (int32_t i = 0; i < p->n_page; i++) {
        ok = ok && page_is_consistent(p, i, &sum);
        n_open += page_is_open(&p->pages[i]);
    }
    for (int32_t i = 0; i < p->n_run; i++) ok = ok && run_is_consistent(p, i, &sum);
    return ok && n_open == p->n_open && counts_are_equal(&sum, &p->counts);
}
