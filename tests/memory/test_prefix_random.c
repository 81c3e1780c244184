// Ledger and prompt cache together, in a simulated engine (world.h): whatever is submitted, cancelled, kept, evicted,
// written behind and resumed, every row that a lane reads is its own, nothing leaks, and the head is never starved.
#include "base/random.h"
#include "tests/memory/world.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum fault { FAULT_NONE, FAULT_FEWER_PAGES, FAULT_STALE_STATE, FAULT_WRONG_PAGE };

// Prompts are grown from few tokens, so that many begin alike and differ at every place.
static int32_t make_prompt(int32_t *ids, int32_t context, uint64_t bits, struct prefix_marks *marks) {
    int32_t n_system = (int32_t)(bits & 3) * 48 + 10, n = 1 + (int32_t)(bits >> 8 & 0xffff) % (context * 3 / 4);
    uint64_t family = bits >> 24 & 3, branch = bits >> 26 & 7;
    int32_t at_branch = n_system + (int32_t)(bits >> 32 & 7) * 37;
    for (int32_t i = 0; i < n; i++) ids[i] = i < n_system ? i % 5 : i < at_branch ? (int32_t)family : (int32_t)branch;
    *marks = (struct prefix_marks){.system_end = n_system < n ? n_system : 0,
                                   .last_user = at_branch < n ? at_branch : 0,
                                   .history_end = n > 9 ? n - 9 : 0};
    return n;
}

static void submit(struct world *w, struct client *c, uint64_t bits, enum fault fault) {
    int32_t ids[WORLD_ROWS], context = w->ledger_settings.context;
    struct prefix_marks marks;
    int32_t n = make_prompt(ids, context, bits, &marks), reply = 1 + (int32_t)(bits >> 40 & 0xff) % (context - n);
    if (reply > context / 8 && bits >> 50 & 1) reply = context / 8;
    if (!world_submit(w, c, bits >> 52 & 1, ids, n, reply, bits >> 53 & 7 ? 0 : 1, &marks)) return;
    if (fault == FAULT_FEWER_PAGES) c->reply += w->page_rows + 1; // it claims less than it uses
}

// Planted faults of whoever copies: the state is not what the source holds, or a page goes missing.
static void plant(struct world *w, uint64_t bits, enum fault fault) {
    if (fault == FAULT_STALE_STATE && w->n_run > 0) w->runs[bits % (uint64_t)w->n_run] ^= 1;
    if (fault == FAULT_WRONG_PAGE) w->rows[bits % ((uint64_t)w->n_page * (uint64_t)w->page_rows)] ^= 1;
}

// A client from a random one on that has a lane, or (seated false) has not; or that random one.
static struct client *pick(struct world *w, uint64_t bits, bool seated) {
    for (uint64_t i = 0; i < WORLD_CLIENTS; i++) {
        struct client *c = &w->clients[(bits + i) % WORLD_CLIENTS];
        if ((c->phase == CLIENT_PROMPT || c->phase == CLIENT_REPLY) == seated) return c;
    }
    return &w->clients[bits % WORLD_CLIENTS];
}

static void step(struct world *w, uint64_t bits, uint64_t more, enum fault fault) {
    struct client *c = pick(w, bits >> 40, (bits & 15) > 5);
    switch (bits & 15) {
    case 0:
    case 1:
    case 2:
        if (c->phase == CLIENT_IDLE) submit(w, c, more, fault);
        break;
    case 3:
        if (more % 8 == 0) c = pick(w, more >> 3, true); // while it computes, too
        if (c->phase != CLIENT_IDLE && more % 4 == 0) world_end(w, c);
        break;
    case 4: world_write(w, more % 3 == 0); break;
    case 5: w->now_ns += more % 7 == 0 ? 2000 : 3; break;
    case 6:
        if (more % 512 == 0) prefix_drop_all(w->prefix);
        if (more % 2 == 1) plant(w, more >> 8, fault);
        break;
    default:
        if (c->phase == CLIENT_PROMPT) world_pass(w, c, 1 + (int32_t)(more % 700));
        for (int i = 0; i < 100 && c->phase == CLIENT_REPLY; i++) world_reply(w, c);
    }
    world_admit(w, (bits >> 40) % 97 == 0);
}

