// The prompt cache as a client meets it: where prompts go on from, how many rows that saves, and that a reply has the
// tokens of a cold run whatever was kept, shared, evicted or failed to come back.
#include "base/clock.h"
#include "ops/device.h"
#include "tests/engine/bed.h"
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
// cmocka last: it needs the headers above
#include <cmocka.h>

#define REPLY     20
#define CACHE     ((int64_t)64 << 20)
#define OPENER    3 // ids that the template puts there for the reply
#define CLOSER    2 // and behind it
#define USER      41
#define TURNS     10
#define CHAT_ROWS 2000

static const struct engine_options kinds[] = {
    {.cache_bytes = CACHE},                                                            // windows
    {.cache_bytes = CACHE, .page_rows = 256, .share_pages = true},                     // both tiers
    {.page_rows = 64, .pages_all = true, .share_pages = true},                         // the pool alone
    {.cache_bytes = CACHE, .page_rows = 96},                                           // host memory alone
    {.cache_bytes = CACHE, .page_rows = 4096, .pages_all = true, .share_pages = true}, // everything in one page
    {.cache_bytes = CACHE, .page_rows = 1, .kv_dtype = KV_FP8, .garbage = true},
};

#define N_KINDS ((int)(sizeof kinds / sizeof *kinds))

static struct engine *open_cold(const struct engine_options *like) {
    return bed_open((struct engine_options){.kv_dtype = like->kv_dtype, .parallel = 1});
}

// Both engines give the same tokens; returns what the first one, which may resume, looked like.
static struct request_view run_both(struct engine *e, struct engine *cold, const struct request_params *p) {
    int32_t ids[64], alone[64];
    struct request_view v = bed_run_view(e, p, ids);
    assert_int_equal(v.n_tokens, bed_run(cold, p, alone));
    assert_memory_equal(ids, alone, (size_t)v.n_tokens * sizeof *ids);
    return v;
}

// ---- a conversation: system | user | (opener reply closer user)* | opener ----

struct chat {
    int32_t ids[CHAT_ROWS], n; // without the opener of the next reply
    int32_t system_end, last_turn;
};

static void add(struct chat *c, int32_t n, uint32_t seed) {
    int32_t *ids = bed_prompt(n, seed);
    assert_true(c->n + n < CHAT_ROWS);
    memcpy(c->ids + c->n, ids, (size_t)n * sizeof *ids);
    c->n += n;
    free(ids);
}

static struct chat start_chat(uint32_t system_seed, uint32_t user_seed) {
    struct chat c = {0};
    add(&c, 130, system_seed);
    c.system_end = c.last_turn = c.n;
    add(&c, USER, user_seed);
    return c;
}

// Asks for the next reply. The opener lies behind the history while it is asked for.
static struct request_view ask(struct engine *e, struct engine *cold, struct chat *c, int32_t *reply) {
    int32_t history = c->n;
    add(c, OPENER, 1);
    struct request_params p = bed_params(c->ids, c->n, REPLY);
    p.system_end = c->system_end;
    p.last_turn = c->last_turn;
    p.history_end = history;
    struct request_view v = run_both(e, cold, &p);
    bed_run(cold, &p, reply);
    c->n = history;
    return v;
}

static void a_chat_computes_only_what_is_new(void **state) { // C69
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        struct engine *e = bed_open(kinds[k]), *cold = open_cold(&kinds[k]);
        struct chat c = start_chat(7, 70);
        int32_t reply[REPLY], added = c.n;
        for (int turn = 0; turn < TURNS; turn++) {
            int32_t n_prompt = c.n + OPENER;
            struct request_view v = ask(e, cold, &c, reply);
            assert_true(n_prompt - v.n_cached <= added + OPENER + 63);
            assert_true((turn == 0) == (v.n_cached == 0));
            added = c.n;
            add(&c, OPENER - 1, 2); // history writes the opener in another way
            memcpy(c.ids + c.n, reply, sizeof reply);
            c.n += REPLY;
            add(&c, CLOSER, 3);
            c.last_turn = c.n;
            add(&c, USER, 100 + (uint32_t)turn);
            added = c.n - added; // reply, template and what is new
        }
        bed_wait_idle(e);
        engine_free(e);
        engine_free(cold);
    }
}

