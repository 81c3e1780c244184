#include "tests/memory/world.h"
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROW_BYTES = 16, RUN_BYTES = 1024, KEPT_BYTES = 768 };

#define GARBAGE 0xdeadbeefdeadbeefull

static uint64_t mix(uint64_t h, uint64_t x) {
    h = (h ^ x) * 0x9e3779b97f4a7c15ull;
    return h ^ h >> 29;
}

// ---- start and end ----

void world_open(struct world *w, const struct world_shape *s) {
    memset(w, 0, sizeof *w);
    int64_t page_bytes = (int64_t)s->page_rows * ROW_BYTES;
    struct pool_shape pool = {.bytes = (int64_t)s->pool_rows * ROW_BYTES + (int64_t)s->pool_runs * RUN_BYTES,
                              .page_bytes = page_bytes,
                              .run_bytes = RUN_BYTES,
                              .n_run = s->windows ? s->parallel + s->n_staging : 1000};
    assert_int_equal(pool_create(&pool, &w->pool, NULL), STATUS_OK);
    int64_t host = s->host_entries * (KEPT_BYTES + 2ll * s->context * ROW_BYTES);
    w->prefix_settings = (struct prefix_settings){.pool = w->pool,
                                                  .share = s->share,
                                                  .page_rows = s->page_rows,
                                                  .page_bytes = page_bytes,
                                                  .kept_bytes = KEPT_BYTES,
                                                  .host_bytes = host,
                                                  .grid_rows = s->grid_rows,
                                                  .hash_mask = s->hash_mask};
    assert_int_equal(prefix_create(&w->prefix_settings, &w->prefix, NULL), STATUS_OK);
    w->ledger_settings = (struct ledger_settings){.windows = s->windows,
                                                  .pages_all = s->pages_all,
                                                  .parallel = s->parallel,
                                                  .context = s->context,
                                                  .max_window = s->max_window,
                                                  .page_rows = s->page_rows,
                                                  .pool = w->pool,
                                                  .prefix = w->prefix,
                                                  .expect_wait_ns = 1000};
    assert_int_equal(ledger_create(&w->ledger_settings, &w->ledger, NULL), STATUS_OK);
    struct pool_counts c;
    pool_get_counts(w->pool, &c);
    w->page_rows = s->page_rows;
    w->n_page = (int32_t)c.n_page;
    w->n_run = c.n_run;
    w->rows = calloc((size_t)w->n_page * (size_t)w->page_rows + 1, sizeof *w->rows);
    w->runs = calloc((size_t)w->n_run + 1, sizeof *w->runs);
    w->host_rows = calloc((size_t)(host / ROW_BYTES) + 1, sizeof *w->host_rows);
    w->host_runs = calloc((size_t)(host / KEPT_BYTES) + 1, sizeof *w->host_runs);
    assert_true(w->rows != NULL && w->runs != NULL && w->host_rows != NULL && w->host_runs != NULL);
}

void world_close(struct world *w) {
    assert_true(world_is_idle(w));
    if (w->writing) world_write(w, false);
    prefix_drop_all(w->prefix);
    ledger_free(w->ledger);
    prefix_free(w->prefix);
    struct pool_counts c;
    pool_get_counts(w->pool, &c);
    assert_int_equal(c.n_page_free, c.n_page);
    assert_int_equal(c.n_lane_refs + c.n_cache_refs + c.n_run_lane + c.n_run_cached, 0);
    pool_free(w->pool);
    free(w->rows);
    free(w->runs);
    free(w->host_rows);
    free(w->host_runs);
}

bool world_is_idle(const struct world *w) {
    for (int i = 0; i < WORLD_CLIENTS; i++)
        if (w->clients[i].phase != CLIENT_IDLE) return false;
    return true;
}

// ---- memory ----

static uint64_t *row_of(struct world *w, const int32_t *pages, int32_t row) {
    return w->rows + (int64_t)pages[row / w->page_rows] * w->page_rows + row % w->page_rows;
}

// Only rows of pages that were taken afresh may be written, and none beyond those that were claimed.
static void write_row(struct world *w, struct client *c, int32_t row, uint64_t value) {
    int32_t i = row / w->page_rows;
    if (i >= c->claim.n_page || i < c->claim.n_own_from) {
        w->wrong = true;
        return;
    }
    *row_of(w, c->claim.pages, row) = value;
}

