// The prompt cache's entries, for the ledger that resumes from them; nothing outside src/memory includes this.
#ifndef TF_MEMORY_PREFIX_INTERNAL_H
#define TF_MEMORY_PREFIX_INTERNAL_H

#include "memory/prefix.h"

#define PREFIX_BUCKETS   4096 // of the table; a power of 2
#define PREFIX_HOST_RUNS 4096 // most states in the host tier

enum prefix_stage { PREFIX_EXPECTED, PREFIX_BEGUN, PREFIX_KEPT };

// What goes first when there is no room.
enum prefix_use { PREFIX_USE_EXTENDED, PREFIX_USE_LEAF, PREFIX_USE_SHARED };

struct prefix_place {
    bool there;
    int32_t run;
    int32_t *pages; // [n_page] of the entry; room for it is taken with the entry
};

struct prefix_entry {
    struct text *text;
    int32_t position, n_page;
    enum prefix_kind kind;
    enum prefix_stage stage;
    int32_t lane; // that announced it, until it is kept
    int32_t n_pin;
    bool dropped;                // unusable: removed with the last pin
    bool leaving;                // its run was taken over: out of the pool with the last pin
    bool coming;                 // on its way from the host tier into the pool
    bool stay_here;              // not to be written to the host tier until it is used: refused, evicted or failed
    uint64_t used;               // when it was last kept or resumed from; larger is later
    struct prefix_entry *parent; // the longest kept entry that it extends
    bool gone;                   // within a search for room: taken to be out of the tier
    // Of the tier that is looked at, only within a search for a victim: direct children there, and its use.
    int32_t n_children;
    enum prefix_use use;
    struct prefix_place places[2];
    struct prefix_entry *next_in_bucket, *next;
};

struct prefix {
    struct prefix_settings settings;
    struct pool *host; // NULL: no host tier
    // Of the host tier, only within a search for room there.
    struct prefix_host_page {
        int32_t refs, covers; // of entries, and of their runs that lie over it
    } * host_pages;
    bool host_runs[PREFIX_HOST_RUNS]; // an entry's
    struct prefix_entry *buckets[PREFIX_BUCKETS];
    struct prefix_entry *entries; // all, newest first
    uint64_t clock, version;      // version: counts what can let a waiting claim in
    int64_t n_pinned_refs;
    int32_t n_pinned_runs; // held as lanes', by pins and begun keeps
    struct prefix_counts counts;
};

static inline bool prefix_is_on(const struct prefix *p) { return p->settings.share || p->host != NULL; }

// ---- the table (prefix.c) ----
void prefix_remove(struct prefix *p, struct prefix_entry *e); // out of everything; its places are empty
void prefix_link(struct prefix *p, struct prefix_entry *e);   // a kept entry gets its parent, and its children it

// ---- places (prefix_places.c) ----
void prefix_fill_pool(struct prefix *p, struct prefix_entry *e, const int32_t *pages, int32_t run); // run is a lane's
void prefix_leave(struct prefix *p, struct prefix_entry *e, enum prefix_tier tier); // frees what it holds there
int32_t prefix_take_run(struct prefix *p, enum prefix_kind kind); // for a state to be kept, as a lane's; POOL_NONE

// While an entry is pinned, what it holds in the pool counts as held by a lane, so that nothing reckons with it.
void prefix_pin(struct prefix *p, struct prefix_entry *e);
void prefix_unpin(struct prefix *p, struct prefix_entry *e);
void prefix_drop(struct prefix *p, struct prefix_entry *e);        // at once, or with the last pin
int32_t prefix_give_run(struct prefix *p, struct prefix_entry *e); // to the lane that has the only pin

#endif
