// Owns the engine: one thread that holds model, memory and device, and runs every request (request.h). Requests come
// through a bounded mailbox from any thread. Start, restart and end belong to one thread; the rest to any.
#ifndef TF_ENGINE_ENGINE_H
#define TF_ENGINE_ENGINE_H

#include "base/status.h"
#include "engine/drafts.h"
#include "engine/fault.h"
#include "engine/request.h"
#include "engine/watch.h"
#include "format/tokenizer.h"
#include "memory/ledger.h"
#include "memory/plan.h"
#include "model/config.h"
#include "ops/device.h"
#include <stdbool.h>

struct engine;

// How keys and values are stored.
enum kv_dtype {
    KV_OF_DEVICE, // as the device computes: bf16, or fp32 where products are fp32
    KV_FP8,       // e4m3 codes with a scale for each vector
};

struct engine_options {
    const char *model_dir;
    struct device *device; // owned by the caller; must outlive the engine
    int32_t parallel;      // most streams at once; > 0
    int32_t context;       // longest prompt + reply; 0: what the checkpoint and memory allow
    int32_t max_tokens;    // reply limit of a request that names none
    int32_t queue;         // most requests waiting
    // 0: the scheduler's choice; else every prompt pass has this many rows (a multiple of 64, <= 4096)
    int32_t pass_rows;
    double decode_share;     // share of time that running replies keep while prompts are computed, [0, 1)
    int64_t memory_bytes;    // cap on all the process takes on the device; 0: what is there, less the reserve
    int64_t kv_memory_bytes; // cap on what is left for streams; 0: none
    enum kv_dtype kv_dtype;
    int32_t page_rows;   // 0: a window for each stream; else pages of that many positions, 1..4096
    bool pages_all;      // with pages: no window is set aside
    bool share_pages;    // with pages: the prompt cache keeps entries in the pool, and streams share them
    int64_t cache_bytes; // of the prompt cache in host memory; PLAN_CACHE_DEFAULT; 0: none
    struct draft_options drafts;
    const char *drafter_dir; // a block drafter of the model (model/drafter.h); NULL: none. Stays as it is at a restart
    int drafter_bits;        // 4: its matrices are quantised when it is loaded; 0: they stay as they are
    bool log_resumes;        // a log line says where each prompt resumed, or why it could not
    void (*progress)(void *context, int64_t bytes_done, int64_t bytes_total); // while loading; may be NULL
    void *progress_context;

    // Tests and gates.
    bool garbage; // fill every run, page and scratch with NaN garbage when a lane opens
    enum engine_fault fault;
    // Every pass is reported, as a call, or as a line appended to a file; NULL: it is not.
    pass_fn *on_pass;
    void *on_pass_context;
    const char *gate_logits;
    state_fn *on_state; // of every request that ends by its own stop or limit; context as on_pass; NULL: none
};

// Plans memory from headers, refuses what cannot fit with the count or window that does, then loads and starts the
// thread.
enum status engine_create(const struct engine_options *options, struct engine **out, struct error *e);
// Ends every request, gives back all that streams take, plans anew and starts again over the weights that are loaded.
// model_dir and device stay as they are. When it fails the engine stands still: it may be restarted again, or freed.
enum status engine_restart(struct engine *e, const struct engine_options *options, struct error *error);
// cancels what is left, waits for the thread; every request must be freed before or after, not during
void engine_free(struct engine *e);

struct engine_info {
    const struct model_config *config;
    const struct tokenizer *tokenizer; // NULL if the checkpoint has none: only token-id requests then
    const char *device_name;
    int32_t parallel, context, max_tokens;
    enum dtype kv;       // of stored keys and values
    int64_t round_bytes; // of weights, that a round of one row reads
    struct plan plan;    // what was planned, and taken
    int64_t taken_bytes; // of plan.used_bytes, what was really allocated or mapped
    int64_t reserve_bytes;
    bool share_pages;
    char drafter[64];      // what drafts, for people; "": nothing does
    int32_t drafter_block; // rows of the block drafter's blocks, whether it drafts or not; 0: there is none
    char start_sentence[768];
};
const struct engine_info *engine_get_info(const struct engine *e);

// The plan that engine_create would follow, from headers alone, and the sentence that it would start with. Of the
// device only its types, `memory` and reserve_bytes are asked. *info has no config and no tokenizer.
enum status engine_plan(const struct engine_options *options, struct engine_info *info, struct error *e);
// Bytes of weights that a round of n_row rows reads: the model's, and those of what proposes its drafts, if it proposes
// all of them for each of n_lane streams. Which experts rows choose is taken to be chance.
int64_t engine_round_bytes(const struct engine *e, int32_t n_lane, int32_t n_row);
struct buffer;
void engine_write_facts(const struct engine *e, struct buffer *json); // the start sentence's facts, as an object
// Who is on which lane, who waits for what, and whose each page is, as docs/api.md has it: as of the last time that
// somebody asked, or that the engine went idle, whichever was later. Any thread.
void engine_write_state(struct engine *e, struct buffer *json);

enum refusal { // at submit
    REFUSED_INVALID,
    REFUSED_WINDOW, // prompt + reply is over the context
    REFUSED_POOL,   // over what the pool could ever hold
    REFUSED_QUEUE,
    REFUSED_DRAINING,
    REFUSED_FAILED,
    REFUSED_MEMORY,
    REFUSED_N,
};
const char *refusal_name(enum refusal reason);

struct engine_counts { // a consistent snapshot
    int32_t n_running, n_waiting;
    int32_t n_waiting_for[LEDGER_WAIT_N];
    int64_t n_requests, n_finished, n_cancelled, n_failed, n_refused[REFUSED_N];
    int64_t n_prompt_tokens; // rows that passes computed
    int64_t n_reply_tokens, n_rounds, n_passes;
    int64_t n_drafted, n_accepted; // drafts that windows had, and those that were kept
    // Rows of which it was seen afterwards what the head would have drafted, and those of them where it would have been
    // right; streams of which whoever drafts by a model gets nothing any more.
    int64_t n_looked_back, n_seen_right, n_given_up;
    int64_t wait_ns, n_seated; // time that seated requests had waited, and how many they were
    int64_t n_restore_failures;
    struct pool_counts pool;
    struct prefix_counts prefix;
    struct ledger_counts ledger;
    bool failed; // a sticky device error: no progress is possible
};
void engine_get_counts(struct engine *e, struct engine_counts *out);

// No new requests from now on; running and waiting ones go on. engine_idle: nothing runs or waits.
void engine_drain(struct engine *e);
bool engine_idle(struct engine *e);
// The same, and those that run or wait end as cancelled between two rounds or passes.
void engine_end_all(struct engine *e);

// STATUS_LIMIT: can never be served: prompt + reply over the window (the sentence has the numbers that would fit).
// STATUS_INVALID: a parameter is out of range. STATUS_BUSY: the queue is full, or the engine is draining.
// STATUS_DEVICE: the engine has failed. On success *out is the caller's until request_free. Takes params->masker in any
// case.
enum status engine_submit(struct engine *e, const struct request_params *params, struct request **out,
                          struct error *error);

#endif
