// Owns a simulated engine for tests of the ledger and the prompt cache: clients, and memory in which a row holds a hash
// of the tokens that it depends on, so that a wrong page, a stale state or a row written by a neighbour shows. It
// copies what it is told to copy and checks that what a lane reads is what it would have computed itself.
#ifndef TF_TESTS_MEMORY_WORLD_H
#define TF_TESTS_MEMORY_WORLD_H

#include "memory/ledger.h"

enum { WORLD_CLIENTS = 48, WORLD_ROWS = 2048 };

enum phase { CLIENT_IDLE, CLIENT_WAITING, CLIENT_PROMPT, CLIENT_REPLY };

struct client {
    enum phase phase;
    struct claim claim;
    struct text *text;
    struct prefix_cut cuts[PREFIX_MAX_CUTS];
    int32_t ids[WORLD_ROWS];
    uint64_t hashes[WORLD_ROWS + 1]; // of the first i tokens and the salt
    int32_t n_done;                  // rows
    int32_t reply;                   // rows that it will really use
    bool saw_head;                   // it was seated when the present head became the head
};

struct world {
    struct ledger_settings ledger_settings;
    struct prefix_settings prefix_settings;
    struct pool *pool;
    struct prefix *prefix;
    struct ledger *ledger;
    int32_t page_rows, n_page, n_run;
    uint64_t *rows, *runs;           // [n_page][page_rows], [n_run]
    uint64_t *host_rows, *host_runs; // of the host tier, by its own numbers
    struct client clients[WORLD_CLIENTS];
    struct prefix_write write;
    bool writing;
    const struct claim *head;
    int64_t now_ns;
    uint64_t n_resumed, n_fresh, n_passed; // seatings
    uint64_t n_prompt_rows;                // computed
    bool wrong;                            // something read was not what it should be
};

struct world_shape {
    bool windows, pages_all, share;
    int32_t parallel, context, max_window, page_rows, n_staging;
    int32_t pool_rows;    // pages of the pool, in rows, runs not counted
    int32_t pool_runs;    // room for these many runs beside them
    int32_t host_entries; // runs' worth of bytes of the host tier, and twice the pages of a context for each; 0: none
    int32_t grid_rows;
    uint64_t hash_mask;
};

void world_open(struct world *w, const struct world_shape *shape);
void world_close(struct world *w); // everything must be idle; checks that nothing is left

// A client's prompt, cuts at the marks; false when it can never be served.
bool world_submit(struct world *w, struct client *c, uint64_t salt, const int32_t *ids, int32_t n_prompt, int32_t reply,
                  int32_t priority, const struct prefix_marks *marks);
void world_admit(struct world *w, bool restores_fail);            // all that can be seated; resumes are checked
void world_pass(struct world *w, struct client *c, int32_t rows); // part of its prompt, to at most `rows` rows further
void world_prompt(struct world *w, struct client *c);             // all of it
void world_reply(struct world *w, struct client *c);              // one row; at the last one it ends
void world_end(struct world *w, struct client *c);                // however far it is
void world_write(struct world *w, bool begin_only);               // one entry to the host tier, or the end of that
void world_check(struct world *w);                                // what must hold at all times
bool world_is_idle(const struct world *w);

#endif
