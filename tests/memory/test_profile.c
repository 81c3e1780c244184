// Every spelling of every setting, on a dense and on a MoE model, and the page that is made from their table.
#include "memory/plan.h"
#include "memory/profile.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define GIB (INT64_C(1) << 30)

static const enum profile_family families[] = {PROFILE_QWEN_DENSE, PROFILE_QWEN_MOE};

static void clear(void) {
    for (int i = 0; i < PROFILE_N_SETTING; i++) unsetenv(profile_setting((enum profile_id)i)->name);
}

static void set(enum profile_id id, const char *value) {
    if (value == NULL)
        unsetenv(profile_setting(id)->name);
    else
        assert_int_equal(setenv(profile_setting(id)->name, value, 1), 0);
}

static struct profile_context context_of(enum profile_family family, enum profile_backend backend) {
    return (struct profile_context){.family = family, .backend = backend, .unset_reserve_bytes = 3 * GIB};
}

static struct profile must_read(const struct profile_context *c) {
    struct profile p;
    struct error e;
    if (profile_read(c, &p, &e) != STATUS_OK) fail_msg("refused: %s", e.text);
    return p;
}

static void must_refuse(const struct profile_context *c, enum status want, const char *name, const char *legal) {
    struct profile p;
    struct error e;
    memset(&p, 0x5a, sizeof p);
    struct profile before = p;
    assert_int_equal(profile_read(c, &p, &e), want);
    assert_non_null(strstr(e.text, name));
    assert_non_null(strstr(e.text, legal));
    assert_memory_equal(&p, &before, sizeof p); // outputs are set on success only
}

static bool has_note(const struct profile *p, const char *start, const char *part) {
    for (int i = 0; i < p->n_notes; i++)
        if (strncmp(p->notes[i], start, strlen(start)) == 0 && strstr(p->notes[i], part) != NULL) return true;
    return false;
}

static void for_each(void (*check)(const struct profile_context *)) {
    for (int f = 0; f < 2; f++)
        for (int d = 0; d < PROFILE_N_BACKEND; d++) {
            clear();
            struct profile_context c = context_of(families[f], (enum profile_backend)d);
            check(&c);
        }
    clear();
}

// ---- unset ----

// A change of a default is a decision about a model and backend, and is to be made here as well.
static void check_unset(const struct profile_context *c) {
    struct profile p = must_read(c);
    struct profile_unset u = profile_unset(c->family, c->backend);
    assert_int_equal(u.page_rows, c->backend == PROFILE_CUDA ? 256 : 0);
    assert_false(u.share);
    assert_int_equal(p.page_rows, u.page_rows);
    assert_int_equal(p.share, u.share);
    assert_false(p.pages_all);
    assert_int_equal(p.reserve_bytes, 3 * GIB);
    assert_null(p.gate_logits);
    assert_string_equal(p.overrides, "none");
    assert_int_equal(p.n_notes, 0);
}

static void test_unset(void **state) {
    (void)state;
    for_each(check_unset);
}

// ---- TF_QWEN_KV_PAGES ----

static void check_pages(const struct profile_context *c) {
    static const struct {
        const char *text;
        int32_t rows;
        const char *override;
    } good[] = {
        {"0", 0, "TF_QWEN_KV_PAGES=0"},       {"1", 1, "TF_QWEN_KV_PAGES=1"},
        {"64", 64, "TF_QWEN_KV_PAGES=64"},    {"96", 96, "TF_QWEN_KV_PAGES=96"},
        {"256", 256, "TF_QWEN_KV_PAGES=256"}, {"4096", 4096, "TF_QWEN_KV_PAGES=4096"},
    };
    int32_t unset = profile_unset(c->family, c->backend).page_rows;
    static const char *const bad[] = {"",     " ",       "-1",    "4097", "4294967297", "99999999999999999999",
                                      "x",    "256x",    "2 56",  " 256", "256 ",       "+256",
                                      "0256", "00",      "256.0", "1e2",  "0x10",       "on",
                                      "off",  "windows", "²"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        set(PROFILE_KV_PAGES, good[i].text);
        struct profile p = must_read(c);
        assert_int_equal(p.page_rows, good[i].rows);
        assert_string_equal(p.overrides, good[i].rows == unset ? "none" : good[i].override);
        assert_int_equal(p.n_notes, 0);
        assert_false(p.pages_all || p.share);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        set(PROFILE_KV_PAGES, bad[i]);
        must_refuse(c, STATUS_INVALID, "TF_QWEN_KV_PAGES must be", "from 1 to 4096");
    }
}

