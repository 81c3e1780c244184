// Owns a prompt's token ids with the chained hash of its prefixes, shared by reference count: a request and every entry
// that the prompt cache keeps of it hold the same one. Made by any thread; afterwards one thread at a time uses it, and
// once entries may hold it that is the engine thread.
#ifndef TF_MEMORY_TEXT_H
#define TF_MEMORY_TEXT_H

#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

#define TEXT_CHUNK 64 // rows a hash; positions that can be kept are multiples of it

struct text {
    int32_t n_refs;
    int32_t n;        // ids
    uint64_t salt;    // prompts of different salts never share anything; 0 when nobody asked for that
    int32_t *ids;     // [n]
    uint64_t *hashes; // [n / TEXT_CHUNK]: of the salt and the first (i + 1) * TEXT_CHUNK ids
};

// Copies the ids; one reference. n >= 1.
enum status text_create(uint64_t salt, const int32_t *ids, int32_t n, struct text **out, struct error *e);
void text_hold(struct text *t);
void text_free(struct text *t); // one reference less; NULL is fine

// Whether the first n ids and the salts are equal; n is at most the length of both.
bool text_equals(const struct text *a, const struct text *b, int32_t n);
int32_t text_count_common(const struct text *a, const struct text *b); // leading ids in common, 0 for different salts

#endif
