#include "format/bpe.h"

#include "format/tokenizer.h"
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

#define NO_MERGE  UINT32_MAX
#define NO_SYMBOL UINT32_MAX

struct piece {
    uint32_t offset, n; // n = 0: a hole
};

struct merge {
    int32_t left, right, merged; // left = -1: an empty slot
    uint32_t rank;
};

struct bpe {
    char *bytes; // of all pieces
    size_t x_bytes, bytes_capacity;
    struct piece *pieces; // [n_ids]
    size_t n_ids;
    int32_t *piece_slots; // open addressing over pieces; -1 is empty
    size_t piece_mask;
    struct merge *merge_slots;
    size_t merge_mask;
    uint32_t n_merges;
    uint64_t seed;         // random, so that no file can be made whose keys all collide
    int32_t byte_ids[256]; // the one-byte pieces
    bool ignore_merges;
};

// ---- the tables ----

// The mask of a table that n entries fill to at most one half.
static size_t table_mask(size_t n) {
    size_t size = 16;
    while (size < 2 * n) size *= 2;
    return size - 1;
}

struct bpe *bpe_create(size_t n_ids, size_t n_pieces, size_t x_bytes, size_t n_merges) {
    must(n_ids <= (size_t)TOKENIZER_ID_MAX + 1 && n_pieces <= n_ids && x_bytes <= TOKENIZER_FILE_BYTES_MAX);
    must(n_merges <= TOKENIZER_FILE_BYTES_MAX);
    struct bpe *b = calloc(1, sizeof *b);
    if (!b) return NULL;
    b->n_ids = n_ids;
    b->bytes_capacity = x_bytes;
    b->piece_mask = table_mask(n_pieces);
    b->merge_mask = table_mask(n_merges);
    b->bytes = malloc(x_bytes + 1);
    b->pieces = calloc(n_ids + 1, sizeof *b->pieces);
    b->piece_slots = malloc((b->piece_mask + 1) * sizeof *b->piece_slots);
    b->merge_slots = malloc((b->merge_mask + 1) * sizeof *b->merge_slots);
    if (!b->bytes || !b->pieces || !b->piece_slots || !b->merge_slots) {
        bpe_free(b);
        return NULL;
    }
    for (size_t i = 0; i <= b->piece_mask; i++) b->piece_slots[i] = -1;
    for (size_t i = 0; i <= b->merge_mask; i++) b->merge_slots[i].left = -1;
    for (int byte = 0; byte < 256; byte++) b->byte_ids[byte] = -1;
    if (getrandom(&b->seed, sizeof b->seed, GRND_NONBLOCK) != (ssize_t)sizeof b->seed) b->seed = (uintptr_t)b;
    b->seed |= 1;
    return b;
}

void bpe_free(struct bpe *b) {
    if (!b) return;
    free(b->bytes);
    free(b->pieces);
    free(b->piece_slots);
    free(b->merge_slots);
    free(b);
}

// The slot that holds the piece, or the empty one where it would go.
static size_t piece_slot(const struct bpe *b, const char *bytes, size_t n) {
    size_t slot = XXH3_64bits_withSeed(bytes, n, b->seed) & b->piece_mask;
    for (; b->piece_slots[slot] >= 0; slot = (slot + 1) & b->piece_mask) {
        const struct piece *p = &b->pieces[b->piece_slots[slot]];
        if (p->n == n && !memcmp(b->bytes + p->offset, bytes, n)) break;
    }
    return slot;
}

// The slot that holds the pair's merge, or the empty one where it would go.
static size_t merge_slot(const struct bpe *b, int32_t left, int32_t right) {
    // A product with a random odd number spreads any set of keys well over its high bits; a slot takes 28 of them.
    uint64_t hash = ((uint64_t)(uint32_t)left << 24 | (uint32_t)right) * b->seed;
    size_t slot = (hash >> 36) & b->merge_mask;
    for (; b->merge_slots[slot].left >= 0; slot = (slot + 1) & b->merge_mask)
        if (b->merge_slots[slot].left == left && b->merge_slots[slot].right == right) break;
    return slot;
}

bool bpe_add_piece(struct bpe *b, int32_t id, const char *bytes, size_t n) {
    must(id >= 0 && (size_t)id < b->n_ids);
    if (n == 0 || b->pieces[id].n != 0) return false;
    size_t slot = piece_slot(b, bytes, n);
    if (b->piece_slots[slot] >= 0) return false;
    must(n <= b->bytes_capacity - b->x_bytes);
    memcpy(b->bytes + b->x_bytes, bytes, n);
    b->pieces[id] = (struct piece){.offset = (uint32_t)b->x_bytes, .n = (uint32_t)n};
    b->x_bytes += n;
    b->piece_slots[slot] = id;
    if (n == 1) b->byte_ids[(unsigned char)bytes[0]] = id;
    return true;
}

bool bpe_add_merge(struct bpe *b, int32_t left, int32_t right, int32_t merged) {
    struct merge *m = &b->merge_slots[merge_slot(b, left, right)];
    if (m->left >= 0) return false;
    must(b->n_merges <= b->merge_mask / 2);
    *m = (struct merge){.left = left, .right = right, .merged = merged, .rank = b->n_merges++};
    return true;
}

int bpe_missing_byte(const struct bpe *b) {
    for (int byte = 0; byte < 256; byte++)
        if (b->byte_ids[byte] < 0) return byte;
    return -1;
}

void bpe_set_ignore_merges(struct bpe *b, bool on) { b->ignore_merges = on; }

int32_t bpe_find(const struct bpe *b, const char *bytes, size_t n) { return b->piece_slots[piece_slot(b, bytes, n)]; }

