// What a round is made of; nothing outside src/engine includes this.
#ifndef TF_ENGINE_ROUND_INTERNAL_H
#define TF_ENGINE_ROUND_INTERNAL_H

#include "engine/request_internal.h"

// What one lane brings to a round, and what came of it.
struct window {
    int32_t row0, n_row;
    int32_t n_drawn, n_taken; // of its rows: the tokens that were drawn, and that the reply has got
    bool open;                // more may be taken
    bool is_stored;           // the block drafter has its rows
    bool cut;                 // closed for want of a mask: what lies behind was not judged
    bool ended, by_eos;
    enum finish finish;
};

// What the head would have drafted behind some rows of a reply, to be compared when the round is over.
struct looked_back {
    struct request *who;
    int32_t position, n; // rows [position, position + n); n 0: none
    struct draw_result results[DRAFT_MAX_ROWS];
};

// ---- tokens.c: draws, and what becomes of them ----
void tokens_prepare_draw(struct request *r, int32_t row, struct draw_params *p);   // of a row of its window
void tokens_prepare_draft(struct request *r, int32_t step, struct draw_params *p); // of a draft behind `step` others
void tokens_tell(struct engine *e); // readers of running requests of what these have got
// Draws rows [row, row + n) of logits by e->params into e->results, which are there after tokens_wait (false: the
// device has failed); what was taken before is told meanwhile.
void tokens_draw(struct engine *e, struct tensor logits, int32_t row, int32_t n);
bool tokens_wait(struct engine *e);
void tokens_teach(const struct request *r, struct draw_result *result); // replaces it, if the request is taught
// Takes a drawn token into the reply; true when the reply has ended.
bool tokens_take(struct request *r, const struct draw_result *result, enum finish *finish, bool *by_eos);

// ---- round.c ----
void round_step(struct engine *e); // of the lanes that are ready

// ---- drafting.c: who drafts how much ----
bool drafting_propose(struct engine *e); // the coming window of each running request; false: the device has failed
// From what became of the windows, and the time of forward pass and draws.
void drafting_learn(struct engine *e, int32_t n_row, int64_t round_ns);

// ---- mtp_drafts.c ----
// e->asking[0..n): their windows get up to n_want drafts, of which all but the last were given at least
// least_confidence together. False: the device has failed.
bool mtp_drafts_propose(struct engine *e, int32_t n, int32_t *n_step);
void mtp_drafts_make_room(struct engine *e);                 // before a round; where it is due, looks back
bool mtp_drafts_look_back_at(const struct request *r);       // whether it can be
void mtp_drafts_learn(struct engine *e);                     // after it, from what it saw there
void mtp_drafts_keep(struct engine *e, int32_t i);           // after it, of its ith lane
void mtp_drafts_finish(struct engine *e, struct request *r); // gives the head all that waits

// ---- block_drafts.c ----
void block_drafts_prompt(struct engine *e, struct request *r, const struct prompt_pass *pass); // after model_prompt
bool block_drafts_propose(struct engine *e, int32_t n);                                        // as mtp_drafts_propose
void block_drafts_make_room(struct engine *e);
void block_drafts_store_early(struct engine *e,
                              int32_t n_row); // of a round of n_row rows, when its draws are under way
void block_drafts_keep(struct engine *e, int32_t i);
void block_drafts_wake(struct request *r);                      // it is given the rows from here on
bool block_drafts_know(const struct request *r);                // enough of the reply to draft
bool block_drafts_weighed(const struct request *r, int32_t id); // as a window's first draft
void block_drafts_finish(struct engine *e, struct request *r);  // gives the drafter all that waits, as e->asks[0]

// ---- states.c: what gates see of a lane at its end ----
void states_report(struct engine *e, struct request *r);

#endif
