// Owns the list of faults that gates plant to prove that they can fail. A server never has one.
#ifndef TF_ENGINE_FAULT_H
#define TF_ENGINE_FAULT_H

enum engine_fault {
    FAULT_NONE,
    FAULT_WRONG_PAGE,     // rounds find the lane's first page one page further
    FAULT_ADMIT_COUNT,    // a claim is a page short, and the page after its last one is used all the same
    FAULT_LANE_NOISE,     // the noise of draws depends on the lane
    FAULT_LIMIT_NOISE,    // the noise of draws depends on the reply's limit
    FAULT_STALE_STATE,    // a resumed prompt starts without its recurrent state
    FAULT_EARLY_STATE,    // a kept state is that of 64 rows before
    FAULT_SKIPPED_ROWS,   // a resumed prompt goes on 64 rows too late
    FAULT_UNWRITTEN_ROW,  // the first round of a reply passes over a row, which later ones then read
    FAULT_CANCEL_LEAK,    // a cancelled request keeps a page
    FAULT_CANCEL_TOUCH,   // a cancelled request takes a row from the state of a running one
    FAULT_DRAFT_AHEAD,    // after a wrong draft the recurrent state holds its row
    FAULT_DRAFT_NOISE,    // the noise of draws depends on the row's place in its window
    FAULT_DRAFT_STALE,    // the row of a wrong draft stays in the lane
    FAULT_DRAFT_TRUSTED,  // the last draft of a window is kept though it does not equal the draw
    FAULT_DRAFT_POSITION, // what a reply gives the MTP head is a position too far
    FAULT_DRAFT_RING,     // a block drafter gets a stale row for the last one of a window
    FAULT_RESTORE_FAILS,  // every restore fails, which must change nothing but time
};

#endif
