// Who drafts how much: the window that each running request brings to the coming round.
#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "engine/internal.h"

// ---- the reply that a gate expects ----

// From 0 to n.
static int32_t pick(const struct request *r, int32_t n, uint64_t key) {
    return (int32_t)(random_bits((uint64_t)r->n_prompt, (uint64_t)r->drafting.n_window, key) % (uint64_t)(n + 1));
}

static int32_t count_right(const struct request *r, int32_t n) {
    switch (r->engine->options.drafts.pattern) {
    case DRAFTS_ALL_RIGHT: return n;
    case DRAFTS_ALL_WRONG: return 0;
    case DRAFTS_ALTERNATE: return r->drafting.n_window % 2 == 0 ? n : 0;
    case DRAFTS_RANDOM:
    case DRAFTS_ANY_WIDTH: break;
    }
    return pick(r, n, 0);
}

static int32_t propose_expected(struct request *r, int32_t *ids, int32_t n) {
    if (r->drafting.n_expected == 0 || r->drafting.kept != NULL) return 0;
    struct drafting *d = &r->drafting;
    int32_t left = d->n_expected - r->view.n_tokens;
    if (left < n) n = left;
    d->n_window++;
    if (r->engine->options.drafts.pattern == DRAFTS_ANY_WIDTH) n = pick(r, n, 1);
    if (n <= 0) return 0;
    int32_t n_right = count_right(r, n), n_vocab = r->engine->n_vocab;
    for (int32_t i = 0; i < n; i++) {
        int32_t id = d->expected[r->view.n_tokens + i];
        ids[i] = i < n_right ? id : (id + 1) % n_vocab;
    }
    return n;
}

// ---- candidates ----

#define LONG_MATCH 8 // tokens of a match from which on a copy counts as a long one

// Rows that the coming window may have: it gives as many tokens as rows at most.
static int32_t most_rows(const struct engine *e, const struct request *r) {
    int32_t left = r->max_tokens - r->view.n_tokens;
    return r->may_draft ? (e->info.plan.max_window < left ? e->info.plan.max_window : left) : 1;
}

// Of drafts that somebody else has put down, those that may come one behind another.
static int32_t count_that_may(struct request *r, const int32_t *ids, int32_t n) {
    int32_t i = 0;
    request_mask_path_start(r);
    while (i < n && request_mask_path_take(r, ids[i])) i++;
    return i;
}

// A model that is hardly ever right is not given the stream's rows any more: that would cost every round a little, and
// what it does not have it cannot draft from. When it is due to be tried, streams that still have it keep it, and a
// block drafter begins again with the rows that come; a head's pages would have a hole.
static bool is_asked(struct engine *e, struct request *r, enum draft_class class) {
    struct drafting *d = &r->drafting;
    const struct draft_options *o = &e->options.drafts;
    if (!(e->has_mtp || e->has_block) || o->expected) return false;
    bool is_given_up = !o->forced && meter_gives_up(e->meter, class);
    if (d->asleep && !is_given_up && e->has_block) block_drafts_wake(r);
    if (d->asleep || !is_given_up) return !d->asleep && block_drafts_know(r);
    d->asleep = true;
    pthread_mutex_lock(&e->lock);
    e->counts.n_given_up++;
    pthread_mutex_unlock(&e->lock);
    return false;
}

// Sets up the window with all drafts that need no forward pass; where there are none, a drafter may be asked.
static void find_candidates(struct engine *e, struct request *r) {
    struct drafting *d = &r->drafting;
    enum draft_class by_model = e->has_block ? CLASS_BLOCK : CLASS_HEAD;
    int32_t most = most_rows(e, r), n = 0, n_match = 0, chain = e->options.drafts.max_chain;
    d->n_before = r->view.n_tokens;
    d->ids[0] = r->tokens[r->view.n_tokens - 1].id;
    d->source = DRAFT_NONE;
    d->n_want = 0;
    d->n_row = 1;
    if (most < 2) return;
    if ((n = propose_expected(r, d->ids + 1, most - 1)) > 0) {
        d->source = DRAFT_EXPECTED;
    } else if ((n = count_that_may(r, d->ids + 1, copies_propose(r, d->ids + 1, most - 1, &n_match))) > 0) {
        d->source = DRAFT_COPY;
        d->class = n_match < LONG_MATCH ? CLASS_SHORT_COPY : CLASS_LONG_COPY;
    } else if (is_asked(e, r, by_model)) {
        d->class = by_model;
        if (e->has_block) chain = drafter_block(e->drafter) - 1;
        d->n_want = chain > 0 && chain < most - 1 ? chain : most - 1;
    }
    d->n_row += n;
}

// ---- how many of them ----

