#include "server/wire_blocks.h"
#include "server/wire.h"
#include <stdlib.h>

static struct wire_block *append(struct wire_blocks *w, const struct delta *d) {
    struct wire_block *grown = realloc(w->list, (w->n + 1) * sizeof *grown);
    if (grown == NULL) return NULL;
    w->list = grown;
    struct wire_block *block = &w->list[w->n++];
    *block = (struct wire_block){.kind = d->kind, .call = d->call};
    buffer_init(&block->name, 0);
    buffer_init(&block->text, 0);
    return block;
}

bool wire_blocks_begins(const struct wire_blocks *w, const struct delta *d) {
    if (d->kind == DELTA_ARGUMENTS) return false;
    return w->n == 0 || d->kind == DELTA_CALL || w->list[w->n - 1].kind != d->kind;
}

bool wire_blocks_add(struct wire_blocks *w, const struct delta *d) {
    struct wire_block *block = w->n > 0 ? &w->list[w->n - 1] : NULL;
    if (wire_blocks_begins(w, d)) block = append(w, d);
    if (d->kind == DELTA_ARGUMENTS && block != NULL && block->kind != DELTA_CALL) block = NULL; // memory was out before
    if (block != NULL && buffer_append(d->kind == DELTA_CALL ? &block->name : &block->text, d->text, d->n)) return true;
    w->failed = true;
    return false;
}

void wire_blocks_gather(struct wire_blocks *w, struct reply *r) {
    for (size_t i = 0, n = reply_count_deltas(r); i < n; i++) {
        struct delta d = reply_get_delta(r, i);
        if (d.n > 0) wire_blocks_add(w, &d);
    }
    reply_clear(r);
}

bool wire_blocks_have(const struct wire_blocks *w, enum delta_kind kind) {
    for (size_t i = 0; i < w->n; i++)
        if (w->list[i].kind == kind) return true;
    return false;
}

void wire_blocks_free(struct wire_blocks *w) {
    for (size_t i = 0; i < w->n; i++) {
        buffer_free(&w->list[i].name);
        buffer_free(&w->list[i].text);
    }
    free(w->list);
    *w = (struct wire_blocks){0};
}

// ---- what the formats share ----

const struct wire *wire_of(enum route_id route) {
    if (route == ROUTE_MESSAGES) return &wire_messages;
    return route == ROUTE_RESPONSES ? &wire_responses : &wire_openai;
}

void wire_write_text(struct buffer *b, const char *text, size_t n) { json_write_string(b, n > 0 ? text : "", n); }
