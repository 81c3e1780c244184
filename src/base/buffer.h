// Owns a growing byte string with a bound. A failed append leaves the buffer as it was, and every later one is refused
// too, so that a caller may append many times and check once. One thread at a time.
#ifndef TF_BASE_BUFFER_H
#define TF_BASE_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

struct buffer {
    char *data; // NUL-terminated whenever data is not NULL
    size_t n;   // bytes in use, without the NUL
    size_t capacity;
    size_t limit; // 0: no bound
    bool failed;  // an append was refused: out of memory or over the limit
};

void buffer_init(struct buffer *b, size_t limit);
void buffer_free(struct buffer *b);  // returns it to its initial state, limit kept
void buffer_clear(struct buffer *b); // n = 0, failed = false; keeps the memory
bool buffer_append(struct buffer *b, const void *data, size_t n);
bool buffer_append_text(struct buffer *b, const char *text);
bool buffer_printf(struct buffer *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
void buffer_remove_front(struct buffer *b, size_t n);
// Hands the bytes (NUL-terminated, malloc'd) to the caller and re-initialises b; NULL if an append failed.
char *buffer_take(struct buffer *b, size_t *n);

#endif