static void test_pages(void **state) {
    (void)state;
    for_each(check_pages);
}

// ---- TF_QWEN_KV_PAGES_ALL ----

// With pages of a size that is no default.
static void check_all(const struct profile_context *c) {
    static const char *const off[] = {"2", "-1", "+1", "01", "10", "4096", "99999999999999999999"};
    static const char *const bad[] = {"", " ", "on", "true", "yes", "1 ", " 1", "1.0", "x", "-", "1x"};
    set(PROFILE_KV_PAGES, "128");
    set(PROFILE_KV_PAGES_ALL, "1");
    struct profile p = must_read(c);
    assert_true(p.pages_all);
    assert_string_equal(p.overrides, "TF_QWEN_KV_PAGES=128, TF_QWEN_KV_PAGES_ALL=1");
    assert_int_equal(p.n_notes, 0);
    set(PROFILE_KV_PAGES_ALL, "0");
    p = must_read(c);
    assert_false(p.pages_all);
    assert_string_equal(p.overrides, "TF_QWEN_KV_PAGES=128");
    assert_int_equal(p.n_notes, 0);
    for (size_t i = 0; i < sizeof off / sizeof *off; i++) {
        set(PROFILE_KV_PAGES_ALL, off[i]);
        p = must_read(c);
        assert_false(p.pages_all);
        assert_string_equal(p.overrides, "TF_QWEN_KV_PAGES=128");
        assert_int_equal(p.n_notes, 1);
        char start[64];
        snprintf(start, sizeof start, "TF_QWEN_KV_PAGES_ALL=%s ", off[i]);
        assert_true(has_note(&p, start, "is off"));
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        set(PROFILE_KV_PAGES_ALL, bad[i]);
        must_refuse(c, STATUS_INVALID, "TF_QWEN_KV_PAGES_ALL must be", "1 is on");
    }
}

static void check_all_with_windows(const struct profile_context *c) {
    static const char *const windows[] = {NULL, "0"};
    for (int i = 0; i < 2; i++) {
        bool pages = windows[i] == NULL && profile_unset(c->family, c->backend).page_rows > 0;
        set(PROFILE_KV_PAGES, windows[i]);
        set(PROFILE_KV_PAGES_ALL, "1");
        struct profile p = must_read(c);
        assert_int_equal(p.pages_all, pages);
        assert_int_equal(p.page_rows > 0, pages);
        assert_int_equal(has_note(&p, "TF_QWEN_KV_PAGES_ALL=1 ", "no effect"), !pages);
    }
}

static void test_pages_all(void **state) {
    (void)state;
    for_each(check_all);
    for_each(check_all_with_windows);
}

// ---- TF_QWEN_KV_SHARE ----

