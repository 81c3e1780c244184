// Owns how grammars are made: nodes that refer to each other by number. A node may be referred to before it is set, so
// that grammars may be recursive. Building is done by one thread; grammar_finish ends it.
#ifndef TF_FORMAT_GRAMMAR_BUILD_H
#define TF_FORMAT_GRAMMAR_BUILD_H

#include "format/dfa.h"
#include "format/grammar.h"

#define GRAMMAR_NODES_MAX   16384
#define GRAMMAR_MEMBERS_MAX 256 // of one object
#define GRAMMAR_CHOICES_MAX 24  // alternatives of one choice: their stacks are followed at once

enum status grammar_create(struct grammar **out, struct error *e);

// A node that is to be set. Every other function that returns a status may fail with LIMIT or MEMORY.
enum status grammar_reserve(struct grammar *g, int32_t *node, struct error *e);
struct dfa *grammar_dfa(struct grammar *g); // whose states the functions below take

// A text that the automaton accepts.
void grammar_set_dfa(struct grammar *g, int32_t node, int32_t start);

// A JSON string of min to max characters. pattern: over its bytes once escapes are undone, or DFA_NONE. With guard it
// never has "</" in it, so that no tag around it ends within it.
struct grammar_string {
    uint32_t min, max;
    int32_t pattern;
    bool guard;
};
void grammar_set_string(struct grammar *g, int32_t node, const struct grammar_string *s);

// UTF-8 text of min to max characters that has none of the stops in it; static strings of at most 63 bytes. plain: it
// begins with neither white space, '{' nor '[', nor is it empty.
struct grammar_text {
    uint32_t min, max;
    const char *stops[2]; // NULL: none
    bool plain;
};
void grammar_set_text(struct grammar *g, int32_t node, const struct grammar_text *t);

enum status grammar_set_sequence(struct grammar *g, int32_t node, const int32_t *parts, size_t n, struct error *e);
enum status grammar_set_choice(struct grammar *g, int32_t node, const int32_t *parts, size_t n, struct error *e);
// A word, and then the part that its tag numbers.
enum status grammar_set_switch(struct grammar *g, int32_t node, int32_t words, const int32_t *parts, size_t n,
                               struct error *e);

// What stands around elements; start states, or DFA_NONE.
struct grammar_frame_words {
    int32_t open, separator, close;
};

// min to max elements.
void grammar_set_list(struct grammar *g, int32_t node, const struct grammar_frame_words *words, int32_t element,
                      uint32_t min, uint32_t max);

struct grammar_member {
    const char *key; // as it is written, with what stands between it and the value
    size_t n;
    int32_t value;
    bool required;
};
// Members in this order. lead: between a key and its value, or DFA_NONE.
enum status grammar_set_object(struct grammar *g, int32_t node, const struct grammar_frame_words *words, int32_t lead,
                               const struct grammar_member *members, size_t n, struct error *e);

// Ends building. UNSUPPORTED when alternatives lead to each other in a circle, LIMIT when those within each other make
// more ways than a step should try. grammar_is_endless: a text of the node would never end, or nest too deeply; the
// root must not be so.
enum status grammar_finish(struct grammar *g, int32_t root, struct error *e);
bool grammar_is_endless(const struct grammar *g, int32_t node);

#endif
