// What `plan --check` lets pass, and that a table and an object are written of any plan.
#include "cli/plan_text.h"
#include "format/json.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static struct plan_report some_report(void) {
    struct plan_report r = {.model_dir = "a \"model\"", .device = "cpu", .overrides = "none", .checked = true};
    struct plan *p = &r.info.plan;
    *p = (struct plan){.windows = true, .parallel = 2, .context = 1000, .page_rows = 256, .max_window = 1};
    p->page_bytes = 4096;
    p->parts[PLAN_WEIGHTS] = 60000;
    p->parts[PLAN_PAGES] = 40000;
    p->parts[PLAN_CACHE] = 1000000;
    p->used_bytes = 1100000;
    p->left_bytes = 50000;
    return r;
}

static void test_a_hundredth_is_the_limit(void **state) {
    (void)state;
    struct plan_report r = some_report();
    static const struct {
        int64_t taken;
        bool passes;
    } cases[] = {{100000, true}, {101000, true}, {99000, true}, {101001, false}, {98999, false}, {0, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        r.taken_bytes = cases[i].taken; // the prompt cache, however large, hides nothing
        assert_int_equal(plan_check_passes(&r), cases[i].passes);
    }
}

// What the head adds is told where it is not in the plan.
static void test_a_position(void **state) {
    (void)state;
    struct plan_report r = some_report();
    static const char *const words[] = {"64.00 KiB in bf16, 68.00 KiB with an MTP head\n",
                                        "68.00 KiB in bf16, those of the MTP head among them\n"};
    for (int has_head = 0; has_head < 2; has_head++) {
        struct buffer b;
        r.info.kv = DTYPE_BF16;
        r.position_bytes = has_head ? 68 * 1024 : 64 * 1024;
        r.position_bytes_mtp = 68 * 1024;
        buffer_init(&b, 0);
        plan_write_table(&r, &b);
        assert_false(b.failed);
        assert_non_null(strstr(b.data, words[has_head]));
        buffer_free(&b);
    }
}

static void test_both_forms(void **state) {
    (void)state;
    struct plan_report r = some_report();
    for (int paper = 0; paper < 2; paper++) {
        struct buffer b;
        r.on_paper = paper == 1;
        r.checked = !r.on_paper;
        buffer_init(&b, 0);
        plan_write_table(&r, &b);
        assert_false(b.failed);
        assert_non_null(strstr(b.data, "2 windows of 1000 tokens"));
        assert_int_equal(strstr(b.data, "really taken") != NULL, r.checked);
        buffer_free(&b);
        buffer_init(&b, 0);
        plan_write_json(&r, &b);
        json_t *o = json_loads(b.data, 0, NULL);
        assert_non_null(o);
        assert_string_equal(json_string_value(json_object_get(o, "model")), "a \"model\"");
        assert_int_equal(json_is_null(json_object_get(o, "device")), r.on_paper);
        assert_int_equal(json_integer_value(json_object_get(json_object_get(o, "parts"), "prompt_cache")), 1000000);
        json_decref(o);
        buffer_free(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_hundredth_is_the_limit),
                                       cmocka_unit_test(test_a_position), cmocka_unit_test(test_both_forms)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
