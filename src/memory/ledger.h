// Owns admission: which waiting request is seated when, on which lane, with which pages and which run. Arithmetic over
// indices, the same for every backend. A claim is seated whole (pages for prompt, reply and one more round, and a lane
// run) or waits, and nothing grows later. Only the engine thread calls it, but ledger_check, which any thread may.
//
// With windows every claim takes the pages of a whole context. With pages it takes what prompt + reply need, less the
// full pages that it shares with an entry of the prompt cache. Unless pages_all, lane 0 has the room of a whole window
// set aside (any pages of that number, and a run of its own), and takes a claim that does not fit beside it; what is
// set aside may hold reclaimable cache entries meanwhile.
//
// Order: by priority, then first come first served. The first of the line (the head) is never starved: it is seated at
// the latest when all that were seated when it became the head have ended. A later claim may pass it only if that stays
// true with it seated for ever; while the head waits, the run it is meant to get is guarded.
#ifndef TF_MEMORY_LEDGER_H
#define TF_MEMORY_LEDGER_H

#include "memory/prefix.h"

struct ledger;

struct ledger_settings {
    bool windows;           // every lane a whole window; pages_all then means nothing
    bool pages_all;         // nothing set aside
    int32_t parallel;       // lanes; > 0
    int32_t context;        // most rows of prompt + reply; > 0
    int32_t max_window;     // rows of one more round; > 0
    int32_t page_rows;      // 1..4096
    struct pool *pool;      // borrowed
    struct prefix *prefix;  // borrowed; NULL: no prompt cache
    int64_t expect_wait_ns; // how long a claim waits for a prefix that another lane computes
};

// Pages that hold `rows` rows of prompt and reply and one more round. No overflow while their sum is an int64_t.
int64_t ledger_pages_for(int64_t rows, int32_t max_window, int32_t page_rows);

// STATUS_LIMIT where the pool cannot hold what is set aside or all windows: a plan that was not followed.
enum status ledger_create(const struct ledger_settings *settings, struct ledger **out, struct error *e);
void ledger_free(struct ledger *l); // NULL is fine; nothing may be seated or wait

// ---- claims ----

// Why a claim was not seated when it was last looked at.
enum ledger_wait {
    LEDGER_WAIT_NONE,   // it has not been looked at
    LEDGER_WAIT_LANES,  // every lane is taken
    LEDGER_WAIT_PAGES,  // LaneMemory: the pool is full
    LEDGER_WAIT_RUN,    // LaneMemory: there is no room in one piece for a lane run
    LEDGER_WAIT_PREFIX, // another lane computes its prefix, or it is on its way into the pool
    LEDGER_WAIT_TURN,   // it would fit, and could delay the head
    LEDGER_WAIT_N
};
const char *ledger_wait_text(enum ledger_wait wait); // static; "LaneMemory: the pool is full"

struct claim {
    // Set by the caller before ledger_enqueue; prompt and reply have passed ledger_check.
    int64_t prompt, reply;
    int32_t priority;  // smaller is sooner
    struct text *text; // the prompt, the caller's, until the claim ends; NULL: resumes from nothing and keeps nothing
    const struct prefix_cut *cuts; // the caller's, as long as the claim is seated
    int32_t n_cut;
    bool cold; // does not resume, nor wait for a prefix

    // While it waits.
    enum ledger_wait wait;

    // Once seated.
    int32_t lane;   // 0..parallel-1
    int32_t run;    // in the pool; not the lane's number
    int32_t *pages; // page numbers of rows [i * page_rows, ...), the ledger's; valid until released
    int32_t n_page;
    int32_t resume;     // rows that need not be computed, a multiple of 64; 0: none
    int32_t n_own_from; // pages from here on were taken afresh: those before are shared or taken over, and are in use
    bool run_is_kept;   // the run was taken over from the entry with its state: nothing to copy into it
    struct prefix_source {
        enum prefix_tier tier;
        int32_t first_page, n_page; // pages [first_page, n_page) are to be copied from `pages`, the last up to `resume`
        const int32_t *pages;       // in `tier`; valid until ledger_end_resume
        int32_t also_to; // a run of the pool that gets the state too, so that the entry is there again; or POOL_NONE
        int32_t run;     // in `tier`: its first kept_bytes; POOL_NONE where run_is_kept
    } source;

    // The ledger's own.
    struct claim *next;
    struct prefix_entry *entry;
    int64_t give_up_ns; // when it stops to wait for a prefix; 0: it does not wait for one
    bool waiting, seated, passer, resuming;
};

enum ledger_answer {
    LEDGER_FITS,        // at least in an empty pool
    LEDGER_OVER_WINDOW, // prompt + reply is over the context
    LEDGER_OVER_POOL,   // needs more pages than the pool has beside one run
};

// Whether a claim can ever be served; row counts of any size. *most is the largest prompt + reply that can.
enum ledger_answer ledger_check(const struct ledger *l, int64_t prompt, int64_t reply, int64_t *most);

void ledger_enqueue(struct ledger *l, struct claim *c); // behind those of its priority; one that cannot fit is a bug
void ledger_remove(struct ledger *l, struct claim *c);  // a waiting claim is given up
struct claim *ledger_first(const struct ledger *l);     // of the waiting ones, in order; then by ->next; NULL: none

// Seats one claim, if one can be seated now, and returns it: out of the line, all fields filled. NULL: none; then every
// waiting claim's `wait` says why. Call until NULL whenever something was enqueued, removed, released or kept.
struct claim *ledger_admit(struct ledger *l, int64_t now_ns);

// The copies of claim->source are done: its entry may be evicted again. To be called before the lane's first pass, with
// or without anything to copy. ok false: the entry is dropped and the claim, no longer seated, is first in the line
// of its priority again, cold: its prompt starts from row 0.
void ledger_end_resume(struct ledger *l, struct claim *c, bool ok);

void ledger_release(struct ledger *l, struct claim *c); // a seated claim ends, however: every page and the run are back

// ---- counters ----

struct ledger_counts {
    int32_t n_lane, n_seated, n_waiting;
    int64_t n_passed;                            // claims seated before an earlier one
    int64_t n_resumed, n_resumed_rows, n_missed; // seatings with a text: from an entry or not
    int64_t n_leaked;    // references and runs of lanes in the pool that no seated claim accounts for: 0
    int32_t n_set_aside; // pages kept free for lane 0 at this time
};
void ledger_get_counts(const struct ledger *l, struct ledger_counts *out);

#endif
