#include "memory/text.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum status text_create(uint64_t salt, const int32_t *ids, int32_t n, struct text **out, struct error *e) {
    must(n > 0);
    struct text *t = calloc(1, sizeof *t);
    if (t == NULL) return error_memory(e);
    *t = (struct text){.n_refs = 1, .n = n, .salt = salt};
    size_t n_hash = (size_t)n / TEXT_CHUNK;
    t->ids = malloc((size_t)n * sizeof *t->ids);
    t->hashes = malloc((n_hash + 1) * sizeof *t->hashes); // never of no bytes
    if (t->ids == NULL || t->hashes == NULL) {
        text_free(t);
        return error_memory(e);
    }
    memcpy(t->ids, ids, (size_t)n * sizeof *ids);
    uint64_t hash = XXH64(&salt, sizeof salt, 0);
    for (size_t i = 0; i < n_hash; i++)
        t->hashes[i] = hash = XXH64(t->ids + i * TEXT_CHUNK, TEXT_CHUNK * sizeof *ids, hash);
    *out = t;
    return STATUS_OK;
}

void text_hold(struct text *t) { t->n_refs++; }

void text_free(struct text *t) {
    if (t == NULL || --t->n_refs > 0) return;
    free(t->ids);
    free(t->hashes);
    free(t);
}

bool text_equals(const struct text *a, const struct text *b, int32_t n) {
    must(n <= a->n && n <= b->n);
    return a->salt == b->salt && memcmp(a->ids, b->ids, (size_t)n * sizeof *a->ids) == 0;
}

int32_t text_count_common(const struct text *a, const struct text *b) {
    int32_t n = a->n < b->n ? a->n : b->n, i = 0;
    if (a->salt != b->salt) return 0;
    while (i < n && a->ids[i] == b->ids[i]) i++;
    return i;
}
