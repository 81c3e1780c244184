// The prompt cache by hand, in a simulated engine (world.h): what is kept, found, shared, evicted and written behind
// (cases C69, C71, C73, C75, C77, C91).
#include "tests/memory/world.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct world *open_world(struct world_shape s) {
    struct world *w = malloc(sizeof *w);
    if (s.parallel == 0) s.parallel = 4;
    if (s.context == 0) s.context = 1024;
    if (s.max_window == 0) s.max_window = 8;
    if (s.page_rows == 0) s.page_rows = 256;
    if (s.pool_rows == 0) s.pool_rows = 8192;
    if (s.pool_runs == 0) s.pool_runs = 40;
    world_open(w, &s);
    return w;
}

static void close_world(struct world *w) {
    world_check(w);
    world_close(w);
    free(w);
}

static const struct prefix_marks no_marks = {0};

static void fill(int32_t *ids, int32_t from, int32_t to, int32_t id) {
    for (int32_t i = from; i < to; i++) ids[i] = id;
}

static void submit(struct world *w, int i, const int32_t *ids, int32_t n, struct prefix_marks marks) {
    assert_true(world_submit(w, &w->clients[i], 0, ids, n, 4, 0, &marks));
}

// Runs a client's request from submit to its end, and returns where it resumed.
static int32_t run(struct world *w, int i, const int32_t *ids, int32_t n, struct prefix_marks marks) {
    struct client *c = &w->clients[i];
    submit(w, i, ids, n, marks);
    world_admit(w, false);
    assert_int_equal(c->phase, CLIENT_PROMPT);
    int32_t resume = c->claim.resume;
    world_prompt(w, c);
    while (c->phase == CLIENT_REPLY) world_reply(w, c);
    return resume;
}

static struct prefix_counts counts_of(const struct world *w) {
    struct prefix_counts c;
    prefix_get_counts(w->prefix, &c);
    return c;
}

// ---- what is kept, and found ----

static void test_cuts(void **state) {
    (void)state;
    struct world *w = open_world((struct world_shape){.pages_all = true, .share = true, .grid_rows = 256});
    struct prefix_cut cuts[PREFIX_MAX_CUTS];
    struct prefix_marks marks = {.system_end = 130, .last_user = 600, .history_end = 700};
    static const struct prefix_cut want[] = {{128, PREFIX_KEEP_SHARED},
                                             {256, PREFIX_KEEP_GRID},
                                             {512, PREFIX_KEEP_GRID},
                                             {576, PREFIX_KEEP_TURN},
                                             {640, PREFIX_KEEP_TURN}};
    assert_int_equal(prefix_choose_cuts(w->prefix, 710, &marks, cuts), 5);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(cuts[i].position, want[i].position);
        assert_int_equal(cuts[i].kind, want[i].kind);
    }
    marks = (struct prefix_marks){.system_end = 256, .history_end = 5000}; // marks beyond the prompt are its end
    assert_int_equal(prefix_choose_cuts(w->prefix, 300, &marks, cuts), 1);
    assert_int_equal(cuts[0].kind, PREFIX_KEEP_SHARED);
    assert_int_equal(prefix_choose_cuts(w->prefix, 64, &no_marks, cuts), 0); // the last row is always computed
    assert_int_equal(prefix_choose_cuts(w->prefix, 65, &no_marks, cuts), 1);
    assert_int_equal(prefix_choose_cuts(w->prefix, 1, &no_marks, cuts), 0);
    close_world(w);
    w = open_world((struct world_shape){.grid_rows = 64});
    assert_int_equal(prefix_choose_cuts(w->prefix, 500, &marks, cuts), 0); // no tier: nothing is kept
    close_world(w);
}

// Every length around pages and chunks, a miss and then the same prompt again.
static void sweep_residues(struct world_shape shape) {
    static const int32_t starts[] = {1, 513};
    struct world *w = open_world(shape);
    int32_t ids[WORLD_ROWS];
    for (int s = 0; s < 2; s++)
        for (int32_t n = starts[s]; n < starts[s] + 256; n++) {
            fill(ids, 0, n, n);
            assert_int_equal(run(w, 0, ids, n, no_marks), 0);
            assert_int_equal(run(w, 1, ids, n, no_marks), (n - 1) / 64 * 64);
            if (shape.host_entries > 0) world_write(w, false);
            assert_int_equal(run(w, 2, ids, n, no_marks), (n - 1) / 64 * 64);
            world_check(w);
        }
    close_world(w);
}

