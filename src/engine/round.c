// A round: a window of rows of each running lane through one forward, a keyed draw for each row, and of each window the
// rows whose drafts equal the draws before them. A rejected row costs nothing to take back: keys, values and
// convolution rows are cut by position, and the recurrent state has it in the log only (ops/args_mixers.h).
#include "base/clock.h"
#include "engine/internal.h"
#include <string.h>

static int32_t open_windows(struct engine *e) {
    int32_t row = 0;
    for (int32_t i = 0; i < e->n_running; i++) {
        struct request *r = e->running[i];
        const struct drafting *d = &r->drafting;
        fault_before_round(r);
        e->lanes[i] = schedule_lane(e, r, row, d->n_row);
        e->windows[i] = (struct window){.row0 = row, .n_row = d->n_row, .open = true};
        for (int32_t k = 0; k < d->n_row; k++) e->ids[row++] = d->ids[k];
    }
    return row;
}

// Penalties and masks depend on the tokens before, so such a window is drawn a row at a time, and only as far as it is
// kept, and as there are masks at once: a row that would have to wait for one is left to the next window.
static void draw_more(struct engine *e, struct tensor logits) {
    int32_t first = 0, end = 0; // of the rows that are drawn together
    for (int32_t i = 0; i < e->n_running; i++) {
        struct window *w = &e->windows[i];
        struct request *r = e->running[i];
        if (!w->open) continue;
        int32_t from = w->n_drawn;
        w->open = from == 0 || request_mask_prepare(r, &e->mask_steps);
        w->cut = !w->open;
        if (!w->open) continue;
        w->n_drawn = r->has_penalty || r->mask != NULL ? from + 1 : w->n_row;
        for (int32_t k = from; k < w->n_drawn; k++) tokens_prepare_draw(r, k, &e->params[w->row0 + k]);
        if (end > first && w->row0 + from != end) {
            tokens_draw(e, logits, first, end - first);
            first = end;
        }
        if (end == first) first = w->row0 + from;
        end = w->row0 + w->n_drawn;
    }
    if (end > first) tokens_draw(e, logits, first, end - first);
}

static bool is_kept(const struct request *r, const struct draw_result *result, int32_t row) {
    return r->drafting.ids[row] == result->id || fault_keeps_draft(r, row);
}

// How many drafts equal what was drawn before them. Behind a draft that is not the expected text the draws are for
// another text, so no more are counted.
static void teach(struct engine *e, int32_t i) {
    struct window *w = &e->windows[i];
    struct request *r = e->running[i];
    const struct drafting *d = &r->drafting;
    int32_t at = r->view.n_tokens, n = 0;
    while (n + 1 < w->n_row && d->ids[n + 1] == e->results[w->row0 + n].id) {
        n++;
        if (at + n > d->n_expected || d->ids[n] != d->expected[at + n - 1]) break;
    }
    d->kept[at - 1] = (uint8_t)n;
    tokens_teach(r, &e->results[w->row0]);
    w->n_row = w->n_drawn = 1;
}

static bool take_drawn(struct engine *e) {
    bool any = false;
    for (int32_t i = 0; i < e->n_running; i++) {
        struct window *w = &e->windows[i];
        struct request *r = e->running[i];
        if (r->drafting.kept != NULL) teach(e, i);
        forced_change_draws(e, i);
        while (w->open && w->n_taken < w->n_drawn) {
            const struct draw_result *result = &e->results[w->row0 + w->n_taken++];
            w->ended = tokens_take(r, result, &w->finish, &w->by_eos);
            w->open = !w->ended && w->n_taken < w->n_row && is_kept(r, result, w->n_taken);
        }
        any |= w->open;
    }
    return any;
}

static bool draw_windows(struct engine *e, struct tensor logits, int32_t n_row) {
    bool more = true;
    for (int32_t turn = 0; more; turn++) {
        draw_more(e, logits);
        if (turn == 0) block_drafts_store_early(e, n_row);
        if (!tokens_wait(e)) return false;
        more = take_drawn(e);
    }
    return true;
}

// The kept rows wait in the log until the next round folds them in.
static void keep_rows(struct engine *e, int32_t i) {
    struct request *r = e->running[i];
    const struct window *w = &e->windows[i];
    mtp_drafts_keep(e, i);
    block_drafts_keep(e, i);
    r->n_rows_done += w->n_taken;
    r->n_pending = w->n_taken;
    fault_after_window(e, r, w->n_taken);
    request_count_round(r, w->n_row - 1, w->n_taken - 1);
}

static void count_round(struct engine *e, int32_t n_row) {
    int32_t n_token = 0;
    for (int32_t i = 0; i < e->n_running; i++) n_token += e->windows[i].n_taken;
    pthread_mutex_lock(&e->lock);
    e->counts.n_reply_tokens += n_token;
    e->counts.n_rounds++;
    e->counts.n_drafted += n_row - e->n_running;
    e->counts.n_accepted += n_token - e->n_running;
    pthread_mutex_unlock(&e->lock);
}

static void take_round(struct engine *e) {
    int64_t start = clock_ns();
    struct tensor logits;
    struct error error;
    if (!drafting_propose(e)) return;
    int32_t n_row = open_windows(e);
    int64_t forward = clock_ns();
    struct round round = {.lanes = e->lanes, .n_lane = e->n_running, .n_row = n_row, .ids = e->ids, .pages = e->memory};
    if (model_round(e->model, &round, &logits, &error) != STATUS_OK) {
        schedule_fail(e, &error);
        return;
    }
    if (!draw_windows(e, logits, n_row)) return;
    int64_t drawn = clock_ns();
    for (int32_t i = 0; i < e->n_running; i++) keep_rows(e, i);
    drafting_learn(e, n_row, drawn - forward);
    count_round(e, n_row);
    int64_t took = clock_ns() - start;
    schedule_average(&e->round_ns, (double)took);
    e->rounds_owed_ns -= took;
    for (int32_t i = e->n_running - 1; i >= 0; i--)
        if (e->windows[i].ended) schedule_end_running(e, i, e->windows[i].finish, e->windows[i].by_eos);
}

void round_step(struct engine *e) {
    int32_t n_ready = e->n_ready, n_resting = e->n_running - n_ready;
    e->n_running = n_ready;
    take_round(e);
    memmove(e->running + e->n_running, e->running + n_ready, (size_t)n_resting * sizeof *e->running);
    e->n_running += n_resting;
    e->n_ready = 0;
}
