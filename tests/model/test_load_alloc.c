// Every allocation of loading a checkpoint fails in turn: the load says so, and nothing leaks.
#include "cpu/device_cpu.h"
#include "format/checkpoint.h"
#include "model/drafter.h"
#include "model/weights.h"
#include "tests/alloc_fail.h"
#include "tests/model/tiny.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static enum status load(const char *dir, struct error *e) {
    struct checkpoint *c = NULL;
    struct model_config config = {0};
    struct model_weights *w = NULL;
    enum status status = checkpoint_open(dir, &c, e);
    if (!status) status = config_load(c, &config, e);
    if (!status) status = weights_load(c, &config, &w, e);
    weights_free(w);
    config_free(&config);
    checkpoint_free(c);
    return status;
}

static void sweep(struct tiny_options options, int n_shards) {
    struct folder f = folder_create();
    struct tiny *t = tiny_create(options);
    tiny_write(t, &f, n_shards);
    folder_write_text(&f, "generation_config.json", "{\"eos_token_id\":[1,2],\"top_k\":20}");
    folder_write_text(&f, "tokenizer_config.json", "{\"eos_token\":\"<|im_end|>\"}");
    long n = 1;
    for (;; n++) {
        struct error e = {0};
        alloc_fail_at(n);
        enum status status = load(f.path, &e);
        bool failed = alloc_failed();
        alloc_fail_off();
        if (!failed) {
            assert_int_equal(status, STATUS_OK);
            break;
        }
        if (status != STATUS_MEMORY) fail_msg("allocation %ld: %s, \"%s\"", n, status_name(status), e.text);
        assert_int_equal(e.code, status);
    }
    assert_true(n > 50);
    tiny_free(t);
    folder_remove(&f);
}

static void test_load(void **state) {
    (void)state;
    sweep((struct tiny_options){.layout = TINY_MLX, .moe = true, .mtp = true}, 2);
    sweep((struct tiny_options){.layout = TINY_HF, .moe = true, .one_by_one = true}, 1);
}

// A drafter beside a model that is there.
static void test_drafter(void **state) {
    (void)state;
    struct model *m;
    struct device *device;
    struct error e = {0};
    struct model_limits limits = {
        .max_lanes = 2, .max_window = 8, .max_context = 512, .page_rows = 256, .pass_rows = 64, .kv = DTYPE_BF16};
    assert_int_equal(model_open("models/fold-s", &m, &e), STATUS_OK);
    assert_int_equal(cpu_device_create(COMPUTE_BF16, true, 1, ISA_C, &device, &e), STATUS_OK);
    long n = 1;
    for (;; n++) {
        struct drafter *d = NULL;
        alloc_fail_at(n);
        enum status status = drafter_open("models/fold-s-DFlash2", m, 4, &d, &e);
        if (status == STATUS_OK) status = drafter_load(d, device, &limits, &e);
        bool failed = alloc_failed();
        alloc_fail_off();
        drafter_free(d);
        if (!failed) {
            assert_int_equal(status, STATUS_OK);
            break;
        }
        if (status != STATUS_MEMORY) fail_msg("allocation %ld: %s, \"%s\"", n, status_name(status), e.text);
    }
    assert_true(n > 50);
    model_free(m);
    device_free(device);
}

// The writer of safetensors files: a failure leaves no file.
static void test_writer(void **state) {
    (void)state;
    struct folder f = folder_create();
    static const struct safetensors_entry entries[] = {{"a", SAFETENSORS_F32, 1, {4}},
                                                       {"b", SAFETENSORS_BF16, 2, {4, 4}}};
    for (long n = 1;; n++) {
        struct safetensors_writer *w = NULL;
        struct error e;
        alloc_fail_at(n);
        enum status status = safetensors_writer_create(folder_file(&f, "x"), entries, 2, "pt", &w, &e);
        if (!status) status = safetensors_writer_finish(w, &e);
        bool failed = alloc_failed();
        alloc_fail_off();
        if (!failed) break;
        assert_int_equal(status, STATUS_MEMORY);
        struct safetensors *s;
        assert_int_equal(safetensors_open(folder_file(&f, "x"), &s, &e), STATUS_NOT_FOUND);
    }
    folder_remove(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_load), cmocka_unit_test(test_drafter),
                                       cmocka_unit_test(test_writer)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
