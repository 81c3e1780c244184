#include "base/workers.h"
#include "base/clock.h"
#include "base/machine.h"
#include <pthread.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#define cpu_relax() __builtin_ia32_pause()
#else
#define cpu_relax() atomic_signal_fence(memory_order_seq_cst)
#endif

#define MAX_THREADS 1024
#define SPIN_NS     50000 // longer than the serial work between two loops of one pass, far shorter than a time slice

// The state word: how many helpers are inside the loop (low bits), whether it may still be entered, and its number.
// A helper that comes late finds the loop closed and stays out, so that the caller never waits for a thread that the
// system has not yet scheduled.
#define INSIDE_MASK 0xffffu
#define OPEN        0x10000u
#define LOOP_SHIFT  17

struct helper {
    struct workers *owner;
    pthread_t id;
    int thread;
};

struct workers {
    alignas(64) _Atomic uint64_t state;
    alignas(64) _Atomic long next_block;

    // The loop being run: written by the caller while nobody is inside.
    alignas(64) workers_fn *fn;
    void *context;
    long n_items, grain, n_blocks;

    alignas(64) _Atomic int n_asleep; // helpers waiting on `work`
    _Atomic bool caller_asleep;       // the caller waits on `done`
    _Atomic bool stopping;
    pthread_mutex_t mutex;
    pthread_cond_t work, done;

    int n_threads;
    bool spins;
    struct helper *helpers; // [n_threads - 1]
};

static void run_blocks(struct workers *w, int thread) {
    for (;;) {
        long block = atomic_fetch_add_explicit(&w->next_block, 1, memory_order_relaxed);
        if (block >= w->n_blocks) return;
        long first = block * w->grain;
        long left = w->n_items - first;
        w->fn(w->context, first, first + (left < w->grain ? left : w->grain), thread);
    }
}

// True when there is a loop after number `last` to enter, or the helpers must end.
static bool has_news(struct workers *w, uint64_t last) {
    uint64_t state = atomic_load(&w->state);
    return ((state & OPEN) && state >> LOOP_SHIFT != last) || atomic_load(&w->stopping);
}

static void wait_for_news(struct workers *w, uint64_t last) {
    if (w->spins) {
        int64_t end = clock_ns() + SPIN_NS;
        do {
            for (int i = 0; i < 32; i++) {
                if (has_news(w, last)) return;
                cpu_relax();
            }
        } while (clock_ns() < end);
    }
    pthread_mutex_lock(&w->mutex);
    // Counted before looking again: either this thread sees the new loop or the caller sees a sleeper to wake.
    atomic_fetch_add(&w->n_asleep, 1);
    while (!has_news(w, last)) pthread_cond_wait(&w->work, &w->mutex);
    atomic_fetch_sub(&w->n_asleep, 1);
    pthread_mutex_unlock(&w->mutex);
}

// Enters the open loop, if there is one other than `last`.
static bool enter_loop(struct workers *w, uint64_t *last) {
    uint64_t state = atomic_load(&w->state);
    do {
        if (!(state & OPEN) || state >> LOOP_SHIFT == *last) return false;
    } while (!atomic_compare_exchange_weak(&w->state, &state, state + 1));
    *last = state >> LOOP_SHIFT;
    return true;
}

static void leave_loop(struct workers *w) {
    atomic_fetch_sub(&w->state, 1);
    if (!atomic_load(&w->caller_asleep)) return;
    pthread_mutex_lock(&w->mutex);
    pthread_cond_signal(&w->done);
    pthread_mutex_unlock(&w->mutex);
}

static void *helper_main(void *argument) {
    struct helper *self = argument;
    struct workers *w = self->owner;
    uint64_t last = 0;
    for (;;) {
        wait_for_news(w, last);
        if (atomic_load(&w->stopping)) return NULL;
        if (!enter_loop(w, &last)) continue;
        run_blocks(w, self->thread);
        leave_loop(w);
    }
}

static bool all_left(struct workers *w) { return (atomic_load(&w->state) & INSIDE_MASK) == 0; }

