// Which tokens a request's grammar lets come next: its masks, one a row of a window, each a function of the tokens
// before it. Only the engine's thread steps them, so nothing here waits or allocates once a request is submitted.
#include "engine/internal.h"
#include <stdlib.h>
#include <string.h>

struct request_mask {
    struct masker *masker;
    int32_t n_words;
    uint32_t *words;
    struct grammar_state state; // behind the tokens taken so far
    struct grammar_state path;  // behind those and drafts
};

enum status request_mask_open(struct request *r, struct masker *masker, struct error *error) {
    int32_t n_words = (r->engine->n_vocab + 31) / 32;
    struct request_mask *mask = malloc(sizeof *mask);
    uint32_t *words = malloc((size_t)n_words * sizeof *words);
    if (mask == NULL || words == NULL) {
        free(mask);
        free(words);
        return error_memory(error);
    }
    mask->masker = masker;
    mask->n_words = n_words;
    mask->words = words;
    masker_start(masker, &mask->state);
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
    masker_fill(mask->masker, &mask->state, mask->words, mask->n_words);
    return mask->words;
}

void request_mask_take(struct request *r, int32_t id) {
    if (r->mask != NULL) masker_take(r->mask->masker, &r->mask->state, id);
}

void request_mask_path_start(struct request *r) {
    if (r->mask != NULL) r->mask->path = r->mask->state;
}

const uint32_t *request_mask_path_allowed(struct request *r) {
    struct request_mask *mask = r->mask;
    if (mask == NULL) return r->engine->allowed;
    masker_fill(mask->masker, &mask->path, mask->words, mask->n_words);
    return mask->words;
}

bool request_mask_path_may(const struct request *r, int32_t id) {
    if (r->mask == NULL) return true;
    struct grammar_state next = r->mask->path;
    return masker_take(r->mask->masker, &next, id);
}

bool request_mask_path_take(struct request *r, int32_t id) {
    return r->mask == NULL || masker_take(r->mask->masker, &r->mask->path, id);
}
