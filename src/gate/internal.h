// The gates' own parts; nothing outside src/gate includes this.
#ifndef TF_GATE_INTERNAL_H
#define TF_GATE_INTERNAL_H

#include "format/chat_turns.h"
#include "gate/gate.h"
#include <pthread.h>

#define CASES_MAX   48
#define JOBS_MAX    64
#define REPLY_MOST  48 // tokens of a reference's reply; a shorter reply must be the start of it
#define REPLY_SHORT 16
#define DIMS_MAX    4

// Of cases with penalties.
#define CASE_REPETITION 1.25
#define CASE_PRESENCE   0.5
#define CASE_FREQUENCY  0.25

// ---- cases.c: the prompts ----

struct gate_case {
    char name[40];
    int32_t *ids;
    int32_t n;
    struct chat_turns turns;
    double temperature; // 0: greedy; else seeded
    bool penalties;     // repetition, presence and frequency, which make a draw depend on the reply before it
    bool is_long;
    bool by_template;   // its turns are where the template's own token says, so a server finds them too
    int32_t follows;    // the case that must run before for this one to resume; -1: none
    int32_t resumes_at; // after that one; 0: nowhere
};

struct gate_cases {
    struct gate_case list[CASES_MAX];
    int32_t n;
};

// From conversations where there is a chat template; else from ids alone. context: no prompt and reply is longer.
enum status cases_make(const struct gate_options *o, const struct engine_info *info, int32_t context,
                       struct gate_cases *out, struct error *e);
void cases_free(struct gate_cases *cases);

// ---- arms.c: settings of the engine, and prompts run under them ----

struct arm {
    int32_t page_rows; // 0: windows
    bool pages_all, share, fp8, garbage;
    int32_t parallel;
    int32_t context; // 0: the gates' own
    int32_t pass_rows;
    bool in_process; // also where every arm has a server of its own
    bool states;     // digests of what lanes end with are taken: the most of a cell's time where states are large
    int64_t kv_memory_bytes, cache_bytes;
    struct draft_options drafts; // all zero: none
    enum engine_fault fault;
};

struct job {
    int32_t which;     // case
    int32_t reply;     // tokens asked for
    int32_t cancel_at; // once there are that many tokens, 0: at once; -1: never
    // What came of it.
    int64_t number;
    struct request_token *tokens; // owned: ids, and the bits of their log probabilities
    int32_t n;
    enum finish finish;
    int32_t n_cached, n_drafted, n_accepted;
};

struct gate {
    const struct gate_options *options;
    struct engine *engine;
    struct gate_cases cases;
    int32_t context;
    struct reference *references; // [2][CASES_MAX]: bf16, fp8
    int32_t most_waiting;         // seen while the last jobs ran
    struct fresh *fresh;          // the server of the last arm, where arms have servers; NULL: there was none

    pthread_mutex_t lock; // guards the passes, which the engine's thread reports
    struct pass_report *passes;
    int32_t n_passes, passes_capacity;
    struct state_report states[JOBS_MAX];
    int32_t n_states;
    struct arm arm; // the one that runs
    bool out_of_memory;
};

struct verdict {
    bool red;
    char text[256];                                   // why
    int32_t n_replies, n_passes, n_states, n_resumed; // that were compared, or resumed
    int32_t n_drafted, n_accepted;
};
void verdict_red(struct verdict *v, const char *format, ...) __attribute__((format(printf, 2, 3)));

void arms_add_pass(struct gate *g, const struct pass_report *report); // any thread
enum status arms_open(struct gate *g, struct error *e);
void arms_close(struct gate *g);
enum status arms_start(struct gate *g, const struct arm *arm, struct error *e); // with empty caches
// All at once, or one after another.
enum status arms_run(struct gate *g, struct job *jobs, int32_t n, bool together, struct error *e);
// Compares jobs with what each gave alone; cancelled ones as far as they came.
enum status arms_judge(struct gate *g, const struct arm *arm, const struct job *jobs, int32_t n, struct verdict *v,
                       struct error *e);
// Nothing may be held once no request lives.
void arms_judge_idle(struct gate *g, struct verdict *v);
void jobs_free(struct job *jobs, int32_t n);

// ---- reference.c: what a case gives alone, in a window, in passes of 64 rows, nothing resumed ----

struct reference {
    bool known;
    struct request_token *tokens; // [n], n = REPLY_MOST
    int32_t n;
    struct state_report state; // at its end; of a drafter too once reference_prepare_drafters has run with it
    bool head_known, block_known;
    struct pass_report *passes; // one ends at every multiple of 64 and at the prompt's end
    int32_t n_passes;
};
// Those of all jobs; runs what is not known yet, which starts other arms.
enum status reference_prepare(struct gate *g, bool fp8, const struct job *jobs, int32_t n, struct error *e);
// The same of what the MTP head has at the end, where there is one; after it the references are known too.
enum status reference_prepare_drafters(struct gate *g, bool fp8, const struct draft_options *by, const struct job *jobs,
                                       int32_t n, struct error *e);
void references_free(struct gate *g);

#endif
