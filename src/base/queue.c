#include "base/queue.h"
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NS_PER_SECOND 1000000000

struct queue {
    pthread_mutex_t mutex;
    pthread_cond_t changed; // something to pop, closed, or woken
    size_t capacity, item_bytes;
    size_t first, n; // items first, first + 1, ... first + n - 1, modulo capacity
    bool closed;
    bool woken; // the next pop that finds nothing does not wait
    unsigned char *items;
};

enum status queue_create(size_t capacity, size_t item_bytes, struct queue **out, struct error *e) {
    must(capacity > 0 && item_bytes > 0);
    struct queue *q = calloc(1, sizeof *q);
    if (!q) return error_memory(e);
    q->items = calloc(capacity, item_bytes);
    if (!q->items) {
        free(q);
        return error_memory(e);
    }
    q->capacity = capacity;
    q->item_bytes = item_bytes;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC); // a change of the wall clock must not stretch a wait
    pthread_cond_init(&q->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&q->mutex, NULL);
    *out = q;
    return STATUS_OK;
}

void queue_free(struct queue *q) {
    if (!q) return;
    pthread_cond_destroy(&q->changed);
    pthread_mutex_destroy(&q->mutex);
    free(q->items);
    free(q);
}

bool queue_push(struct queue *q, const void *item) {
    pthread_mutex_lock(&q->mutex);
    bool taken = !q->closed && q->n < q->capacity;
    if (taken) {
        size_t slot = (q->first + q->n) % q->capacity;
        memcpy(q->items + slot * q->item_bytes, item, q->item_bytes);
        q->n++;
        pthread_cond_signal(&q->changed);
    }
    pthread_mutex_unlock(&q->mutex);
    return taken;
}

static struct timespec deadline_after(int64_t ns) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t part = t.tv_nsec + ns % NS_PER_SECOND;
    t.tv_sec += ns / NS_PER_SECOND + part / NS_PER_SECOND;
    t.tv_nsec = part % NS_PER_SECOND;
    return t;
}

// Waits, with the mutex held, until there is an item or a reason to give up.
static void wait_for_item(struct queue *q, int64_t timeout_ns) {
    struct timespec deadline;
    if (timeout_ns > 0) deadline = deadline_after(timeout_ns);
    while (q->n == 0 && !q->closed && !q->woken) {
        if (timeout_ns < 0)
            pthread_cond_wait(&q->changed, &q->mutex);
        else if (timeout_ns == 0 || pthread_cond_timedwait(&q->changed, &q->mutex, &deadline) == ETIMEDOUT)
            return;
    }
}

bool queue_pop(struct queue *q, void *item, int64_t timeout_ns) {
    pthread_mutex_lock(&q->mutex);
    wait_for_item(q, timeout_ns);
    bool got = q->n > 0;
    if (got) {
        memcpy(item, q->items + q->first * q->item_bytes, q->item_bytes);
        q->first = (q->first + 1) % q->capacity;
        q->n--;
    } else {
        q->woken = false;
    }
    pthread_mutex_unlock(&q->mutex);
    return got;
}

void queue_close(struct queue *q) {
    pthread_mutex_lock(&q->mutex);
    q->closed = true;
    pthread_cond_broadcast(&q->changed);
    pthread_mutex_unlock(&q->mutex);
}

bool queue_closed(struct queue *q) {
    pthread_mutex_lock(&q->mutex);
    bool closed = q->closed;
    pthread_mutex_unlock(&q->mutex);
    return closed;
}

size_t queue_count(struct queue *q) {
    pthread_mutex_lock(&q->mutex);
    size_t n = q->n;
    pthread_mutex_unlock(&q->mutex);
    return n;
}

void queue_wake(struct queue *q) {
    pthread_mutex_lock(&q->mutex);
    q->woken = true;
    pthread_cond_signal(&q->changed);
    pthread_mutex_unlock(&q->mutex);
}
