// Choosing drafts: from the last token on, each row's candidate that the target would draw if its logits were the
// drafter's scores, given the one chosen before.
#include "model/drafter_internal.h"

#include "base/numeric.h"
#include "base/random.h"
#include <math.h>
#include <string.h>

struct candidate {
    int32_t id;
    double score; // of the drafter: a logarithm of a probability, not normalised
    double s;     // what the draw compares: score with the request's bias and penalties, over the temperature
};

static const void *codebook_row(const struct weight *w, int32_t id) {
    return (const char *)w->data + (size_t)id * weight_row_bytes(w);
}

static void read_codebook(const struct weight *w, int32_t id, float *out) {
    const void *row = codebook_row(w, id);
    int32_t n = (int32_t)w->n_in;
    if (w->dtype == DTYPE_F32)
        memcpy(out, row, (size_t)n * sizeof *out);
    else if (w->dtype == DTYPE_BF16)
        for (int32_t i = 0; i < n; i++) out[i] = bf16_to_float(((const uint16_t *)row)[i]);
    else
        for (int32_t i = 0; i < n; i++) out[i] = f16_to_float(((const uint16_t *)row)[i]);
}

#define LINE_BYTES 64 // of a processor's caches

// The codebooks are far larger than caches, and which rows are read is known at once: all of them are asked for at the
// beginning, and come side by side.
static void call_for_rows(const struct drafter *d, const struct draw_result *results, int32_t n) {
    const struct weight *w = &d->weights.successor;
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 0; k < results[i].n_top; k++) {
            const char *row = codebook_row(w, results[i].top[k].id);
            for (size_t at = 0; at < weight_row_bytes(w); at += LINE_BYTES) __builtin_prefetch(row + at);
        }
}

// How a row that sees `edges` looks at what follows `before`.
static void open_edges(const struct drafter *d, int32_t before, const float *edges, float *out) {
    read_codebook(&d->weights.predecessor, before, out);
    for (int32_t r = 0; r < d->config.rank; r++) out[r] *= edges[r];
}

// What the selector adds if `id` follows. Eight sums side by side, since one would be a chain.
static double edge(const struct drafter *d, const float *opened, int32_t id) {
    float successor[DRAFTER_MAX_RANK], sums[8] = {0};
    int32_t rank = d->config.rank, whole = rank / 8 * 8;
    read_codebook(&d->weights.successor, id, successor);
    for (int32_t r = 0; r < whole; r += 8)
        for (int32_t k = 0; k < 8; k++) sums[k] += opened[r + k] * successor[r + k];
    for (int32_t r = whole; r < rank; r++) sums[r - whole] += opened[r] * successor[r];
    double sum = 0;
    for (int32_t k = 0; k < 8; k++) sum += (double)sums[k];
    return sum;
}

// How often the reply has an id, drafts so far included, and whether the prompt or the reply has it at all.
static bool is_seen(const struct drafter_ask *ask, int32_t n_before, int32_t id, int32_t *n_reply) {
    const struct draw_params *p = ask->draw;
    bool seen = false;
    *n_reply = 0;
    for (int32_t i = 0; i < p->n_seen && !seen; i++) {
        if (p->seen[i].id != id) continue;
        *n_reply = p->seen[i].n_reply;
        seen = true;
    }
    for (int32_t i = 0; i < n_before; i++) *n_reply += ask->ids[i] == id;
    return seen || *n_reply > 0;
}

// The score with the steps 1 to 3 of a draw (ops/draw.h). `shift` makes a logit of a score: repetition asks for its
// sign.
static double adjusted(const struct drafter_ask *ask, int32_t n_before, const struct candidate *c, double shift) {
    const struct draw_params *p = ask->draw;
    double l = c->score;
    int32_t n_reply;
    for (int32_t i = 0; i < p->n_bias; i++)
        if (p->bias[i].id == c->id) l += (double)p->bias[i].bias;
    if (p->n_seen == 0 || (p->repetition == 1 && p->presence == 0 && p->frequency == 0)) return l;
    if (!is_seen(ask, n_before, c->id, &n_reply)) return l;
    if (p->repetition != 1) {
        double logit = l + shift;
        l = (logit > 0 ? logit / p->repetition : logit * p->repetition) - shift;
    }
    return n_reply > 0 ? l - p->frequency * n_reply - p->presence : l;
}

