// Owns what is known of the cost of rounds and of the worth of drafts, and from it how many drafts a round takes. Times
// decide here, and nowhere else, so they decide the speed of a reply and nothing of what it is. Plain arithmetic; only
// the engine thread calls it.
#ifndef TF_ENGINE_METER_H
#define TF_ENGINE_METER_H

#include "base/status.h"
#include "engine/drafts.h"

// Drafts of different worth.
enum draft_class { CLASS_HEAD, CLASS_BLOCK, CLASS_SHORT_COPY, CLASS_LONG_COPY, DRAFT_N_CLASSES };

// How often a draft was kept when all before it were, by its place; older windows count less.
struct acceptance {
    float kept[DRAFT_MAX_ROWS], tried[DRAFT_MAX_ROWS];
};

struct meter;

// doubts: for gates: drafts count as wrong, whatever becomes of them; after some rounds they are tried again, and only
// then, so that nothing hangs on time.
enum status meter_create(int32_t n_lane, int32_t max_window, bool doubts, struct meter **out, struct error *e);
void meter_free(struct meter *m); // NULL is fine

// ---- worth ----

// A window of n drafts of which the first n_kept were right, of one stream.
void meter_add_window(struct meter *m, struct acceptance *stream, enum draft_class c, int32_t n, int32_t n_kept);
// Whether what was drawn was among what a drafter weighed for the window's first draft. A drafter that is made for its
// model misses it now and then, another always.
void meter_add_weighed(struct meter *m, enum draft_class c, bool was_weighed);
// No draft of the class was right yet: so one is enough to try it with.
bool meter_knows_nothing(const struct meter *m, enum draft_class c);
// A round has passed: what is known of the stream fades, so that what was found useless is tried again some day.
void meter_fade(struct acceptance stream[DRAFT_N_CLASSES]);
// That the stream keeps a draft with k before it, if it keeps those.
double meter_chance(const struct meter *m, const struct acceptance *stream, enum draft_class c, int32_t k);

// Share of the first drafts of a class that are kept, over all streams; 1 until there were enough of them to tell.
double meter_first_kept(const struct meter *m, enum draft_class c);

// Of so few drafts of the class any was right that none will pay, or none was and what was drawn was not even weighed;
// and it is not yet time to try them again.
bool meter_gives_up(const struct meter *m, enum draft_class c);
// Of drafts that do not pay it may be seen afterwards whether they would have been right (meter_add_window). That it is
// time for it: soon at first, then less and less often. meter_looked_back: it was done.
bool meter_look_back_is_due(const struct meter *m);
void meter_looked_back(struct meter *m);

// ---- cost ----

// What was measured at the start. meter_fill: the same for numbers of streams that were not, from those that were.
void meter_set_round(struct meter *m, int32_t n_lane, int32_t n_row, double ns);
void meter_set_head(struct meter *m, int32_t n_lane, double first_ns, double step_ns);
void meter_fill(struct meter *m);

void meter_add_round(struct meter *m, int32_t n_lane, int32_t n_row, double ns);
void meter_add_head(struct meter *m, int32_t n_lane, int32_t n_step, double ns); // proposing, in that many steps
// What is not known is taken to be cheap, so that it is tried.
double meter_round_ns(const struct meter *m, int32_t n_lane, int32_t n_row);
double meter_head_ns(const struct meter *m, int32_t n_lane, int32_t n_step);

// ---- choosing ----

struct meter_lane {
    int32_t n_most;               // drafts that it could have
    bool by_head;                 // each costs a step of the head, or
    bool at_once;                 // all of them one
    bool is_looked_back_at;       // so it is not tried to learn whether it is right
    double worth[DRAFT_MAX_ROWS]; // of its kth draft: that it is kept with all before it; falling
    int32_t n;                    // out: drafts to take
};

// The numbers of drafts, n_most of all lanes, that give most tokens in least time. They may be none, and are with very
// many lanes, or where drafts promise hardly more than a plain round. Returns the tokens a nanosecond that are
// expected; 0: nothing is known yet.
double meter_choose(struct meter *m, struct meter_lane *lanes, int32_t n_lane, int32_t n_most);

#endif
