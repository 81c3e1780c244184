// The prompt cache as a client meets it: where prompts go on from, how many rows that saves, and that a reply has the
// tokens of a cold run whatever was kept, shared, evicted or failed to come back.
#include "base/clock.h"
#include "tests/engine/bed.h"
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
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bed_stop();
    return failed;
}
