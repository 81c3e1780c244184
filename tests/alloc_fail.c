#include "tests/alloc_fail.h"
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>

// The linker's --wrap turns calls of NAME into __wrap_NAME, and __real_NAME into NAME.
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
int __real_posix_memalign(void **out, size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **out, size_t alignment, size_t bytes);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t n);

static _Atomic long n_asked, first_refused, last_refused;
static _Atomic bool refused;

static void set_range(long first, long last) {
    first_refused = first;
    last_refused = last;
    n_asked = 0;
    refused = false;
}

void alloc_fail_at(long n) { set_range(n, n); }
void alloc_fail_from(long n) { set_range(n, __LONG_MAX__); }
void alloc_fail_off(void) { first_refused = last_refused = 0; }
long alloc_count(void) { return n_asked; }
bool alloc_failed(void) { return refused; }

static bool refuse(void) {
    long n = ++n_asked;
    if (n < first_refused || n > last_refused) return false;
    refused = true;
    errno = ENOMEM;
    return true;
}

void *__wrap_malloc(size_t bytes) { return refuse() ? NULL : __real_malloc(bytes); }
void *__wrap_calloc(size_t n, size_t size) { return refuse() ? NULL : __real_calloc(n, size); }
void *__wrap_realloc(void *memory, size_t bytes) { return refuse() ? NULL : __real_realloc(memory, bytes); }
void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
    return refuse() ? NULL : __real_aligned_alloc(alignment, bytes);
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t bytes) {
    return refuse() ? ENOMEM : __real_posix_memalign(out, alignment, bytes);
}

char *__wrap_strndup(const char *text, size_t n) {
    size_t bytes = strnlen(text, n);
    char *copy = __wrap_malloc(bytes + 1);
    if (!copy) return NULL;
    copy[bytes] = '\0';
    return memcpy(copy, text, bytes);
}

char *__wrap_strdup(const char *text) { return __wrap_strndup(text, strlen(text)); }
