// What is written of rounds: words and figures of the table, JSON that parses, a plot that is well-formed whatever the
// names are, and a file of rounds that gives back what was put into it.
#include "base/buffer.h"
#include "format/json.h"
#include "measure/record.h"
#include "measure/report.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static const char *const texts[] = {"slow:kv-dtype=fp8", "peer:url=http://x/v1,key=secret"};

// Eight rounds: the third arm is 2 % slower and gives other tokens, the fourth is the base.
static void make_rounds(struct cell_rounds *c, const char *text) {
    struct cell cells[CELLS_MAX];
    struct error e;
    int n;
    assert_int_equal(cells_read(text, cells, &n, &e), STATUS_OK);
    cell_rounds_init(c, &cells[0]);
    for (int i = 0; i < 8; i++) {
        double wave = 1 + 0.001 * (i % 4 - 1.5), other = 1 + 0.001 * (i % 3 - 1);
        double rates[ARMS_MAX] = {100 * wave, 100 * wave * other, 98 * wave, 100 * wave * (2 - other)};
        assert_int_equal(cell_rounds_add(c, rates, &e), STATUS_OK);
    }
    c->differs[2] = true;
    c->n_cached[0] = 64;
}

struct fixture {
    struct arm arms[ARMS_MAX];
    struct cell_rounds cells[2];
    struct report report;
};

static void open_fixture(struct fixture *f, const char *what) {
    struct error e;
    int n_arms;
    assert_int_equal(arms_read(texts, 2, f->arms, &n_arms, &e), STATUS_OK);
    make_rounds(&f->cells[0], "prompt:512");
    make_rounds(&f->cells[1], "warm:128+64");
    f->report = (struct report){what, f->arms, n_arms, f->cells, 2, 1e9, 1000000};
}

static void close_fixture(struct fixture *f) {
    for (int i = 0; i < 2; i++) cell_rounds_free(&f->cells[i]);
}

static void test_table(void **state) {
    (void)state;
    struct fixture f;
    struct buffer b;
    struct error e;
    open_fixture(&f, "a model on a device");
    buffer_init(&b, 0);
    assert_int_equal(report_write_table(&f.report, &b, &e), STATUS_OK);
    const char *const words[] = {
        "a model on a device", "prompt 512",      "the A/A",       "-2.00 %",  "slower; seen from",
        "OTHER TOKENS",        "same; seen from", "resumed at 64", "8 rounds", "key=***"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(b.data, words[i]) == NULL) fail_msg("no \"%s\" in\n%s", words[i], b.data);
    assert_null(strstr(b.data, "secret"));
    assert_true(report_is_red(&f.report));
    buffer_clear(&b);
    f.report.n_arms = 1;
    assert_int_equal(report_write_table(&f.report, &b, &e), STATUS_OK);
    assert_non_null(strstr(b.data, "of memory"));
    assert_null(strstr(b.data, "seen from"));
    assert_false(report_is_red(&f.report));
    buffer_free(&b);
    close_fixture(&f);
}

// 2 of 3 drafts are kept a round, so 100 tokens a second are 33.3 rounds of 30 ms; 12 MB at 1 GB/s take 12 ms.
static void test_drafted_rounds(void **state) {
    (void)state;
    static const char *const plain[] = {PLAIN_ARM ":no-drafts", "other:window=2"};
    struct fixture f;
    struct buffer b;
    struct error e;
    int n_arms;
    open_fixture(&f, "a model");
    assert_int_equal(arms_read(plain, 2, f.arms, &n_arms, &e), STATUS_OK);
    cell_rounds_free(&f.cells[1]);
    make_rounds(&f.cells[1], "decode:128+64");
    memset(f.cells[1].differs, 0, sizeof f.cells[1].differs);
    for (int i = 0; i < 8; i++) f.cells[1].rates[i][2] = f.cells[1].rates[i][0] / 2.5;
    f.cells[1].drafted[0] = (struct drafted){40, 120, 80, 12000000};
    buffer_init(&b, 0);
    assert_int_equal(report_write_table(&f.report, &b, &e), STATUS_OK);
    const char *const words[] = {"2.00 of  3.0", " 30.0", " 12.000 ", " 40 %", "2.50 x", " 0.83\n", "floor: "};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(b.data, words[i]) == NULL) fail_msg("no \"%s\" in\n%s", words[i], b.data);
    buffer_clear(&b);
    assert_int_equal(report_write_json(&f.report, &b, &e), STATUS_OK);
    json_t *root = json_loads(b.data, 0, NULL), *cell = json_array_get(json_object_get(root, "cells"), 1);
    json_t *drafted = json_object_get(cell, "drafted");
    assert_true(fabs(json_real_value(json_object_get(drafted, "to_plain")) - 2.5) < 1e-9);
    assert_true(fabs(json_real_value(json_object_get(drafted, "floor_ms")) - 12) < 1e-9);
    assert_null(json_object_get(json_array_get(json_object_get(cell, "arms"), 2), "drafted"));
    json_decref(root);
    memset(f.cells[1].drafted, 0, sizeof f.cells[1].drafted); // nothing drafted: nothing told
    buffer_clear(&b);
    assert_int_equal(report_write_table(&f.report, &b, &e), STATUS_OK);
    assert_null(strstr(b.data, "drafted rounds"));
    buffer_free(&b);
    close_fixture(&f);
}

