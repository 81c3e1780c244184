#include "base/machine.h"
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
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

static void write_file(const char *folder, const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void remove_file(const char *folder, const char *name) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    remove(path);
}

static const struct {
    const char *name, *text;
} inner[] = {{"memory.max", "max\n"}, {"memory.current", "700\n"}, {"memory.stat", "anon 100\nactive_file 300\n"}},
  outer[] = {{"memory.max", "1000\n"},
             {"memory.current", "900\n"},
             // what counts as file and cannot be dropped comes first
             {"memory.stat", "anon 250\nfile 650\nshmem 50\nfile_mapped 400\ninactive_file 500\nactive_file 100\n"}};

// A restarted server finds its weights in the file cache of its group: that is room.
static void test_groups(void **state) {
    (void)state;
    char root[] = "/tmp/tokenfold-groups-XXXXXX", group[64], unit[128];
    int64_t left;
    assert_non_null(mkdtemp(root));
    snprintf(group, sizeof group, "%s/system.slice", root);
    snprintf(unit, sizeof unit, "%s/unit", group);
    assert_int_equal(mkdir(group, 0700) | mkdir(unit, 0700), 0);
    assert_int_equal(machine_group_limit(root, "/system.slice/unit", &left), 0);
    assert_true(left == INT64_MAX);
    for (int i = 0; i < 3; i++) {
        write_file(group, outer[i].name, outer[i].text);
        write_file(unit, inner[i].name, inner[i].text);
    }
    assert_int_equal(machine_group_limit(root, "/system.slice/unit", &left), 1000); // the group's that it lies in
    assert_int_equal(left, 1000 - (900 - 600));
    write_file(unit, "memory.max", "800\n");
    assert_int_equal(machine_group_limit(root, "/system.slice/unit", &left), 800);
    assert_int_equal(left, 800 - (700 - 300));
    assert_int_equal(machine_group_limit(root, "/system.slice/another", &left), 1000);
    assert_int_equal(machine_group_limit(root, "/", &left), 0);
    assert_int_equal(machine_group_limit(group, "/", &left), 1000); // within a container that is the root
    write_file(unit, "memory.current", "2000\n");
    assert_int_equal(machine_group_limit(root, "/system.slice/unit", &left), 800);
    assert_int_equal(left, 0);
    for (int i = 0; i < 3; i++) {
        remove_file(group, outer[i].name);
        remove_file(unit, inner[i].name);
    }
    assert_int_equal(rmdir(unit) | rmdir(group) | rmdir(root), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cores), cmocka_unit_test(test_memory),
                                       cmocka_unit_test(test_groups)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
