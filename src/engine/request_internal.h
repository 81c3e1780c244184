// A request as the engine has it; nothing outside src/engine includes this.
#ifndef TF_ENGINE_REQUEST_INTERNAL_H
#define TF_ENGINE_REQUEST_INTERNAL_H

#include "engine/engine.h"
#include "engine/meter.h"
#include "format/detokenizer.h"
#include "format/stopper.h"
#include "memory/ledger.h"
#include "model/drafter.h"
#include <pthread.h>
#include <stdatomic.h>

// ---- penalties: which ids a request has seen, as draw_seen wants them ----
struct seen_ids {
    struct draw_seen *entries; // [n], distinct ids in the order of their first appearance
    int32_t n, capacity;
    uint32_t *slots; // hash of ids: index into entries + 1, 0 where free
    uint32_t mask;
};

enum status seen_init(struct seen_ids *s, int32_t capacity, struct error *e); // at most `capacity` distinct ids
void seen_free(struct seen_ids *s);
void seen_add(struct seen_ids *s, int32_t id, bool in_reply);

// Undoes seen_add(s, id, true) of several ids, called for them in the opposite order; n_before: what n was before all.
void seen_remove(struct seen_ids *s, int32_t id, int32_t n_before);

// ---- drafts: copies.c and drafting.c; the engine thread's ----

// Where the stream's tokens stood last: an entry for each run of COPY_GRAM tokens, by its hash.
struct copy_index {
    int32_t *slots; // [mask + 1]: position after the run, or 0; NULL: copies are not made
    uint32_t mask;
    int32_t n; // tokens of the stream that are in it
};

struct drafting {
    enum draft_source source; // of the coming window
    int32_t n_before;         // tokens of the reply before it; the window begins with the last of them
    int32_t n_row;            // of it: the last token, and drafts
    int32_t ids[DRAFT_MAX_ROWS];
    struct copy_index copies;
    int32_t n_absorbed; // positions that the MTP head has
    int32_t n_want;     // drafts, of the head or drafter
    bool asleep;        // whoever drafts by a model is given nothing of the reply: it was hardly ever right
    bool has_slept;     // so a block drafter does not know all of the reply; it has rows from block.first on
    enum draft_class class;
    struct acceptance acceptance[DRAFT_N_CLASSES];
    float confidence, least_confidence; // that all drafts so far are right, by whoever drafts; below which it stops
    struct drafter_lane block;          // what a block drafter knows of the stream
    int32_t candidates[DRAW_MAX_TOP];   // that it weighed for the window's first draft
    int32_t n_candidate;
    float shares[DRAFT_MAX_ROWS]; // the drafter's confidence in each draft
    int32_t n_seen;               // distinct ids seen before the window, while the head proposes
    int32_t *expected;            // [n_expected]; NULL: none
    int32_t n_expected, n_window;
    uint8_t *kept; // [max_tokens]; NULL: not taught
};

// ---- a request: shared by the engine thread and one client, freed by whoever lets go last ----
struct request {
    struct engine *engine;
    atomic_int n_owners;   // engine and client
    atomic_bool cancelled; // set by the client, read between rounds

    // Set at submit, then read only.
    struct text *text; // its prompt; the engine thread's once it is submitted
    const int32_t *prompt;
    int32_t n_prompt, max_tokens;
    struct prefix_cut cuts[PREFIX_MAX_CUTS]; // positions to keep
    int32_t n_cut;
    int64_t number;
    struct draw_params draw;
    struct draw_bias *bias;
    bool ignore_eos;
    int32_t priority, n_top; // alternatives a token
    int64_t deadline_ns, submitted_ns;

    // The engine thread's.
    struct claim claim;
    struct request *next; // of those whose prompts are being computed, or brought
    bool seated, untold;  // untold: its reader may wait for tokens that are there
    int32_t n_rows_done;  // positions in the cache and state (pending rows included)
    int32_t n_pending;
    struct seen_ids seen;
    bool has_penalty, may_draft;
    struct drafting drafting;
    struct request_mask *mask;       // NULL: every token may come
    struct detokenizer *detokenizer; // NULL without stop strings
    struct stopper *stopper;
    struct buffer shown; // what the stopper lets through
    int64_t seated_ns, first_ns;

    // Written by the engine thread, read by the client once n_tokens in `view` covers them.
    struct request_token *tokens; // [max_tokens]
    struct draw_top *tops;        // [max_tokens][n_top]
    pthread_mutex_t lock;         // guards view
    pthread_cond_t changed;
    struct request_view view;
};

enum status request_create(struct engine *e, const struct request_params *p, struct request **out, enum refusal *reason,
                           struct error *error);
void request_release(struct request *r); // one owner less

// Engine thread: each changes the view under its lock and wakes the reader, but request_append. To wake somebody takes
// longer than all else between two rounds, so that is done by request_tell while the device works on the next one.
void request_set_state(struct request *r, enum request_state state);
void request_set_waiting(struct request *r, const char *reason);
void request_set_resumed(struct request *r, int32_t position);
void request_set_progress(struct request *r, int32_t n_prompt_done);
void request_append(struct request *r, const struct draw_result *result);
void request_tell(struct request *r);
void request_count_round(struct request *r, int32_t n_drafted, int32_t n_accepted);
void request_finish(struct request *r, enum finish finish, bool ended_by_eos, const struct error *error);

// The token at a position of prompt and reply, of those that there are.
static inline int32_t request_token_at(const struct request *r, int32_t position) {
    return position < r->n_prompt ? r->prompt[position] : r->tokens[position - r->n_prompt].id;
}

// ---- copies.c ----
enum status copies_init(struct request *r, struct error *e);
void copies_free(struct request *r);
// Looks for the stream's last tokens before where they are now, and gives at most n of those that followed. Returns
// how many; *n_match is how many tokens were the same, as far as it looked.
int32_t copies_propose(struct request *r, int32_t *ids, int32_t n, int32_t *n_match);

// ---- stop strings, decided here per token in stream order ----
enum status stops_init(struct request *r, const char *const *stop, int32_t n_stop, struct error *e);
void stops_free(struct request *r);
bool stops_hit(struct request *r, int32_t id); // true when this token of the reply completes a stop string

#endif
