// Masks that take long are made by a thread of their own, so that no other stream waits for them. A lane whose next
// mask is not there yet sits rounds out; what it is to say is the same. The thread yields to everything else: where all
// cores are at work on a round, it takes a small share of one.
#include "engine/internal.h"
#include <stdlib.h>
#include <sys/resource.h>

#define NICE        10
#define ROUND_STEPS 4096      // of masks on the engine's thread in one round, all lanes together: some 40 us,
#define ROUND_SHARE 0.02      // or such a share of a round if that is more,
#define ROUND_MOST  (1 << 17) // up to this
#define STEP_NS     10        // that a step takes
#define ALONE_STEPS (1 << 20) // where no other stream waits

struct mask_maker {
    struct queue *line;    // of struct request *
    struct queue *mailbox; // of the engine, which is woken when a mask is there
    pthread_t thread;
};

static bool goes_on(const struct mask_maker *m, struct request *r) {
    return !queue_closed(m->line) && !atomic_load(&r->cancelled) && atomic_load(&r->n_owners) > 1;
}

static void *maker_thread(void *context) {
    struct mask_maker *m = context;
    struct request *r;
    setpriority(PRIO_PROCESS, 0, NICE); // of this thread only, as Linux has it; refused, it is as any other
    while (!queue_closed(m->line)) {
        if (!queue_pop(m->line, &r, -1)) continue;
        if (!request_mask_make(r) && goes_on(m, r) && queue_push(m->line, &r)) continue; // the next one's turn
        request_mask_return(r);
        queue_wake(m->mailbox);
        request_release(r);
    }
    while (queue_pop(m->line, &r, 0)) request_release(r);
    return NULL;
}

enum status mask_maker_create(int32_t n_request, struct queue *mailbox, struct mask_maker **out, struct error *e) {
    struct mask_maker *m = calloc(1, sizeof *m);
    if (m == NULL) return error_memory(e);
    m->mailbox = mailbox;
    enum status s = queue_create((size_t)n_request, sizeof(struct request *), &m->line, e);
    if (s == STATUS_OK && pthread_create(&m->thread, NULL, maker_thread, m) != 0)
        s = error_set(e, STATUS_IO, "the thread that makes masks could not be started");
    if (s == STATUS_OK) {
        *out = m;
        return s;
    }
    queue_free(m->line);
    free(m);
    return s;
}

void mask_maker_free(struct mask_maker *m) {
    if (m == NULL) return;
    queue_close(m->line);
    pthread_join(m->thread, NULL);
    queue_free(m->line);
    free(m);
}

// A request that has its mask, or gets it at once.
static bool may_take_part(struct engine *e, struct request *r) {
    if (r->mask == NULL) return true;
    if (request_mask_is_out(r)) return false;
    if (request_mask_prepare(r, &e->mask_steps)) return true;
    atomic_fetch_add(&r->n_owners, 1); // the maker's
    request_mask_lend(r);
    if (queue_push(e->mask_maker->line, &r)) return false;
    request_mask_return(r);
    atomic_fetch_sub(&r->n_owners, 1);
    return false; // the line is full of requests that have ended: it is asked for again
}

static int64_t steps_of_round(const struct engine *e) {
    if (e->n_running + e->n_prompting <= 1) return ALONE_STEPS;
    int64_t steps = (int64_t)(ROUND_SHARE * e->round_ns / STEP_NS);
    return steps < ROUND_STEPS ? ROUND_STEPS : steps > ROUND_MOST ? ROUND_MOST : steps;
}

void mask_maker_choose_lanes(struct engine *e) {
    e->mask_steps = steps_of_round(e);
    e->n_ready = 0;
    for (int32_t i = 0; i < e->n_running; i++) {
        struct request *r = e->running[i];
        if (!may_take_part(e, r)) continue;
        for (int32_t k = i; k > e->n_ready; k--) e->running[k] = e->running[k - 1];
        e->running[e->n_ready++] = r;
    }
}
