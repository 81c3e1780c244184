#include "server/reply.h"
#include "base/buffer.h"
#include "format/detokenizer.h"
#include "format/stopper.h"
#include <stdlib.h>

// Where an id's text lies in all text that was decoded, stop strings included.
struct place {
    size_t end; // bytes
    size_t first_character;
};

struct piece {
    enum delta_kind kind;
    size_t call, at, n; // text at `at` in the buffer
};

struct reply {
    struct detokenizer *detokenizer; // NULL: no text
    struct stopper *stopper;
    struct toolcall_parser *parser; // NULL: all is content

    struct buffer passed; // what the stopper let through last
    size_t n_passed;      // bytes, in all
    size_t n_decoded, n_characters;
    bool starts_in_think, has_reasoning, has_answer;

    struct buffer text; // of the pieces
    struct piece *pieces;
    size_t n_pieces, pieces_capacity;

    bool wants_places;
    struct place *places; // [n_fed]
    size_t places_capacity;
    struct reply_totals totals;
    bool ended;
};

// ---- pieces ----

static enum status add_piece(struct reply *r, enum delta_kind kind, size_t call, const char *text, size_t n) {
    struct piece *last = r->n_pieces > 0 ? &r->pieces[r->n_pieces - 1] : NULL;
    bool joins = last != NULL && last->kind == kind && last->call == call && kind != DELTA_CALL;
    if (!joins && r->n_pieces == r->pieces_capacity) {
        size_t capacity = r->pieces_capacity > 0 ? 2 * r->pieces_capacity : 8;
        struct piece *grown = realloc(r->pieces, capacity * sizeof *grown);
        if (grown == NULL) return STATUS_MEMORY;
        r->pieces = grown;
        r->pieces_capacity = capacity;
        last = r->n_pieces > 0 ? &r->pieces[r->n_pieces - 1] : NULL;
    }
    size_t at = r->text.n;
    if (n > 0 && !buffer_append(&r->text, text, n)) return STATUS_MEMORY;
    if (joins) {
        last->n += n;
    } else {
        r->pieces[r->n_pieces++] = (struct piece){.kind = kind, .call = call, .at = at, .n = n};
    }
    return STATUS_OK;
}

static enum status take_event(void *user, const struct toolcall_event *event) {
    struct reply *r = user;
    switch (event->kind) {
    case TOOLCALL_REASONING: r->has_reasoning = true; return add_piece(r, DELTA_REASONING, 0, event->text, event->n);
    case TOOLCALL_CONTENT: r->has_answer = true; return add_piece(r, DELTA_CONTENT, 0, event->text, event->n);
    case TOOLCALL_START:
        r->has_answer = true;
        r->totals.n_calls = event->index + 1;
        r->totals.truncated = true; // until its end says otherwise
        return add_piece(r, DELTA_CALL, event->index, event->text, event->n);
    case TOOLCALL_ARGUMENTS: return add_piece(r, DELTA_ARGUMENTS, event->index, event->text, event->n);
    case TOOLCALL_END: r->totals.truncated = event->truncated; return STATUS_OK;
    case TOOLCALL_STOP: r->ended = true; return STATUS_OK;
    }
    return STATUS_OK;
}

size_t reply_count_deltas(const struct reply *r) { return r->n_pieces; }

struct delta reply_get_delta(const struct reply *r, size_t i) {
    const struct piece *p = &r->pieces[i];
    return (struct delta){.kind = p->kind, .call = p->call, .text = p->n > 0 ? r->text.data + p->at : "", .n = p->n};
}

void reply_clear(struct reply *r) {
    r->n_pieces = 0;
    buffer_clear(&r->text);
}

// ---- life ----

enum status reply_create(const struct reply_options *options, struct reply **out, struct error *e) {
    struct reply *r = calloc(1, sizeof *r);
    if (r == NULL) return error_memory(e);
    buffer_init(&r->passed, 0);
    buffer_init(&r->text, 0);
    r->wants_places = options->places;
    const struct json_view none = {0};
    enum status status = STATUS_OK;
    if (options->tokenizer != NULL) {
        r->detokenizer = detokenizer_create(options->tokenizer, true);
        status = r->detokenizer != NULL ? stopper_create(options->stop != NULL ? options->stop : &none, &r->stopper, e)
                                        : error_memory(e);
    }
    if (status == STATUS_OK && options->parser != NULL) {
        r->starts_in_think = options->parser->starts_in_think;
        status = toolcall_parser_create(options->parser, take_event, r, &r->parser, e);
    }
    if (status != STATUS_OK) {
        reply_free(r);
        return status;
    }
    *out = r;
    return STATUS_OK;
}

