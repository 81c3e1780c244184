#include "format/dfa.h"
#include <stdlib.h>
#include <string.h>

#define EDGES_MAX (2 * DFA_STATES_MAX)

void dfa_free(struct dfa *d) {
    free(d->states);
    free(d->edges);
    *d = (struct dfa){0};
}

// Room for one more element; false when memory or the bound is reached.
static bool grow(void **items, int32_t n, int32_t *capacity, size_t size, int32_t most) {
    if (n < *capacity) return true;
    if (n >= most) return false;
    int32_t wanted = *capacity > 0 ? 2 * *capacity : 64;
    void *grown = realloc(*items, (size_t)wanted * size);
    if (grown == NULL) return false;
    *items = grown;
    *capacity = wanted;
    return true;
}

static enum status refuse(const struct dfa *d, struct error *e) {
    if (d->n_states < DFA_STATES_MAX && d->n_edges < EDGES_MAX) return error_memory(e);
    return error_set(e, STATUS_LIMIT, "needs too many states");
}

int32_t dfa_add_state(struct dfa *d, int32_t tag) {
    if (!grow((void **)&d->states, d->n_states, &d->states_capacity, sizeof *d->states, DFA_STATES_MAX))
        return DFA_NONE;
    d->states[d->n_states] = (struct dfa_state){.first = d->n_edges, .tag = tag};
    return d->n_states++;
}

int32_t dfa_add_edge(struct dfa *d, uint8_t low, uint8_t high, int32_t to) {
    if (!grow((void **)&d->edges, d->n_edges, &d->edges_capacity, sizeof *d->edges, EDGES_MAX)) return DFA_NONE;
    d->edges[d->n_edges] = (struct dfa_edge){.low = low, .high = high, .to = to};
    d->states[d->n_states - 1].n++;
    return d->n_edges++;
}

int32_t dfa_step(const struct dfa *d, int32_t state, unsigned char byte) {
    const struct dfa_state *s = &d->states[state];
    for (int32_t i = 0; i < s->n; i++) {
        const struct dfa_edge *edge = &d->edges[s->first + i];
        if (byte >= edge->low && byte <= edge->high) return edge->to;
    }
    return DFA_NONE;
}

// ---- words ----

static int compare_words(const void *a, const void *b) {
    const struct dfa_word *x = a, *y = b;
    size_t n = x->n < y->n ? x->n : y->n;
    int order = n > 0 ? memcmp(x->text, y->text, n) : 0;
    if (order != 0) return order;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return x->tag < y->tag ? -1 : x->tag > y->tag;
}

// Words that share their first `depth` bytes: one state of the trie.
struct range {
    size_t low, high, depth;
};

// Gives the next state its tag and its edges; their targets' numbers are known, since states are made in the order in
// which their ranges are queued.
static bool add_trie_state(struct dfa *d, const struct dfa_word *words, struct range r, struct range *queue,
                           size_t *n_queued, int32_t base) {
    int32_t tag = words[r.low].n == r.depth ? words[r.low].tag : DFA_NONE;
    if (dfa_add_state(d, tag) == DFA_NONE) return false;
    while (r.low < r.high && words[r.low].n == r.depth) r.low++;
    for (size_t i = r.low, end; i < r.high; i = end) {
        unsigned char byte = (unsigned char)words[i].text[r.depth];
        for (end = i + 1; end < r.high && (unsigned char)words[end].text[r.depth] == byte;) end++;
        if (dfa_add_edge(d, byte, byte, base + (int32_t)*n_queued) == DFA_NONE) return false;
        queue[(*n_queued)++] = (struct range){i, end, r.depth + 1};
    }
    return true;
}

enum status dfa_add_words(struct dfa *d, struct dfa_word *words, size_t n, int32_t *start, struct error *e) {
    size_t n_bytes = 1, n_queued = 1;
    for (size_t i = 0; i < n; i++) n_bytes += words[i].n;
    must(n > 0);
    if (n_bytes > DFA_STATES_MAX) return error_set(e, STATUS_LIMIT, "needs too many states");
    struct range *queue = malloc(n_bytes * sizeof *queue);
    if (queue == NULL) return error_memory(e);
    qsort(words, n, sizeof *words, compare_words);
    queue[0] = (struct range){0, n, 0};
    int32_t base = d->n_states;
    bool ok = true;
    for (size_t i = 0; i < n_queued && ok; i++) ok = add_trie_state(d, words, queue[i], queue, &n_queued, base);
    free(queue);
    if (!ok) return refuse(d, e);
    *start = base;
    return STATUS_OK;
}

// ---- live states ----

// Marks the states that reach an accepting one, walking edges backwards. `mark` is all false.
static bool mark_live(const struct dfa *d, bool *mark) {
    int32_t n = d->n_states, n_queued = 0;
    int32_t *first = calloc((size_t)n + 2, sizeof *first), *from = malloc(((size_t)d->n_edges + 1) * sizeof *from);
    int32_t *queue = malloc(((size_t)n + 1) * sizeof *queue);
    bool ok = first != NULL && from != NULL && queue != NULL;
    if (ok) {
        for (int32_t i = 0; i < d->n_edges; i++) first[d->edges[i].to + 2]++;
        for (int32_t i = 0; i < n; i++) first[i + 2] += first[i + 1];
        for (int32_t s = 0; s < n; s++) {
            for (int32_t i = 0; i < d->states[s].n; i++) from[first[d->edges[d->states[s].first + i].to + 1]++] = s;
            if (d->states[s].tag == DFA_NONE) continue;
            mark[s] = true;
            queue[n_queued++] = s;
        }
        for (int32_t i = 0; i < n_queued; i++) {
            for (int32_t k = first[queue[i]]; k < first[queue[i] + 1]; k++) {
                if (mark[from[k]]) continue;
                mark[from[k]] = true;
                queue[n_queued++] = from[k];
            }
        }
    }
    free(first);
    free(from);
    free(queue);
    return ok;
}

