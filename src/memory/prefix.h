// Owns the index of the prompt cache: which token prefixes have their keys, values and recurrent state kept, and where.
// An entry is a prefix up to a kept position, a multiple of 64. Its pages are held by reference count, so entries of
// one conversation hold their common pages once, in the pool and in the host tier alike. No device calls: what is to be
// copied is told, and the caller copies. Only the engine thread calls it.
//
// The page that holds an entry's position is the very page of the lane that computed it: rows before the position never
// change, rows after it belong to the lane. Whoever resumes copies that page up to the position and shares the others.
#ifndef TF_MEMORY_PREFIX_H
#define TF_MEMORY_PREFIX_H

#include "memory/pool.h"
#include "memory/text.h"

struct prefix;
struct prefix_entry;

enum prefix_tier { PREFIX_POOL, PREFIX_HOST };

// Why a position is kept. Entries that a longer one extends are evicted first, then the oldest, shared cuts last while
// they are no more than half of a tier; an entry that two different longer ones extend counts as a shared cut, whatever
// it was kept for.
enum prefix_kind { PREFIX_KEEP_GRID, PREFIX_KEEP_TURN, PREFIX_KEEP_SHARED };

struct prefix_cut {
    int32_t position; // a multiple of 64, in (0, rows of the prompt]
    enum prefix_kind kind;
};

struct prefix_settings {
    struct pool *pool; // borrowed; pages and runs of the device
    bool share;        // entries stay in the pool and full pages are shared; page_rows must divide 4096
    int32_t page_rows;
    int64_t page_bytes;
    int64_t kept_bytes; // of a run, what a resume needs
    int64_t host_bytes; // of the host tier; 0: none. Without share and host tier nothing is kept.
    int32_t grid_rows;  // distance of cuts through long prompts, a multiple of 64; 0: none
    uint64_t hash_mask; // 0: the whole hash; tests force collisions with fewer bits
};

enum status prefix_create(const struct prefix_settings *settings, struct prefix **out, struct error *e);
void prefix_free(struct prefix *p); // NULL is fine; drops every reference that it holds in the pool

// ---- the host tier's memory, which the caller allocates: prefix_host_bytes of it, 0 when there is none ----

int64_t prefix_host_bytes(const struct prefix *p);
int64_t prefix_host_page_offset(const struct prefix *p, int32_t page);
int64_t prefix_host_run_offset(const struct prefix *p, int32_t run);

// ---- which positions of a prompt to keep ----

#define PREFIX_MAX_CUTS 72

// Where the next turn may start, in rows from the prompt's start; 0 where there is no such place.
struct prefix_marks {
    int32_t system_end;  // end of system message and tools: other conversations start with it
    int32_t last_user;   // start of the last user message: an edit of it starts there
    int32_t history_end; // before the generation prompt; 0: the last row
};

// Fills cuts, ascending and distinct: the marks cut down to multiples of 64, and the grid. Returns how many.
int32_t prefix_choose_cuts(const struct prefix *p, int32_t n_prompt, const struct prefix_marks *marks,
                           struct prefix_cut cuts[PREFIX_MAX_CUTS]);

// ---- finding ----

struct prefix_match {
    struct prefix_entry *entry; // NULL: none
    int32_t position;           // 0: none
    enum prefix_tier tier;      // the pool where it is in both
    int32_t expected;           // a longer position that a seated lane will keep; 0: none
    bool coming;                // it is in the host tier, and on its way into the pool
};

// The longest usable entry for a prompt: one that leaves at least one row to compute, of the same salt, whose tokens
// are all equal.
void prefix_find(const struct prefix *p, const struct text *prompt, struct prefix_match *out);

// For the log, after a miss: *at is the most leading tokens that an entry of the same salt has in common with the
// prompt, and *kept is that entry's position. False: no entry has the first token in common.
bool prefix_find_difference(const struct prefix *p, const struct text *prompt, int32_t *at, int32_t *kept);

// ---- keeping: `lane` is the ledger's lane number ----

// Announces what a lane will keep, cuts ascending, those up to `from` left out: other requests may wait for it. The
// ledger calls this when it seats a claim. Where memory is short, fewer are announced.
void prefix_expect(struct prefix *p, int32_t lane, struct text *prompt, int32_t from, const struct prefix_cut *cuts,
                   int32_t n_cut);

struct prefix_keep {
    int32_t position;
    int32_t run; // in the pool: where the prompt pass writes the state before `position`
};

// Before a prompt pass over rows [start, end): takes a run for each announced position in (start, end], reclaiming less
// useful ones. Positions ascend; those that get no run are given up and counted. At most `most` are returned.
int32_t prefix_begin_keep(struct prefix *p, int32_t lane, int32_t start, int32_t end, struct prefix_keep *keeps,
                          int32_t most);
// After the pass: the begun positions become entries that hold the lane's pages up to there.
void prefix_end_keep(struct prefix *p, int32_t lane, const int32_t *pages);
// Gives up all that the lane announced or began and has not ended. The ledger calls it when the lane is released.
void prefix_abandon(struct prefix *p, int32_t lane);

// ---- writing entries to the host tier, behind the replies: one write at a time ----

struct prefix_write {
    struct prefix_entry *entry;
    int32_t position;
    int32_t from_run, to_run; // the first kept_bytes of a run
    const int32_t *from, *to; // page numbers of positions [i * page_rows, ...); valid until prefix_end_write
    int32_t first_page,
        n_page; // pages [first_page, n_page) are to be copied; those before are in the host tier already
};

// The newest entry that is not in the host tier, with room made for it; false: nothing to write. It is pinned until the
// write ends. An entry larger than the whole tier is refused and counted.
bool prefix_begin_write(struct prefix *p, struct prefix_write *out);
void prefix_end_write(struct prefix *p, struct prefix_write *w, bool ok); // w->entry is NULL then

// ---- room, and the end ----

bool prefix_reclaim(struct prefix *p);  // takes the least useful entry out of the pool; false: there is none to take
void prefix_drop_all(struct prefix *p); // the weights changed; what is being copied goes when the copy ends

struct prefix_counts {
    int32_t n_entry, n_in_pool, n_in_host;
    int32_t n_expected; // announced or begun
    int64_t host_bytes_used;
    int64_t n_kept, n_evicted;
    int64_t n_refused; // larger than the host tier
    int64_t n_no_run;  // positions that got no run, or whose announcement found no memory
};
void prefix_get_counts(const struct prefix *p, struct prefix_counts *out);

#endif
