#include "engine/internal.h"
#include <stdlib.h>

static uint32_t hash_id(int32_t id) {
    uint32_t h = (uint32_t)id * 0x9e3779b1u; // Fibonacci hashing: ids are dense and small
    return h ^ (h >> 15);
}

enum status seen_init(struct seen_ids *s, int32_t capacity, struct error *e) {
    uint32_t n_slot = 16;
    while (n_slot < 2u * (uint32_t)capacity) n_slot *= 2;
    *s = (struct seen_ids){.capacity = capacity, .mask = n_slot - 1};
    s->entries = malloc((size_t)capacity * sizeof *s->entries);
    s->slots = calloc(n_slot, sizeof *s->slots);
    if (s->entries != NULL && s->slots != NULL) return STATUS_OK;
    seen_free(s);
    return error_memory(e);
}

void seen_free(struct seen_ids *s) {
    free(s->entries);
    free(s->slots);
    *s = (struct seen_ids){0};
}

void seen_add(struct seen_ids *s, int32_t id, bool in_reply) {
    uint32_t i = hash_id(id) & s->mask;
    while (s->slots[i] != 0 && s->entries[s->slots[i] - 1].id != id) i = (i + 1) & s->mask;
    if (s->slots[i] == 0) {
        must(s->n < s->capacity);
        s->entries[s->n] = (struct draw_seen){.id = id};
        s->slots[i] = (uint32_t)++s->n;
    }
    s->entries[s->slots[i] - 1].n_reply += in_reply;
}

void seen_remove(struct seen_ids *s, int32_t id, int32_t n_before) {
    uint32_t i = hash_id(id) & s->mask;
    while (s->slots[i] == 0 || s->entries[s->slots[i] - 1].id != id) i = (i + 1) & s->mask;
    if (--s->entries[s->slots[i] - 1].n_reply > 0 || s->slots[i] <= (uint32_t)n_before) return;
    s->slots[i] = 0; // the newest of the table, so no other id was put behind it
    s->n--;
}