size_t bpe_count_ids(const struct bpe *b) { return b->n_ids; }

const char *bpe_bytes(const struct bpe *b, int32_t id, size_t *n) {
    *n = 0;
    if (id < 0 || (size_t)id >= b->n_ids || b->pieces[id].n == 0) return NULL;
    *n = b->pieces[id].n;
    return b->bytes + b->pieces[id].offset;
}

// ---- merging ----
// Text starts as one symbol a byte, in a linked list. A heap holds the merges that neighbours allow, lowest rank first
// and leftmost first among equals. When a merge changes a symbol, entries made for its old neighbourhood stay in the
// heap; they are known by a rank that is no longer the symbol's.

struct bpe_symbol {
    int32_t id;
    uint32_t previous, next; // NO_SYMBOL at the ends
    uint32_t rank;           // of the merge with `next`; NO_MERGE: there is none, or the symbol is gone
    int32_t merged;          // what that merge gives
};

void bpe_scratch_free(struct bpe_scratch *s) {
    free(s->symbols);
    free(s->heap);
    *s = (struct bpe_scratch){0};
}

// Each merge takes one entry from the heap and adds at most two, so 2n entries are enough for n symbols.
static bool scratch_reserve(struct bpe_scratch *s, size_t n) {
    if (s->capacity >= n) return true;
    size_t capacity = s->capacity ? s->capacity : 128;
    while (capacity < n) capacity *= 2;
    bpe_scratch_free(s);
    s->symbols = malloc(capacity * sizeof *s->symbols);
    s->heap = malloc(2 * capacity * sizeof *s->heap);
    if (!s->symbols || !s->heap) {
        bpe_scratch_free(s);
        return false;
    }
    s->capacity = capacity;
    return true;
}

static void heap_push(uint64_t *heap, size_t *n, uint64_t entry) {
    size_t i = (*n)++;
    for (; i > 0 && heap[(i - 1) / 2] > entry; i = (i - 1) / 2) heap[i] = heap[(i - 1) / 2];
    heap[i] = entry;
}

static uint64_t heap_pop(uint64_t *heap, size_t *n) {
    uint64_t top = heap[0], last = heap[--*n];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < *n; i = child) {
        if (child + 1 < *n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= last) break;
        heap[i] = heap[child];
    }
    heap[i] = last;
    return top;
}

// Looks up the merge of symbol i with the next one and puts it in the heap.
static void offer_merge(const struct bpe *b, struct bpe_symbol *symbols, uint32_t i, uint64_t *heap, size_t *n_heap) {
    struct bpe_symbol *s = &symbols[i];
    s->rank = NO_MERGE;
    if (s->next == NO_SYMBOL) return;
    const struct merge *m = &b->merge_slots[merge_slot(b, s->id, symbols[s->next].id)];
    if (m->left < 0) return;
    s->rank = m->rank;
    s->merged = m->merged;
    heap_push(heap, n_heap, (uint64_t)m->rank << 32 | i);
}

static void merge_symbols(const struct bpe *b, size_t n, struct bpe_symbol *symbols, uint64_t *heap) {
    size_t n_heap = 0;
    for (uint32_t i = 0; i < n; i++) offer_merge(b, symbols, i, heap, &n_heap);
    while (n_heap > 0) {
        uint64_t entry = heap_pop(heap, &n_heap);
        uint32_t i = (uint32_t)entry;
        struct bpe_symbol *s = &symbols[i];
        if (s->rank != (uint32_t)(entry >> 32)) continue;
        struct bpe_symbol *gone = &symbols[s->next];
        s->id = s->merged;
        s->next = gone->next;
        gone->rank = NO_MERGE;
        if (s->next != NO_SYMBOL) symbols[s->next].previous = i;
        offer_merge(b, symbols, i, heap, &n_heap);
        if (s->previous != NO_SYMBOL) offer_merge(b, symbols, s->previous, heap, &n_heap);
    }
}

enum status bpe_encode(const struct bpe *b, const char *bytes, size_t n, struct bpe_scratch *s, struct token_list *list,
                       struct error *e) {
    must(n < NO_SYMBOL / 2);
    if (n == 0) return STATUS_OK;
    if (b->ignore_merges) {
        int32_t id = bpe_find(b, bytes, n);
        if (id >= 0) return token_list_push(list, id, e);
    }
    if (!scratch_reserve(s, n)) return error_memory(e);
    for (uint32_t i = 0; i < n; i++)
        s->symbols[i] = (struct bpe_symbol){.id = b->byte_ids[(unsigned char)bytes[i]],
                                            .previous = i == 0 ? NO_SYMBOL : i - 1,
                                            .next = i + 1 == n ? NO_SYMBOL : i + 1};
    merge_symbols(b, n, s->symbols, s->heap);
    for (uint32_t i = 0; i != NO_SYMBOL; i = s->symbols[i].next) {
        enum status status = token_list_push(list, s->symbols[i].id, e);
        if (status != STATUS_OK) return status;
    }
    return STATUS_OK;
}

enum status token_list_push(struct token_list *list, int32_t id, struct error *e) {
    if (list->limit && list->n >= list->limit)
        return error_set(e, STATUS_LIMIT, "the text has more than %zu tokens", list->limit);
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 64;
        int32_t *ids = realloc(list->ids, capacity * sizeof *ids);
        if (!ids) return error_memory(e);
        list->ids = ids;
        list->capacity = capacity;
    }
    list->ids[list->n++] = id;
    return STATUS_OK;
}

void token_list_free(struct token_list *list) {
    free(list->ids);
    *list = (struct token_list){.limit = list->limit};
}
