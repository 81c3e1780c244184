// Windows against a second, simpler model of who holds what: a random walk of claims and releases, and the edges of
// what can be asked for.
#include "base/random.h"
#include "memory/windows.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static struct memory *create(int32_t n_lane, int32_t context, int32_t window, int32_t page_rows) {
    struct memory_shape s = {.n_lane = n_lane, .context = context, .max_window = window, .page_rows = page_rows};
    struct memory *m = NULL;
    assert_int_equal(memory_create(&s, &m, NULL), STATUS_OK);
    return m;
}

static void test_window_covers_context_and_one_more_round(void **state) {
    (void)state;
    static const struct {
        int32_t context, window, page_rows, pages;
    } cases[] = {
        {4096, 8, 4096, 2}, {4088, 8, 4096, 1}, {1, 1, 1, 2},   {255, 1, 256, 1},
        {256, 1, 256, 2},   {300, 16, 96, 4},   {1, 16, 64, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct memory_shape s = {3, cases[i].context, cases[i].window, cases[i].page_rows};
        assert_int_equal(memory_pages_per_window(&s), cases[i].pages);
        assert_int_equal(memory_pages_total(&s), 3 * cases[i].pages);
    }
}

static void test_shapes_that_no_page_number_can_name_are_refused(void **state) {
    (void)state;
    struct memory_shape s = {.n_lane = INT32_MAX, .context = INT32_MAX, .max_window = INT32_MAX, .page_rows = 1};
    struct memory *m = NULL;
    struct error e;
    assert_true(memory_pages_total(&s) > 0);
    assert_int_equal(memory_create(&s, &m, &e), STATUS_LIMIT);
    assert_null(m);
    assert_int_equal(e.code, STATUS_LIMIT);
}

static void test_claims_beyond_the_context_are_never(void **state) {
    (void)state;
    struct memory *m = create(2, 1000, 8, 64);
    static const struct {
        int64_t prompt, reply;
        enum claim want;
    } cases[] = {
        {999, 1, CLAIM_SEATED},      {999, 2, CLAIM_NEVER},
        {1001, 0, CLAIM_NEVER},      {1, 1000, CLAIM_NEVER},
        {1, INT32_MAX, CLAIM_NEVER}, {1, (int64_t)1 << 32, CLAIM_NEVER},
        {1, INT64_MAX, CLAIM_NEVER}, {INT64_MAX, INT64_MAX, CLAIM_NEVER},
        {INT64_MAX, 1, CLAIM_NEVER}, {-1, 1, CLAIM_NEVER},
        {1, -1, CLAIM_NEVER},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct seat seat;
        const char *reason = NULL;
        assert_int_equal(memory_claim(m, cases[i].prompt, cases[i].reply, &seat, &reason), cases[i].want);
        if (cases[i].want == CLAIM_SEATED) memory_release(m, &seat);
    }
    memory_free(m);
}

// What a claim that can never be served says does not depend on who is seated.
static void test_never_is_never_when_full(void **state) {
    (void)state;
    struct memory *m = create(1, 10, 1, 4);
    struct seat seat, other;
    const char *reason = NULL;
    assert_int_equal(memory_claim(m, 1, 1, &seat, &reason), CLAIM_SEATED);
    assert_int_equal(memory_claim(m, 5, 6, &other, &reason), CLAIM_NEVER);
    assert_null(reason);
    assert_int_equal(memory_claim(m, 5, 5, &other, &reason), CLAIM_NOT_NOW);
    assert_non_null(reason);
    memory_release(m, &seat);
    memory_free(m);
}

// The second model: which pages are taken, and by whom.
struct world {
    struct seat seats[64];
    bool held[64];
    int32_t *owner; // [pages]: lane + 1, 0 where free
    int32_t n_held;
};

static void check_seat(const struct world *w, const struct memory_shape *s, const struct seat *seat) {
    for (int32_t i = 0; i < seat->lane; i++) assert_true(w->held[i]); // the lowest free lane
    assert_false(w->held[seat->lane]);
    assert_int_equal(seat->n_page, memory_pages_per_window(s));
    assert_true((int64_t)seat->n_page * s->page_rows >= (int64_t)s->context + s->max_window);
    for (int32_t i = 0; i < seat->n_page; i++) {
        assert_in_range(seat->pages[i], 0, memory_pages_total(s) - 1);
        assert_int_equal(w->owner[seat->pages[i]], 0);
    }
}

static void set_owner(struct world *w, const struct seat *seat, int32_t owner) {
    for (int32_t i = 0; i < seat->n_page; i++) w->owner[seat->pages[i]] = owner;
}

static void step(struct memory *m, const struct memory_shape *s, struct world *w, uint64_t bits) {
    if (bits & 1) {
        int64_t prompt = (int64_t)(bits >> 8 & 0xffff) % (s->context + 2),
                reply = (int64_t)(bits >> 24 & 0xffff) % (s->context + 2);
        struct seat seat;
        const char *reason = NULL;
        enum claim got = memory_claim(m, prompt, reply, &seat, &reason);
        enum claim want = prompt + reply > s->context ? CLAIM_NEVER
                          : w->n_held == s->n_lane    ? CLAIM_NOT_NOW
                                                      : CLAIM_SEATED;
        assert_int_equal(got, want);
        if (got != CLAIM_SEATED) return;
        check_seat(w, s, &seat);
        set_owner(w, &seat, seat.lane + 1);
        w->seats[seat.lane] = seat;
        w->held[seat.lane] = true;
        w->n_held++;
    } else {
        int32_t lane = (int32_t)(bits >> 8) & 63;
        if (lane >= s->n_lane || !w->held[lane]) return;
        memory_release(m, &w->seats[lane]);
        set_owner(w, &w->seats[lane], 0);
        w->held[lane] = false;
        w->n_held--;
    }
}

static void test_random_walk(void **state) {
    (void)state;
    static const struct memory_shape shapes[] = {{1, 100, 1, 1}, {8, 300, 16, 64}, {64, 37, 8, 5}, {5, 4096, 8, 4096}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct memory_shape *s = &shapes[i];
        struct memory *m = create(s->n_lane, s->context, s->max_window, s->page_rows);
        struct world w = {.owner = calloc((size_t)memory_pages_total(s), sizeof *w.owner)};
        assert_non_null(w.owner);
        for (uint64_t n = 0; n < 50000; n++) {
            step(m, s, &w, random_bits(7, i, n));
            struct memory_counts c;
            memory_get_counts(m, &c);
            assert_int_equal(c.n_lane, s->n_lane);
            assert_int_equal(c.n_lane_used, w.n_held);
            assert_int_equal(c.n_pages, memory_pages_total(s));
            assert_int_equal(c.n_pages_used, w.n_held * memory_pages_per_window(s));
        }
        memory_free(m);
        free(w.owner);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_window_covers_context_and_one_more_round),
        cmocka_unit_test(test_shapes_that_no_page_number_can_name_are_refused),
        cmocka_unit_test(test_claims_beyond_the_context_are_never),
        cmocka_unit_test(test_never_is_never_when_full),
        cmocka_unit_test(test_random_walk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
