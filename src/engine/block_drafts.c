// Drafts of a block drafter (model/drafter.h), for all lanes that want them in one batch, and what it is given of each
// stream: every prompt pass, whoever may draft, since other streams may resume from a state that the pass keeps; and of
// a reply the rows that stay.
#include "engine/internal.h"
#include "model/drafter.h"

static void *own_part(const struct engine *e, const struct request *r) {
    return model_lane_drafter(e->model, engine_run(e, r->claim.run));
}

static bool has_drafter(const struct engine *e, const struct request *r) {
    return e->has_block && r->may_draft && !r->drafting.asleep;
}

static struct drafter_taps newest_taps(const struct engine *e) {
    struct drafter_taps taps = {0};
    int32_t n;
    drafter_tap_layers(e->drafter, &n);
    for (int32_t i = 0; i < n; i++) taps.rows[i] = model_tap(e->model, i);
    return taps;
}

void block_drafts_prompt(struct engine *e, struct request *r, const struct prompt_pass *pass) {
    if (!e->has_block) return;
    struct drafter_taps taps = newest_taps(e);
    void *kept[KEEPS_A_PASS];
    must(pass->n_keep <= KEEPS_A_PASS);
    for (int32_t i = 0; i < pass->n_keep; i++) kept[i] = model_lane_drafter(e->model, pass->keeps[i].run);
    drafter_prompt(e->drafter, pass, &taps, own_part(e, r), kept, &r->drafting.block);
}

#define EARLY_ROWS  16 // no more than a round's products take hardly longer for than for one window's kept rows
#define EARLY_LANES (EARLY_ROWS / 2)

// Whoever has just drafted will be asked again: while the host waits for the draws, all rows of its window become keys
// and values, of which the kept ones count.
void block_drafts_store_early(struct engine *e, int32_t n_row) {
    void *own[EARLY_LANES];
    int32_t n = e->n_running;
    if (!e->has_block || n_row > EARLY_ROWS || n > EARLY_LANES || fault_kept_taps(e, 2) != 2) return;
    for (int32_t i = 0; i < n; i++) {
        const struct request *r = e->running[i];
        const struct drafting *d = &r->drafting;
        if (d->source != DRAFT_BLOCK || d->block.absorbed != e->lanes[i].position) return;
        own[i] = own_part(e, r);
    }
    struct drafter_taps taps = newest_taps(e);
    drafter_store_windows(e->drafter, e->lanes, n, n_row, &taps, own);
    for (int32_t i = 0; i < n; i++) e->windows[i].is_stored = true;
}

void block_drafts_keep(struct engine *e, int32_t i) {
    struct request *r = e->running[i];
    if (!has_drafter(e, r)) return;
    if (e->windows[i].is_stored) {
        r->drafting.block.absorbed += e->windows[i].n_taken;
        return;
    }
    struct drafter_taps taps = newest_taps(e);
    drafter_absorb(e->drafter, &e->lanes[i], fault_kept_taps(e, e->windows[i].n_taken), &taps, own_part(e, r));
}

#define LEAST_KNOWN 32 // rows that a drafter must have of a reply of which it was not given the beginning

void block_drafts_wake(struct request *r) {
    struct drafting *d = &r->drafting;
    d->asleep = false;
    d->has_slept = true;
    d->block = (struct drafter_lane){r->n_rows_done, r->n_rows_done};
}

bool block_drafts_know(const struct request *r) {
    return !r->drafting.has_slept || r->n_rows_done - r->drafting.block.first >= LEAST_KNOWN;
}

bool block_drafts_weighed(const struct request *r, int32_t id) {
    const struct drafting *d = &r->drafting;
    int32_t k = 0;
    while (k < d->n_candidate && d->candidates[k] != id) k++;
    return k < d->n_candidate;
}

static struct drafter_ask ask_of(struct engine *e, struct request *r) {
    struct drafting *d = &r->drafting;
    return (struct drafter_ask){
        .position = r->n_rows_done, .last = d->ids[0], .own = own_part(e, r), .state = &d->block};
}

void block_drafts_make_room(struct engine *e) {
    int32_t n = 0;
    for (int32_t i = 0; i < e->n_running && e->has_block; i++)
        if (has_drafter(e, e->running[i])) e->asks[n++] = ask_of(e, e->running[i]);
    if (n > 0) drafter_make_room(e->drafter, e->asks, n, e->info.plan.max_window);
}

void block_drafts_finish(struct engine *e, struct request *r) {
    e->asks[0] = ask_of(e, r);
    drafter_make_room(e->drafter, e->asks, 1, INT32_MAX);
}

static bool may_follow(void *request, int32_t id) { return request_mask_path_may(request, id); }

static void follow(void *request, int32_t id) { request_mask_path_take(request, id); }

bool block_drafts_propose(struct engine *e, int32_t n) {
    int32_t most = drafter_block(e->drafter) - 1;
    struct error error;
    for (int32_t i = 0; i < n; i++) {
        struct request *r = e->asking[i];
        struct drafting *d = &r->drafting;
        struct drafter_ask *ask = &e->asks[i];
        tokens_prepare_draw(r, 0, &e->params[i]);
        *ask = ask_of(e, r);
        ask->draw = &e->params[i];
        ask->n_want = d->n_want < most ? d->n_want : most;
        ask->ids = d->ids + 1;
        ask->confidence = d->shares;
        ask->candidates = d->candidates;
        ask->allowed_later = e->allowed;
        if (r->mask == NULL) continue;
        request_mask_path_start(r);
        ask->may_follow = may_follow;
        ask->follow = follow;
        ask->context = r;
    }
    if (drafter_propose(e->drafter, e->asks, n, &error) != STATUS_OK) {
        schedule_fail(e, &error);
        return false;
    }
    for (int32_t i = 0; i < n; i++) {
        struct drafting *d = &e->asking[i]->drafting;
        d->confidence = 1;
        d->source = DRAFT_BLOCK;
        d->n_candidate = e->asks[i].n_candidate;
        // The first is wanted anyhow: where it seems to take too long, that is what is to be seen again.
        for (d->n_row = 1; d->n_row <= e->asks[i].n; d->n_row++) {
            if (d->n_row > 1 && d->confidence < d->least_confidence) break;
            d->confidence *= d->shares[d->n_row - 1];
        }
    }
    return true;
}
