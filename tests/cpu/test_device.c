// The CPU device itself: creation, memory, and the scratch that it promises to take.
#include "cpu/device_cpu.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static struct device *open_device(enum compute compute, bool quantised, int n_threads, enum cpu_isa isa) {
    struct device *d = NULL;
    struct error e;
    assert_int_equal(cpu_device_create(compute, quantised, n_threads, isa, &d, &e), STATUS_OK);
    return d;
}

static void test_compute(void **state) {
    (void)state;
    static const struct {
        enum compute asked;
        bool quantised;
        enum compute got;
        enum dtype kv;
    } cases[] = {
        {COMPUTE_AUTO, true, COMPUTE_BF16, DTYPE_BF16}, {COMPUTE_AUTO, false, COMPUTE_BF16, DTYPE_BF16},
        {COMPUTE_F32, true, COMPUTE_F32, DTYPE_F32},    {COMPUTE_BF16, true, COMPUTE_BF16, DTYPE_BF16},
        {COMPUTE_INT8, true, COMPUTE_INT8, DTYPE_BF16}, {COMPUTE_INT8, false, COMPUTE_BF16, DTYPE_BF16},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct device *d = open_device(cases[i].asked, cases[i].quantised, 1, ISA_C);
        assert_int_equal(d->compute, cases[i].got);
        assert_int_equal(d->activation, DTYPE_F32);
        assert_int_equal(d->kv, cases[i].kv);
        device_free(d);
    }
}

static void test_names(void **state) {
    (void)state;
    struct device *d = open_device(COMPUTE_F32, false, 1, ISA_C);
    assert_string_equal(d->name, "cpu c f32, 1 thread");
    device_free(d);
    d = open_device(COMPUTE_INT8, true, 3, ISA_C);
    assert_string_equal(d->name, "cpu c int8, 3 threads");
    device_free(d);
    d = open_device(COMPUTE_INT8, true, 1, ISA_AMX); // lowered to what there is
    assert_non_null(strstr(d->name, cpu_isa_name(cpu_isa_detect())));
    device_free(d);
}

static void test_refusals(void **state) {
    (void)state;
    struct device *d = NULL;
    struct error e;
    assert_int_equal(cpu_device_create(COMPUTE_F32, false, 100000, ISA_C, &d, &e), STATUS_INVALID);
    assert_null(d);
    assert_int_equal(cpu_device_create(COMPUTE_F32, false, -1, ISA_C, &d, &e), STATUS_INVALID);
    assert_null(d);
}

static void test_memory(void **state) {
    (void)state;
    struct device *d = open_device(COMPUTE_F32, false, 0, ISA_C);
    char text[300] = "copied in and out", back[300];
    for (size_t bytes = 0; bytes <= 300; bytes += 100) {
        void *memory = d->alloc(d, bytes);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % 256, 0);
        d->copy_in(d, memory, text, bytes);
        d->copy_out(d, back, memory, bytes);
        assert_memory_equal(text, back, bytes);
        d->release(d, memory);
    }
    assert_null(d->alloc(d, SIZE_MAX));
    assert_null(d->alloc(d, SIZE_MAX / 2));
    device_free(d);
}

// Arithmetic only, monotonous, and repeatable; a second reserve takes the place of the first.
static void test_reserve(void **state) {
    (void)state;
    struct device_limits small = {.max_rows = 64,
                                  .max_round_rows = 4,
                                  .max_in = 128,
                                  .max_out = 256,
                                  .n_vocab = 1000,
                                  .head_dim = 32,
                                  .n_head = 4,
                                  .n_kv_head = 2,
                                  .key_dim = 16,
                                  .value_dim = 16,
                                  .n_key_head = 2,
                                  .n_value_head = 4,
                                  .n_expert = 4,
                                  .n_used = 2,
                                  .expert_width = 64,
                                  .max_context = 4096,
                                  .max_lanes = 2,
                                  .max_window = 2};
    struct device_limits large = small;
    large.max_rows = 4096;
    large.max_in = 4096;
    for (int isa = ISA_C; isa <= (int)cpu_isa_detect(); isa++) {
        for (int compute = COMPUTE_F32; compute <= COMPUTE_INT8; compute++) {
            struct device *d = open_device((enum compute)compute, true, 2, (enum cpu_isa)isa);
            struct error e;
            size_t bytes = d->reserve_bytes(d, &small);
            assert_true(bytes > 0 && bytes < d->reserve_bytes(d, &large));
            assert_int_equal(d->reserve(d, &large, &e), STATUS_OK);
            assert_int_equal(d->reserve(d, &small, &e), STATUS_OK);
            assert_true(d->reserve_bytes(d, &small) == bytes);
            d->poison(d);
            device_free(d);
        }
    }
}

static void test_fill(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 2, 4094, 4096, 4098, 8192, 100002};
    struct device *d = open_device(COMPUTE_F32, false, 1, ISA_C);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i] / sizeof(uint16_t);
        uint16_t *memory = d->alloc(d, sizes[i] + sizeof *memory);
        assert_non_null(memory);
        memset(memory, 1, sizes[i] + sizeof *memory);
        device_fill(d, memory, 0x7fff, sizes[i]);
        for (size_t k = 0; k < n; k++) assert_int_equal(memory[k], 0x7fff);
        assert_int_equal(memory[n], 0x0101);
        d->release(d, memory);
    }
    device_free(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compute), cmocka_unit_test(test_names),   cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_memory),  cmocka_unit_test(test_reserve), cmocka_unit_test(test_fill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
