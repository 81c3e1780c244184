#include "format/nfa.h"
#include <stdlib.h>
#include <string.h>

#define STEPS_MAX   (1 << 18) // of making one automaton deterministic: some milliseconds
#define MEMBERS_MAX (1 << 20) // NFA states in all DFA states together
#define SLOTS       (1 << 13) // of the hash of sets
#define SUBSETS_MAX (1 << 15)

void nfa_free(struct nfa *a) {
    free(a->states);
    *a = (struct nfa){0};
}

int32_t nfa_add(struct nfa *a) {
    if (a->failed) return 0;
    if (a->n == a->capacity) {
        int32_t capacity = a->capacity > 0 ? 2 * a->capacity : 64;
        a->full = capacity > NFA_STATES_MAX;
        struct nfa_state *grown = a->full ? NULL : realloc(a->states, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            a->failed = true;
            return 0;
        }
        a->states = grown;
        a->capacity = capacity;
    }
    a->states[a->n] = (struct nfa_state){.to = -1, .empty = {-1, -1}};
    return a->n++;
}

void nfa_link(struct nfa *a, int32_t from, int32_t to) {
    while (!a->failed && a->states[from].empty[0] >= 0 && a->states[from].empty[1] >= 0) {
        // Full: what its second edge led to moves behind a state of its own, which has room.
        int32_t between = nfa_add(a);
        if (a->failed) return;
        a->states[between].empty[0] = a->states[from].empty[1];
        a->states[from].empty[1] = between;
        from = between;
    }
    if (a->failed) return;
    int32_t *empty = a->states[from].empty;
    empty[empty[0] >= 0] = to;
}

void nfa_link_bytes(struct nfa *a, int32_t from, uint8_t low, uint8_t high, int32_t to) {
    if (a->failed) return;
    if (a->states[from].to >= 0) {
        int32_t between = nfa_add(a);
        nfa_link(a, from, between);
        from = between;
    }
    if (a->failed) return;
    a->states[from].low = low;
    a->states[from].high = high;
    a->states[from].to = to;
}

void nfa_link_text(struct nfa *a, int32_t from, const char *text, size_t n, int32_t to) {
    for (size_t i = 0; i < n; i++) {
        int32_t next = i + 1 == n ? to : nfa_add(a);
        nfa_link_bytes(a, from, (uint8_t)text[i], (uint8_t)text[i], next);
        from = next;
    }
    if (n == 0) nfa_link(a, from, to);
}

static int write_utf8(uint32_t c, uint8_t out[4]) {
    if (c < 0x80) {
        out[0] = (uint8_t)c;
        return 1;
    }
    int n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    static const uint8_t lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (int i = n - 1; i > 0; i--, c >>= 6) out[i] = (uint8_t)(0x80 | (c & 0x3f));
    out[0] = (uint8_t)(lead[n] | c);
    return n;
}

// A range whose characters have equally many bytes, and differ in the last `n - common` of them over all values.
static void link_block(struct nfa *a, int32_t from, uint32_t low, uint32_t high, int32_t to) {
    uint8_t first[4], last[4];
    int n = write_utf8(low, first);
    write_utf8(high, last);
    for (int i = 0; i < n; i++) {
        int32_t next = i + 1 == n ? to : nfa_add(a);
        nfa_link_bytes(a, from, first[i], last[i], next);
        from = next;
    }
}

void nfa_link_characters(struct nfa *a, int32_t from, uint32_t low, uint32_t high, int32_t to) {
    static const uint32_t lengths[] = {0x7f, 0x7ff, 0xffff, 0x10ffff};
    while (low <= high && !a->failed) {
        uint32_t end = high;
        if (low < 0xd800 && end >= 0xd800) end = 0xd7ff;
        if (low >= 0xd800 && low <= 0xdfff) {
            low = 0xe000;
            continue;
        }
        for (int i = 0; i < 4; i++)
            if (low <= lengths[i] && end > lengths[i]) end = lengths[i];
        // Cut where the range does not cover all of what lies under a byte: 6, 12 or 18 bits from the right.
        for (int bits = 6; bits <= 18; bits += 6) {
            uint32_t mask = (1u << bits) - 1;
            if ((low & ~mask) == (end & ~mask)) break;
            if ((low & mask) != 0) {
                end = low | mask;
                break;
            }
            if ((end & mask) != mask) end = (end & ~mask) - 1;
        }
        link_block(a, from, low, end, to);
        low = end + 1;
    }
}

// ---- making it deterministic ----

struct subset {
    int32_t first, n; // of members
    int32_t next;     // in its slot; -1: the last
};

struct determiner {
    const struct nfa *a;
    int32_t end;
    struct dfa *out;
    struct subset *subsets; // [n_subsets]: the state with the same number
    int32_t n_subsets, subsets_capacity;
    int32_t *members;
    int32_t n_members, members_capacity;
    int32_t *slots;
    uint32_t *seen; // [a->n]: the mark of the last closure that reached it
    uint32_t mark;
    int32_t *set, n_set; // the closure being made
    int64_t n_steps;
    bool full;
};

static void begin_set(struct determiner *d) {
    d->n_set = 0;
    d->mark++;
}