static void test_every_residue_of_a_page(void **state) {
    (void)state;
    sweep_residues((struct world_shape){.pages_all = true, .share = true, .page_rows = 1});
    sweep_residues((struct world_shape){.pages_all = true, .share = true, .page_rows = 64});
    sweep_residues((struct world_shape){.share = true, .page_rows = 256, .host_entries = 4});
    sweep_residues((struct world_shape){.page_rows = 96, .host_entries = 4});
    sweep_residues((struct world_shape){.pages_all = true, .share = true, .page_rows = 4096, .pool_rows = 20000});
    sweep_residues((struct world_shape){
        .windows = true, .page_rows = 256, .pool_rows = 5120, .pool_runs = 7, .n_staging = 3, .host_entries = 4});
}

static void test_a_longer_entry_is_not_used(void **state) {
    (void)state;
    struct world *w = open_world((struct world_shape){.pages_all = true, .share = true});
    int32_t ids[WORLD_ROWS];
    fill(ids, 0, 700, 3);
    run(w, 0, ids, 700, (struct prefix_marks){.system_end = 130});
    assert_int_equal(run(w, 0, ids, 300, no_marks), 128);
    assert_int_equal(run(w, 0, ids, 128, no_marks), 0); // the whole of it is kept, and one row is to be computed
    assert_int_equal(run(w, 0, ids, 129, no_marks), 128);
    close_world(w);
}

// Four questions with the same beginning: each computes exactly what follows it.
static void test_one_beginning_and_many_ends(void **state) {
    (void)state;
    struct world *w = open_world((struct world_shape){.pages_all = true, .share = true});
    int32_t ids[WORLD_ROWS];
    fill(ids, 0, 128, 1);
    for (int i = 0; i < 4; i++) {
        fill(ids, 128, 300 + i, 10 + i);
        uint64_t before = w->n_prompt_rows;
        assert_int_equal(run(w, i, ids, 300 + i, (struct prefix_marks){.system_end = 128}), i == 0 ? 0 : 128);
        assert_int_equal(w->n_prompt_rows - before, 300 + i - (i == 0 ? 0 : 128));
    }
    int32_t at = 0, kept = 0;
    struct text *t;
    fill(ids, 100, 300, 77);
    assert_int_equal(text_create(0, ids, 300, &t, NULL), STATUS_OK);
    assert_true(prefix_find_difference(w->prefix, t, &at, &kept));
    assert_int_equal(at, 100);
    text_free(t);
    ids[0] = 5;
    assert_int_equal(text_create(0, ids, 300, &t, NULL), STATUS_OK);
    assert_false(prefix_find_difference(w->prefix, t, &at, &kept));
    text_free(t);
    close_world(w);
}

static void test_salts_and_collisions(void **state) {
    (void)state;
    // One bit of hash: nearly everything collides, and only the tokens tell.
    struct world *w = open_world((struct world_shape){.pages_all = true, .share = true, .hash_mask = 1});
    int32_t ids[WORLD_ROWS];
    for (int32_t i = 0; i < 20; i++) {
        fill(ids, 0, 200, i);
        assert_int_equal(run(w, 0, ids, 200, no_marks), 0);
    }
    for (uint64_t salt = 1; salt < 4; salt++)
        for (int again = 0; again < 2; again++) {
            struct client *c = &w->clients[1];
            assert_true(world_submit(w, c, salt, ids, 200, 1, 0, &no_marks));
            world_admit(w, false);
            assert_int_equal(c->claim.resume, again ? 192 : 0); // nobody else's
            world_prompt(w, c);
            world_end(w, c);
        }
    assert_int_equal(run(w, 0, ids, 200, no_marks), 192);
    prefix_drop_all(w->prefix);
    assert_int_equal(counts_of(w).n_entry, 0);
    assert_int_equal(run(w, 0, ids, 200, no_marks), 0);
    close_world(w);
}

// ---- conversations ----