static bool append_marked(struct dfa *d, const struct dfa *from, const bool *mark, int32_t *place) {
    int32_t next = d->n_states;
    for (int32_t s = 0; s < from->n_states; s++) place[s] = mark[s] ? next++ : DFA_NONE;
    for (int32_t s = 0; s < from->n_states; s++) {
        if (!mark[s]) continue;
        if (dfa_add_state(d, from->states[s].tag) == DFA_NONE) return false;
        for (int32_t i = 0; i < from->states[s].n; i++) {
            const struct dfa_edge *edge = &from->edges[from->states[s].first + i];
            if (mark[edge->to] && dfa_add_edge(d, edge->low, edge->high, place[edge->to]) == DFA_NONE) return false;
        }
    }
    return true;
}

enum status dfa_append_live(struct dfa *d, const struct dfa *from, int32_t start, int32_t *start_out, struct error *e) {
    bool *mark = calloc((size_t)from->n_states + 1, sizeof *mark);
    int32_t *place = malloc(((size_t)from->n_states + 1) * sizeof *place);
    enum status status = STATUS_OK;
    if (mark == NULL || place == NULL || !mark_live(from, mark)) {
        status = error_memory(e);
    } else if (!mark[start]) {
        *start_out = DFA_NONE;
    } else if (append_marked(d, from, mark, place)) {
        *start_out = place[start];
    } else {
        status = refuse(d, e);
    }
    free(mark);
    free(place);
    return status;
}

// ---- characters ----

static bool begins_character(uint8_t byte) { return (byte & 0xc0) != 0x80; }

struct bounding {
    const struct dfa *from;
    struct dfa *out;
    int32_t *place; // [n_states][n_counts]: the pair's state, or DFA_NONE
    int32_t *pairs; // [n_pairs]: indices into place, in the order of their states
    int32_t n_pairs;
    uint32_t n_counts, last; // counts 0 .. last
    bool saturates;          // `last` stands for itself and all above
};

static int32_t place_of(struct bounding *b, int32_t state, uint32_t count) {
    int32_t pair = state * (int32_t)b->n_counts + (int32_t)count;
    if (b->place[pair] == DFA_NONE) {
        b->place[pair] = b->n_pairs;
        b->pairs[b->n_pairs++] = pair;
    }
    return b->place[pair];
}

// Edges of bytes that begin a character and of those that go on with one are apart in every automaton that reads
// UTF-8; where one spans both, it is cut.
static bool add_bounded_edge(struct bounding *b, const struct dfa_edge *edge, uint32_t count) {
    static const uint8_t parts[3][2] = {{0x00, 0x7f}, {0x80, 0xbf}, {0xc0, 0xff}};
    for (int i = 0; i < 3; i++) {
        uint8_t low = edge->low > parts[i][0] ? edge->low : parts[i][0];
        uint8_t high = edge->high < parts[i][1] ? edge->high : parts[i][1];
        if (low > high) continue;
        uint32_t next = count + begins_character(low);
        if (next > b->last && !b->saturates) continue;
        if (next > b->last) next = b->last;
        if (dfa_add_edge(b->out, low, high, place_of(b, edge->to, next)) == DFA_NONE) return false;
    }
    return true;
}

enum status dfa_bound_characters(const struct dfa *from, int32_t start, uint32_t min, uint32_t max, struct dfa *out,
                                 int32_t *start_out, struct error *e) {
    struct bounding b = {
        .from = from, .out = out, .saturates = max == UINT32_MAX, .last = max == UINT32_MAX ? min : max};
    uint64_t n = (uint64_t)from->n_states * ((uint64_t)b.last + 1);
    if (n > DFA_STATES_MAX) return error_set(e, STATUS_LIMIT, "needs too many states");
    b.n_counts = b.last + 1;
    b.place = malloc(n * sizeof *b.place);
    b.pairs = malloc(n * sizeof *b.pairs);
    bool ok = b.place != NULL && b.pairs != NULL;
    for (uint64_t i = 0; ok && i < n; i++) b.place[i] = DFA_NONE;
    if (ok) place_of(&b, start, 0);
    for (int32_t i = 0; ok && i < b.n_pairs; i++) {
        const struct dfa_state *s = &from->states[b.pairs[i] / (int32_t)b.n_counts];
        uint32_t count = (uint32_t)b.pairs[i] % b.n_counts;
        ok = dfa_add_state(out, count >= min ? s->tag : DFA_NONE) != DFA_NONE;
        for (int32_t k = 0; ok && k < s->n; k++) ok = add_bounded_edge(&b, &from->edges[s->first + k], count);
    }
    free(b.place);
    free(b.pairs);
    if (!ok) return refuse(out, e);
    *start_out = 0;
    return STATUS_OK;
}
