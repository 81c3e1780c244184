#include "base/arena.h"
#include <stdalign.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGNMENT         64
#define FIRST_BLOCK_BYTES ((size_t)16 << 10)
#define MAX_BLOCK_BYTES   ((size_t)1 << 20) // of ordinary blocks: a larger request gets a block of its own size

struct block {
    alignas(ALIGNMENT) struct block *next; // the block before this one in time
    size_t capacity;                       // bytes after the header
    size_t used;
};

struct arena {
    struct block *newest;
    size_t limit;
    size_t block_bytes; // of all blocks, headers included
    size_t used;
};

struct arena *arena_create(size_t limit_bytes) {
    struct arena *a = calloc(1, sizeof *a);
    if (a) a->limit = limit_bytes;
    return a;
}

static void free_blocks(struct block *b, const struct block *end) {
    while (b != end) {
        struct block *next = b->next;
        free(b);
        b = next;
    }
}

void arena_free(struct arena *a) {
    if (!a) return;
    free_blocks(a->newest, NULL);
    free(a);
}

void arena_reset(struct arena *a) {
    struct block *first = a->newest;
    if (!first) return;
    while (first->next) first = first->next;
    free_blocks(a->newest, first);
    first->used = 0;
    a->newest = first;
    a->block_bytes = sizeof *first + first->capacity;
    a->used = 0;
}

// Adds a block with room for at least `bytes`, a multiple of the alignment. Blocks double, so that there are few.
static struct block *add_block(struct arena *a, size_t bytes) {
    size_t capacity = a->newest ? a->newest->capacity * 2 : FIRST_BLOCK_BYTES - sizeof(struct block);
    if (capacity > MAX_BLOCK_BYTES) capacity = MAX_BLOCK_BYTES;
    if (capacity < bytes) capacity = bytes;
    if (a->limit) {
        size_t left = a->limit - a->block_bytes;
        if (left < sizeof(struct block) || left - sizeof(struct block) < bytes) return NULL;
        left = (left - sizeof(struct block)) / ALIGNMENT * ALIGNMENT;
        if (capacity > left) capacity = left;
    }
    struct block *b = aligned_alloc(ALIGNMENT, sizeof *b + capacity);
    if (!b) return NULL;
    *b = (struct block){.next = a->newest, .capacity = capacity};
    a->newest = b;
    a->block_bytes += sizeof *b + capacity;
    return b;
}

void *arena_alloc(struct arena *a, size_t bytes) {
    if (bytes > SIZE_MAX / 2) return NULL; // so that the sums below cannot wrap
    size_t rounded = bytes ? (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT : ALIGNMENT;
    struct block *b = a->newest;
    if (!b || b->capacity - b->used < rounded) b = add_block(a, rounded);
    if (!b) return NULL;
    void *memory = (char *)(b + 1) + b->used;
    b->used += rounded;
    a->used += rounded;
    return memory;
}

void *arena_alloc_zero(struct arena *a, size_t n, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes)) return NULL;
    void *memory = arena_alloc(a, bytes);
    return memory ? memset(memory, 0, bytes) : NULL;
}

char *arena_copy(struct arena *a, const char *text, size_t n) {
    char *copy = n < SIZE_MAX ? arena_alloc(a, n + 1) : NULL;
    if (!copy) return NULL;
    if (n) memcpy(copy, text, n);
    copy[n] = '\0';
    return copy;
}

char *arena_printf(struct arena *a, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = n < 0 ? NULL : arena_alloc(a, (size_t)n + 1);
    if (!text) return NULL;
    va_start(args, format);
    vsnprintf(text, (size_t)n + 1, format, args);
    va_end(args);
    return text;
}

size_t arena_used(const struct arena *a) { return a->used; }
