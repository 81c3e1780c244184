// Masks of structured replies; nothing outside src/engine includes this.
#ifndef TF_ENGINE_MASK_INTERNAL_H
#define TF_ENGINE_MASK_INTERNAL_H

#include "engine/request_internal.h"

struct mask_maker;

// ---- request_mask.c: which tokens may come next, by the tokens so far ----
// Takes the masker when it succeeds.
enum status request_mask_open(struct request *r, struct masker *masker, struct error *e);
void request_mask_close(struct request *r);
// Whether the next token's mask is there, as masker_prepare.
bool request_mask_prepare(struct request *r, int64_t *steps);
// Of a request with a mask: it is lent to the thread that makes masks, which makes a part of it (true: all of it is
// there) and gives it back.
bool request_mask_is_out(const struct request *r);
void request_mask_lend(struct request *r);
bool request_mask_make(struct request *r);
void request_mask_return(struct request *r);
// For the draw of the next token; valid until the next call. Without a mask, all ids that have a token.
const uint32_t *request_mask_allowed(struct request *r);
void request_mask_take(struct request *r, int32_t id); // a token of the reply
// Along drafts, which begin behind the reply: start, then each draft. allowed is as request_mask_allowed, in a place of
// its own; where a mask is not there and would take long, all ids are allowed, and a draft may be in vain.
// take: false where the draft may not come; nothing may behind it. may: the same, and no step.
void request_mask_path_start(struct request *r);
const uint32_t *request_mask_path_allowed(struct request *r);
bool request_mask_path_may(const struct request *r, int32_t id);
bool request_mask_path_take(struct request *r, int32_t id);

// ---- mask_maker.c ----
enum status mask_maker_create(int32_t n_request, struct queue *mailbox, struct mask_maker **out, struct error *e);
void mask_maker_free(struct mask_maker *m);     // NULL is fine; once the engine's thread has ended
void mask_maker_choose_lanes(struct engine *e); // sets n_ready, and has the masks made that the others wait for

#endif