void reply_free(struct reply *r) {
    if (r == NULL) return;
    toolcall_parser_free(r->parser);
    stopper_free(r->stopper);
    detokenizer_free(r->detokenizer);
    buffer_free(&r->passed);
    buffer_free(&r->text);
    free(r->pieces);
    free(r->places);
    free(r);
}

// ---- feeding ----

static enum status pass_on(struct reply *r) {
    if (r->passed.failed) return STATUS_MEMORY;
    size_t n = r->passed.n;
    r->n_passed += n;
    if (n == 0) return STATUS_OK;
    if (r->parser != NULL) return toolcall_parser_feed(r->parser, r->passed.data, n);
    r->has_answer = true;
    return add_piece(r, DELTA_CONTENT, 0, r->passed.data, n);
}

static enum status add_place(struct reply *r, size_t end, size_t first_character) {
    if (!r->wants_places) return STATUS_OK;
    size_t n = (size_t)r->totals.n_fed;
    if (n == r->places_capacity) {
        size_t capacity = n > 0 ? 2 * n : 256;
        struct place *grown = realloc(r->places, capacity * sizeof *grown);
        if (grown == NULL) return STATUS_MEMORY;
        r->places = grown;
        r->places_capacity = capacity;
    }
    r->places[n] = (struct place){.end = end, .first_character = first_character};
    return STATUS_OK;
}

static size_t count_characters(const char *text, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += (text[i] & 0xc0) != 0x80;
    return count;
}

static void update_shown(struct reply *r) {
    struct reply_totals *t = &r->totals;
    if (!r->wants_places) return;
    while (t->n_shown < t->n_fed && r->places[t->n_shown].end <= r->n_passed) t->n_shown++;
}

static enum status take_text(struct reply *r, const char *text, size_t n) {
    size_t used = 0;
    r->n_decoded += n;
    r->n_characters += count_characters(text, n);
    buffer_clear(&r->passed);
    if (n > 0 && stopper_feed(r->stopper, text, n, &r->passed, &used)) r->totals.stopped = r->ended = true;
    return pass_on(r);
}

enum status reply_feed(struct reply *r, int32_t id, bool *ended) {
    must(!r->ended);
    size_t first = r->n_characters, n = 0;
    const char *text = r->detokenizer != NULL ? detokenizer_feed(r->detokenizer, id, &n) : "";
    enum status status = add_place(r, r->n_decoded + n, first);
    if (status != STATUS_OK) return status;
    r->totals.n_fed++;
    if (r->stopper != NULL) status = take_text(r, text, n);
    if (!r->has_answer) r->totals.n_reasoning++;
    update_shown(r);
    if (status == STATUS_OK) *ended = r->ended;
    return status;
}

// After a stop string, ids whose text lies wholly in it or behind it are not shown; an id that reaches into it is.
static void finish_shown(struct reply *r) {
    struct reply_totals *t = &r->totals;
    if (!t->stopped || !r->wants_places) {
        t->n_shown = t->n_fed;
        return;
    }
    while (t->n_shown < t->n_fed && (t->n_shown == 0 ? 0 : r->places[t->n_shown - 1].end) < r->n_passed) t->n_shown++;
}

enum status reply_finish(struct reply *r) {
    enum status status = STATUS_OK;
    if (r->detokenizer != NULL && !r->ended) {
        size_t n;
        const char *text = detokenizer_finish(r->detokenizer, &n);
        status = take_text(r, text, n);
        if (status == STATUS_OK && !r->ended) {
            buffer_clear(&r->passed);
            stopper_flush(r->stopper, &r->passed);
            status = pass_on(r);
        }
    }
    if (status == STATUS_OK && r->parser != NULL) status = toolcall_parser_finish(r->parser);
    r->ended = true;
    finish_shown(r);
    if (!r->starts_in_think && !r->has_reasoning) r->totals.n_reasoning = 0;
    return status;
}

struct reply_totals reply_get_totals(const struct reply *r) {
    return r->totals;
}

const char *reply_get_stop(const struct reply *r, size_t *n) {
    return r->stopper != NULL ? stopper_get_found(r->stopper, n) : NULL;
}

size_t reply_token_place(const struct reply *r, int32_t i) { return r->places[i].first_character; }
