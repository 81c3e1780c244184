// Start and end of the engine, and what other threads call.
#include "engine/engine.h"
#include "engine/internal.h"
#include <stdlib.h>

enum status engine_create(const struct engine_options *options, struct engine **out, struct error *error) {
    struct engine *e = calloc(1, sizeof *e);
    if (e == NULL) return error_memory(error);
    e->options = *options;
    e->device = options->device;
    pthread_mutex_init(&e->lock, NULL);
    buffer_init(&e->state, 0);
    enum status s = engine_open_model(e, error);
    if (s == STATUS_OK) s = engine_open_streams(e, false, error);
    if (s != STATUS_OK) {
        engine_free(e);
        return s;
    }
    *out = e;
    return STATUS_OK;
}

enum status engine_restart(struct engine *e, const struct engine_options *options, struct error *error) {
    engine_close_streams(e);
    struct engine_options before = e->options;
    e->options = *options;
    e->options.model_dir = before.model_dir;
    e->options.drafter_dir = before.drafter_dir;
    e->options.drafter_bits = before.drafter_bits;
    e->options.device = e->device;
    e->counts = (struct engine_counts){0};
    e->row_ns = e->round_ns = 0;
    e->rounds_owed_ns = 0;
    atomic_store(&e->stopping, false);
    atomic_store(&e->cancelling, false);
    atomic_store(&e->draining, false);
    atomic_store(&e->failed, false);
    enum status s = engine_open_streams(e, true, error);
    if (s != STATUS_OK) engine_close_streams(e);
    return s;
}

void engine_free(struct engine *e) {
    if (e == NULL) return;
    engine_close_streams(e);
    drafter_free(e->drafter);
    model_free(e->model);
    tokenizer_free(e->tokenizer);
    free(e->allowed);
    pthread_mutex_destroy(&e->lock);
    buffer_free(&e->state);
    free(e);
}

// ---- what other threads call ----

const struct engine_info *engine_get_info(const struct engine *e) { return &e->info; }

void engine_get_counts(struct engine *e, struct engine_counts *out) {
    pthread_mutex_lock(&e->lock);
    *out = e->counts;
    pthread_mutex_unlock(&e->lock);
}

void engine_drain(struct engine *e) { atomic_store(&e->draining, true); }

void engine_end_all(struct engine *e) {
    atomic_store(&e->draining, true);
    atomic_store(&e->cancelling, true);
    queue_wake(e->mailbox);
}

bool engine_idle(struct engine *e) { return atomic_load(&e->n_live) == 0; }

static enum status refuse(struct engine *e, enum refusal reason, enum status s) {
    pthread_mutex_lock(&e->lock);
    e->counts.n_refused[reason]++;
    pthread_mutex_unlock(&e->lock);
    return s;
}

enum status engine_submit(struct engine *e, const struct request_params *params, struct request **out,
                          struct error *error) {
    if (atomic_load(&e->failed)) {
        masker_free(params->masker);
        pthread_mutex_lock(&e->lock);
        if (error != NULL) *error = e->error;
        pthread_mutex_unlock(&e->lock);
        return refuse(e, REFUSED_FAILED, STATUS_DEVICE);
    }
    struct request *r;
    enum refusal reason;
    enum status s = request_create(e, params, &r, &reason, error);
    if (s != STATUS_OK) {
        masker_free(params->masker); // no request has it
        return refuse(e, reason, s);
    }
    if (atomic_load(&e->draining)) {
        request_release(r);
        s = error_set(error, STATUS_BUSY, "the server is shutting down and takes no new requests");
        return refuse(e, REFUSED_DRAINING, s);
    }
    int32_t most = e->options.parallel + e->options.queue;
    if (atomic_fetch_add(&e->n_live, 1) >= most) {
        atomic_fetch_sub(&e->n_live, 1);
        request_release(r);
        s = error_set(error, STATUS_BUSY, "the queue is full: %d requests run or wait", most);
        return refuse(e, REFUSED_QUEUE, s);
    }
    atomic_fetch_add(&r->n_owners, 1); // the engine's
    pthread_mutex_lock(&e->lock);
    r->number = ++e->counts.n_requests;
    pthread_mutex_unlock(&e->lock);
    must(queue_push(e->mailbox, &r)); // it holds as many as may live
    *out = r;
    return STATUS_OK;
}
