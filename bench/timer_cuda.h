// Owns time on a GPU: work that is recorded once, as a graph, and replayed between two events, so that neither the
// host's launches nor its waiting are in what is measured. One thread.
#ifndef TF_BENCH_TIMER_CUDA_H
#define TF_BENCH_TIMER_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "ops/device.h"

struct recording;

// What `work` launches on the CUDA device d. It must upload and wait for nothing.
enum status recording_make(struct device *d, void (*work)(void *context), void *context, struct recording **out,
                           struct error *e);
void recording_free(struct recording *r); // NULL is fine

// Replays once to get going, then n times; *seconds is that of one of these.
enum status recording_time(struct recording *r, int n, double *seconds, struct error *e);

// Replays each of n_visit recordings n times, in order and all sent at once, so that the device has no pause in which
// its clocks change. The first n_warm are not timed; seconds[i] is of one replay of visit n_warm + i.
enum status recordings_time(struct recording *const *visits, int n_warm, int n_visit, int n, double *seconds,
                            struct error *e);

// Fills memory with words (hash & mask) | bits.
void timer_fill(struct device *d, void *memory, size_t bytes, uint32_t mask, uint32_t bits);

// Copies by threads, which are faster at it than the copy engines that device.copy may take.
void timer_copy(struct device *d, void *to, const void *from, size_t bytes);

// attention as on pages, and as it would be without them: kv.page_rows covers a lane, and lane i has page i.
void attention_flat(struct device *d, const struct attention_args *a);

#ifdef __cplusplus
}
#endif

#endif