// Ten turns: each computes no more than its new tokens, the previous reply and what chunks cost.
static void chat(struct world *w, int n_turn) {
    int32_t ids[WORLD_ROWS], n = 70, kept = 0;
    fill(ids, 0, n, 1);
    for (int turn = 0; turn < n_turn; turn++) {
        int32_t start = n;
        fill(ids, n, n + 37, 100 + turn); // the message; then a generation prompt of 5
        fill(ids, n + 37, n + 42, 2);
        struct prefix_marks marks = {.system_end = 70, .last_user = start, .history_end = n + 37};
        int32_t resume = run(w, turn % WORLD_CLIENTS, ids, n + 42, marks);
        world_write(w, false);
        world_write(w, false);
        assert_true(n + 42 - resume <= 37 + 5 + (turn == 0 ? 70 : 20 + 5) + 63);
        assert_true(resume >= kept); // the restart point advances
        kept = resume;
        n += 37 + 20; // the reply, without what the template drops
        fill(ids, start + 37, n, 200 + turn);
    }
    assert_true(kept > 0);
}

static void test_ten_turns(void **state) {
    (void)state;
    struct world *w = open_world((struct world_shape){.pages_all = true, .share = true});
    chat(w, 10);
    close_world(w);
    w = open_world((struct world_shape){.page_rows = 96, .host_entries = 3});
    chat(w, 10);
    close_world(w);
    // Sixteen turns and room for few states: the newest stays, and so does the system prompt.
    w = open_world((struct world_shape){
        .windows = true, .parallel = 2, .pool_rows = 2560, .pool_runs = 4, .n_staging = 2, .host_entries = 1});
    chat(w, 16);
    assert_true(counts_of(w).n_evicted > 0);
    int32_t ids[WORLD_ROWS];
    fill(ids, 0, 70, 1);
    fill(ids, 70, 300, 999);
    assert_int_equal(run(w, 0, ids, 300, no_marks), 64);
    close_world(w);
}

// First messages of conversations are kept as what others may begin with. However many there are, two conversations
// that go on in turn still start where each has come to.
static void go_on_among_others(struct world_shape shape) {
    struct world *w = open_world(shape);
    int32_t ids[2][WORLD_ROWS], other[200], n[2] = {140, 140}, resume[2] = {0, 0};
    for (int i = 0; i < 40; i++) {
        fill(other, 0, 130, 1000 + i);
        run(w, 0, other, 130, (struct prefix_marks){.system_end = 129, .history_end = 129});
        world_write(w, false);
    }
    for (int i = 0; i < 2; i++) fill(ids[i], 0, WORLD_ROWS, 2000 + i);
    for (int turn = 0; turn < 16; turn++)
        for (int i = 0; i < 2; i++) {
            struct prefix_marks marks = {
                .system_end = 139, .last_user = turn > 0 ? n[i] - 40 : 0, .history_end = n[i] - 1};
            resume[i] = run(w, i, ids[i], n[i], marks);
            for (int k = 0; k < 3; k++) world_write(w, false);
            assert_true(turn == 0 || n[i] - resume[i] <= 50 + 64);
            n[i] += 50;
        }
    assert_true(counts_of(w).n_evicted > 0);
    close_world(w);
}

static void test_conversations_go_on_among_many_others(void **state) {
    (void)state;
    go_on_among_others((struct world_shape){.windows = true,
                                            .parallel = 2,
                                            .pool_rows = 2560,
                                            .pool_runs = 6,
                                            .n_staging = 4,
                                            .page_rows = 64,
                                            .host_entries = 1});
    go_on_among_others((struct world_shape){.page_rows = 64, .host_entries = 1});
    go_on_among_others((struct world_shape){
        .pages_all = true, .share = true, .parallel = 2, .page_rows = 64, .pool_rows = 2560, .pool_runs = 12});
}