static void edits_and_other_chats_resume_where_they_part(void **state) { // C69, C71
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        struct engine *e = bed_open(kinds[k]), *cold = open_cold(&kinds[k]);
        struct chat c = start_chat(7, 70);
        int32_t reply[REPLY];
        ask(e, cold, &c, reply);
        add(&c, 300, 5);
        c.last_turn = c.n;
        add(&c, USER, 71);
        struct chat edited = c, other = start_chat(7, 72), foreign = start_chat(8, 70);
        ask(e, cold, &c, reply);
        edited.n = edited.last_turn;
        add(&edited, USER + 9, 73);
        assert_int_equal(ask(e, cold, &edited, reply).n_cached, edited.last_turn / 64 * 64);
        assert_int_equal(ask(e, cold, &other, reply).n_cached, other.system_end / 64 * 64);
        assert_int_equal(ask(e, cold, &foreign, reply).n_cached, 0);
        bed_wait_idle(e);
        engine_free(e);
        engine_free(cold);
    }
}

static void salts_share_nothing(void **state) { // C91
    (void)state;
    struct engine *e = bed_open(kinds[1]);
    int32_t *prompt = bed_prompt(300, 4), ids[REPLY];
    struct request_params p = bed_params(prompt, 300, REPLY);
    p.salt = 1;
    assert_int_equal(bed_run_view(e, &p, ids).n_cached, 0);
    assert_int_equal(bed_run_view(e, &p, ids).n_cached, 256);
    p.salt = 2;
    assert_int_equal(bed_run_view(e, &p, ids).n_cached, 0);
    free(prompt);
    engine_free(e);
}

static void equal_prompts_at_once_are_computed_once(void **state) {
    (void)state;
    enum { N = 16, ROWS = 700 };
    for (int k = 0; k < 2; k++) {
        struct engine_options o = kinds[k];
        o.parallel = N;
        struct engine *e = bed_open(o);
        int32_t *prompt = bed_prompt(ROWS, 11);
        struct request *r[N];
        struct request_params p = bed_params(prompt, ROWS, REPLY);
        for (int i = 0; i < N; i++) r[i] = bed_submit(e, &p);
        for (int i = 0; i < N; i++) bed_wait_done(r[i]);
        for (int i = 1; i < N; i++)
            assert_memory_equal(request_tokens(r[i]), request_tokens(r[0]), REPLY * sizeof *request_tokens(r[0]));
        struct engine_counts c;
        engine_get_counts(e, &c);
        assert_int_equal(c.n_prompt_tokens, ROWS + (N - 1) * (ROWS - (ROWS - 1) / 64 * 64));
        for (int i = 0; i < N; i++) request_free(r[i]);
        free(prompt);
        engine_free(e);
    }
}

static void no_length_is_special(void **state) { // C73, C77
    (void)state;
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
    enum { STEP = 37 };
#else
    enum { STEP = 1 };
#endif
    struct engine *e = bed_open(kinds[1]), *cold = open_cold(&kinds[1]);
    int32_t *prompt = bed_prompt(512, 12);
    for (int32_t n = 256; n < 512; n += STEP) {
        struct request_params p = bed_params(prompt, n, 3);
        prompt[0] = 3 + n % 500; // a prompt of its own: the first time it misses
        assert_int_equal(run_both(e, cold, &p).n_cached, 0);
        assert_int_equal(run_both(e, cold, &p).n_cached, (n - 1) / 64 * 64);
    }
    free(prompt);
    engine_free(e);
    engine_free(cold);
}

static void what_a_cancelled_reply_said_is_not_kept(void **state) { // C65
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        struct engine *e = bed_open(kinds[k]), *cold = open_cold(&kinds[k]);
        int32_t *prompt = bed_prompt(260, 13), *more = bed_prompt(400, 14);
        struct request_params p = bed_params(prompt, 250, 500);
        struct request *r = bed_submit(e, &p);
        bed_wait_tokens(r, 3);
        memcpy(more, prompt, 250 * sizeof *more);
        for (int i = 0; i < 3; i++) more[250 + i] = request_tokens(r)[i].id;
        request_free(r);
        p = bed_params(more, 300, REPLY);
        assert_int_equal(run_both(e, cold, &p).n_cached, 192);
        bed_wait_idle(e);
        free(prompt);
        free(more);
        engine_free(e);
        engine_free(cold);
    }
}

static void a_restore_that_fails_costs_time_only(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        struct engine_options o = kinds[k];
        o.fault = FAULT_RESTORE_FAILS;
        struct engine *e = bed_open(o), *cold = open_cold(&kinds[k]);
        int32_t *prompt = bed_prompt(300, 15);
        struct request_params p = bed_params(prompt, 300, REPLY);
        for (int i = 0; i < 3; i++) assert_int_equal(run_both(e, cold, &p).n_cached, 0);
        struct engine_counts c;
        engine_get_counts(e, &c);
        assert_true(c.n_restore_failures > 0);
        bed_wait_idle(e);
        free(prompt);
        engine_free(e);
        engine_free(cold);
    }
}