// Falling by s; what is equal keeps its order, which is that of the logits.
static void sort_candidates(struct candidate *c, int32_t n) {
    for (int32_t i = 1; i < n; i++) {
        struct candidate moved = c[i];
        int32_t to = i;
        for (; to > 0 && c[to - 1].s < moved.s; to--) c[to] = c[to - 1];
        c[to] = moved;
    }
}

// How many of the sorted candidates the request's top-k, top-p and min-p leave; mass is counted among candidates.
static int32_t count_left(const struct draw_params *p, const struct candidate *c, int32_t n) {
    if (p->top_k > 0 && p->top_k < n) n = p->top_k;
    if (p->top_p < 1) {
        double mass = 0, sum = 0;
        for (int32_t i = 0; i < n; i++) mass += exp(c[i].s - c[0].s);
        for (int32_t i = 0; i < n; i++) {
            sum += exp(c[i].s - c[0].s);
            if (sum >= p->top_p * mass) n = i + 1;
        }
    }
    while (p->min_p > 0 && n > 1 && c[n - 1].s < c[0].s + log(p->min_p)) n--;
    return n;
}

static double noise(const struct draw_params *p, int64_t position, int32_t id) {
    return -log(-log(random_unit(random_bits(p->seed, (uint64_t)position, (uint64_t)id))));
}

static const struct candidate *choose(const struct draw_params *p, int64_t position, struct candidate *c, int32_t n) {
    sort_candidates(c, n);
    if (!(p->temperature > 0)) return &c[0];
    const struct candidate *best = &c[0];
    double most = -INFINITY;
    n = count_left(p, c, n);
    for (int32_t i = 0; i < n; i++) {
        double value = c[i].s + noise(p, position, c[i].id);
        if (!(value > most)) continue;
        most = value;
        best = &c[i];
    }
    return best;
}

static double share_of(const struct candidate *chosen, const struct candidate *c, int32_t n) {
    double sum = 0;
    for (int32_t i = 0; i < n; i++) sum += exp(c[i].score - chosen->score);
    return 1 / sum;
}

static void tell_candidates(struct drafter_ask *ask, const struct draw_result *first) {
    ask->n_candidate = 0;
    for (int32_t k = 0; ask->candidates != NULL && k < first->n_top; k++)
        ask->candidates[ask->n_candidate++] = first->top[k].id;
}

void drafter_walk(const struct drafter *d, struct drafter_ask *ask, const struct draw_result *results,
                  const float *edges, const float *first_logits) {
    const struct draw_params *p = ask->draw;
    double temperature = p->temperature > 1e-30 ? p->temperature : 1; // 1 where nothing is drawn
    int32_t before = ask->last;
    tell_candidates(ask, &results[0]);
    if (d->config.has_selector) call_for_rows(d, results, ask->n_want);
    for (ask->n = 0; ask->n < ask->n_want; ask->n++, edges += d->config.rank) {
        const struct draw_result *r = &results[ask->n];
        struct candidate c[DRAW_MAX_TOP];
        float opened[DRAFTER_MAX_RANK];
        double shift = 0;
        int32_t n = 0;
        if (r->n_top > 0)
            shift = d->config.output_multiplier * ((double)first_logits[ask->n] - (double)r->top[0].logprob);
        if (d->config.has_selector) open_edges(d, before, edges, opened);
        for (int32_t k = 0; k < r->n_top; k++) {
            struct candidate one = {.id = r->top[k].id};
            if (ask->may_follow != NULL && !ask->may_follow(ask->context, one.id)) continue;
            one.score = d->config.output_multiplier * (double)r->top[k].logprob;
            if (d->config.has_selector) one.score += edge(d, opened, one.id);
            one.s = adjusted(ask, ask->n, &one, shift) / temperature;
            if (isfinite(one.s)) c[n++] = one;
        }
        if (n == 0) return;
        const struct candidate *best = choose(p, p->position + ask->n, c, n);
        ask->ids[ask->n] = before = best->id;
        ask->confidence[ask->n] = (float)share_of(best, c, n);
        if (ask->follow != NULL) ask->follow(ask->context, best->id);
    }
}