static void test_equal_prompts_at_once_are_computed_once(void **state) {
    (void)state;
    struct world *w = open_world((struct world_shape){.pages_all = true, .share = true, .parallel = 16});
    int32_t ids[WORLD_ROWS];
    fill(ids, 0, 600, 4);
    for (int i = 0; i < 16; i++) submit(w, i, ids, 600, no_marks);
    world_admit(w, false);
    assert_int_equal(w->n_fresh, 1);
    assert_int_equal(w->clients[1].claim.wait, LEDGER_WAIT_PREFIX);
    world_prompt(w, &w->clients[0]);
    world_admit(w, false);
    for (int i = 1; i < 16; i++) world_prompt(w, &w->clients[i]);
    assert_int_equal(w->n_prompt_rows, 600 + 15 * (600 - 576));
    struct pool_counts c;
    pool_get_counts(w->pool, &c);
    assert_int_equal(c.n_page_lane, 3 + 15); // two full pages once, and each its own last one
    assert_int_equal(c.n_page_shared, 2);
    for (int i = 0; i < 16; i++) world_end(w, &w->clients[i]);
    close_world(w);
}

static void test_waiting_for_a_prefix_is_bounded(void **state) {
    (void)state;
    struct world *w = open_world((struct world_shape){.pages_all = true, .share = true});
    int32_t ids[WORLD_ROWS];
    fill(ids, 0, 600, 4);
    for (int i = 0; i < 3; i++) submit(w, i, ids, 600, no_marks);
    world_admit(w, false);
    assert_int_equal(w->clients[1].phase, CLIENT_WAITING);
    world_end(w, &w->clients[0]); // the one that would have computed it is cancelled: the next does
    world_admit(w, false);
    assert_int_equal(w->clients[1].phase, CLIENT_PROMPT);
    assert_int_equal(w->clients[2].phase, CLIENT_WAITING);
    w->now_ns += 5000; // it takes too long
    world_admit(w, false);
    assert_int_equal(w->clients[2].phase, CLIENT_PROMPT);
    assert_int_equal(w->clients[2].claim.resume, 0);
    for (int i = 1; i < 3; i++) world_end(w, &w->clients[i]);
    close_world(w);
}

// Least useful first: what a longer one extends, then the oldest, and cuts that conversations share last.
static void test_the_order_of_eviction(void **state) {
    (void)state;
    struct world *w = open_world((struct world_shape){.pages_all = true, .share = true});
    int32_t ids[WORLD_ROWS];
    fill(ids, 0, 400, 1);
    run(w, 0, ids, 70, (struct prefix_marks){.system_end = 70}); // 64, shared by what it is for
    fill(ids, 64, 400, 2);
    run(w, 0, ids, 140, no_marks); // 128: the oldest end
    fill(ids, 64, 400, 3);
    run(w, 0, ids, 200, no_marks); // 192, which 320 extends
    run(w, 0, ids, 330, no_marks); // 320
    fill(ids, 0, 400, 4);
    run(w, 0, ids, 270, no_marks); // 256, which two extend, until one of them is gone
    fill(ids, 256, 400, 5);
    run(w, 0, ids, 330, no_marks);
    fill(ids, 256, 400, 6);
    run(w, 0, ids, 390, no_marks);
    static const struct {
        int32_t id, n, resume; // the prompt that finds the entry: first token, rows, and where it resumes from it
    } order[] = {{3, 200, 192}, {2, 140, 128}, {3, 330, 320}, {5, 330, 320}, {4, 270, 256}, {6, 390, 384}, {1, 70, 64}};
    for (size_t gone = 0; gone <= sizeof order / sizeof *order; gone++) {
        for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
            int32_t id = order[i].id, at = id == 2 || id == 3 ? 64 : id == 5 || id == 6 ? 256 : 0;
            struct prefix_match match;
            struct text *t;
            fill(ids, 0, at, at == 64 ? 1 : 4);
            fill(ids, at, 400, id);
            assert_int_equal(text_create(0, ids, order[i].n, &t, NULL), STATUS_OK);
            prefix_find(w->prefix, t, &match);
            assert_int_equal(match.position == order[i].resume, i >= gone);
            text_free(t);
        }
        assert_int_equal(prefix_reclaim(w->prefix), gone < sizeof order / sizeof *order);
    }
    close_world(w);
}

