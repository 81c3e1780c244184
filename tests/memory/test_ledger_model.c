// The ledger against a second model of it: a picture of the pool, byte by byte, and the rules of admission read off it
// as they are written down. Both must seat the same claim, on the same lane, in the same run, on the same pages.
#include "base/random.h"
#include "memory/ledger.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { N_CLAIMS = 24, MOST_BYTES = 4096, MOST_PAGES = 2048, FREE = 0, FIXED = 1, SEAT = 2 };

struct shape {
    bool windows, pages_all;
    int32_t parallel, context, max_window, page_rows;
    int64_t page_bytes, run_bytes, pool_bytes;
};

struct picture {
    struct shape s;
    struct pool *pool;
    struct ledger *ledger;
    struct claim claims[N_CLAIMS];
    int64_t order[N_CLAIMS]; // of arrival
    int64_t n_arrived;
    uint8_t bytes[MOST_BYTES]; // FREE, FIXED (a lane's run for good), or SEAT + claim
    bool old[N_CLAIMS];        // seated when the head became the head
    int head, target;          // target: a run, or -1
};

static int64_t pages_of(const struct picture *p, const struct claim *c) {
    int64_t rows = p->s.windows ? p->s.context : c->prompt + c->reply, n = 0;
    while (n * p->s.page_rows < rows + p->s.max_window) n++;
    return n;
}

static int64_t window_pages(const struct picture *p) {
    struct claim c = {.prompt = p->s.context};
    return pages_of(p, &c);
}

static int32_t n_pages(const struct picture *p) { return (int32_t)(p->s.pool_bytes / p->s.page_bytes); }
static int32_t n_runs(const struct picture *p) { return (int32_t)(p->s.pool_bytes / p->s.run_bytes); }
static int32_t n_fixed(const struct picture *p) { return p->s.windows ? p->s.parallel : p->s.pages_all ? 0 : 1; }
static bool sets_aside(const struct picture *p) { return !p->s.windows && !p->s.pages_all; }
static int64_t run_start(const struct picture *p, int32_t run) { return p->s.pool_bytes - (run + 1) * p->s.run_bytes; }

static bool all_free(const uint8_t *bytes, int64_t start, int64_t n) {
    for (int64_t i = start; i < start + n; i++)
        if (bytes[i] != FREE) return false;
    return true;
}

static void paint(uint8_t *bytes, int64_t start, int64_t n, int value) { memset(bytes + start, value, (size_t)n); }

static int32_t free_pages(const struct picture *p, const uint8_t *bytes, int32_t *pages) {
    int32_t n = 0;
    for (int32_t i = 0; i < n_pages(p); i++)
        if (all_free(bytes, i * p->s.page_bytes, p->s.page_bytes)) {
            if (pages != NULL) pages[n] = i;
            n++;
        }
    return n;
}

static int seated_on(const struct picture *p, int32_t lane) {
    for (int i = 0; i < N_CLAIMS; i++)
        if (p->claims[i].seated && p->claims[i].lane == lane) return i;
    return -1;
}

static int n_seated(const struct picture *p, bool passers_only) {
    int n = 0;
    for (int i = 0; i < N_CLAIMS; i++) n += p->claims[i].seated && !(passers_only && p->old[i]);
    return n;
}

static bool comes_first(const struct picture *p, int a, int b) {
    if (p->claims[a].priority != p->claims[b].priority) return p->claims[a].priority < p->claims[b].priority;
    return p->order[a] < p->order[b];
}

// The first that waits after `after` (-1: of all), or -1.
static int next_waiting(const struct picture *p, int after) {
    int best = -1;
    for (int i = 0; i < N_CLAIMS; i++)
        if (p->claims[i].waiting && (after < 0 || comes_first(p, after, i)) && (best < 0 || comes_first(p, i, best)))
            best = i;
    return best;
}

struct seat {
    int32_t lane, run, n_page, pages[MOST_PAGES];
};

