// What is copied for the prompt cache, beside passes and rounds; nothing outside src/engine includes this.
#ifndef TF_ENGINE_CACHE_INTERNAL_H
#define TF_ENGINE_CACHE_INTERNAL_H

#include "memory/prefix.h"
#include <stdbool.h>

struct engine;
struct request;

struct cache {
    struct prefix_write write; // to host memory; its entry is NULL: none is under way
    struct request *line;      // seated, and what they resume from is in host memory yet: brought one after another
    struct cache_progress {
        int64_t run_bytes;
        int32_t n_page;
    } written, brought; // how much the device was asked to copy: of `write`, and for the first in line
    enum cache_way { CACHE_RESTS, CACHE_WRITES, CACHE_BRINGS } now, last; // what it copies, and copied before
};

// ---- what a seated claim resumes from ----

bool cache_is_far(const struct request *r); // in host memory
// Within the pool, or nothing at all: into its lane, now. False: it failed.
bool cache_copy(struct engine *e, const struct request *r);
void cache_bring(struct engine *e, struct request *r); // from host memory: it stands in line until that is done
// Takes the first out of the line when all is there; *ok false: it failed. NULL: not yet.
struct request *cache_brought(struct engine *e, bool *ok);
void cache_leave_line(struct engine *e, struct request *r); // waits for what is being copied for it

// ---- writing behind ----

bool cache_has_work(struct engine *e);
void cache_write_some(struct engine *e); // goes on by a bounded part, when nothing is being copied
void cache_wait(struct engine *e);       // for the part that is being copied, either way; where there is none, not
void cache_stop(struct engine *e);

void cache_log_start(const struct engine *e, const struct request *r);

#endif
