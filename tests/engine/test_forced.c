// Windows whose drafts are right or wrong as a test names it: long replies leave the bytes that plain rounds leave, and
// what bench forces keeps as many drafts as it is told to.
#include "tests/engine/bed.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
// cmocka last: it needs the headers above
#include <cmocka.h>

#define N_PROMPT 90
#define WINDOWS  200
#define LONGEST  (4 * WINDOWS + 1)

static int32_t *prompt;

struct outcome {
    int32_t ids[LONGEST], n;
    struct request_view view;
    struct state_report state;
    int n_states;
};

static void take_state(void *context, const struct state_report *report) {
    struct outcome *o = context;
    o->state = *report;
    o->n_states++;
}

static void run(const struct draft_options *drafts, int32_t n, double temperature, const struct outcome *expected,
                enum engine_fault fault, struct outcome *out) {
    struct engine *e = bed_open(
        (struct engine_options){.drafts = *drafts, .fault = fault, .on_state = take_state, .on_pass_context = out});
    struct request_params p = bed_params(prompt, N_PROMPT, n);
    p.draft = true;
    p.draw.temperature = temperature;
    p.draw.seed = 11;
    p.expected = expected != NULL ? expected->ids : NULL;
    p.n_expected = expected != NULL ? expected->n : 0;
    out->n_states = 0;
    out->view = bed_run_view(e, &p, out->ids);
    out->n = out->view.n_tokens;
    bed_wait_idle(e);
    engine_free(e);
}

static void states_are_those_of_plain_rounds(void **state) {
    (void)state;
    static const struct {
        struct draft_options drafts;
        int32_t n; // of tokens, for at least so many windows
    } patterns[] = {
        {{.expected = true, .forced = true, .max_window = 4}, 4 * WINDOWS + 1},
        {{.expected = true, .forced = true, .max_window = 4, .pattern = DRAFTS_ALL_WRONG}, WINDOWS + 1},
        {{.expected = true, .forced = true, .max_window = 4, .pattern = DRAFTS_ALTERNATE}, 5 * WINDOWS / 2 + 1},
        {{.expected = true, .forced = true, .max_window = 6, .pattern = DRAFTS_RANDOM}, 4 * WINDOWS + 1},
    };
    struct outcome *plain = calloc(2, sizeof *plain), *got = plain + 1;
    assert_non_null(plain);
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        double temperature = i % 2 == 0 ? 0 : 1;
        run(&(struct draft_options){0}, patterns[i].n, temperature, NULL, FAULT_NONE, plain);
        run(&patterns[i].drafts, patterns[i].n, temperature, plain, FAULT_NONE, got);
        assert_int_equal(got->n, patterns[i].n);
        assert_memory_equal(got->ids, plain->ids, (size_t)plain->n * sizeof *plain->ids);
        assert_true(got->view.n_rounds >= WINDOWS);
        assert_true(got->view.n_drafted >= 2 * WINDOWS);
        assert_int_equal(plain->n_states, 1);
        assert_int_equal(got->n_states, 1);
        assert_int_equal(got->state.position, plain->state.position);
        assert_memory_equal(got->state.sha256, plain->state.sha256, sizeof plain->state.sha256);
    }
    // A rejected row in the state is seen.
    run(&(struct draft_options){0}, 21, 0, NULL, FAULT_NONE, plain);
    run(&patterns[1].drafts, 21, 0, plain, FAULT_DRAFT_AHEAD, got);
    assert_int_equal(got->state.position, plain->state.position);
    assert_memory_not_equal(got->state.sha256, plain->state.sha256, sizeof plain->state.sha256);
    free(plain);
}

static void forced_acceptance_has_its_mean(void **state) {
    (void)state;
    static const double means[] = {0.5, 2, 3, 5};
    struct outcome *got = calloc(1, sizeof *got);
    assert_non_null(got);
    for (size_t i = 0; i < sizeof means / sizeof *means; i++) {
        struct draft_options o = {.mtp = true, .forced = true, .max_window = 8, .force_kept = means[i]};
        run(&o, 400, 0, NULL, FAULT_NONE, got);
        double kept = (double)got->view.n_accepted / (double)got->view.n_rounds;
        assert_int_equal(got->n, 400);
        assert_true(got->view.n_drafted > 6 * got->view.n_rounds);
        if (fabs(kept - means[i]) > 0.1) fail_msg("%g drafts of a window were kept, not %g", kept, means[i]);
    }
    free(got);
}

static void what_cannot_be_forced_is_refused(void **state) {
    (void)state;
    static const struct {
        struct draft_options drafts;
        const char *why;
    } cases[] = {
        {{.copies = true, .forced = true, .force_kept = 2}, "needs a drafter"},
        {{.mtp = true, .forced = true, .max_window = 3, .force_kept = 2.5}, "more than the 2 drafts of a window of 3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct engine_options o = {.model_dir = BED_MODEL,
                                   .device = bed_device(),
                                   .parallel = 1,
                                   .context = 256,
                                   .max_tokens = 8,
                                   .drafts = cases[i].drafts};
        struct engine *e = NULL;
        struct error error;
        assert_int_equal(engine_create(&o, &e, &error), STATUS_INVALID);
        if (strstr(error.text, cases[i].why) == NULL) fail_msg("%s", error.text);
    }
}

static void floors_count_what_is_read(void **state) {
    (void)state;
    struct engine *e = bed_open((struct engine_options){.drafts = {.mtp = true}});
    int64_t plain = engine_get_info(e)->round_bytes, head = engine_round_bytes(e, 1, 2) - plain;
    assert_int_equal(engine_round_bytes(e, 1, 1), plain);
    assert_true(head > 0 && head < plain);
    assert_int_equal(engine_round_bytes(e, 1, 4), plain + 3 * head);
    assert_int_equal(engine_round_bytes(e, 4, 8), plain + head); // dense: rows read the same weights
    engine_free(e);
}

static int start(void **state) {
    (void)state;
    prompt = bed_prompt(N_PROMPT, 5);
    return 0;
}

static int stop(void **state) {
    (void)state;
    free(prompt);
    bed_stop();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(states_are_those_of_plain_rounds),
        cmocka_unit_test(forced_acceptance_has_its_mean),
        cmocka_unit_test(what_cannot_be_forced_is_refused),
        cmocka_unit_test(floors_count_what_is_read),
    };
    if (!bed_start()) return BED_SKIP;
    return cmocka_run_group_tests(tests, start, stop);
}