// ---- copies that go on beside other work ----

static void edits_resume_where_they_part_while_copies_take_long(void **state) {
    bed_copies_take(5);
    edits_and_other_chats_resume_where_they_part(state);
    bed_copies_take(0);
}

static void cancelled_replies_are_not_kept_while_copies_take_long(void **state) {
    bed_copies_take(5);
    what_a_cancelled_reply_said_is_not_kept(state);
    bed_copies_take(0);
}

#define NEVER INT_MAX // but where they are waited for

static void wait_for_host(struct engine *e, int32_t n) {
    struct engine_counts c;
    int64_t give_up = clock_ns() + 60 * BED_SECOND;
    for (engine_get_counts(e, &c); c.prefix.n_in_host < n; engine_get_counts(e, &c)) {
        assert_true(clock_ns() < give_up);
        clock_sleep_ns(1000000);
    }
}

// A prompt of 300 rows lies in host memory, another one's reply, of which nothing is kept, goes on, and the first one
// comes again.
struct resumed {
    struct engine *e;
    int32_t *prompt, *other;
    struct request *running, *again;
};

static void submit_again(struct resumed *s) {
    struct request_params p = bed_params(s->prompt, 300, REPLY);
    int before = bed_count_brought();
    int64_t give_up = clock_ns() + 60 * BED_SECOND;
    s->again = bed_submit(s->e, &p);
    while (bed_count_brought() == before) {
        assert_true(clock_ns() < give_up);
        clock_sleep_ns(100000);
    }
}

static struct resumed begin_resumed(const struct engine_options *o, int turns) {
    bed_copies_take(turns);
    struct resumed s = {.e = bed_open(*o), .prompt = bed_prompt(300, 15), .other = bed_prompt(60, 16)};
    struct request_params p = bed_params(s.prompt, 290, 2), other = bed_params(s.other, 60, 1500);
    int32_t ids[2];
    bed_run(s.e, &p, ids);
    wait_for_host(s.e, 1);
    s.running = bed_submit(s.e, &other);
    bed_wait_tokens(s.running, 1);
    submit_again(&s);
    return s;
}

static void end_running(struct resumed *s) {
    request_cancel(s->running);
    assert_int_equal(bed_wait_done(s->running).finish, FINISH_CANCELLED);
}

static void end_resumed(struct resumed *s) {
    request_free(s->again);
    request_free(s->running);
    if (s->e != NULL) bed_wait_idle(s->e);
    engine_free(s->e);
    bed_copies_take(0);
    free(s->prompt);
    free(s->other);
}

static void expect_as_cold(const struct engine_options *o, const struct request_params *p, const int32_t *ids,
                           int32_t n) {
    int32_t alone[300];
    struct engine *cold = open_cold(o);
    assert_int_equal(n, bed_run(cold, p, alone));
    assert_memory_equal(ids, alone, (size_t)n * sizeof *ids);
    engine_free(cold);
}

static void a_reply_goes_on_while_a_prompt_is_brought(void **state) {
    (void)state;
    for (int k = 0; k < N_KINDS; k++) {
        if (kinds[k].cache_bytes == 0 || kinds[k].share_pages) continue; // resumed within the pool
        int32_t at_begin = 0, at_end = 0, ids[REPLY];
        struct resumed s = begin_resumed(&kinds[k], 100);
        bed_wait_done(s.again);
        request_free(s.again);
        bed_watch(s.running, &at_begin, &at_end);
        submit_again(&s); // the first was begun unwatched
        struct request_view v = bed_wait_done(s.again);
        bed_watch(NULL, NULL, NULL);
        assert_int_equal(v.n_cached, 256);
        assert_true(at_end - at_begin >= 100 / 4); // a turn of the engine asks more than once
        for (int32_t i = 0; i < v.n_tokens; i++) ids[i] = request_tokens(s.again)[i].id;
        end_running(&s);
        struct request_params p = bed_params(s.prompt, 300, REPLY);
        expect_as_cold(&kinds[k], &p, ids, v.n_tokens);
        end_resumed(&s);
    }
}