static void check_prompt_rows(struct world *w, struct client *c, int32_t n) {
    for (int32_t i = 0; i < n && i / w->page_rows < c->claim.n_page; i++)
        if (*row_of(w, c->claim.pages, i) != c->hashes[i + 1]) w->wrong = true;
}

// ---- clients ----

bool world_submit(struct world *w, struct client *c, uint64_t salt, const int32_t *ids, int32_t n_prompt, int32_t reply,
                  int32_t priority, const struct prefix_marks *marks) {
    int64_t most;
    assert_int_equal(c->phase, CLIENT_IDLE);
    if (ledger_check(w->ledger, n_prompt, reply, &most) != LEDGER_FITS) return false;
    memcpy(c->ids, ids, (size_t)n_prompt * sizeof *ids);
    c->hashes[0] = mix(salt, 77);
    for (int32_t i = 0; i < n_prompt; i++) c->hashes[i + 1] = mix(c->hashes[i], (uint64_t)ids[i] + 1);
    assert_int_equal(text_create(salt, ids, n_prompt, &c->text, NULL), STATUS_OK);
    c->claim =
        (struct claim){.prompt = n_prompt, .reply = reply, .priority = priority, .text = c->text, .cuts = c->cuts};
    c->claim.n_cut = prefix_choose_cuts(w->prefix, n_prompt, marks, c->cuts);
    c->phase = CLIENT_WAITING;
    c->n_done = 0;
    c->reply = reply;
    ledger_enqueue(w->ledger, &c->claim);
    return true;
}

static void fill_with_garbage(struct world *w, struct client *c) {
    const struct claim *k = &c->claim;
    for (int32_t i = k->n_own_from; i < k->n_page; i++)
        for (int32_t r = 0; r < w->page_rows; r++) w->rows[(int64_t)k->pages[i] * w->page_rows + r] = GARBAGE;
    if (!k->run_is_kept) w->runs[k->run] = GARBAGE;
}

static void restore(struct world *w, struct client *c) {
    const struct claim *k = &c->claim;
    const struct prefix_source *s = &k->source;
    const uint64_t *from = s->tier == PREFIX_HOST ? w->host_rows : w->rows;
    const uint64_t *from_runs = s->tier == PREFIX_HOST ? w->host_runs : w->runs;
    for (int32_t i = s->first_page; i < s->n_page; i++)
        for (int32_t r = 0; r < w->page_rows && i * w->page_rows + r < k->resume; r++)
            w->rows[(int64_t)k->pages[i] * w->page_rows + r] = from[(int64_t)s->pages[i] * w->page_rows + r];
    if (s->run != POOL_NONE) w->runs[k->run] = from_runs[s->run];
    if (s->also_to != POOL_NONE) w->runs[s->also_to] = from_runs[s->run];
}

static struct client *client_of(struct claim *c) {
    return (struct client *)((char *)c - offsetof(struct client, claim));
}

static void start(struct world *w, struct client *c, bool restore_fails) {
    fill_with_garbage(w, c);
    if (c->claim.resume > 0) restore(w, c);
    if (restore_fails && c->claim.resume > 0) {
        ledger_end_resume(w->ledger, &c->claim, false);
        return;
    }
    ledger_end_resume(w->ledger, &c->claim, true);
    w->n_resumed += c->claim.resume > 0;
    w->n_fresh += c->claim.resume == 0;
    w->n_passed += c->claim.passer;
    c->phase = CLIENT_PROMPT;
    c->n_done = c->claim.resume;
    c->saw_head = false;
    if (c->n_done >= (int32_t)c->claim.prompt || c->n_done % TEXT_CHUNK != 0) w->wrong = true; // one row is computed
    check_prompt_rows(w, c, c->n_done);
    if (c->n_done > 0 && w->runs[c->claim.run] != c->hashes[c->n_done]) w->wrong = true;
}

// The head is seated when all that it found seated have ended: whatever it waits for then, it waits too long.
static void check_head(struct world *w) {
    struct claim *head = ledger_first(w->ledger);
    bool is_new = head != w->head, some_left = false;
    w->head = head;
    for (int i = 0; i < WORLD_CLIENTS; i++) {
        struct client *c = &w->clients[i];
        bool seated = c->phase == CLIENT_PROMPT || c->phase == CLIENT_REPLY;
        if (is_new) c->saw_head = seated;
        some_left = some_left || (seated && c->saw_head);
    }
    if (head != NULL && !some_left && head->wait != LEDGER_WAIT_PREFIX && !w->writing) w->wrong = true;
}

