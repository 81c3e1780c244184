// Owns deterministic automata over bytes: a pool that holds many, each known by its start state. Words with tags become
// tries; other automata come from nfa.h. Every state of a finished automaton can reach an accepting one, so whoever
// steps through it is never stuck. Bounded in states and edges. Filled by one thread; afterwards any may step.
#ifndef TF_FORMAT_DFA_H
#define TF_FORMAT_DFA_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DFA_NONE       (-1)
#define DFA_STATES_MAX (1 << 18) // of a pool; as many edges, twice

struct dfa_edge {
    uint8_t low, high; // bytes, inclusive
    int32_t to;
};

struct dfa_state {
    int32_t first, n; // its edges, which do not overlap
    int32_t tag;      // what is accepted here; DFA_NONE: nothing
};

// Zero-initialised it is empty.
struct dfa {
    struct dfa_state *states;
    struct dfa_edge *edges;
    int32_t n_states, n_edges, states_capacity, edges_capacity;
};

void dfa_free(struct dfa *d);

// Both return an index, or DFA_NONE when memory or the bound is reached. Edges belong to the state added last.
int32_t dfa_add_state(struct dfa *d, int32_t tag);
int32_t dfa_add_edge(struct dfa *d, uint8_t low, uint8_t high, int32_t to);

// The state behind `byte`, or DFA_NONE.
int32_t dfa_step(const struct dfa *d, int32_t state, unsigned char byte);

struct dfa_word {
    const char *text;
    size_t n;
    int32_t tag; // >= 0
};
// An automaton that accepts exactly these words, at least one; of equal ones the first counts. Reorders `words`. Sets
// *start. Errors: LIMIT, MEMORY.
enum status dfa_add_words(struct dfa *d, struct dfa_word *words, size_t n, int32_t *start, struct error *e);

// Appends what of `from`, begun at `start`, can reach an accepting state. *start_out is DFA_NONE when nothing can.
enum status dfa_append_live(struct dfa *d, const struct dfa *from, int32_t start, int32_t *start_out, struct error *e);

// Fills the empty pool `out` with those texts of `from` that have min to max characters (UTF-8; max UINT32_MAX: any
// number). Its states may be dead ends: dfa_append_live leaves those out.
enum status dfa_bound_characters(const struct dfa *from, int32_t start, uint32_t min, uint32_t max, struct dfa *out,
                                 int32_t *start_out, struct error *e);

#endif