// Room on that lane, with the bytes of `guard` (a run, or -1) left alone.
static bool has_room(const struct picture *p, int i, int32_t lane, int32_t guard, struct seat *seat) {
    uint8_t bytes[MOST_BYTES];
    memcpy(bytes, p->bytes, sizeof bytes);
    if (guard >= 0) {
        int64_t start = run_start(p, guard);
        for (int64_t b = start; b < start + p->s.run_bytes; b++)
            if (bytes[b] == FREE) bytes[b] = FIXED;
    }
    seat->lane = seat->run = lane;
    if (lane >= n_fixed(p)) {
        seat->run = 0;
        while (seat->run < n_runs(p) && !all_free(bytes, run_start(p, seat->run), p->s.run_bytes)) seat->run++;
        if (seat->run == n_runs(p)) return false;
        paint(bytes, run_start(p, seat->run), p->s.run_bytes, FIXED);
    }
    int32_t n_free = free_pages(p, bytes, seat->pages);
    if (sets_aside(p) && lane > 0) {
        int owner = seated_on(p, 0);
        n_free -= (int32_t)(window_pages(p) - (owner < 0 ? 0 : p->claims[owner].n_page));
    }
    seat->n_page = (int32_t)pages_of(p, &p->claims[i]);
    return seat->n_page <= n_free;
}

// With the head's run and all passers painted and nobody else, the head's pages fit.
static bool head_still_fits(const struct picture *p, const struct seat *extra) {
    uint8_t bytes[MOST_BYTES] = {0};
    int64_t taken = extra != NULL ? extra->n_page : 0;
    for (int32_t i = 0; i < n_fixed(p); i++) paint(bytes, run_start(p, i), p->s.run_bytes, FIXED);
    paint(bytes, run_start(p, p->target), p->s.run_bytes, FIXED);
    if (extra != NULL) paint(bytes, run_start(p, extra->run), p->s.run_bytes, FIXED);
    for (int i = 0; i < N_CLAIMS; i++) {
        const struct claim *c = &p->claims[i];
        if (!c->seated || p->old[i]) continue;
        paint(bytes, run_start(p, c->run), p->s.run_bytes, FIXED);
        taken += c->n_page;
    }
    if (sets_aside(p)) taken += window_pages(p);
    return free_pages(p, bytes, NULL) - taken >= pages_of(p, &p->claims[p->head]);
}

static int32_t first_lane(const struct picture *p, int32_t from) {
    while (from < p->s.parallel && seated_on(p, from) >= 0) from++;
    return from < p->s.parallel ? from : -1;
}

static bool head_seat(const struct picture *p, int i, struct seat *seat) {
    int32_t lane = first_lane(p, sets_aside(p) ? 1 : 0);
    if (lane >= 0 && has_room(p, i, lane, -1, seat)) return true;
    return sets_aside(p) && seated_on(p, 0) < 0 && has_room(p, i, 0, -1, seat);
}

static bool passer_seat(const struct picture *p, int i, struct seat *seat) {
    int32_t lane = first_lane(p, sets_aside(p) ? 1 : 0);
    if (lane < 0 || n_seated(p, true) + 1 >= p->s.parallel) return false;
    if (!has_room(p, i, lane, p->target, seat)) return false;
    return p->s.windows || p->target < 0 || head_still_fits(p, seat);
}

// The open run nearest the top, or else that of the upper ones in which most pages are free.
static int32_t choose_target(const struct picture *p) {
    int32_t best = -1, most = -1;
    if (p->s.windows) return -1;
    for (int32_t r = n_fixed(p); r < n_runs(p) && r <= p->s.parallel; r++) {
        int32_t n = 0;
        for (int32_t i = 0; i < n_pages(p); i++) {
            int64_t start = i * p->s.page_bytes, end = start + p->s.page_bytes;
            bool in_run = start < run_start(p, r) + p->s.run_bytes && end > run_start(p, r);
            n += in_run && all_free(p->bytes, start, p->s.page_bytes);
        }
        if (all_free(p->bytes, run_start(p, r), p->s.run_bytes)) n = INT32_MAX;
        if (n > most) {
            most = n;
            best = r;
        }
    }
    return best;
}