// A pool that is full of kept prompts, which a single stream has left: streams beside it take the places of as many as
// they need, whoever has the run that is the first one.
static void test_a_full_pool_gives_up_what_is_needed(void **state) {
    (void)state;
    struct world *w = open_world((struct world_shape){
        .pages_all = true, .share = true, .parallel = 5, .page_rows = 64, .pool_rows = 8192, .pool_runs = 40});
    int32_t ids[WORLD_ROWS];
    fill(ids, 0, 130, 1);
    for (int i = 0; i < 200; i++) {
        fill(ids, 130, 300, 1000 + i);
        run(w, 0, ids, 300, (struct prefix_marks){.system_end = 130, .history_end = 299});
    }
    for (int i = 0; i < 5; i++) {
        int64_t before = counts_of(w).n_evicted;
        assert_true(counts_of(w).n_in_pool > 40);
        fill(ids, 0, 300, 3000 + i);
        submit(w, i, ids, 300, no_marks);
        world_admit(w, false);
        assert_int_equal(w->clients[i].phase, CLIENT_PROMPT);
        world_prompt(w, &w->clients[i]);
        assert_true(counts_of(w).n_evicted - before < 6); // five pages, a run, and one to keep
    }
    for (int i = 0; i < 5; i++) world_end(w, &w->clients[i]);
    fill(ids, 0, 130, 1);
    fill(ids, 130, 300, 9999);
    assert_int_equal(run(w, 0, ids, 300, no_marks), 128); // what all had in common is still there
    close_world(w);
}

// ---- tiers ----

static void test_the_host_tier_holds_common_pages_once(void **state) {
    (void)state;
    struct world *w = open_world((struct world_shape){.page_rows = 64, .host_entries = 4});
    int32_t ids[WORLD_ROWS];
    fill(ids, 0, 900, 6);
    for (int i = 0; i < 3; i++) {
        run(w, 0, ids, 700 + 64 * i + 1, no_marks);
        while (counts_of(w).n_in_host <= i) world_write(w, false);
    }
    // 768, 704 and 640 rows: twelve pages, and three states
    assert_int_equal(counts_of(w).n_in_host, 3);
    assert_int_equal(counts_of(w).host_bytes_used, 12 * 64 * 16 + 3 * 768);
    close_world(w);
}

static void test_an_entry_larger_than_the_tier_is_refused(void **state) {
    (void)state;
    // The tier has room for 4000 rows, and pages are of 4096.
    struct world *w = open_world((struct world_shape){
        .pages_all = true, .share = true, .context = 2000, .page_rows = 4096, .pool_rows = 16384, .host_entries = 1});
    int32_t ids[WORLD_ROWS];
    fill(ids, 0, 500, 6);
    run(w, 0, ids, 500, no_marks);
    world_write(w, false);
    assert_int_equal(counts_of(w).n_refused, 1);
    assert_int_equal(counts_of(w).n_in_host, 0);
    assert_int_equal(run(w, 0, ids, 500, no_marks), 448); // it is still in the pool
    close_world(w);
}

// The pool holds three entries, the host tier one: the newest, and then the one that was used.
static void test_a_pool_larger_than_the_host_tier(void **state) {
    (void)state;
    struct world *w = open_world((struct world_shape){.pages_all = true, .share = true, .host_entries = 1});
    int32_t ids[WORLD_ROWS];
    for (int used = 2; used >= 0; used--) { // the first three prompts are new
        for (int i = 0; used == 2 && i < 3; i++) {
            fill(ids, 0, 1000, 20 + i);
            assert_int_equal(run(w, 0, ids, 1000, no_marks), 0);
        }
        fill(ids, 0, 1000, 20 + used);
        if (used < 2) assert_int_equal(run(w, 0, ids, 1000, no_marks), 960);
        int n_write = 0;
        for (; world_write(w, true), w->writing; n_write++) {
            assert_int_equal(w->write.position, 960);
            assert_true(n_write < 3);
            world_write(w, false);
        }
        assert_int_equal(n_write, 1);
        assert_int_equal(counts_of(w).n_in_pool, 3);
        assert_int_equal(counts_of(w).n_in_host, 1);
    }
    while (prefix_reclaim(w->prefix))
        ;
    fill(ids, 0, 1000, 20);
    assert_int_equal(run(w, 0, ids, 1000, no_marks), 960);
    close_world(w);
}