static void add_to_set(struct determiner *d, int32_t state) {
    if (state < 0 || d->seen[state] == d->mark) return;
    d->seen[state] = d->mark;
    d->set[d->n_set++] = state;
}

static int compare_ints(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

static void close_set(struct determiner *d) {
    for (int32_t i = 0; i < d->n_set; i++) {
        add_to_set(d, d->a->states[d->set[i]].empty[0]);
        add_to_set(d, d->a->states[d->set[i]].empty[1]);
    }
    d->n_steps += 4 * d->n_set; // sorting them costs the most
    qsort(d->set, (size_t)d->n_set, sizeof *d->set, compare_ints);
}

static bool reserve(struct determiner *d) {
    if (d->n_subsets == d->subsets_capacity) {
        int32_t capacity = d->subsets_capacity > 0 ? 2 * d->subsets_capacity : 64;
        d->full = capacity > SUBSETS_MAX;
        struct subset *grown = d->full ? NULL : realloc(d->subsets, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return false;
        d->subsets = grown;
        d->subsets_capacity = capacity;
    }
    if (d->n_members + d->n_set > d->members_capacity) {
        int32_t capacity = 2 * (d->n_members + d->n_set) + 256;
        d->full = d->n_members + d->n_set > MEMBERS_MAX;
        int32_t *grown = d->full ? NULL : realloc(d->members, (size_t)capacity * sizeof *grown);
        if (grown == NULL) return false;
        d->members = grown;
        d->members_capacity = capacity;
    }
    return true;
}

// The number of the set at hand, which is new if it has not been seen; -1 when there is no room.
static int32_t find_set(struct determiner *d) {
    uint32_t hash = 2166136261u; // FNV-1a
    for (int32_t i = 0; i < d->n_set; i++) hash = (hash ^ (uint32_t)d->set[i]) * 16777619u;
    int32_t *slot = &d->slots[(hash ^ hash >> 16) % SLOTS];
    for (int32_t i = *slot; i >= 0; i = d->subsets[i].next) {
        const struct subset *s = &d->subsets[i];
        d->n_steps += s->n == d->n_set ? s->n : 1;
        if (s->n == d->n_set && memcmp(d->members + s->first, d->set, (size_t)s->n * sizeof *d->set) == 0) return i;
    }
    if (!reserve(d)) return -1;
    memcpy(d->members + d->n_members, d->set, (size_t)d->n_set * sizeof *d->set);
    d->subsets[d->n_subsets] = (struct subset){.first = d->n_members, .n = d->n_set, .next = *slot};
    d->n_members += d->n_set;
    return *slot = d->n_subsets++;
}

// Adds the state of a subset: bytes are taken in the stretches in which no member's edge begins or ends.
static bool expand(struct determiner *d, int32_t number) {
    struct subset s = d->subsets[number];
    bool begins[257] = {true}, accepts = false;
    for (int32_t i = 0; i < s.n; i++) {
        const struct nfa_state *state = &d->a->states[d->members[s.first + i]];
        accepts |= d->members[s.first + i] == d->end;
        if (state->to >= 0) begins[state->low] = begins[state->high + 1] = true;
    }
    if (dfa_add_state(d->out, accepts ? 0 : DFA_NONE) == DFA_NONE) return false;
    for (int low = 0, high; low < 256; low = high + 1) {
        for (high = low; high < 255 && !begins[high + 1];) high++;
        begin_set(d);
        for (int32_t i = 0; i < s.n; i++) {
            const struct nfa_state *state = &d->a->states[d->members[s.first + i]];
            if (state->to >= 0 && state->low <= low && state->high >= high) add_to_set(d, state->to);
        }
        d->n_steps += s.n;
        if (d->n_set == 0) continue;
        close_set(d);
        int32_t to = find_set(d);
        if (to < 0 || dfa_add_edge(d->out, (uint8_t)low, (uint8_t)high, to) == DFA_NONE) return false;
    }
    d->full = d->n_steps > STEPS_MAX;
    return !d->full;
}

enum status nfa_determine(const struct nfa *a, int32_t start, int32_t end, struct dfa *out, int64_t *n_steps,
                          struct error *e) {
    *n_steps += a->n;
    if (a->failed) return a->full ? error_set(e, STATUS_LIMIT, "needs too many states") : error_memory(e);
    struct determiner d = {.a = a, .end = end, .out = out};
    d.slots = malloc(SLOTS * sizeof *d.slots);
    d.seen = calloc((size_t)a->n, sizeof *d.seen);
    d.set = malloc((size_t)a->n * sizeof *d.set);
    bool ok = d.slots != NULL && d.seen != NULL && d.set != NULL;
    for (int i = 0; ok && i < SLOTS; i++) d.slots[i] = -1;
    if (ok) {
        begin_set(&d);
        add_to_set(&d, start);
        close_set(&d);
        ok = find_set(&d) == 0;
    }
    for (int32_t i = 0; ok && i < d.n_subsets; i++) ok = expand(&d, i);
    bool full = d.full || out->n_states >= DFA_STATES_MAX;
    *n_steps += d.n_steps + SLOTS / 16;
    free(d.subsets);
    free(d.members);
    free(d.slots);
    free(d.seen);
    free(d.set);
    if (ok) return STATUS_OK;
    return full ? error_set(e, STATUS_LIMIT, "needs too many states") : error_memory(e);
}
