// Owns the settings of drafting (docs/drafting.md). Drafts change the time that a reply takes, never a token of it: one
// is kept where it equals the draw of its position, which is a function of the row and the key. Plain data.
#ifndef TF_ENGINE_DRAFTS_H
#define TF_ENGINE_DRAFTS_H

#include <stdbool.h>
#include <stdint.h>

#define DRAFT_MAX_ROWS 16 // of a window: the stream's last token, and drafts

// Which of a window's drafts are right, where they are made of the reply that is expected (request_params.expected).
enum draft_pattern {
    DRAFTS_ALL_RIGHT,
    DRAFTS_ALL_WRONG,
    DRAFTS_ALTERNATE, // every second window is all right, the others are all wrong
    DRAFTS_RANDOM,    // right up to a draft that a generator names
    DRAFTS_ANY_WIDTH, // the same, and it names how many there are too
};

// Who proposes a window's drafts.
enum draft_source {
    DRAFT_NONE,
    DRAFT_EXPECTED, // a gate
    DRAFT_COPY,     // what followed where the stream's last tokens stood in its own context before
    DRAFT_MTP,      // the model's own head
    DRAFT_BLOCK,    // a block drafter
    DRAFT_N_SOURCES,
};

// All zero: every round is plain.
struct draft_options {
    bool copies, mtp;   // mtp: where the checkpoint has a head that fits
    bool block;         // where there is a drafter (engine_options.drafter_dir); it goes before the head
    int32_t max_chain;  // most drafts that the head makes, one after another; 0: as many as a window has room for
    int32_t max_window; // most rows of a window, 2..DRAFT_MAX_ROWS; 0: DRAFT_UNSET_ROWS
    // Tests and gates.
    bool expected; // drafts of the reply that the request expects
    enum draft_pattern pattern;
    // The reply is the expected one, a token a round whatever is drawn, and of each window it is counted how many
    // drafts would have been kept (request_kept). For measuring acceptance.
    bool taught;
    bool doubted; // drafts count as wrong where it is chosen how many there are: as of a model that has to give up
    bool forced;  // every window has as many rows as its drafts allow; else what is measured to be fastest
    // > 0: of a window's drafts so many are kept on average, whatever is drawn. For measuring speed with weights that
    // mean nothing; replies are not the model's then.
    double force_kept;
};

#define DRAFT_UNSET_ROWS 8

#endif