// What the pool gave up comes back from the host, once for all that share it.
static void test_back_into_the_pool(void **state) {
    (void)state;
    struct world *w = open_world((struct world_shape){.pages_all = true, .share = true, .host_entries = 4});
    int32_t ids[WORLD_ROWS];
    fill(ids, 0, 600, 8);
    run(w, 0, ids, 600, no_marks);
    world_write(w, false);
    while (prefix_reclaim(w->prefix))
        ;
    assert_int_equal(counts_of(w).n_in_pool, 0);
    assert_int_equal(counts_of(w).n_in_host, 1);
    for (int i = 0; i < 3; i++) submit(w, i, ids, 600, no_marks);
    world_admit(w, false);
    for (int i = 0; i < 3; i++) assert_int_equal(w->clients[i].claim.resume, 576);
    assert_int_equal(w->clients[0].claim.source.tier, PREFIX_HOST);
    assert_int_equal(w->clients[1].claim.source.tier, PREFIX_POOL);
    assert_int_equal(w->clients[1].claim.pages[0], w->clients[0].claim.pages[0]);
    assert_int_equal(counts_of(w).n_in_pool, 1);
    for (int i = 0; i < 3; i++) world_prompt(w, &w->clients[i]);
    for (int i = 0; i < 3; i++) world_end(w, &w->clients[i]);
    close_world(w);
}

static void test_a_failed_restore_starts_from_row_0(void **state) {
    (void)state;
    struct world *w = open_world((struct world_shape){.pages_all = true, .share = true, .host_entries = 4});
    int32_t ids[WORLD_ROWS];
    fill(ids, 0, 600, 8);
    for (int from_host = 0; from_host < 2; from_host++) {
        run(w, 0, ids, 600, no_marks);
        world_write(w, false);
        while (from_host && prefix_reclaim(w->prefix))
            ;
        submit(w, 0, ids, 600, no_marks);
        world_admit(w, true);
        assert_int_equal(w->clients[0].phase, CLIENT_PROMPT);
        assert_int_equal(w->clients[0].claim.resume, 0);
        assert_int_equal(counts_of(w).n_in_pool + counts_of(w).n_in_host, 0);
        world_prompt(w, &w->clients[0]);
        world_end(w, &w->clients[0]);
        prefix_drop_all(w->prefix);
    }
    close_world(w);
}

// ---- room ----

// Where there is room for one run only, a lane goes on in that of the entry that it resumes from.
static void test_the_last_run_is_taken_over(void **state) {
    (void)state;
    // Runs are as large as pages here: room for a claim of 256 rows and its run, and no more.
    struct world *w = open_world((struct world_shape){.pages_all = true,
                                                      .share = true,
                                                      .page_rows = 64,
                                                      .context = 256,
                                                      .max_window = 1,
                                                      .pool_rows = 64 * 4,
                                                      .pool_runs = 1});
    int32_t ids[WORLD_ROWS];
    fill(ids, 0, 200, 8);
    run(w, 0, ids, 130, no_marks); // 128 rows stay: two pages and a run
    assert_int_equal(counts_of(w).n_in_pool, 1);
    struct client *c = &w->clients[0];
    assert_true(world_submit(w, c, 0, ids, 200, 55, 0, &no_marks));
    world_admit(w, false);
    assert_int_equal(c->phase, CLIENT_PROMPT);
    assert_int_equal(c->claim.resume, 128);
    assert_true(c->claim.run_is_kept);
    assert_int_equal(counts_of(w).n_in_pool, 0);
    world_prompt(w, c);
    while (c->phase == CLIENT_REPLY) world_reply(w, c);
    close_world(w);
}

static void seat(struct world *w, int i, const int32_t *ids, int32_t n, int32_t reply, struct prefix_marks marks) {
    assert_true(world_submit(w, &w->clients[i], (uint64_t)i % 10, ids, n, reply, 0, &marks));
    world_admit(w, false);
    assert_int_equal(w->clients[i].phase, CLIENT_PROMPT);
}