static void check_share(const struct profile_context *c) {
    static const char *const bad[] = {"", "2", "-1", "on", "true", "01", "00", "+1", " 1", "1 ", "1.0", "x", "10"};
    bool pages = profile_unset(c->family, c->backend).page_rows > 0;
    const struct {
        const char *pages;
        bool share;
        const char *why; // there is none
    } at_1[] = {
        {NULL, pages, pages ? NULL : "windows"},
        {"0", false, "windows"},
        {"1", true, NULL},
        {"64", true, NULL},
        {"256", true, NULL},
        {"4096", true, NULL},
        {"96", false, "4096"},
        {"3", false, "4096"},
        {"4095", false, "4096"},
    };
    for (size_t i = 0; i < sizeof at_1 / sizeof *at_1; i++) {
        set(PROFILE_KV_PAGES, at_1[i].pages);
        set(PROFILE_KV_SHARE, "1");
        struct profile p = must_read(c);
        assert_int_equal(p.share, at_1[i].share);
        assert_non_null(strstr(p.overrides, "TF_QWEN_KV_SHARE=1"));
        assert_int_equal(p.n_notes, at_1[i].why != NULL);
        if (at_1[i].why != NULL) assert_true(has_note(&p, "TF_QWEN_KV_SHARE=1 has no effect", at_1[i].why));
        set(PROFILE_KV_SHARE, "0");
        p = must_read(c);
        assert_false(p.share);
        assert_null(strstr(p.overrides, "SHARE"));
        assert_int_equal(p.n_notes, 0);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        set(PROFILE_KV_SHARE, bad[i]);
        must_refuse(c, STATUS_INVALID, "TF_QWEN_KV_SHARE must be", "0 (off) or 1 (on)");
    }
}

static void test_share(void **state) {
    (void)state;
    for_each(check_share);
}

// ---- the others ----

static void check_reserve(const struct profile_context *c) {
    static const struct {
        const char *text;
        int64_t bytes;
    } good[] = {{"0", 0}, {"2", 2 * GIB}, {"0.5", GIB / 2}, {"1.25", GIB / 4 * 5}, {"1000000", 1000000 * GIB}};
    static const char *const bad[] = {"",    " ",   "-1",  "+1",   "x",       "2x", "2 ",
                                      "nan", "inf", "1e3", "0x10", "1000001", ".",  "1.2.3"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        set(PROFILE_MEMORY_RESERVE, good[i].text);
        struct profile p = must_read(c);
        assert_int_equal(p.reserve_bytes, good[i].bytes);
        assert_non_null(strstr(p.overrides, "TF_MEMORY_RESERVE_GIB="));
    }
    set(PROFILE_MEMORY_RESERVE, "3.0"); // what it is when unset
    assert_string_equal(must_read(c).overrides, "none");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        set(PROFILE_MEMORY_RESERVE, bad[i]);
        must_refuse(c, STATUS_INVALID, "TF_MEMORY_RESERVE_GIB must be", "GiB from 0 up");
    }
}

static void check_gate_logits(const struct profile_context *c) {
    set(PROFILE_GATE_LOGITS, "logits.txt");
    struct profile p = must_read(c);
    assert_string_equal(p.gate_logits, "logits.txt");
    assert_string_equal(p.overrides, "TF_GATE_LOGITS=logits.txt");
    set(PROFILE_GATE_LOGITS, "");
    must_refuse(c, STATUS_INVALID, "TF_GATE_LOGITS must be", "path");
}

static void test_reserve_and_logits(void **state) {
    (void)state;
    for_each(check_reserve);
    for_each(check_gate_logits);
    assert_int_equal(plan_unset_reserve(4 * GIB, PLAN_RESERVE_CPU), GIB);
    assert_int_equal(plan_unset_reserve(64 * GIB, PLAN_RESERVE_CPU), 64 * GIB / 10);
}

// ---- what a start says ----

static void check_long_values(const struct profile_context *c) {
    char path[3000];
    memset(path, 'a', sizeof path - 1);
    path[sizeof path - 1] = 0;
    set(PROFILE_GATE_LOGITS, path);
    set(PROFILE_KV_PAGES, "64");
    struct profile p = must_read(c);
    assert_string_equal(p.gate_logits, path);
    assert_true(strlen(p.overrides) < sizeof p.overrides);
    assert_non_null(strstr(p.overrides, "TF_QWEN_KV_PAGES=64, TF_GATE_LOGITS=aaa"));
}

