// Owns the multi-token-prediction head at work (spec section 5): a layer that takes the stream after the final norm of
// one position and the token behind it, and says what the token after that may be.
//
// Its row for position p has the hidden row of p - 1 and the token of p, so what it stores at a position depends on
// tokens up to it, as everything else that a page holds; position 0 has no hidden row before it, and no row sees it.
// A prompt pass stores its rows (model_prompt). In a reply, hidden rows wait in the lane's run until they are absorbed:
// up to 2 W of them, with those that the coming round may add.
// Only the engine thread calls it, between rounds; each call uses the scratch of the one before.
#ifndef TF_MODEL_MTP_H
#define TF_MODEL_MTP_H

#include "model/model.h"

// After model_round: keeps the hidden rows of the first n_kept rows of one of its lanes.
void mtp_keep(struct model *m, const struct lane *lane, int32_t n_kept);

// Rows of some lanes, as a round has them: their positions are the tokens', whose hidden rows before them are there.
// Stores their keys and values. logits NULL: no more than that. Else [n_lane, V]: what each lane's last row proposes,
// with its confidence that of the model, for the position after it.
void mtp_absorb(struct model *m, const struct round *rows, struct tensor *logits);

// The same rows, with logits [n_row, V] of each: what the head would have proposed for the position after it, where it
// is known by now what came.
void mtp_look_back(struct model *m, const struct round *rows, struct tensor *logits);

// The rows after those: one row a lane, which takes its hidden row from the head's own output for row from[i] of the
// call before (its nth lane). The next absorb of these positions replaces what they store.
void mtp_chain(struct model *m, const struct round *rows, const int32_t *from, struct tensor *logits);

int64_t mtp_step_bytes(const struct model *m, int64_t n_row); // of weights, that a step of n_row lanes reads

#endif
