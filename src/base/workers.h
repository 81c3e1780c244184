// Owns a fixed set of threads that run one parallel loop at a time. The caller's thread works too. Which thread runs
// which item never influences a result: items are independent and each writes its own outputs.
#ifndef TF_BASE_WORKERS_H
#define TF_BASE_WORKERS_H

#include "base/status.h"

struct workers;

// thread: 0..n_threads-1, for per-thread scratch. Items [first, last) are the callee's to do.
typedef void workers_fn(void *context, long first, long last, int thread);

// n_threads >= 1 counts the caller's thread. Threads spin briefly between loops, then sleep.
enum status workers_create(int n_threads, struct workers **out, struct error *e);
void workers_free(struct workers *w); // NULL is fine
int workers_count(const struct workers *w);

// Runs fn over items 0..n_items-1 in blocks of `grain` items, and returns when all are done. Only one thread may call
// it at a time; fn must not call it.
void workers_run(struct workers *w, long n_items, long grain, workers_fn *fn, void *context);

#endif
