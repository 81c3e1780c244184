// The engine's own parts; nothing outside src/engine includes this.
#ifndef TF_ENGINE_INTERNAL_H
#define TF_ENGINE_INTERNAL_H

#include "base/queue.h"
#include "engine/engine.h"
#include "format/detokenizer.h"
#include "format/stopper.h"
#include "memory/windows.h"
#include "model/model.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

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

// ---- a request: shared by the engine thread and one client, freed by whoever lets go last ----
struct request {
    struct engine *engine;
    atomic_int n_owners;   // engine and client
    atomic_bool cancelled; // set by the client, read between rounds

    // Set at submit, then read only.
    int32_t *prompt;
    int32_t n_prompt, max_tokens;
    int64_t number;
    struct draw_params draw;
    struct draw_bias *bias;
    bool ignore_eos;
    int32_t priority, n_top; // alternatives a token
    int64_t deadline_ns, submitted_ns;

    // The engine thread's.
    struct request *next; // in the waiting list
    struct seat seat;
    bool seated;
    int32_t n_rows_done; // positions in the cache and state (pending rows included)
    int32_t n_pending;
    struct seen_ids seen;
    bool has_penalty;
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

enum status request_create(struct engine *e, const struct request_params *p, struct request **out, struct error *error);
void request_release(struct request *r); // one owner less

// Engine thread: each changes the view under its lock and wakes the reader.
void request_set_state(struct request *r, enum request_state state);
void request_set_waiting(struct request *r, const char *reason);
void request_set_progress(struct request *r, int32_t n_prompt_done);
void request_append(struct request *r, const struct draw_result *result, bool by_round);
void request_finish(struct request *r, enum finish finish, bool ended_by_eos, const struct error *error);

// ---- stop strings, decided here per token in stream order ----
enum status stops_init(struct request *r, const char *const *stop, int32_t n_stop, struct error *e);
void stops_free(struct request *r);
bool stops_hit(struct request *r, int32_t id); // true when this token of the reply completes a stop string

// ---- the engine ----
struct engine {
    struct engine_options options;
    struct engine_info info;
    struct device *device;
    struct model *model;
    struct model_config config; // the model's, with the tokenizer's end of text; its arrays are the model's
    struct tokenizer *tokenizer;
    struct memory *memory;
    void *pages, *runs; // device: the page pool; the lane runs
    int64_t page_bytes, run_bytes;
    uint32_t *allowed; // ids that have a token
    int32_t n_vocab;

    float *last_logits; // host: of a pass, where passes are watched; else NULL
    FILE *gate_file;    // NULL: passes are not written down
    pthread_t thread;
    bool started;
    struct queue *mailbox; // of struct request *
    atomic_bool stopping, draining, failed;
    atomic_int n_live;    // submitted and not finished: bounds what the mailbox can hold
    pthread_mutex_t lock; // guards counts and error
    struct engine_counts counts;
    struct error error; // why it failed

    // The engine thread's. Arrays of options.parallel entries are taken at start.
    struct request *waiting, *prompting; // lists, first come first served
    struct request **running;
    int32_t n_running, n_prompting;
    struct lane *lanes;
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

// ---- passes.c: what gates see of a prompt pass ----
bool passes_are_watched(const struct engine *e);
enum status passes_open(struct engine *e, struct error *error);
void passes_close(struct engine *e);
void passes_report(struct engine *e, const struct request *r, int32_t n_row, struct tensor logits);

// The lane run of a seat, in the pool's memory.
static inline void *engine_run(const struct engine *e, const struct seat *seat) {
    return (char *)e->runs + (size_t)seat->lane * (size_t)e->run_bytes;
}
void engine_fill_garbage(struct engine *e, const struct seat *seat); // tests: does nothing unless asked for

#endif