static void finish_all(struct world *w) {
    for (int turn = 0; !world_is_idle(w); turn++) {
        assert_true(turn < 100000);
        w->now_ns += 100;
        world_admit(w, false);
        for (int i = 0; i < WORLD_CLIENTS; i++) {
            struct client *c = &w->clients[i];
            if (c->phase == CLIENT_PROMPT) world_prompt(w, c);
            if (c->phase == CLIENT_REPLY) world_reply(w, c);
        }
        if (w->writing) world_write(w, false);
    }
    world_admit(w, false);
}

static const struct world_shape shapes[] = {
    // A pool much smaller than what the lanes could claim.
    {.pages_all = true,
     .share = true,
     .parallel = 8,
     .context = 1024,
     .max_window = 8,
     .page_rows = 64,
     .pool_rows = 1600,
     .pool_runs = 5,
     .host_entries = 3,
     .grid_rows = 128},
    {.pages_all = false,
     .share = true,
     .parallel = 6,
     .context = 1024,
     .max_window = 3,
     .page_rows = 256,
     .pool_rows = 2600,
     .pool_runs = 6,
     .host_entries = 2,
     .grid_rows = 0},
    {.pages_all = true,
     .share = true,
     .parallel = 5,
     .context = 512,
     .max_window = 1,
     .page_rows = 1,
     .pool_rows = 1000,
     .pool_runs = 6,
     .host_entries = 0,
     .grid_rows = 64},
    // Sizes that do not divide 4096 share nothing: the host tier alone.
    {.pages_all = false,
     .share = false,
     .parallel = 7,
     .context = 700,
     .max_window = 5,
     .page_rows = 96,
     .pool_rows = 1800,
     .pool_runs = 9,
     .host_entries = 4,
     .grid_rows = 192},
    {.windows = true,
     .share = false,
     .parallel = 4,
     .context = 600,
     .max_window = 8,
     .page_rows = 256,
     .n_staging = 3,
     .pool_rows = 4 * 768,
     .pool_runs = 7,
     .host_entries = 3,
     .grid_rows = 256},
    {.pages_all = true,
     .share = true,
     .parallel = 4,
     .context = 2048,
     .max_window = 16,
     .page_rows = 4096,
     .pool_rows = 4096 * 3,
     .pool_runs = 6,
     .host_entries = 2,
     .grid_rows = 512},
    // Forced collisions of the hash: only the tokens tell.
    {.pages_all = true,
     .share = true,
     .parallel = 8,
     .context = 1024,
     .max_window = 2,
     .page_rows = 128,
     .pool_rows = 2048,
     .pool_runs = 12,
     .host_entries = 2,
     .grid_rows = 64,
     .hash_mask = 1},
};

static bool walk(const struct world_shape *shape, uint64_t key, uint64_t n, enum fault fault) {
    struct world *w = malloc(sizeof *w);
    world_open(w, shape);
    for (uint64_t i = 0; i < n && !w->wrong; i++) {
        step(w, random_bits(key, i, 0), random_bits(key, i, 1), fault);
        if (i % 64 == 0 && !w->wrong) world_check(w);
    }
    finish_all(w);
    bool right = !w->wrong;
    if (right && fault == FAULT_NONE) {
        world_check(w);
        assert_true(w->n_resumed > 100 && w->n_fresh > 100 && w->n_passed > 10); // it must have tried
    }
    world_close(w);
    free(w);
    return right;
}

static void test_random_walks(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        assert_true(walk(&shapes[i], 100 + i, 20000, FAULT_NONE));
}

static void test_planted_faults_are_seen(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (!shapes[i].windows && shapes[i].page_rows <= 256)
            assert_false(walk(&shapes[i], 200 + i, 20000, FAULT_FEWER_PAGES));
        assert_false(walk(&shapes[i], 300 + i, 20000, FAULT_STALE_STATE));
        assert_false(walk(&shapes[i], 400 + i, 20000, FAULT_WRONG_PAGE));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_walks),
        cmocka_unit_test(test_planted_faults_are_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