static void weigh(const struct engine *e, const struct request *r, struct meter_lane *out) {
    const struct drafting *d = &r->drafting;
    double worth = 1;
    out->by_head = d->n_want > 0;
    out->at_once = e->has_block;
    out->is_looked_back_at = out->by_head && !e->has_block && mtp_drafts_look_back_at(r);
    out->n_most = out->by_head ? d->n_want : d->n_row - 1;
    if (out->by_head && e->has_block && out->n_most > 1 && meter_knows_nothing(e->meter, d->class)) out->n_most = 1;
    for (int32_t k = 0; k < out->n_most; k++)
        out->worth[k] = worth *= meter_chance(e->meter, d->acceptance, d->class, k);
}

// A draft of the head must be worth the time of its row and of the step that makes the next one.
static double least_confidence(const struct engine *e, int32_t n_row, int32_t n_head, double rate) {
    double row_ns = meter_round_ns(e->meter, e->n_running, n_row) - meter_round_ns(e->meter, e->n_running, n_row - 1);
    double step_ns = e->has_block ? 0 : meter_head_ns(e->meter, n_head, 2) - meter_head_ns(e->meter, n_head, 1);
    return rate * ((row_ns > 0 ? row_ns : 0) + (n_head > 0 ? step_ns / n_head : 0));
}

static void choose(struct engine *e) {
    int32_t n_row = 0, n_head = 0;
    for (int32_t i = 0; i < e->n_running; i++) weigh(e, e->running[i], &e->choices[i]);
    double rate = meter_choose(e->meter, e->choices, e->n_running, e->round_rows - e->n_running);
    for (int32_t i = 0; i < e->n_running; i++) {
        n_row += 1 + e->choices[i].n;
        n_head += e->choices[i].by_head && e->choices[i].n > 0;
    }
    double least = least_confidence(e, n_row, n_head, rate);
    for (int32_t i = 0; i < e->n_running; i++) {
        struct drafting *d = &e->running[i]->drafting;
        const struct meter_lane *l = &e->choices[i];
        d->n_want = l->by_head ? l->n : 0;
        d->n_row = l->by_head ? 1 : 1 + l->n;
        d->least_confidence = (float)least;
        if (l->n == 0) d->source = DRAFT_NONE;
    }
}

// As many as there is room for in the round, the first lanes first.
static void force(struct engine *e) {
    int32_t room = e->round_rows - e->n_running;
    for (int32_t i = 0; i < e->n_running; i++) {
        struct drafting *d = &e->running[i]->drafting;
        if (d->n_row - 1 > room) d->n_row = 1 + room;
        if (d->n_want > room) d->n_want = room;
        room -= d->n_row - 1 + d->n_want;
    }
}

bool drafting_propose(struct engine *e) {
    int32_t n = 0;
    for (int32_t i = 0; i < e->n_running; i++) find_candidates(e, e->running[i]);
    if (e->meter == NULL) return true;
    if (e->options.drafts.forced)
        force(e);
    else
        choose(e);
    for (int32_t i = 0; i < e->n_running; i++)
        if (e->running[i]->drafting.n_want > 0) e->asking[n++] = e->running[i];
    int64_t start = clock_ns();
    int32_t n_step = 1;
    if (n > 0 && !(e->has_block ? block_drafts_propose(e, n) : mtp_drafts_propose(e, n, &n_step))) return false;
    if (n > 0) meter_add_head(e->meter, n, n_step, (double)(clock_ns() - start));
    if (e->has_mtp) mtp_drafts_make_room(e);
    block_drafts_make_room(e);
    return true;
}

#define LEAST_FIRST_KEPT 0.2 // of a head that fits its model, whatever the text

// A head whose tensors were read in another sense than they were trained in still drafts, and nothing else shows it.
static void warn_of_head(struct engine *e) {
    double kept = meter_first_kept(e->meter, CLASS_HEAD);
    if (e->warned_of_head || kept >= LEAST_FIRST_KEPT) return;
    e->warned_of_head = true;
    log_line(LOG_WARN, "only %.0f %% of the MTP head's first drafts are kept: it may not belong to this model",
             100 * kept);
}

void drafting_learn(struct engine *e, int32_t n_row, int64_t round_ns) {
    if (e->meter == NULL) return;
    meter_add_round(e->meter, e->n_running, n_row, (double)round_ns);
    for (int32_t i = 0; i < e->n_running; i++) {
        struct request *r = e->running[i];
        struct drafting *d = &r->drafting;
        const struct window *w = &e->windows[i];
        meter_fade(d->acceptance);
        bool judged = d->source == DRAFT_MTP || d->source == DRAFT_BLOCK || d->source == DRAFT_COPY;
        int32_t n_drafted = w->ended || w->cut ? w->n_taken - 1 : w->n_row - 1; // no more of them were judged
        if (!judged || n_drafted <= 0) continue;
        meter_add_window(e->meter, d->acceptance, d->class, n_drafted, w->n_taken - 1);
        if (d->source == DRAFT_BLOCK)
            meter_add_weighed(e->meter, d->class, block_drafts_weighed(r, r->tokens[d->n_before].id));
    }
    mtp_drafts_learn(e);
    warn_of_head(e);
}
