// Owns bounded queues between threads. A full queue refuses; nothing grows.
#ifndef TF_BASE_QUEUE_H
#define TF_BASE_QUEUE_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Many producers, many consumers, first in first out, of fixed-size items copied in and out.
struct queue;

enum status queue_create(size_t capacity, size_t item_bytes, struct queue **out, struct error *e);
void queue_free(struct queue *q); // NULL is fine; nobody may be waiting

bool queue_push(struct queue *q, const void *item); // false: full or closed
// Waits at most timeout_ns (0: not at all; < 0: for ever). False: nothing came, or closed and empty.
bool queue_pop(struct queue *q, void *item, int64_t timeout_ns);
void queue_close(struct queue *q); // pushes fail from now on; waiters wake
bool queue_closed(struct queue *q);
size_t queue_count(struct queue *q);
void queue_wake(struct queue *q); // lets one pop return false early, the next one that waits if none does now

#endif
