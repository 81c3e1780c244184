// Cells and arms as people write them, the ones that are refused, and the rate of streams that run together.
#include "measure/arms.h"
#include "measure/cells.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static void test_cells(void **state) {
    (void)state;
    static const char text[] = "prompt:512,decode:128+64,decode:2048+64x16,warm:32768+64";
    struct cell cells[CELLS_MAX];
    struct error e;
    char again[256] = "";
    int n = 0;
    assert_int_equal(cells_read(text, cells, &n, &e), STATUS_OK);
    assert_int_equal(n, 4);
    for (int i = 0; i < n; i++) {
        char one[CELL_TEXT];
        cell_write(&cells[i], one);
        snprintf(again + strlen(again), sizeof again - strlen(again), "%s%s", i > 0 ? "," : "", one);
    }
    assert_string_equal(again, text);
    assert_int_equal(cells_longest(cells, n), 32768 + 64 + 3);
    assert_int_equal(cells_streams(cells, n), 16);
    static const char *const wrong[] = {"",
                                        "prompt",
                                        "prompt:",
                                        "prompt:0",
                                        "prompt:12x2",
                                        "prompt:-3",
                                        "prompt: 3",
                                        "decode:12",
                                        "decode:12+",
                                        "decode:12+4x0",
                                        "warm:12",
                                        "warm:12+3x2",
                                        "decode:1+1x257",
                                        "prompt:262145",
                                        "prompt:5,",
                                        ",",
                                        "prompt:5;",
                                        "prompt:99999999999999999999"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (cells_read(wrong[i], cells, &n, &e) != STATUS_INVALID) fail_msg("\"%s\" was taken", wrong[i]);
    char many[CELLS_MAX * 10 + 20] = "prompt:1";
    for (int i = 0; i < CELLS_MAX; i++) strcat(many, ",prompt:1");
    assert_int_equal(cells_read(many, cells, &n, &e), STATUS_INVALID);
}

static void test_arms(void **state) {
    (void)state;
    static const char *const texts[] = {"pages:TF_QWEN_KV_PAGES=256,TF_QWEN_KV_SHARE=1",
                                        "other.8:bin=/tmp/a=b,kv-dtype=fp8,no-drafts",
                                        "peer:url=http://a:1/v1,key=secret"};
    struct arm arms[ARMS_MAX];
    struct error e;
    char text[ARM_SETTINGS_TEXT];
    int n = 0;
    assert_int_equal(arms_read(NULL, 0, arms, &n, &e), STATUS_OK);
    assert_int_equal(n, 1);
    assert_int_equal(arms_read(texts, 3, arms, &n, &e), STATUS_OK);
    assert_int_equal(n, 5);
    assert_string_equal(arms[0].name, "base");
    assert_int_equal(arms[1].n_settings, 0);
    assert_int_equal(arms[2].settings[0].kind, ARM_ENVIRONMENT);
    assert_string_equal(arms[2].settings[1].value, "1");
    assert_string_equal(arm_get(&arms[3], "bin"), "/tmp/a=b");
    assert_null(arm_get(&arms[3], "url"));
    assert_int_equal(arms[3].settings[1].kind, ARM_FLAG);
    assert_null(arms[3].settings[2].value);
    arm_write(&arms[3], text);
    assert_string_equal(text, "bin=/tmp/a=b,kv-dtype=fp8,no-drafts");
    arm_write(&arms[4], text); // is printed and written to files
    assert_string_equal(text, "url=http://a:1/v1,key=***");
}

static void test_wrong_arms(void **state) {
    (void)state;
    static const struct {
        const char *text, *word;
    } wrong[] = {
        {"", "NAME:KEY"},
        {"pages", "NAME:KEY"},
        {":a=1", "NAME:KEY"},
        {"p:", "at least one"},
        {"p:a=1,,b=2", "at least"},
        {"p:TF_NO=1", "TF_NO"},
        {"p:bin", "needs a value"},
        {"p:url=", "needs a value"},
        {"p:a=1,a=2", "twice"},
        {"base:a=1", "base"},
        {"base-again:a=1", "base"},
        {"a b:c=1", "NAME:KEY"},
        {"p:a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q", "more than"},
    };
    struct arm arms[ARMS_MAX];
    struct error e;
    int n;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (arms_read(&wrong[i].text, 1, arms, &n, &e) != STATUS_INVALID) fail_msg("\"%s\" was taken", wrong[i].text);
        if (strstr(e.text, wrong[i].word) == NULL) fail_msg("\"%s\": \"%s\"", wrong[i].text, e.text);
    }
    const char *many[ARMS_MAX];
    for (int i = 0; i < ARMS_MAX; i++) many[i] = "p:a=1";
    assert_int_equal(arms_read(many, ARMS_MAX - 1, arms, &n, &e), STATUS_INVALID);
    assert_int_equal(arms_read(many, 2, arms, &n, &e), STATUS_INVALID); // the same name
    char longer[ARM_SETTINGS_TEXT + 8] = "p:a=";
    memset(longer + 4, 'x', sizeof longer - 5);
    longer[sizeof longer - 1] = 0;
    const char *one = longer;
    assert_int_equal(arms_read(&one, 1, arms, &n, &e), STATUS_INVALID);
}

static void test_rates(void **state) {
    (void)state;
    const int64_t first[] = {1000, 2000, 3000, 4000}, second[] = {2500, 3500, 4500, 5500};
    const int32_t ones[] = {1, 2, 3, 4}, twos[] = {2, 4, 6, 8};
    const struct stream_record one = {first, ones, 4};
    assert_float_equal(cell_decode_rate(&one, 1), 3 * 1e9 / 3000, 1e-6);
    // From 2500, where both have begun, to 4000, where the first is done: 2 and 2 tokens.
    const struct stream_record both[] = {{first, ones, 4}, {second, twos, 4}};
    assert_float_equal(cell_decode_rate(both, 2), 4 * 1e9 / 1500, 1e-6);
    const struct stream_record none = {first, ones, 0};
    assert_float_equal(cell_decode_rate(&none, 1), 0, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cells),
        cmocka_unit_test(test_arms),
        cmocka_unit_test(test_wrong_arms),
        cmocka_unit_test(test_rates),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