// Nor do prompts that have nothing to be brought.
static void a_cold_prompt_passes_one_that_is_brought(void **state) {
    (void)state;
    struct resumed s = begin_resumed(&kinds[0], NEVER);
    int32_t *cold = bed_prompt(50, 18), ids[4];
    struct request_params p = bed_params(cold, 50, 4);
    bed_run(s.e, &p, ids);
    struct request_view v = bed_view(s.again);
    assert_int_equal(v.state, REQUEST_WAITING);
    assert_string_equal(v.waiting_for, "its prefix is being brought");
    end_running(&s); // then nothing else is left to do
    assert_int_equal(bed_wait_done(s.again).n_cached, 256);
    free(cold);
    end_resumed(&s);
}

// What comes for it must not come into whoever has its lane next.
static void a_cancelled_request_lets_go_when_nothing_is_brought_for_it(void **state) {
    (void)state;
    int32_t ids[300];
    struct engine_options o = kinds[0];
    o.parallel = 2; // the next one gets this lane
    struct resumed s = begin_resumed(&o, 100);
    request_cancel(s.again);
    assert_int_equal(bed_wait_done(s.again).finish, FINISH_CANCELLED);
    int32_t *next = bed_prompt(300, 17);
    struct request_params p = bed_params(next, 300, 300), same = bed_params(s.prompt, 300, REPLY);
    int32_t n = bed_run(s.e, &p, ids);
    end_running(&s);
    assert_int_equal(bed_run_view(s.e, &same, ids + 200).n_cached, 256); // what it would have resumed from is there
    bed_run(s.e, &p, ids);
    expect_as_cold(&o, &p, ids, n);
    free(next);
    end_resumed(&s);
}

static void an_engine_stops_while_prompts_are_brought(void **state) {
    (void)state;
    struct resumed s = begin_resumed(&kinds[0], NEVER);
    engine_free(s.e);
    s.e = NULL;
    assert_int_equal(bed_wait_done(s.again).finish, FINISH_CANCELLED);
    assert_int_equal(bed_wait_done(s.running).finish, FINISH_CANCELLED);
    end_resumed(&s);
}

// With one window, whose pages an entry holds until it is written, and nobody else who does anything.
static void who_waits_for_what_is_written_is_served(void **state) {
    (void)state;
    bed_copies_take(NEVER);
    struct engine *e = bed_open((struct engine_options){.cache_bytes = CACHE, .page_rows = 1, .parallel = 1});
    int32_t *a = bed_prompt(1900, 1), *b = bed_prompt(1900, 2), ids[2];
    struct request_params p = bed_params(a, 1900, 2), q = bed_params(b, 1900, 2);
    bed_run(e, &p, ids);
    bed_run(e, &q, ids);
    bed_wait_idle(e);
    engine_free(e);
    bed_copies_take(0);
    free(a);
    free(b);
}

// However often others resume, there being somebody in line at all times.
static void prompts_are_written_while_others_are_brought(void **state) {
    (void)state;
    enum { N = 4 };
    struct engine_options o = kinds[3];
    o.parallel = N + 1;
    bed_copies_take(10);
    struct engine *e = bed_open(o);
    struct request *resuming[N];
    struct engine_counts c;
    int32_t *a = bed_prompt(300, 1), *b = bed_prompt(300, 2), ids[2];
    struct request_params p = bed_params(a, 300, 1), q = bed_params(b, 300, 2);
    bed_run(e, &p, ids);
    wait_for_host(e, 1);
    for (int i = 0; i < N; i++) resuming[i] = bed_submit(e, &p);
    bed_run(e, &q, ids);
    int i = 0;
    for (engine_get_counts(e, &c); c.prefix.n_in_host < 2; engine_get_counts(e, &c)) {
        assert_true(++i < 200);
        bed_wait_done(resuming[i % N]);
        request_free(resuming[i % N]);
        resuming[i % N] = bed_submit(e, &p);
    }
    for (i = 0; i < N; i++) bed_wait_done(resuming[i]);
    for (i = 0; i < N; i++) request_free(resuming[i]);
    bed_wait_idle(e);
    engine_free(e);
    bed_copies_take(0);
    free(a);
    free(b);
}

