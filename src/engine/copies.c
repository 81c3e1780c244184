// Drafts from the stream's own context: where its last tokens stood before, what followed them then. A run of COPY_GRAM
// tokens has one entry, its last place, so that a lookup and an addition cost the same however long the context is.
#include "engine/internal.h"
#include <stdlib.h>

#define COPY_GRAM 3
#define LOOK_BACK 32 // tokens that are compared: a longer match says no more

enum status copies_init(struct request *r, struct error *e) {
    struct copy_index *c = &r->drafting.copies;
    uint32_t n_slot = 64;
    while (n_slot < (uint32_t)r->n_prompt + (uint32_t)r->max_tokens) n_slot *= 2;
    c->slots = calloc(n_slot, sizeof *c->slots);
    c->mask = n_slot - 1;
    return c->slots != NULL ? STATUS_OK : error_memory(e);
}

void copies_free(struct request *r) { free(r->drafting.copies.slots); }

// Of the run that ends before `end`.
static uint32_t slot_of(const struct request *r, int32_t end) {
    uint64_t h = 0;
    for (int32_t i = end - COPY_GRAM; i < end; i++)
        h = (h ^ (uint32_t)request_token_at(r, i)) * UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(h >> 32) & r->drafting.copies.mask;
}

// How many tokens before a and b are the same.
static int32_t count_match(const struct request *r, int32_t a, int32_t b) {
    int32_t n = 0;
    while (n < LOOK_BACK && n < a && request_token_at(r, a - 1 - n) == request_token_at(r, b - 1 - n)) n++;
    return n;
}

int32_t copies_propose(struct request *r, int32_t *ids, int32_t n, int32_t *n_match) {
    struct copy_index *c = &r->drafting.copies;
    int32_t end = r->n_prompt + r->view.n_tokens;
    if (c->slots == NULL || end < COPY_GRAM) return 0;
    if (c->n < COPY_GRAM) c->n = COPY_GRAM - 1;
    // All runs but the newest, which would find itself.
    while (c->n + 1 < end) {
        c->n++;
        c->slots[slot_of(r, c->n)] = c->n;
    }
    int32_t from = c->slots[slot_of(r, end)];
    *n_match = from > 0 ? count_match(r, from, end) : 0;
    if (*n_match < COPY_GRAM) return 0; // other runs share the entry
    int32_t got = 0;
    // What follows may run into the copy itself: a period that repeats.
    for (; got < n; got++) {
        int32_t at = from + got;
        ids[got] = at < end ? request_token_at(r, at) : ids[at - end];
    }
    return got;
}
