// The engine's own parts; nothing outside src/engine includes this.
#ifndef TF_ENGINE_INTERNAL_H
#define TF_ENGINE_INTERNAL_H

#include "base/buffer.h"
#include "base/queue.h"
#include "engine/cache_internal.h"
#include "engine/mask_internal.h"
#include "engine/round_internal.h"
#include "engine/request_internal.h"
#include "memory/ledger.h"
#include "model/model.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#define KEEPS_A_PASS 8 // most states kept in one prompt pass

struct engine {
    struct engine_options options;
    struct engine_info info;
    struct device *device;
    struct model *model;
    struct model_config config; // the model's, with the tokenizer's end of text; its arrays are the model's
    struct tokenizer *tokenizer;
    struct pool *pool;
    struct prefix *prefix; // the prompt cache's index
    struct ledger *ledger;
    void *memory; // device: the pool's bytes, pages from the bottom and runs from the top
    char *host;   // host: the prompt cache's; NULL: none
    int64_t host_bytes, page_bytes, run_bytes, kept_bytes;
    uint32_t *allowed; // ids that have a token
    int32_t n_vocab;
    bool has_mtp, warned_of_head;      // its head drafts; it seems to belong to another model
    struct drafter *drafter;           // NULL: none was asked for
    bool drafter_is_loaded, has_block; // it drafts
    struct drafter_ask *asks;          // [parallel]; NULL without one

    float *last_logits; // host: of a pass, where passes are watched; else NULL
    FILE *gate_file;    // NULL: passes are not written down
    pthread_t thread;
    bool started;
    struct queue *mailbox; // of struct request *
    atomic_bool stopping, cancelling, draining, failed;
    atomic_int n_live;    // submitted and not finished: bounds what the mailbox can hold
    pthread_mutex_t lock; // guards counts and error
    struct engine_counts counts;
    struct error error;  // why it failed
    struct buffer state; // the last one that was written for who asks
    atomic_bool state_is_wanted;

    // The engine thread's. Arrays of options.parallel entries are taken at start.
    struct request *prompting; // a list, first come first served
    struct request **running;
    struct cache cache;             // what is being copied for the prompt cache
    int32_t *fault_pages;           // a page table with a planted fault; NULL: none is planted
    int32_t n_running, n_prompting; // n_prompting: those whose prefix is being brought are among them
    int32_t n_ready;                // of the running ones, the first ones: those that take part in the coming round
    bool masks_wait;                // nothing can be done but to wait for masks
    int64_t mask_steps;             // that masks may still take on this thread before the next round
    struct mask_maker *mask_maker;
    struct lane *lanes;
    struct window *windows;
    struct request **asking; // for drafts of a step
    int32_t *chain;
    struct meter *meter; // NULL: rounds are plain
    struct looked_back looked_back;
    struct meter_lane *choices;
    // Of round_rows entries, as many as a round may have rows.
    int32_t round_rows;
    int32_t *ids;
    struct draw_params *params;
    struct draw_result *results;
    double row_ns, round_ns; // moving averages: one prompt row, one round
    int64_t rounds_owed_ns;  // time that rounds may take before the next prompt pass
};

// ---- start.c: each undoes nothing when it fails; streams_close and engine_free do ----
enum status engine_open_model(struct engine *e, struct error *error); // headers and tokenizer
// Plan, scratch, memory, thread. loaded: the weights are on the device already.
enum status engine_open_streams(struct engine *e, bool loaded, struct error *error);
void engine_close_streams(struct engine *e);

void *engine_thread(void *engine);
int32_t schedule_pass_rows(const struct engine *e, const struct request *r); // length of r's next prompt pass

void schedule_fail(struct engine *e, const struct error *error); // sticky: every live request ends with it
void schedule_end_running(struct engine *e, int32_t i, enum finish f, bool by_eos);
struct lane schedule_lane(struct engine *e, const struct request *r, int32_t row0, int32_t n_row);
void schedule_average(double *mean, double sample); // a moving one; 0: there was no sample

// ---- report.c ----
void report_describe(struct engine *e); // fills engine_info once all is taken

// ---- state.c ----
void state_publish(struct engine *e); // when somebody has asked, and when nothing runs or waits

// ---- passes.c: what gates see of a prompt pass ----
bool passes_are_watched(const struct engine *e);
enum status passes_open(struct engine *e, struct error *error);
void passes_close(struct engine *e);
void passes_report(struct engine *e, const struct request *r, int32_t n_row, struct tensor logits);

// ---- admission.c: from the line to a lane, and back ----
struct request *admission_request(struct claim *c); // whose claim it is
void admission_receive(struct engine *e);           // waits for something when there is nothing to do
void admission_admit(struct engine *e);
bool admission_is_idle(const struct engine *e);
// Everything that a request held is free before the next admission.
void admission_end(struct engine *e, struct request *r, enum finish finish, bool by_eos, const struct error *error);

void garbage_fill(struct engine *e, const struct request *r); // garbage.c: what its lane has not taken over
enum status calibrate(struct engine *e, struct error *error); // calibrate.c: between taking memory and requests

enum status forced_check(const struct engine *e, struct error *error); // forced.c: once it is known who drafts
void forced_change_draws(struct engine *e, int32_t i);                 // of lane i's window, before any is taken

// ---- fault.c: planted faults; without one, each of these leaves everything as it is ----
enum status fault_open(struct engine *e, struct error *error);
void fault_close(struct engine *e);
int64_t fault_claim(const struct engine *e, int64_t reply);
uint64_t fault_seed(const struct request *r, int32_t row); // row of its window
bool fault_keeps_draft(const struct request *r, int32_t row);
void fault_after_window(struct engine *e, struct request *r, int32_t n_kept);
void fault_change_lane(struct engine *e, const struct request *r, struct lane *lane);
void fault_change_keeps(const struct engine *e, int32_t start, struct keep *keeps, int32_t n);
void fault_after_restore(struct engine *e, struct request *r);
void fault_before_round(struct request *r);
void fault_before_absorb(const struct engine *e, struct lane *lane);
int32_t fault_kept_taps(const struct engine *e, int32_t n_kept);
void fault_on_cancel(struct engine *e, const struct request *r);

static inline char *engine_page(const struct engine *e, int32_t page) {
    return (char *)e->memory + pool_page_offset(e->pool, page);
}
static inline char *engine_run(const struct engine *e, int32_t run) {
    return (char *)e->memory + pool_run_offset(e->pool, run);
}

#endif
