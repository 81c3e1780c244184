// What grammar.c (stepping) and grammar_build.c share.
#ifndef TF_FORMAT_GRAMMAR_INTERNAL_H
#define TF_FORMAT_GRAMMAR_INTERNAL_H

#include "format/grammar_build.h"

#define HEIGHT_ENDLESS 1000 // more frames than a stack may have

enum node_kind {
    NODE_UNSET,
    NODE_DFA,
    NODE_STRING,
    NODE_TEXT,
    NODE_SEQUENCE,
    NODE_CHOICE,
    NODE_SWITCH,
    NODE_LIST,
    NODE_OBJECT
};

struct node {
    enum node_kind kind;
    int32_t first, n;  // parts, or members
    uint32_t min, max; // of characters or elements
    int32_t start;     // the automaton, of a string its pattern, of a switch its words
    int32_t height;    // frames that a stack needs for the shortest text
    int32_t lead;
    struct grammar_frame_words words;
    const char *stops[2];
    bool guard, plain;
};

// A member of an object, and what may come once those before it are done; the last one of each object is no member.
struct member {
    int32_t value;
    int32_t keys;     // of this and later members up to the first that is required
    int32_t required; // the first from here on that is required, as its place in the object; -1: none
    int32_t only;     // the key of that one alone
    int32_t height;   // of the highest value among `keys`
    bool is_required;
};

struct grammar {
    struct dfa dfa;
    struct node *nodes; // the first stands for every automaton that is no node of its own
    int32_t n_nodes, nodes_capacity;
    int32_t *parts;
    int32_t n_parts, parts_capacity;
    struct member *members;
    int32_t n_members, members_capacity;
    int32_t root;
};

#endif
