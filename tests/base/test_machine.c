#include "base/machine.h"
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

static void test_cores(void **state) {
    (void)state;
    assert_in_range(machine_cores(), 1, sysconf(_SC_NPROCESSORS_CONF));
    // A process that may run on one core has one, whatever the machine has.
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(machine_cores(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

static void test_memory(void **state) {
    (void)state;
    int64_t total = machine_memory_total(), available = machine_memory_available();
    int64_t physical = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
    assert_true(total > 0 && total <= physical);
    assert_true(available > 0 && available <= total);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cores), cmocka_unit_test(test_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
