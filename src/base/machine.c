#include "base/machine.h"
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int machine_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    int n = CPU_COUNT(&set);
    return n < 1 ? 1 : n;
}

// The number behind `field` at the start of a line, or the file's first one where that is ""; 0 if there is none.
static int64_t read_number(const char *path, const char *field) {
    FILE *f = fopen(path, "re");
    char line[128];
    long long number = 0;
    bool found = false;
    while (f != NULL && !found && fgets(line, sizeof line, f) != NULL) {
        found = strncmp(line, field, strlen(field)) == 0;
        if (found) number = strtoll(line + strlen(field), NULL, 10);
    }
    if (f != NULL) fclose(f);
    return number;
}

static int64_t meminfo(const char *field) { return read_number("/proc/meminfo", field) * 1024; }

// ---- control groups ----

#define GROUPS "/sys/fs/cgroup"

// "max" is no number.
static int64_t group_number(const char *folder, const char *path, const char *file, const char *field) {
    char name[4096];
    snprintf(name, sizeof name, "%s%s/%s", folder, path, file);
    return read_number(name, field);
}

// Of the limit, what is not used but by files that can be dropped.
static int64_t group_left(const char *folder, const char *path, int64_t limit) {
    int64_t used = group_number(folder, path, "memory.current", "");
    used -= group_number(folder, path, "memory.stat", "inactive_file ");
    used -= group_number(folder, path, "memory.stat", "active_file ");
    if (used < 0) used = 0;
    return limit > used ? limit - used : 0;
}

int64_t machine_group_limit(const char *folder, const char *path, int64_t *left) {
    char group[2048];
    int64_t limit = 0, room = INT64_MAX;
    snprintf(group, sizeof group, "%s", strcmp(path, "/") == 0 ? "" : path);
    for (char *end = group;; *end = 0) {
        int64_t own = group_number(folder, group, "memory.max", "");
        int64_t own_left = own > 0 ? group_left(folder, group, own) : INT64_MAX;
        if (own > 0 && (limit == 0 || own < limit)) limit = own;
        if (own_left < room) room = own_left;
        end = strrchr(group, '/'); // a group's limit holds for those in it
        if (end == NULL) break;
    }
    *left = room;
    return limit;
}

static int64_t own_limit(int64_t *left) {
    char line[2048] = "";
    FILE *f = fopen("/proc/self/cgroup", "re");
    while (f != NULL && fgets(line, sizeof line, f) != NULL && strncmp(line, "0::", 3) != 0) line[0] = 0;
    if (f != NULL) fclose(f);
    line[strcspn(line, "\n")] = 0;
    return machine_group_limit(GROUPS, line[0] != 0 ? line + 3 : "", left);
}

int64_t machine_memory_total(void) {
    int64_t total = meminfo("MemTotal:"), left, limit = own_limit(&left);
    return limit > 0 && limit < total ? limit : total;
}

int64_t machine_memory_available(void) {
    int64_t available = meminfo("MemAvailable:"), left;
    own_limit(&left);
    return left < available ? left : available;
}
