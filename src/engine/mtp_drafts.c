// Drafts of the model's own head, for all lanes that want them in one batch a step, and what the head is given of each
// reply. Plain rounds cost it a copy: their hidden rows wait in the lane's run until the head drafts, or until no more
// have room there. With those rows it is also seen what it would have drafted, which costs no row of a round.
#include "engine/internal.h"
#include "model/mtp.h"
#include <math.h>

static bool has_head(const struct engine *e, const struct request *r) {
    return e->has_mtp && r->may_draft && !r->drafting.asleep;
}

// Positions whose hidden rows wait, that of the last token included.
static int32_t count_waiting(const struct request *r) { return r->n_rows_done - r->drafting.n_absorbed + 1; }

// The next n rows of a lane, as part of a batch; returns the batch's rows then.
static int32_t add_rows(struct engine *e, struct request *r, int32_t i, int32_t row, int32_t n) {
    struct lane lane = schedule_lane(e, r, row, n);
    lane.position = r->drafting.n_absorbed;
    for (int32_t k = 0; k < n; k++) e->ids[row + k] = request_token_at(r, lane.position + k);
    fault_before_absorb(e, &lane);
    e->lanes[i] = lane;
    r->drafting.n_absorbed += n;
    return row + n;
}

static struct round round_of(const struct engine *e, int32_t n_lane, int32_t n_row) {
    return (struct round){.lanes = e->lanes, .n_lane = n_lane, .n_row = n_row, .ids = e->ids, .pages = e->memory};
}

static void absorb_rows(struct engine *e, int32_t n_lane, int32_t n_row) {
    struct round rows = round_of(e, n_lane, n_row);
    if (n_lane > 0) mtp_absorb(e->model, &rows, NULL);
}

// Of each lane as many of the oldest waiting rows, up to a window, as leave at most `most`.
static void absorb(struct engine *e, struct request *const *who, int32_t n, int32_t most) {
    int32_t n_lane = 0, row = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t over = has_head(e, who[i]) ? count_waiting(who[i]) - most : 0;
        if (over > e->info.plan.max_window) over = e->info.plan.max_window;
        if (over <= 0) continue;
        if (row + over > e->round_rows) {
            absorb_rows(e, n_lane, row);
            n_lane = row = 0;
        }
        row = add_rows(e, who[i], n_lane++, row, over);
    }
    absorb_rows(e, n_lane, row);
}

// ---- looking back ----

// What is drawn for a row depends on the tokens before it, and only of some requests nothing else does.
bool mtp_drafts_look_back_at(const struct request *r) { return !r->has_penalty && r->mask == NULL; }

// Gives the head the oldest waiting rows of a lane, behind which tokens are known, and asks what it would have drafted.
// The answers are there when the coming round's are.
static void look_back(struct engine *e, struct request *r) {
    struct looked_back *l = &e->looked_back;
    int32_t n = count_waiting(r) - 1, most = e->info.plan.max_window;
    struct tensor logits;
    if (n > most) n = most;
    *l = (struct looked_back){.who = r, .position = r->drafting.n_absorbed, .n = n};
    add_rows(e, r, 0, 0, n);
    struct round rows = round_of(e, 1, n);
    mtp_look_back(e->model, &rows, &logits);
    for (int32_t k = 0; k < n; k++) {
        e->params[k] = r->draw;
        e->params[k].position = (int64_t)l->position + k + 1;
        e->params[k].allowed = e->allowed;
        e->params[k].n_top = -1;
    }
    struct draw_args args = {
        .logits = tensor_rows(logits, 0, n), .n_vocab = e->n_vocab, .params = e->params, .results = l->results};
    e->device->ops->draw(e->device, &args);
}

void mtp_drafts_learn(struct engine *e) {
    struct looked_back *l = &e->looked_back;
    int32_t n_right = 0;
    for (int32_t k = 0; k < l->n; k++) {
        bool right = l->results[k].id == request_token_at(l->who, l->position + k + 1);
        n_right += right;
        meter_add_window(e->meter, l->who->drafting.acceptance, CLASS_HEAD, 1, right);
    }
    if (l->n == 0) return;
    pthread_mutex_lock(&e->lock);
    e->counts.n_looked_back += l->n;
    e->counts.n_seen_right += n_right;
    pthread_mutex_unlock(&e->lock);
    l->n = 0;
}