static void wait_until_left(struct workers *w) {
    if (w->spins) {
        int64_t end = clock_ns() + SPIN_NS;
        do {
            for (int i = 0; i < 32; i++) {
                if (all_left(w)) return;
                cpu_relax();
            }
        } while (clock_ns() < end);
    }
    pthread_mutex_lock(&w->mutex);
    atomic_store(&w->caller_asleep, true);
    while (!all_left(w)) pthread_cond_wait(&w->done, &w->mutex);
    atomic_store(&w->caller_asleep, false);
    pthread_mutex_unlock(&w->mutex);
}

void workers_run(struct workers *w, long n_items, long grain, workers_fn *fn, void *context) {
    must(grain > 0);
    if (n_items <= 0) return;
    if (w->n_threads == 1 || n_items <= grain) {
        for (long first = 0; first < n_items; first += grain)
            fn(context, first, n_items - first < grain ? n_items : first + grain, 0);
        return;
    }
    uint64_t state = atomic_load(&w->state);
    must(!(state & (OPEN | INSIDE_MASK))); // a second caller, or fn calling back
    w->fn = fn;
    w->context = context;
    w->n_items = n_items;
    w->grain = grain;
    w->n_blocks = n_items / grain + (n_items % grain != 0);
    atomic_store_explicit(&w->next_block, 0, memory_order_relaxed);
    atomic_store(&w->state, ((state >> LOOP_SHIFT) + 1) << LOOP_SHIFT | OPEN);
    if (atomic_load(&w->n_asleep) > 0) {
        pthread_mutex_lock(&w->mutex);
        pthread_cond_broadcast(&w->work);
        pthread_mutex_unlock(&w->mutex);
    }
    run_blocks(w, 0);
    atomic_fetch_and(&w->state, ~(uint64_t)OPEN);
    if (!all_left(w)) wait_until_left(w);
}

// Signals are the main thread's: helpers are started with all of them blocked.
static int start_helper(struct workers *w, int i) {
    sigset_t all, before;
    sigfillset(&all);
    w->helpers[i] = (struct helper){.owner = w, .thread = i + 1};
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&w->helpers[i].id, NULL, helper_main, &w->helpers[i]);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) return failed;
    char name[32]; // of which the system takes 15 characters
    snprintf(name, sizeof name, "worker-%d", i + 1);
    pthread_setname_np(w->helpers[i].id, name);
    return 0;
}

static void stop_helpers(struct workers *w, int n) {
    pthread_mutex_lock(&w->mutex);
    atomic_store(&w->stopping, true);
    pthread_cond_broadcast(&w->work);
    pthread_mutex_unlock(&w->mutex);
    for (int i = 0; i < n; i++) pthread_join(w->helpers[i].id, NULL);
}

static void release(struct workers *w) {
    pthread_cond_destroy(&w->done);
    pthread_cond_destroy(&w->work);
    pthread_mutex_destroy(&w->mutex);
    free(w->helpers);
    free(w);
}

enum status workers_create(int n_threads, struct workers **out, struct error *e) {
    if (n_threads < 1 || n_threads > MAX_THREADS)
        return error_set(e, STATUS_INVALID, "the number of threads must be from 1 to %d, not %d", MAX_THREADS,
                         n_threads);
    struct workers *w = aligned_alloc(alignof(struct workers), sizeof *w);
    if (!w) return error_memory(e);
    memset(w, 0, sizeof *w);
    w->helpers = calloc((size_t)n_threads, sizeof *w->helpers);
    if (!w->helpers) {
        free(w);
        return error_memory(e);
    }
    w->n_threads = n_threads;
    w->spins = n_threads <= machine_cores();
    pthread_mutex_init(&w->mutex, NULL);
    pthread_cond_init(&w->work, NULL);
    pthread_cond_init(&w->done, NULL);
    for (int i = 0; i < n_threads - 1; i++) {
        int failed = start_helper(w, i);
        if (!failed) continue;
        stop_helpers(w, i);
        release(w);
        return error_set(e, STATUS_LIMIT, "cannot start thread %d of %d: the system is out of threads", i + 2,
                         n_threads);
    }
    *out = w;
    return STATUS_OK;
}

void workers_free(struct workers *w) {
    if (!w) return;
    stop_helpers(w, w->n_threads - 1);
    release(w);
}

int workers_count(const struct workers *w) { return w->n_threads; }
