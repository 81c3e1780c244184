// The order of visits, and what rounds say of arms whose speeds are known: of one that is the base, of one with a
// planted slowdown of 0.3 %, and of one that gives other tokens.
#include "measure/rounds.h"
#include "base/random.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

// A machine whose speed drifts and jitters, on which an arm is slower by a factor.
struct machine {
    int64_t n_measured;
    double drift, noise;
    char order[256];
    int n_order;
};

struct fake {
    struct machine *machine;
    char letter;
    double speed;
    bool other_tokens, fails, started;
};

static enum status start_fake(void *context, const struct cell *cells, int n, struct error *e) {
    struct fake *f = context;
    (void)e;
    assert_false(f->started);
    assert_true(n >= 1 && cells[0].n_prompt > 0);
    f->started = true;
    if (f->machine->n_order < (int)sizeof f->machine->order - 1) f->machine->order[f->machine->n_order++] = f->letter;
    return STATUS_OK;
}

static enum status measure_fake(void *context, const struct cell *c, uint64_t key, struct sample *out,
                                struct error *e) {
    struct fake *f = context;
    struct machine *m = f->machine;
    assert_true(f->started);
    if (f->fails) return error_set(e, STATUS_DEVICE, "it fails");
    double at = (double)m->n_measured++;
    uint64_t digest = cell_digest(0, &key, sizeof key);
    *out = (struct sample){.tokens_per_s =
                               100 * f->speed * exp(m->drift * at + m->noise * random_normal(9, (uint64_t)at, 0)),
                           .ids = cell_digest(digest, &c->n_prompt, sizeof c->n_prompt) + (f->other_tokens ? 1 : 0),
                           .n_cached = -1};
    return STATUS_OK;
}

static void stop_fake(void *context) { ((struct fake *)context)->started = false; }

#define MAKE_OPTIONS(o, fakes, count)                                                                                  \
    struct rounds_options o = {.n_arms = (count)};                                                                     \
    for (int fake_ = 0; fake_ < (count); fake_++) o.targets[fake_] = (struct target) {                                 \
            &(fakes)[fake_], start_fake, measure_fake, stop_fake, false                                                \
        }

static void test_order(void **state) {
    (void)state;
    struct machine m = {0};
    struct fake fakes[] = {{.machine = &m, .letter = 'A', .speed = 1},
                           {.machine = &m, .letter = 'a', .speed = 1},
                           {.machine = &m, .letter = 'B', .speed = 1}};
    struct cell cells[2] = {{CELL_PROMPT, 8, 1, 1}, {CELL_DECODE, 8, 4, 2}};
    struct cell_rounds rounds[2];
    struct error e;
    MAKE_OPTIONS(o, fakes, 3);
    for (int whole = 0; whole < 2; whole++) {
        for (int i = 0; i < 2; i++) cell_rounds_init(&rounds[i], &cells[i]);
        m = (struct machine){0};
        o.repeats = 2;
        o.all_cells_a_visit = whole;
        assert_int_equal(rounds_run(&o, rounds, 2, &e), STATUS_OK);
        assert_string_equal(m.order, whole ? "AaBBaAaBAABa" : "AaBBaAAaBBaAaBAABaaBAABa");
        for (int i = 0; i < 2; i++) {
            assert_int_equal(rounds[i].n, 2);
            assert_false(rounds[i].differs[1] || rounds[i].differs[2]);
            cell_rounds_free(&rounds[i]);
        }
    }
}

static void judge(struct fake *fakes, int repeats, struct arm_result r[ARMS_MAX], struct cell_rounds *rounds) {
    struct cell cell = {CELL_DECODE, 128, 64, 1};
    struct error e;
    MAKE_OPTIONS(o, fakes, 3);
    o.repeats = repeats;
    cell_rounds_init(rounds, &cell);
    assert_int_equal(rounds_run(&o, rounds, 1, &e), STATUS_OK);
    assert_int_equal(rounds_judge(rounds, 3, r, &e), STATUS_OK);
    cell_rounds_free(rounds);
}

static void test_verdicts(void **state) {
    (void)state;
    // The clock falls by 0.05 % from one measurement to the next, and each is off by 0.3 %.
    struct machine m = {.drift = -0.0005, .noise = 0.003};
    struct fake fakes[] = {{.machine = &m, .letter = 'A', .speed = 1},
                           {.machine = &m, .letter = 'a', .speed = 1},
                           {.machine = &m, .letter = 'B', .speed = 1}};
    struct arm_result r[ARMS_MAX];
    struct cell_rounds rounds;
    judge(fakes, 40, r, &rounds);
    assert_int_equal(r[2].verdict, VERDICT_SAME);
    assert_true(r[1].difference.low < 0 && r[1].difference.high > 0);
    assert_true(r[2].seen < 0.003); // fine enough to see 0.3 %
    fakes[2].speed = 0.997;
    judge(fakes, 40, r, &rounds);
    assert_int_equal(r[2].verdict, VERDICT_SLOWER);
    assert_true(r[2].difference.low < log(0.997) && r[2].difference.high > log(0.997));
    fakes[2].speed = 1.01;
    judge(fakes, 40, r, &rounds);
    assert_int_equal(r[2].verdict, VERDICT_FASTER);
    // Four rounds cannot say it, whatever they measure.
    judge(fakes, 4, r, &rounds);
    assert_int_equal(r[2].verdict, VERDICT_FEW);
}

// Speed that changes a token is said, also where each arm has prompts of its own.
static void test_other_tokens(void **state) {
    (void)state;
    struct machine m = {0};
    struct fake fakes[] = {{.machine = &m, .letter = 'A', .speed = 1},
                           {.machine = &m, .letter = 'a', .speed = 1},
                           {.machine = &m, .letter = 'B', .speed = 2, .other_tokens = true}};
    for (int keeps = 0; keeps < 2; keeps++) {
        struct cell cell = {CELL_PROMPT, 64, 1, 1};
        struct cell_rounds rounds;
        struct error e;
        MAKE_OPTIONS(o, fakes, 3);
        for (int i = 0; i < 3; i++) o.targets[i].keeps = keeps;
        o.repeats = 1;
        o.seed = 7;
        cell_rounds_init(&rounds, &cell);
        assert_int_equal(rounds_run(&o, &rounds, 1, &e), STATUS_OK);
        assert_false(rounds.differs[0] || rounds.differs[1]);
        assert_true(rounds.differs[2]);
        cell_rounds_free(&rounds);
    }
}

static void test_budget_and_failure(void **state) {
    (void)state;
    struct machine m = {0};
    struct fake fakes[] = {{.machine = &m, .letter = 'A', .speed = 1}, {.machine = &m, .letter = 'a', .speed = 1}};
    struct cell cell = {CELL_PROMPT, 64, 1, 1};
    struct cell_rounds rounds;
    struct error e;
    MAKE_OPTIONS(o, fakes, 2);
    cell_rounds_init(&rounds, &cell);
    o.budget_s = 1e-9; // one round is always run
    assert_int_equal(rounds_run(&o, &rounds, 1, &e), STATUS_OK);
    assert_int_equal(rounds.n, 1);
    fakes[1].fails = true;
    assert_int_equal(rounds_run(&o, &rounds, 1, &e), STATUS_DEVICE);
    assert_false(fakes[1].started);
    assert_int_equal(rounds.n, 1);
    cell_rounds_free(&rounds);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_other_tokens),
        cmocka_unit_test(test_budget_and_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