static void note_head(struct picture *p, int head) {
    p->head = head;
    p->target = -1;
    for (int i = 0; i < N_CLAIMS; i++) p->old[i] = p->claims[i].seated;
}

// Who is seated next, and where; -1: nobody.
static int predict(struct picture *p, struct seat *seat) {
    int head = next_waiting(p, -1);
    if (head < 0) return -1;
    if (head != p->head) note_head(p, -1);
    if (n_seated(p, false) < p->s.parallel && head_seat(p, head, seat)) return head;
    if (p->head < 0) {
        note_head(p, head);
        p->target = choose_target(p);
        if (p->target >= 0 && !head_still_fits(p, NULL)) p->target = -1;
    }
    for (int i = next_waiting(p, head); i >= 0; i = next_waiting(p, i))
        if (passer_seat(p, i, seat)) return i;
    return -1;
}

static bool agree(struct picture *p, bool *more) {
    struct seat *seat = malloc(sizeof *seat);
    int want = predict(p, seat);
    struct claim *got = ledger_admit(p->ledger, 0);
    bool ok = got == (want < 0 ? NULL : &p->claims[want]);
    if (ok && got != NULL)
        ok = got->lane == seat->lane && got->run == seat->run && got->n_page == seat->n_page &&
             memcmp(got->pages, seat->pages, (size_t)seat->n_page * sizeof *seat->pages) == 0;
    *more = got != NULL;
    if (ok && got != NULL) {
        if (seat->lane >= n_fixed(p)) paint(p->bytes, run_start(p, seat->run), p->s.run_bytes, SEAT + want);
        for (int32_t i = 0; i < seat->n_page; i++)
            paint(p->bytes, seat->pages[i] * p->s.page_bytes, p->s.page_bytes, SEAT + want);
        if (want == next_waiting(p, -1) || p->head < 0) note_head(p, -1);
        p->old[want] = p->head < 0;
    }
    free(seat);
    return ok;
}

// Once all that were seated when the head became the head have ended, it must be seated.
static bool head_waits_too_long(const struct picture *p) {
    int head = next_waiting(p, -1);
    if (head < 0 || p->head != head) return false;
    for (int i = 0; i < N_CLAIMS; i++)
        if (p->claims[i].seated && p->old[i]) return false;
    return true;
}

static void end(struct picture *p, int i) {
    if (p->claims[i].waiting) {
        ledger_remove(p->ledger, &p->claims[i]);
        if (p->head == i) note_head(p, -1);
        return;
    }
    ledger_release(p->ledger, &p->claims[i]);
    for (int64_t b = 0; b < p->s.pool_bytes; b++)
        if (p->bytes[b] == SEAT + i) p->bytes[b] = FREE;
    p->old[i] = false;
}

static void submit(struct picture *p, int i, uint64_t bits) {
    struct claim c = {.priority = bits >> 60 & 3 ? 0 : 1};
    int64_t most, rows = 2 + (int64_t)((bits >> 8 & 0xffff) % (uint64_t)p->s.context);
    if (bits >> 40 & 1) rows = 2 + rows / 6;
    c.prompt = 1 + (int64_t)((bits >> 44 & 0xff) % (uint64_t)(rows - 1));
    c.reply = rows - c.prompt;
    if (ledger_check(p->ledger, c.prompt, c.reply, &most) != LEDGER_FITS) {
        assert_true(rows > most);
        return;
    }
    assert_true(rows <= most);
    p->claims[i] = c;
    p->order[i] = p->n_arrived++;
    ledger_enqueue(p->ledger, &p->claims[i]);
}