static void test_outside_the_scope(void **state) {
    (void)state;
    struct profile_context c = context_of(PROFILE_OTHER, PROFILE_CPU);
    clear();
    set(PROFILE_KV_PAGES, "nonsense");
    set(PROFILE_KV_PAGES_ALL, "7");
    set(PROFILE_KV_SHARE, "1");
    set(PROFILE_MEMORY_RESERVE, "1");
    struct profile p = must_read(&c);
    assert_int_equal(p.page_rows, 0);
    assert_false(p.pages_all || p.share);
    assert_string_equal(p.overrides, "TF_MEMORY_RESERVE_GIB=1");
    assert_int_equal(p.n_notes, 3);
    assert_true(has_note(&p, "TF_QWEN_KV_PAGES=nonsense ", "ignored"));
    assert_true(has_note(&p, "TF_QWEN_KV_PAGES_ALL=7 ", "ignored"));
    assert_true(has_note(&p, "TF_QWEN_KV_SHARE=1 ", "ignored"));
    clear();
}

static void test_long_values(void **state) {
    (void)state;
    for_each(check_long_values);
}

// ---- --slide ----

static void check_slide(const struct profile_context *c) {
    struct profile_context slide = *c;
    slide.slide = true;
    static const char *const windows[] = {NULL, "0"};
    for (int i = 0; i < 2; i++) {
        set(PROFILE_KV_PAGES, windows[i]);
        assert_int_equal(must_read(&slide).page_rows, 0);
        assert_int_equal(profile_check_slide(NULL), STATUS_OK);
    }
    static const char *const sizes[] = {"1", "256", "4096"};
    set(PROFILE_KV_SHARE, "nonsense"); // it is not what is said first
    for (int i = 0; i < 3; i++) {
        set(PROFILE_KV_PAGES, sizes[i]);
        must_refuse(&slide, STATUS_UNSUPPORTED, "QwenPagesNoLearner", "TF_QWEN_KV_PAGES");
        assert_int_equal(profile_check_slide(NULL), STATUS_UNSUPPORTED);
    }
    set(PROFILE_KV_PAGES, "x");
    must_refuse(&slide, STATUS_INVALID, "TF_QWEN_KV_PAGES must be", "4096");
}

static void test_slide(void **state) {
    (void)state;
    for_each(check_slide);
}

// ---- the table and the page made from it ----

static void test_table(void **state) {
    (void)state;
    for (int i = 0; i < PROFILE_N_SETTING; i++) {
        const struct profile_setting *s = profile_setting((enum profile_id)i);
        assert_true(strncmp(s->name, "TF_", 3) == 0);
        assert_true(s->families != 0 && s->backends != 0);
        assert_true(s->legal[0] != 0 && s->meaning[0] != 0);
        for (int j = 0; j < i; j++) assert_string_not_equal(s->name, profile_setting((enum profile_id)j)->name);
    }
}

static void test_page_is_up_to_date(void **state) {
    (void)state;
    static char committed[1 << 16];
    FILE *f = fopen("docs/profiles.md", "rb");
    assert_non_null(f);
    size_t n = fread(committed, 1, sizeof committed - 1, f);
    fclose(f);
    committed[n] = 0;
    struct buffer page;
    buffer_init(&page, 0);
    assert_true(profile_write_page(&page));
    if (strcmp(page.data, committed) != 0) fail_msg("docs/profiles.md is not what `tokenfold profiles` prints");
    buffer_free(&page);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_unset),
        cmocka_unit_test(test_pages),
        cmocka_unit_test(test_pages_all),
        cmocka_unit_test(test_share),
        cmocka_unit_test(test_reserve_and_logits),
        cmocka_unit_test(test_long_values),
        cmocka_unit_test(test_outside_the_scope),
        cmocka_unit_test(test_slide),
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_page_is_up_to_date),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
