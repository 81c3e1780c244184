// Owns memory with one lifetime: everything allocated from an arena is freed together. One thread at a time.
#ifndef TF_BASE_ARENA_H
#define TF_BASE_ARENA_H

#include <stddef.h>

struct arena;

// limit_bytes bounds all blocks together (0: no bound). NULL when memory is out.
struct arena *arena_create(size_t limit_bytes);
void arena_free(struct arena *a);  // NULL is fine
void arena_reset(struct arena *a); // everything allocated from it is gone; its first block is kept

// 64-byte aligned, not zeroed. NULL when memory is out or the limit would be passed.
void *arena_alloc(struct arena *a, size_t bytes);
void *arena_alloc_zero(struct arena *a, size_t n, size_t size); // checks n * size
char *arena_copy(struct arena *a, const char *text, size_t n);  // n bytes and a terminating NUL
char *arena_printf(struct arena *a, const char *format, ...) __attribute__((format(printf, 2, 3)));
size_t arena_used(const struct arena *a);

#endif