static void open_picture(struct picture *p, const struct shape *s) {
    memset(p, 0, sizeof *p);
    p->s = *s;
    struct pool_shape pool = {
        .bytes = s->pool_bytes, .page_bytes = s->page_bytes, .run_bytes = s->run_bytes, .n_run = 1000};
    assert_int_equal(pool_create(&pool, &p->pool, NULL), STATUS_OK);
    struct ledger_settings settings = {.windows = s->windows,
                                       .pages_all = s->pages_all,
                                       .parallel = s->parallel,
                                       .context = s->context,
                                       .max_window = s->max_window,
                                       .page_rows = s->page_rows,
                                       .pool = p->pool};
    assert_int_equal(ledger_create(&settings, &p->ledger, NULL), STATUS_OK);
    for (int32_t i = 0; i < n_fixed(p); i++) paint(p->bytes, run_start(p, i), s->run_bytes, FIXED);
    note_head(p, -1);
}

static void close_picture(struct picture *p) {
    for (int i = 0; i < N_CLAIMS; i++)
        if (p->claims[i].waiting || p->claims[i].seated) end(p, i);
    struct ledger_counts c;
    ledger_get_counts(p->ledger, &c);
    assert_int_equal(c.n_leaked, 0);
    ledger_free(p->ledger);
    struct pool_counts n;
    pool_get_counts(p->pool, &n);
    assert_int_equal(n.n_page_free, n.n_page);
    pool_free(p->pool);
}

// Tight and roomy pools; pages smaller than runs, larger, and in no ratio; every kind of lane.
static const struct shape shapes[] = {
    {false, true, 4, 60, 2, 1, 4, 40, 600},         {false, true, 8, 64, 8, 64, 64, 48, 1400},
    {false, true, 6, 200, 4, 96, 30, 33, 500},      {false, false, 5, 100, 3, 16, 16, 50, 700},
    {false, false, 8, 256, 16, 256, 100, 37, 1500}, {false, false, 4, 90, 1, 1, 3, 64, 900},
    {true, false, 4, 100, 8, 64, 64, 100, 912},     {false, true, 3, 30, 1, 1, 8, 160, 640},
    {false, true, 5, 50, 1, 1, 4, 100, 420},        {false, true, 4, 4096, 16, 4096, 120, 70, 1000},
};

enum plant { PLANT_NOTHING, PLANT_ADMIT_COUNT };

static bool walk(const struct shape *s, uint64_t key, uint64_t n, enum plant plant, uint64_t *n_passed) {
    struct picture *p = malloc(sizeof *p);
    bool ok = true, more = true;
    open_picture(p, s);
    if (plant == PLANT_ADMIT_COUNT) p->s.max_window -= p->s.page_rows; // the model expects a page less a claim
    for (uint64_t i = 0; i < n && ok; i++) {
        uint64_t bits = random_bits(key, i, 0);
        int k = (int)(bits >> 52 & 0xff) % N_CLAIMS;
        bool held = p->claims[k].waiting || p->claims[k].seated;
        if (!held)
            submit(p, k, random_bits(key, i, 1));
        else if (p->claims[k].seated || bits % 16 == 0)
            end(p, k);
        for (more = true; more && ok;) ok = agree(p, &more);
        ok = ok && !head_waits_too_long(p);
        if (i % 256 == 0) assert_true(pool_is_consistent(p->pool));
    }
    struct ledger_counts c;
    ledger_get_counts(p->ledger, &c);
    *n_passed += (uint64_t)c.n_passed;
    close_picture(p);
    free(p);
    return ok;
}

static void test_the_same_claims_are_seated(void **state) {
    (void)state;
    uint64_t n_passed = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        assert_true(walk(&shapes[i], i + 1, 20000, PLANT_NOTHING, &n_passed));
    assert_true(n_passed > 1000);
}

static void test_a_wrong_admit_count_is_seen(void **state) {
    (void)state;
    uint64_t n_passed = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        if (!shapes[i].windows) assert_false(walk(&shapes[i], i + 1, 20000, PLANT_ADMIT_COUNT, &n_passed));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_same_claims_are_seated),
        cmocka_unit_test(test_a_wrong_admit_count_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