static bool is_full(const struct engine *e, const struct request *r) {
    return has_head(e, r) && count_waiting(r) + r->drafting.n_row > 2 * e->info.plan.max_window;
}

// One lane that is full is reason enough to give the head what waits of all: so there are fewer batches.
void mtp_drafts_make_room(struct engine *e) {
    bool any = false;
    for (int32_t i = 0; i < e->n_running; i++) {
        struct request *r = e->running[i];
        if (!is_full(e, r)) continue;
        if (mtp_drafts_look_back_at(r) && meter_look_back_is_due(e->meter)) {
            look_back(e, r);
            meter_looked_back(e->meter);
        }
        any = true;
    }
    if (any) absorb(e, e->running, e->n_running, 1);
}

void mtp_drafts_keep(struct engine *e, int32_t i) {
    if (has_head(e, e->running[i])) mtp_keep(e->model, &e->lanes[i], e->windows[i].n_taken);
}

void mtp_drafts_finish(struct engine *e, struct request *r) {
    if (!has_head(e, r)) return;
    while (count_waiting(r) > 0) absorb(e, &r, 1, 0);
}

// ---- proposing ----

// Draws step's drafts of n lanes from rows 0 to n of logits.
static bool draw_step(struct engine *e, struct tensor logits, int32_t n, int32_t step) {
    for (int32_t i = 0; i < n; i++) tokens_prepare_draft(e->asking[i], step, &e->params[i]);
    tokens_draw(e, logits, 0, n);
    return tokens_wait(e);
}

// Takes the drawn drafts; those that go on are moved to the front, and chain[i] is where the ith of them was.
static int32_t take_step(struct engine *e, int32_t n, int32_t step, int32_t *chain) {
    int32_t left = 0;
    for (int32_t i = 0; i < n; i++) {
        struct request *r = e->asking[i];
        struct drafting *d = &r->drafting;
        d->ids[step + 1] = e->results[i].id;
        d->n_row = step + 2;
        d->confidence *= expf(e->results[i].logprob);
        bool may_come = request_mask_path_take(r, e->results[i].id);
        if (r->has_penalty) seen_add(&r->seen, e->results[i].id, true);
        if (!may_come || step + 1 >= d->n_want || d->confidence < d->least_confidence) continue;
        chain[left] = i;
        e->asking[left++] = r;
    }
    return left;
}

static void prepare_step(struct engine *e, int32_t n, int32_t step) {
    for (int32_t i = 0; i < n; i++) {
        struct request *r = e->asking[i];
        e->lanes[i] = schedule_lane(e, r, i, 1);
        e->lanes[i].position = r->n_rows_done + step;
        e->ids[i] = r->drafting.ids[step];
    }
}

static void forget_path(struct request *r) {
    const struct drafting *d = &r->drafting;
    for (int32_t k = d->n_row - 1; r->has_penalty && k > 0; k--) seen_remove(&r->seen, d->ids[k], d->n_seen);
}

bool mtp_drafts_propose(struct engine *e, int32_t n, int32_t *n_step) {
    struct tensor logits;
    int32_t row = 0, *chain = e->chain;
    int32_t window = e->info.plan.max_window;
    absorb(e, e->asking, n, window);
    if (n * window > e->round_rows) absorb(e, e->asking, n, 1); // so that the last rows of all fit into one batch
    for (int32_t i = 0; i < n; i++) {
        struct drafting *d = &e->asking[i]->drafting;
        d->confidence = 1;
        d->source = DRAFT_MTP;
        d->n_seen = e->asking[i]->seen.n;
        request_mask_path_start(e->asking[i]);
        row = add_rows(e, e->asking[i], i, row, count_waiting(e->asking[i]));
    }
    struct round rows = round_of(e, n, row);
    mtp_absorb(e->model, &rows, &logits);
    for (int32_t step = 0; n > 0; step++) {
        *n_step = step + 1;
        if (!draw_step(e, logits, n, step)) return false;
        n = take_step(e, n, step, chain);
        if (n == 0) break;
        prepare_step(e, n, step + 1);
        rows = round_of(e, n, n);
        mtp_chain(e->model, &rows, chain, &logits);
    }
    for (int32_t i = 0; i < e->n_running; i++)
        if (e->running[i]->drafting.source == DRAFT_MTP) forget_path(e->running[i]);
    return true;
}
