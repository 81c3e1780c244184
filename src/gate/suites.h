// What a suite is, and what suites share: the values of their dimensions, and how a cell's jobs are made. Private to
// the gates.
#ifndef TF_GATE_SUITES_H
#define TF_GATE_SUITES_H

#include "gate/internal.h"

struct dimension {
    const char *name;
    const char *const *values;
    int32_t n;
};

struct control {
    enum engine_fault fault;
    const char *what;
    int32_t at[DIMS_MAX]; // the cell that must find it
};

struct suite {
    const char *name;
    struct dimension dims[DIMS_MAX];
    int32_t n_dims;
    struct control controls[8];
    int32_t n_controls;
    // Runs one cell. A verdict says red or not; an error that it could not be run.
    enum status (*run)(struct gate *g, const int32_t *at, enum engine_fault fault, struct verdict *v, struct error *e);
};

extern const struct suite suite_pages, suite_streams_any, suite_resume, suite_overcommit, suite_garbage, suite_cancel,
    suite_drafts;

// ---- matrix.c: the cells of a suite in an order in which every pair of values comes early ----
struct matrix {
    int32_t (*cells)[DIMS_MAX];
    int32_t n;
};
enum status matrix_make(const struct suite *s, struct matrix *out, struct error *e);

#define SUITE_CACHE_BYTES ((int64_t)1 << 30) // of prompt caches that hold all a cell keeps, of any model

#define N_KV      2
#define N_PAGINGS 14
#define N_STREAMS 5

extern const char *const kv_names[N_KV];          // bf16, fp8
extern const char *const paging_names[N_PAGINGS]; // windows first
extern const char *const stream_names[N_STREAMS]; // 1, 2, 4, 8, 16

// The arm of these values, without a prompt cache.
struct arm suite_arm(int32_t kv, int32_t paging, int32_t streams, enum engine_fault fault);
int32_t suite_streams(int32_t i);

// Adds the cases that are not long, over and over, until there are n jobs or each case has been taken once.
int32_t suite_short_jobs(const struct gate *g, struct job *jobs, int32_t n);
int32_t suite_add_job(struct job *jobs, int32_t n, int32_t which, int32_t reply); // returns n + 1
int32_t suite_find_case(const struct gate *g, const char *name);                  // -1: this model has no such case

// Makes the references, starts the arm, runs the jobs together and judges them.
enum status suite_run_together(struct gate *g, const struct arm *arm, struct job *jobs, int32_t n, struct verdict *v,
                               struct error *e);

// A case after the one that it follows, with a prompt cache: must have resumed where it says, and equal itself alone.
enum status suite_run_resumed(struct gate *g, const struct arm *arm, int32_t which, struct verdict *v, struct error *e);

#endif
