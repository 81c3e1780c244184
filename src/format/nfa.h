// Owns nondeterministic automata while they are put together, and making them deterministic. Bounded in states and in
// work, so that no pattern takes long. One thread at a time.
#ifndef TF_FORMAT_NFA_H
#define TF_FORMAT_NFA_H

#include "format/dfa.h"

#define NFA_STATES_MAX 8192

struct nfa_state {
    uint8_t low, high; // of its edge over bytes
    int32_t to;        // behind it; -1: none
    int32_t empty[2];  // reached without a byte; -1: none
};

// Zero-initialised it is empty.
struct nfa {
    struct nfa_state *states;
    int32_t n, capacity;
    bool failed; // memory or the bound was reached: everything since then did nothing
    bool full;   // it was the bound
};

void nfa_free(struct nfa *a);

// A state without edges; 0 once the automaton has failed.
int32_t nfa_add(struct nfa *a);
// Paths from `from` to `to`. Each makes states of its own where an edge has no room.
void nfa_link(struct nfa *a, int32_t from, int32_t to); // without a byte
void nfa_link_bytes(struct nfa *a, int32_t from, uint8_t low, uint8_t high, int32_t to);
void nfa_link_characters(struct nfa *a, int32_t from, uint32_t low, uint32_t high, int32_t to); // UTF-8 of low..high
void nfa_link_text(struct nfa *a, int32_t from, const char *text, size_t n, int32_t to);

// Fills the empty pool `out`, which accepts with tag 0 what leads from `start` to `end`. Adds the steps that it took,
// of some 10 ns, to *n_steps. Errors: LIMIT, MEMORY.
enum status nfa_determine(const struct nfa *a, int32_t start, int32_t end, struct dfa *out, int64_t *n_steps,
                          struct error *e);

#endif
