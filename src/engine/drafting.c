// Who drafts how much: the window that each running request brings to the coming round.
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
    if (r->drafting.n_expected == 0) return 0;
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

// ---- all ----

// Drafts that need no forward pass. Returns whether the model's head is to be asked too.
static bool propose(struct engine *e, struct request *r) {
    struct drafting *d = &r->drafting;
    int32_t left = r->max_tokens - r->view.n_tokens; // a window gives as many tokens as it has rows, at most
    int32_t most = e->info.plan.max_window < left ? e->info.plan.max_window : left, n_match;
    d->n_before = r->view.n_tokens;
    d->ids[0] = r->tokens[r->view.n_tokens - 1].id;
    d->n_row = 1;
    d->source = DRAFT_NONE;
    if (!r->may_draft || most < 2) return false;
    int32_t n = propose_expected(r, d->ids + 1, most - 1);
    if (n > 0) d->source = DRAFT_EXPECTED;
    if (n == 0) {
        n = copies_propose(r, d->ids + 1, most - 1, &n_match);
        if (n > 0) d->source = DRAFT_COPY;
    }
    d->n_row += n;
    int32_t chain = e->options.drafts.max_chain;
    d->n_want = chain > 0 && chain < most - 1 ? chain : most - 1;
    d->least_confidence = 0;
    return n == 0 && e->has_mtp && !e->options.drafts.expected;
}

bool drafting_propose(struct engine *e) {
    int32_t n = 0;
    for (int32_t i = 0; i < e->n_running; i++)
        if (propose(e, e->running[i])) e->asking[n++] = e->running[i];
    if (n > 0 && !mtp_drafts_propose(e, n)) return false;
    if (e->has_mtp) mtp_drafts_make_room(e);
    return true;
}

void drafting_learn(struct engine *e) { (void)e; }
