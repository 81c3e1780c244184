// From the line to a lane, and back. Who is seated when, and with what, is the ledger's arithmetic (memory/ledger.h).
#include "base/clock.h"
#include "engine/internal.h"
#include <stddef.h>

#define MASKS_WAIT_NS 20000000

struct request *admission_request(struct claim *c) {
    return (struct request *)((char *)c - offsetof(struct request, claim));
}

bool admission_is_idle(const struct engine *e) {
    return ledger_first(e->ledger) == NULL && e->n_prompting == 0 && e->n_running == 0;
}

// ---- in ----

static void enqueue(struct engine *e, struct request *r) {
    r->claim = (struct claim){.prompt = r->n_prompt,
                              .reply = fault_claim(e, r->max_tokens),
                              .priority = r->priority,
                              .text = r->text,
                              .cuts = r->cuts,
                              .n_cut = r->n_cut};
    ledger_enqueue(e->ledger, &r->claim);
}

// With nothing to do it waits for a request, and with nothing but lanes that wait for their masks, for either; then
// deadlines are looked at now and again.
static int64_t waiting_ns(struct engine *e) {
    bool idle = admission_is_idle(e), wait = idle || e->masks_wait;
    if (!wait || atomic_load(&e->stopping)) return 0;
    if (!atomic_load(&e->failed) && cache_has_work(e)) return 0;
    return idle ? -1 : MASKS_WAIT_NS;
}

void admission_receive(struct engine *e) {
    struct request *r;
    int64_t wait_ns = waiting_ns(e);
    if (wait_ns != 0 && queue_pop(e->mailbox, &r, wait_ns)) enqueue(e, r);
    while (queue_pop(e->mailbox, &r, 0)) enqueue(e, r);
}

static void append(struct request **list, struct request *r) {
    while (*list != NULL) list = &(*list)->next;
    r->next = NULL;
    *list = r;
}

static void count_seat(struct engine *e, const struct request *r, bool restored) {
    pthread_mutex_lock(&e->lock);
    e->counts.n_restore_failures += !restored;
    e->counts.n_seated += restored;
    e->counts.wait_ns += restored ? r->seated_ns - r->submitted_ns : 0;
    pthread_mutex_unlock(&e->lock);
}

static void end_seat(struct engine *e, struct request *r, bool restored) {
    ledger_end_resume(e->ledger, &r->claim, restored);
    count_seat(e, r, restored);
    r->seated = restored;
    if (!restored) { // it is first in its line again, and starts from row 0
        e->n_prompting--;
        return;
    }
    r->n_rows_done = r->claim.resume;
    if (r->claim.resume > 0) fault_after_restore(e, r);
    cache_log_start(e, r);
    append(&e->prompting, r);
    request_set_resumed(r, r->claim.resume);
    request_set_state(r, REQUEST_PROMPT);
}

static void seat(struct engine *e, struct request *r) {
    r->seated_ns = clock_ns();
    r->seated = true;
    e->n_prompting++;
    garbage_fill(e, r);
    if (!cache_is_far(r)) {
        end_seat(e, r, cache_copy(e, r));
        return;
    }
    request_set_waiting(r, "its prefix is being brought");
    cache_bring(e, r);
}

void admission_admit(struct engine *e) {
    struct claim *c;
    struct request *r;
    bool ok;
    do {
        while ((c = ledger_admit(e->ledger, clock_ns())) != NULL) seat(e, admission_request(c));
        r = cache_brought(e, &ok);
        if (r != NULL) end_seat(e, r, ok);
    } while (r != NULL);
    for (c = ledger_first(e->ledger); c != NULL; c = c->next)
        request_set_waiting(admission_request(c), ledger_wait_text(c->wait));
}

// ---- out ----

static bool was_cancelled(enum finish f) { return f == FINISH_CANCELLED || f == FINISH_DEADLINE; }

void admission_end(struct engine *e, struct request *r, enum finish finish, bool by_eos, const struct error *error) {
    if (r->seated && was_cancelled(finish)) fault_on_cancel(e, r);
    if (r->seated)
        ledger_release(e->ledger, &r->claim);
    else
        ledger_remove(e->ledger, &r->claim);
    r->seated = false;
    text_free(r->text); // entries of the prompt cache may hold it too, and are this thread's
    r->text = NULL;
    r->prompt = NULL;
    pthread_mutex_lock(&e->lock);
    e->counts.n_finished += finish == FINISH_STOP || finish == FINISH_LENGTH;
    e->counts.n_cancelled += was_cancelled(finish);
    e->counts.n_failed += finish == FINISH_ERROR;
    pthread_mutex_unlock(&e->lock);
    atomic_fetch_sub(&e->n_live, 1); // first: whoever sees the end may submit at once
    request_finish(r, finish, by_eos, error);
    request_release(r);
}
