// Owns what a reply is made of so far: its runs of reasoning and content and its calls, in the order in which they
// came. One thread at a time.
#ifndef TF_SERVER_WIRE_BLOCKS_H
#define TF_SERVER_WIRE_BLOCKS_H

#include "base/buffer.h"
#include "server/reply.h"

struct wire_block {
    enum delta_kind kind; // DELTA_REASONING, DELTA_CONTENT or DELTA_CALL
    size_t call;          // of DELTA_CALL: 0, 1, 2, ... in the reply
    struct buffer name;   // of DELTA_CALL
    struct buffer text;   // of DELTA_CALL: the arguments
};

struct wire_blocks {
    struct wire_block *list; // [n]
    size_t n;
    bool failed; // out of memory
};

// Whether a delta begins a new block, rather than going on with the last one.
bool wire_blocks_begins(const struct wire_blocks *w, const struct delta *d);
// Adds it to the last block, which may be a new one. False when memory is out.
bool wire_blocks_add(struct wire_blocks *w, const struct delta *d);
// Adds all deltas of a reply, and clears them.
void wire_blocks_gather(struct wire_blocks *w, struct reply *r);
bool wire_blocks_have(const struct wire_blocks *w, enum delta_kind kind);
void wire_blocks_free(struct wire_blocks *w); // leaves it empty

#endif