void world_admit(struct world *w, bool restores_fail) {
    struct claim *c;
    w->now_ns++;
    while ((c = ledger_admit(w->ledger, w->now_ns)) != NULL) start(w, client_of(c), restores_fail);
    check_head(w);
}

// A pass as the engine makes them: it starts and, but for the last, ends at a multiple of 64.
void world_pass(struct world *w, struct client *c, int32_t rows) {
    struct prefix_keep keeps[8];
    int32_t n_prompt = (int32_t)c->claim.prompt, end = c->n_done + (rows + TEXT_CHUNK - 1) / TEXT_CHUNK * TEXT_CHUNK;
    if (end > n_prompt) end = n_prompt;
    int32_t n = prefix_begin_keep(w->prefix, c->claim.lane, c->n_done, end, keeps, 8);
    // It reads all rows before it, and the state.
    check_prompt_rows(w, c, c->n_done);
    if (c->n_done > 0 && w->runs[c->claim.run] != c->hashes[c->n_done]) w->wrong = true;
    for (int32_t i = c->n_done; i < end; i++) write_row(w, c, i, c->hashes[i + 1]);
    w->n_prompt_rows += (uint64_t)(end - c->n_done);
    for (int32_t i = 0; i < n; i++) w->runs[keeps[i].run] = c->hashes[keeps[i].position];
    w->runs[c->claim.run] = c->hashes[end];
    prefix_end_keep(w->prefix, c->claim.lane, c->claim.pages);
    c->n_done = end;
    if (end == n_prompt) c->phase = CLIENT_REPLY;
}

void world_prompt(struct world *w, struct client *c) {
    while (c->phase == CLIENT_PROMPT) world_pass(w, c, 512);
}

void world_reply(struct world *w, struct client *c) {
    int32_t row = c->n_done++, last = (int32_t)c->claim.prompt + c->reply;
    // The widest round may write max_window rows from here on.
    for (int32_t i = 0; i < w->ledger_settings.max_window; i++)
        write_row(w, c, row + i, GARBAGE ^ (uint64_t)c->claim.lane);
    w->runs[c->claim.run] = GARBAGE;
    if (row + 1 < last) return;
    check_prompt_rows(w, c, (int32_t)c->claim.prompt);
    world_end(w, c);
}

void world_end(struct world *w, struct client *c) {
    if (c->phase == CLIENT_WAITING)
        ledger_remove(w->ledger, &c->claim);
    else
        ledger_release(w->ledger, &c->claim);
    if (w->head == &c->claim) w->head = NULL;
    text_free(c->text);
    c->text = NULL;
    c->phase = CLIENT_IDLE;
    c->saw_head = false;
}

void world_write(struct world *w, bool begin_only) {
    if (!w->writing) w->writing = prefix_begin_write(w->prefix, &w->write);
    if (!w->writing || begin_only) return;
    const struct prefix_write *x = &w->write;
    for (int32_t i = x->first_page; i < x->n_page; i++)
        memcpy(w->host_rows + (int64_t)x->to[i] * w->page_rows, w->rows + (int64_t)x->from[i] * w->page_rows,
               (size_t)w->page_rows * sizeof *w->rows);
    w->host_runs[x->to_run] = w->runs[x->from_run];
    prefix_end_write(w->prefix, &w->write, true);
    w->writing = false;
}

void world_check(struct world *w) {
    struct ledger_counts c;
    ledger_get_counts(w->ledger, &c);
    assert_int_equal(c.n_leaked, 0);
    // While a head waits, the run that is kept for it may be part of that room.
    if (!w->writing && c.n_waiting == 0) assert_true(pool_count_open(w->pool) >= c.n_set_aside);
    assert_true(pool_is_consistent(w->pool));
    if (c.n_seated == 0) {
        struct pool_counts p;
        pool_get_counts(w->pool, &p);
        assert_true(w->writing || p.n_lane_refs == 0);
    }
    assert_false(w->wrong);
}