static void test_json(void **state) {
    (void)state;
    struct fixture f;
    struct buffer b;
    struct error e;
    json_t *root;
    open_fixture(&f, "x");
    buffer_init(&b, 0);
    assert_int_equal(report_write_json(&f.report, &b, &e), STATUS_OK);
    assert_int_equal(json_parse(b.data, b.n, b.n, JSON_PARSE_DEFAULT, &root, &e), STATUS_OK);
    const json_t *cell = json_array_get(json_object_get(root, "cells"), 0);
    const json_t *slow = json_array_get(json_object_get(cell, "arms"), 2);
    assert_string_equal(json_string_value(json_object_get(slow, "verdict")), "slower");
    assert_float_equal(json_real_value(json_object_get(slow, "to_base")), -0.02, 1e-9);
    assert_true(json_is_true(json_object_get(slow, "other_tokens")));
    assert_float_equal(json_real_value(json_object_get(cell, "tokens_per_s")), 100, 0.1);
    json_decref(root);
    buffer_free(&b);
    close_fixture(&f);
}

// A reader of XML as strict as this needs: tags close in order, and text and attributes hold no bare < & or ".
static void must_be_well_formed(const char *text) {
    char open[16][16];
    int depth = 0;
    for (const char *at = text; *at != 0; at++) {
        assert_true((unsigned char)*at < 127 && (*at >= ' ' || *at == '\n'));
        if (*at == '&') assert_true(!strncmp(at, "&lt;", 4) || !strncmp(at, "&gt;", 4) || !strncmp(at, "&amp;", 5));
        if (*at != '<' || at[1] == '?') continue;
        char name[16] = "";
        bool closes = at[1] == '/';
        sscanf(at + 1 + closes, "%15[a-z]", name);
        bool quoted = false;
        while (*++at != 0 && (quoted || *at != '>')) {
            if (*at == '"') quoted = !quoted;
            assert_true(*at != '<' && *at != '&');
        }
        assert_true(*at == '>' && !quoted);
        if (closes) {
            assert_true(depth > 0);
            assert_string_equal(open[--depth], name);
        } else if (at[-1] != '/') {
            assert_true(depth < 16);
            strcpy(open[depth++], name);
        }
    }
    assert_int_equal(depth, 0);
}

static void test_svg(void **state) {
    (void)state;
    static const char *const names[] = {"plain", "<&\">]]> --", "\x01\xff\xc3\xa9\n"};
    for (size_t i = 0; i < 3; i++) {
        struct fixture f;
        struct buffer b;
        struct error e;
        open_fixture(&f, names[i]);
        buffer_init(&b, 0);
        assert_int_equal(report_write_svg(&f.report, &b, &e), STATUS_OK);
        must_be_well_formed(b.data);
        assert_non_null(strstr(b.data, "-2.00 %  slower  other tokens"));
        buffer_free(&b);
        close_fixture(&f);
    }
}

static void test_record(void **state) {
    (void)state;
    char path[] = "/tmp/tokenfold-test-XXXXXX";
    struct fixture f, g;
    struct error e;
    int other, fd = mkstemp(path);
    close(fd);
    open_fixture(&f, "x");
    open_fixture(&g, "x");
    struct record r = {path, "this", f.arms, 4}, elsewhere = {path, "that", f.arms, 4};
    g.cells[0].n = g.cells[1].n = 0;
    memset(g.cells[0].differs, 0, sizeof g.cells[0].differs);
    assert_int_equal(record_append(&r, &f.cells[0], &e), STATUS_OK);
    assert_int_equal(record_append(&r, &f.cells[1], &e), STATUS_OK);
    assert_int_equal(record_append(&elsewhere, &f.cells[1], &e), STATUS_OK);
    assert_int_equal(record_read(&r, g.cells, 2, &other, &e), STATUS_OK);
    assert_int_equal(other, 1);
    assert_int_equal(g.cells[0].n, 1);
    for (int i = 0; i < 4; i++) assert_true(g.cells[1].rates[0][i] == f.cells[1].rates[7][i]);
    assert_true(g.cells[0].differs[2] && !g.cells[0].differs[3]);
    r.n_arms = 3; // arms of another run
    assert_int_equal(record_read(&r, g.cells, 2, &other, &e), STATUS_OK);
    assert_int_equal(other, 3);
    static const char *const broken[] = {"[]\n", "{\"about\":\"this\"}\n", "{", "no JSON\n"};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        FILE *file = fopen(path, "w");
        fputs(broken[i], file);
        fclose(file);
        assert_int_not_equal(record_read(&r, g.cells, 2, &other, &e), STATUS_OK);
        assert_non_null(strstr(e.text, "line 1"));
    }
    unlink(path);
    assert_int_equal(record_read(&r, g.cells, 2, &other, &e), STATUS_OK); // none yet
    assert_int_equal(other, 0);
    close_fixture(&f);
    close_fixture(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table), cmocka_unit_test(test_drafted_rounds), cmocka_unit_test(test_json),
        cmocka_unit_test(test_svg),   cmocka_unit_test(test_record),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
