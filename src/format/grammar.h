// Owns what a reply may be: a pushdown automaton over bytes, and its states. A state is a plain value, a function of
// the bytes read so far: it may be copied, kept and gone back to. From every state some text leads to an end, within a
// bounded nesting. Where a text can be read in more ways than a state has room for, the last ones are not followed:
// what is accepted is then less than what was asked for, never more. A built grammar never changes: any thread may
// step.
#ifndef TF_FORMAT_GRAMMAR_H
#define TF_FORMAT_GRAMMAR_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GRAMMAR_DEPTH_MAX 32  // frames on a stack: somewhat more than values inside each other
#define GRAMMAR_READINGS  32  // stacks of a state
#define GRAMMAR_FRAMES    256 // of all its stacks
#define GRAMMAR_UNBOUNDED UINT32_MAX

struct grammar;

// Where a node of the grammar is being read. What `at` and `sub` mean is the node's.
struct grammar_frame {
    int32_t node, at;
    uint32_t sub;
    uint32_t need, room; // what must and may still come: characters, or elements
};

struct grammar_state {
    uint16_t n_readings, n_frames;
    uint32_t complete; // 1: the text may end here
    uint8_t depths[GRAMMAR_READINGS];
    struct grammar_frame frames[GRAMMAR_FRAMES]; // stack after stack, each from its bottom
};

void grammar_free(struct grammar *g); // NULL is fine
size_t grammar_bytes(const struct grammar *g);

void grammar_start(const struct grammar *g, struct grammar_state *s);
// *to becomes the state behind `byte`; they may not be the same object. False: no text goes on so, *to is then empty.
bool grammar_step(const struct grammar *g, const struct grammar_state *from, unsigned char byte,
                  struct grammar_state *to);

// The step of a state of one stack, as far as only what is on top of it changes.
enum grammar_answer {
    STEP_DEAD,  // no text goes on so
    STEP_ON,    // *top is what is on top of the one stack then
    STEP_OTHER, // more than that changes: grammar_step knows
};
enum grammar_answer grammar_step_top(const struct grammar *g, struct grammar_frame *top, unsigned char byte);

// *to becomes the readings of `from` that are in the middle of fixed words or a pattern, none of any text.
void grammar_keep_words(const struct grammar *g, const struct grammar_state *from, struct grammar_state *to);

// The bytes of a state that are in use: those to copy, and to compare.
static inline size_t grammar_state_bytes(const struct grammar_state *s) {
    return offsetof(struct grammar_state, frames) + s->n_frames * sizeof *s->frames;
}

// What a stack of a state is in the middle of, as far as masks want to know: text of any characters, of which `room`
// more may come.
enum grammar_inside {
    INSIDE_OTHER,
    INSIDE_STRING, // of JSON: any but '"', '\', '<' and control characters
    INSIDE_TEXT,   // any but control characters, '<', '>' and '='
};
enum grammar_inside grammar_inside(const struct grammar *g, const struct grammar_frame *top, uint32_t *room);

#endif
