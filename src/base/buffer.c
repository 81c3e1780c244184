#include "base/buffer.h"
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_CAPACITY 64

void buffer_init(struct buffer *b, size_t limit) { *b = (struct buffer){.limit = limit}; }

void buffer_free(struct buffer *b) {
    free(b->data);
    buffer_init(b, b->limit);
}

void buffer_clear(struct buffer *b) {
    b->n = 0;
    b->failed = false;
    if (b->data) b->data[0] = '\0';
}

// Makes room for n more bytes and the NUL. Doubling keeps many small appends linear.
static bool reserve(struct buffer *b, size_t n) {
    if (b->failed) return false;
    size_t limit = b->limit ? b->limit : SIZE_MAX / 2;
    if (n > limit || b->n > limit - n) return !(b->failed = true);
    size_t needed = b->n + n + 1;
    if (needed <= b->capacity) return true;
    size_t capacity = b->capacity ? b->capacity : FIRST_CAPACITY;
    while (capacity < needed) capacity *= 2;
    if (capacity > limit + 1) capacity = limit + 1;
    char *data = realloc(b->data, capacity);
    if (!data) return !(b->failed = true);
    b->data = data;
    b->capacity = capacity;
    return true;
}

bool buffer_append(struct buffer *b, const void *data, size_t n) {
    if (!reserve(b, n)) return false;
    if (n) memcpy(b->data + b->n, data, n);
    b->n += n;
    b->data[b->n] = '\0';
    return true;
}

bool buffer_append_text(struct buffer *b, const char *text) { return buffer_append(b, text, strlen(text)); }

bool buffer_printf(struct buffer *b, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0) return !(b->failed = true);
    if (!reserve(b, (size_t)n)) return false;
    va_start(args, format);
    vsnprintf(b->data + b->n, (size_t)n + 1, format, args);
    va_end(args);
    b->n += (size_t)n;
    return true;
}

void buffer_remove_front(struct buffer *b, size_t n) {
    if (n >= b->n) n = b->n;
    if (!n) return;
    b->n -= n;
    memmove(b->data, b->data + n, b->n + 1);
}

char *buffer_take(struct buffer *b, size_t *n) {
    char *data = NULL;
    if (reserve(b, 0)) { // gives even an empty buffer its NUL
        data = b->data;
        data[b->n] = '\0';
        if (n) *n = b->n;
    } else {
        free(b->data);
    }
    buffer_init(b, b->limit);
    return data;
}
