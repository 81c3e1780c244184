#include "cpu/draw_lists.h"

#define DIGIT_BITS 11
#define N_DIGIT    (1 << DIGIT_BITS)
#define INSERTION  48 // below it a pass over the digits' counters costs more than it saves

static void insertion_sort(uint64_t *entries, int64_t n) {
    for (int64_t i = 1; i < n; i++) {
        uint64_t moved = entries[i];
        int64_t to = i;
        for (; to > 0 && entries[to - 1] > moved; to--) entries[to] = entries[to - 1];
        entries[to] = moved;
    }
}

// One stable pass of a radix sort. Entries with equal logits keep their order, which is that of their ids.
static void sort_by_digit(const uint64_t *from, int64_t n, int shift, uint64_t *to) {
    int64_t place[N_DIGIT] = {0}, sum = 0;
    for (int64_t i = 0; i < n; i++) place[from[i] >> shift & (N_DIGIT - 1)]++;
    for (int d = 0; d < N_DIGIT; d++) {
        int64_t count = place[d];
        place[d] = sum;
        sum += count;
    }
    for (int64_t i = 0; i < n; i++) to[place[from[i] >> shift & (N_DIGIT - 1)]++] = from[i];
}

uint64_t *draw_sort_entries(uint64_t *entries, int64_t n, uint64_t *other) {
    if (n <= INSERTION) {
        insertion_sort(entries, n);
        return entries;
    }
    sort_by_digit(entries, n, 32, other);
    sort_by_digit(other, n, 32 + DIGIT_BITS, entries);
    sort_by_digit(entries, n, 32 + 2 * DIGIT_BITS, other);
    return other;
}

static bool comes_before(const struct draw_special *a, const struct draw_special *b) {
    return a->logit > b->logit || (a->logit == b->logit && a->id < b->id);
}

// The heap's top is the element that comes last.
static void sift_down(struct draw_special *s, int64_t i, int64_t n) {
    struct draw_special moved = s[i];
    for (;;) {
        int64_t child = 2 * i + 1;
        if (child >= n) break;
        if (child + 1 < n && comes_before(&s[child], &s[child + 1])) child++;
        if (!comes_before(&moved, &s[child])) break;
        s[i] = s[child];
        i = child;
    }
    s[i] = moved;
}

// Heap sort: in place, where the C library's sort may allocate.
void draw_sort_specials(struct draw_special *s, int64_t n) {
    for (int64_t i = n / 2 - 1; i >= 0; i--) sift_down(s, i, n);
    for (int64_t end = n - 1; end > 0; end--) {
        struct draw_special last = s[0];
        s[0] = s[end];
        s[end] = last;
        sift_down(s, 0, end);
    }
}

void draw_walk_restart(struct draw_walk *w) {
    w->next_entry = 0;
    w->next_special = 0;
}

bool draw_walk_next(struct draw_walk *w, double *s, int32_t *id) {
    bool has_entry = w->next_entry < w->n_entry, has_special = w->next_special < w->n_special;
    if (!has_entry && !has_special) return false;
    double entry_s = 0, special_s = 0;
    int32_t entry_id = 0, special_id = 0;
    if (has_entry) {
        entry_s = (double)draw_entry_logit(w->entries[w->next_entry]) / w->temperature;
        entry_id = draw_entry_id(w->entries[w->next_entry]);
    }
    if (has_special) {
        special_s = w->specials[w->next_special].logit / w->temperature;
        special_id = w->specials[w->next_special].id;
    }
    bool take_entry =
        !has_special || (has_entry && (entry_s > special_s || (entry_s == special_s && entry_id < special_id)));
    *s = take_entry ? entry_s : special_s;
    *id = take_entry ? entry_id : special_id;
    w->next_entry += take_entry;
    w->next_special += !take_entry;
    return true;
}
