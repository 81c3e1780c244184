#include "base/machine.h"
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int machine_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n;
}

// The number of kilobytes in the line of /proc/meminfo that starts with `field`, in bytes; 0 if there is none.
static int64_t meminfo(const char *field) {
    FILE *f = fopen("/proc/meminfo", "re");
    char line[128];
    long long kilobytes = 0;
    if (f == NULL) return 0;
    while (fgets(line, sizeof line, f) != NULL)
        if (strncmp(line, field, strlen(field)) == 0) kilobytes = strtoll(line + strlen(field), NULL, 10);
    fclose(f);
    return (int64_t)kilobytes * 1024;
}

// The first number of a control group file; 0 if it has none, as "max" has not.
static int64_t group_number(const char *path) {
    FILE *f = fopen(path, "re");
    char line[64] = "";
    if (f == NULL) return 0;
    if (fgets(line, sizeof line, f) == NULL) line[0] = 0;
    fclose(f);
    return strtoll(line, NULL, 10);
}

int64_t machine_memory_total(void) {
    int64_t total = meminfo("MemTotal:"), limit = group_number("/sys/fs/cgroup/memory.max");
    return limit > 0 && limit < total ? limit : total;
}

int64_t machine_memory_available(void) {
    int64_t available = meminfo("MemAvailable:"), limit = group_number("/sys/fs/cgroup/memory.max");
    if (limit <= 0) return available;
    int64_t left = limit - group_number("/sys/fs/cgroup/memory.current");
    if (left < 0) left = 0;
    return left < available ? left : available;
}
