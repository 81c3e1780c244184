// Owns questions about this computer. Any thread.
#ifndef TF_BASE_MACHINE_H
#define TF_BASE_MACHINE_H

#include <stdint.h>

int machine_cores(void); // that this process may run on, >= 1

// RAM in bytes, within the limits of this process's control groups (version 2) where there are any; 0 if unknown.
int64_t machine_memory_total(void);
// What could be taken now without swapping: free memory and file cache that can be dropped, within the same limits.
int64_t machine_memory_available(void);

// The tightest limit in bytes of a control group and those that it lies in, 0 if there is none, and what they leave,
// INT64_MAX if there is none. folder: where groups are; path: the group's, as /proc/self/cgroup has it.
int64_t machine_group_limit(const char *folder, const char *path, int64_t *left);

#endif