// An entry that comes back from host memory is in the pool again, too, with its state.
static void what_is_brought_can_be_shared_again(void **state) {
    (void)state;
    struct engine_options o = {
        .cache_bytes = CACHE, .page_rows = 64, .pages_all = true, .share_pages = true, .parallel = 1, .garbage = true};
    struct engine *probe = bed_open(o);
    o.kv_memory_bytes = engine_get_info(probe)->plan.window_bytes;
    engine_free(probe);
    bed_copies_take(5);
    struct engine *e = bed_open(o), *cold = open_cold(&o);
    int32_t *a = bed_prompt(300, 1), *b = bed_prompt(1900, 2), ids[REPLY];
    struct request_params p = bed_params(a, 300, REPLY), q = bed_params(b, 1900, 2);
    bed_run(e, &p, ids);
    wait_for_host(e, 1);
    bed_run(e, &q, ids); // takes every page, and leaves nothing of what was there
    int before = bed_count_brought();
    assert_int_equal(run_both(e, cold, &p).n_cached, 256);
    assert_true(bed_count_brought() > before);
    before = bed_count_brought();
    assert_int_equal(run_both(e, cold, &p).n_cached, 256);
    assert_int_equal(bed_count_brought(), before); // within the pool
    bed_wait_idle(e);
    engine_free(e);
    engine_free(cold);
    bed_copies_take(0);
    free(a);
    free(b);
}

// Where the device works behind its calls, readers are told of tokens later than those are there, but told.
static void readers_are_told_of_every_token(void **state) {
    (void)state;
    bed_device()->works_behind = true;
    struct engine *e = bed_open(kinds[1]);
    int32_t *prompt = bed_prompt(80, 1), *other = bed_prompt(700, 2);
    struct request_params p = bed_params(prompt, 80, 900), q = bed_params(other, 700, 3);
    int64_t start = clock_ns();
    struct request *r = bed_submit(e, &p), *later = NULL;
    struct request_view v = {0};
    int n_told = 0;
    for (int32_t seen = 0; v.state != REQUEST_DONE; seen = v.n_tokens, n_told++) {
        request_wait(r, seen, v.state, 100 * BED_SECOND, &v);
        if (later == NULL && v.n_tokens > 20) later = bed_submit(e, &q);
    }
    bed_wait_done(later);
    assert_true(clock_ns() - start < 90 * BED_SECOND && n_told > 9); // who reads slowly is told of many at once
    request_free(r);
    request_free(later);
    bed_wait_idle(e);
    engine_free(e);
    bed_device()->works_behind = false;
    free(prompt);
    free(other);
}

// Room for a few entries only: the place to go on from moves along with the conversation all the same.
static void a_small_cache_follows_the_conversation(void **state) { // C91
    (void)state;
    struct engine *probe = bed_open(kinds[3]);
    int64_t page = engine_get_info(probe)->plan.page_bytes, run = engine_get_info(probe)->plan.run_bytes;
    engine_free(probe);
    struct engine_options o = kinds[3];
    o.cache_bytes = 4 * run + 24 * page;
    struct engine *e = bed_open(o), *cold = open_cold(&o);
    struct chat c = start_chat(9, 90);
    int32_t reply[REPLY], before = 0;
    for (int turn = 0; turn < 16; turn++) {
        struct request_view v = ask(e, cold, &c, reply);
        assert_true(turn == 0 || v.n_cached > before);
        before = v.n_cached;
        add(&c, 64, 200 + (uint32_t)turn);
        c.last_turn = c.n;
        add(&c, 10, 300 + (uint32_t)turn);
    }
    bed_wait_idle(e);
    engine_free(e);
    engine_free(cold);
}

int main(void) {
    if (!bed_start()) return BED_SKIP;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chat_computes_only_what_is_new),
        cmocka_unit_test(edits_and_other_chats_resume_where_they_part),
        cmocka_unit_test(salts_share_nothing),
        cmocka_unit_test(equal_prompts_at_once_are_computed_once),
        cmocka_unit_test(no_length_is_special),
        cmocka_unit_test(what_a_cancelled_reply_said_is_not_kept),
        cmocka_unit_test(a_restore_that_fails_costs_time_only),
        cmocka_unit_test(a_small_cache_follows_the_conversation),
        cmocka_unit_test(edits_resume_where_they_part_while_copies_take_long),
        cmocka_unit_test(cancelled_replies_are_not_kept_while_copies_take_long),
        cmocka_unit_test(a_reply_goes_on_while_a_prompt_is_brought),
        cmocka_unit_test(a_cold_prompt_passes_one_that_is_brought),
        cmocka_unit_test(a_cancelled_request_lets_go_when_nothing_is_brought_for_it),
        cmocka_unit_test(an_engine_stops_while_prompts_are_brought),
        cmocka_unit_test(who_waits_for_what_is_written_is_served),
        cmocka_unit_test(prompts_are_written_while_others_are_brought),
        cmocka_unit_test(what_is_brought_can_be_shared_again),
        cmocka_unit_test(readers_are_told_of_every_token),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bed_stop();
    return failed;
}
