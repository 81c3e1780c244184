// Owns the failing of chosen allocations in test programs named tests/<layer>/test_*_alloc.c: the linker sends their
// calls of malloc, calloc, realloc, aligned_alloc, posix_memalign, strdup and strndup, and those of our own archives,
// through here. Shared libraries are not reached: give jansson `malloc` and `free` with json_set_alloc_funcs, and its
// allocations take part. Any thread may allocate; one thread sets what fails.
//
// The usual sweep, for an operation that must survive the failure of each of its allocations:
//     for (long n = 1;; n++) {
//         alloc_fail_at(n);
//         enum status status = operation(...);
//         bool failed = alloc_failed();
//         alloc_fail_off();
//         ... check: no leak, outputs untouched on failure, status tells ...
//         if (!failed) break;
//     }
#ifndef TF_TESTS_ALLOC_FAIL_H
#define TF_TESTS_ALLOC_FAIL_H

#include <stdbool.h>

void alloc_fail_at(long n); // the n-th allocation from now (1: the next one) fails, and no other; restarts alloc_count
void alloc_fail_from(long n); // the n-th and all after it fail; restarts alloc_count
void alloc_fail_off(void);    // none fails; alloc_count goes on
long alloc_count(void);       // allocations asked for since the last alloc_fail_at or alloc_fail_from
bool alloc_failed(void);      // whether one has been refused since then

#endif
