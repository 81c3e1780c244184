// Which tokens a request's grammar lets come next: its masks, one a row of a window, each a function of the tokens
// before it. They are the engine thread's but while one is lent to the thread that makes masks. Nothing here waits or
// allocates once a request is submitted.
#include "engine/internal.h"
#include <stdlib.h>
#include <string.h>

#define SLICE_STEPS (1 << 16) // of one request's mask before the next one's turn

struct request_mask {
    struct masker *masker;
    int32_t n_words;
    uint32_t *words;            // [2][n_words]: the next token's, which drafts leave alone, and one along drafts
    bool is_filled;             // the first of them is there
    struct grammar_state state; // behind the tokens taken so far
    struct grammar_state path;  // behind those and drafts
    atomic_bool is_out;         // lent: nobody else touches masker and state
};

enum status request_mask_open(struct request *r, struct masker *masker, struct error *error) {
    int32_t n_words = (r->engine->n_vocab + 31) / 32;
    struct request_mask *mask = malloc(sizeof *mask);
    uint32_t *words = malloc(2 * (size_t)n_words * sizeof *words);
    if (mask == NULL || words == NULL) {
        free(mask);
        free(words);
        return error_memory(error);
    }
    mask->masker = masker;
    mask->n_words = n_words;
    mask->words = words;
    mask->is_filled = false;
    atomic_init(&mask->is_out, false);
    masker_start(masker, &mask->state);
    int64_t steps = INT64_MAX;
    masker_prepare(masker, &mask->state, &steps); // the first one is made by the thread that submits
    r->mask = mask;
    return STATUS_OK;
}

void request_mask_close(struct request *r) {
    if (r->mask == NULL) return;
    masker_free(r->mask->masker);
    free(r->mask->words);
    free(r->mask);
    r->mask = NULL;
}

const uint32_t *request_mask_allowed(struct request *r) {
    struct request_mask *mask = r->mask;
    if (mask == NULL) return r->engine->allowed;
    if (!mask->is_filled) masker_fill(mask->masker, &mask->state, mask->words, mask->n_words);
    mask->is_filled = true;
    return mask->words;
}

bool request_mask_prepare(struct request *r, int64_t *steps) {
    return r->mask == NULL || masker_prepare(r->mask->masker, &r->mask->state, steps);
}

bool request_mask_is_out(const struct request *r) { return atomic_load(&r->mask->is_out); }
void request_mask_lend(struct request *r) { atomic_store(&r->mask->is_out, true); }
void request_mask_return(struct request *r) { atomic_store(&r->mask->is_out, false); }

bool request_mask_make(struct request *r) {
    int64_t steps = SLICE_STEPS;
    return masker_prepare(r->mask->masker, &r->mask->state, &steps);
}

void request_mask_take(struct request *r, int32_t id) {
    if (r->mask == NULL) return;
    r->mask->is_filled = false;
    masker_take(r->mask->masker, &r->mask->state, id);
}

void request_mask_path_start(struct request *r) {
    if (r->mask == NULL) return;
    request_mask_allowed(r); // it is there, and the masks of drafts may take its place in the masker
    r->mask->path = r->mask->state;
}

const uint32_t *request_mask_path_allowed(struct request *r) {
    struct request_mask *mask = r->mask;
    if (mask == NULL) return r->engine->allowed;
    if (!masker_prepare(mask->masker, &mask->path, &r->engine->mask_steps)) return r->engine->allowed;
    masker_fill(mask->masker, &mask->path, mask->words + mask->n_words, mask->n_words);
    return mask->words + mask->n_words;
}

bool request_mask_path_may(const struct request *r, int32_t id) {
    if (r->mask == NULL) return true;
    struct grammar_state next = r->mask->path;
    return masker_take(r->mask->masker, &next, id);
}

bool request_mask_path_take(struct request *r, int32_t id) {
    return r->mask == NULL || masker_take(r->mask->masker, &r->mask->path, id);
}
