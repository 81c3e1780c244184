// Owns questions about this computer. Any thread.
#ifndef TF_BASE_MACHINE_H
#define TF_BASE_MACHINE_H

#include <stdint.h>

int machine_cores(void); // that this process may run on, >= 1

// RAM in bytes, within the limit of this process's control group where there is one; 0 if unknown.
int64_t machine_memory_total(void);
// What could be taken now without swapping: free memory and file cache that can be dropped, within the same limit.
int64_t machine_memory_available(void);

#endif