// An entry with a page where the head's run is to be is not shared by those that would pass: they could keep it there.
static void test_sharing_does_not_take_the_heads_place(void **state) {
    (void)state;
    enum { EARLY = 10, LOW = 20, UPPER = 30, HIGH = 40, C = 21, D = 31, HEAD = 1, LATE = 0 };
    struct world *w = open_world((struct world_shape){.pages_all = true,
                                                      .share = true,
                                                      .page_rows = 64,
                                                      .max_window = 1,
                                                      .parallel = 8,
                                                      .pool_rows = 64 * 20,
                                                      .pool_runs = 1}); // run j has the bytes of page 20 - j
    struct prefix_marks all = {.history_end = 192};
    int32_t ids[WORLD_ROWS];
    fill(ids, 0, 800, 1);
    seat(w, EARLY, ids, 430, 17, no_marks); // pages 0 to 6, run 0
    fill(ids, 0, 800, 5);
    seat(w, LOW, ids, 430, 17, no_marks); // pages 7 to 13, run 1
    fill(ids, 0, 800, 2);
    seat(w, HIGH, ids, 192, 9, all); // pages 14 to 17, run 2
    world_end(w, &w->clients[EARLY]);
    fill(ids, 0, 60, 3);
    seat(w, UPPER, ids, 10, 9, no_marks); // page 0, run 0
    world_prompt(w, &w->clients[HIGH]);   // its state: run 14, at page 6
    world_end(w, &w->clients[HIGH]);      // pages 14 to 16 stay
    assert_int_equal(counts_of(w).n_in_pool, 1);
    seat(w, C, ids, 10, 9, no_marks); // page 1, run 2
    seat(w, D, ids, 10, 9, no_marks); // page 2, run 3
    assert_int_equal(w->clients[D].claim.run, 3);
    // The uppermost run that no lane holds is now run 4, at page 16.
    struct client *head = &w->clients[HEAD], *late = &w->clients[LATE];
    fill(ids, 0, 800, 4);
    assert_true(world_submit(w, head, 1, ids, 64 * 11, 9, 0, &no_marks));
    fill(ids, 0, 800, 2);
    assert_true(world_submit(w, late, 0, ids, 193, 9, 0, &no_marks));
    world_admit(w, false);
    assert_int_equal(head->claim.wait, LEDGER_WAIT_PAGES);
    assert_int_equal(late->claim.wait, LEDGER_WAIT_TURN);
    world_end(w, &w->clients[LOW]);
    world_admit(w, false);
    assert_int_equal(head->phase, CLIENT_PROMPT);
    world_end(w, head);
    world_admit(w, false);
    assert_int_equal(late->phase, CLIENT_PROMPT);
    world_end(w, late);
    world_end(w, &w->clients[UPPER]);
    world_end(w, &w->clients[C]);
    world_end(w, &w->clients[D]);
    close_world(w);
}

static void test_sizes_that_cannot_be_shared(void **state) {
    (void)state;
    struct pool_shape shape = {.bytes = 100000, .page_bytes = 960, .run_bytes = 256, .n_run = 4};
    struct prefix_settings s = {.share = true, .page_rows = 96, .page_bytes = 960, .kept_bytes = 256};
    struct prefix *p = NULL;
    struct error e;
    assert_int_equal(pool_create(&shape, &s.pool, NULL), STATUS_OK);
    assert_int_equal(prefix_create(&s, &p, &e), STATUS_INVALID);
    assert_null(p);
    assert_non_null(strstr(e.text, "96"));
    prefix_free(NULL);
    pool_free(s.pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_every_residue_of_a_page),
        cmocka_unit_test(test_a_longer_entry_is_not_used),
        cmocka_unit_test(test_one_beginning_and_many_ends),
        cmocka_unit_test(test_salts_and_collisions),
        cmocka_unit_test(test_ten_turns),
        cmocka_unit_test(test_conversations_go_on_among_many_others),
        cmocka_unit_test(test_equal_prompts_at_once_are_computed_once),
        cmocka_unit_test(test_waiting_for_a_prefix_is_bounded),
        cmocka_unit_test(test_the_order_of_eviction),
        cmocka_unit_test(test_a_full_pool_gives_up_what_is_needed),
        cmocka_unit_test(test_the_host_tier_holds_common_pages_once),
        cmocka_unit_test(test_an_entry_larger_than_the_tier_is_refused),
        cmocka_unit_test(test_a_pool_larger_than_the_host_tier),
        cmocka_unit_test(test_back_into_the_pool),
        cmocka_unit_test(test_a_failed_restore_starts_from_row_0),
        cmocka_unit_test(test_the_last_run_is_taken_over),
        cmocka_unit_test(test_sharing_does_not_take_the_heads_place),
        cmocka_unit_test(test_sizes_that_cannot_be_shared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
