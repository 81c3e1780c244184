#include "format/tokenizer.h"

#include "base/buffer.h"
#include "format/normalizer.h"
#include "format/tokenizer_internal.h"
#include "format/unicode.h"
#include <stdlib.h>
#include <string.h>

void tokenizer_free(struct tokenizer *t) {
    if (!t) return;
    bpe_free(t->bpe);
    pretokenizer_free(t->pretokenizer);
    added_tokens_free(&t->added);
    free(t);
}

// ---- the id space ----

int32_t tokenizer_count_ids(const struct tokenizer *t) { return t->n_ids; }

size_t tokenizer_id_bytes_max(const struct tokenizer *t) { return t->id_bytes_max; }

const char *tokenizer_id_bytes(const struct tokenizer *t, int32_t id, size_t *n) {
    const char *bytes = bpe_bytes(t->bpe, id, n);
    if (bytes) return bytes;
    const struct added_token *added = added_tokens_by_id(&t->added, id);
    if (!added) return NULL;
    *n = added->n;
    return added->text;
}

bool tokenizer_has_id(const struct tokenizer *t, int32_t id) {
    size_t n;
    return tokenizer_id_bytes(t, id, &n) != NULL;
}

bool tokenizer_is_added(const struct tokenizer *t, int32_t id) { return added_tokens_by_id(&t->added, id) != NULL; }

bool tokenizer_is_special(const struct tokenizer *t, int32_t id) {
    const struct added_token *added = added_tokens_by_id(&t->added, id);
    return added && added->special;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t n) {
    const struct added_token *added = added_tokens_by_text(&t->added, text, n);
    return added ? added->id : -1;
}

// ---- encoding ----
// Text is gathered in a segment until an added token, or the end, closes it. A segment is then normalised, cut and
// merged as a whole.

struct encoder {
    const struct tokenizer *t;
    struct token_list *list;
    struct buffer segment;
    struct pretokenizer_run *run;
    struct bpe_scratch scratch;
    struct error *e;
};

static enum status encode_text(struct encoder *c, const char *text, size_t n) {
    // A list too short for the text, were it all longest tokens, is full before the work is begun.
    size_t limit = c->list->limit;
    if (limit && n / c->t->id_bytes_max > limit - c->list->n)
        return error_set(c->e, STATUS_LIMIT, "the text has more than %zu tokens", limit);
    pretokenizer_begin(c->run, text, n);
    for (;;) {
        const char *piece;
        size_t n_piece;
        enum status status = pretokenizer_next(c->run, &piece, &n_piece, c->e);
        if (status == STATUS_OK && !piece) return STATUS_OK;
        if (status == STATUS_OK) status = bpe_encode(c->t->bpe, piece, n_piece, &c->scratch, c->list, c->e);
        if (status != STATUS_OK) return status;
    }
}

static bool is_ascii(const char *text, size_t n) {
    unsigned char all = 0;
    for (size_t i = 0; i < n; i++) all |= (unsigned char)text[i];
    return all < 0x80;
}

static enum status close_segment(struct encoder *c) {
    const struct buffer *s = &c->segment;
    enum status status;
    if (c->t->nfc && !is_ascii(s->data, s->n)) {
        char *text;
        size_t n;
        status = normalizer_nfc(s->data, s->n, &text, &n, c->e);
        if (status != STATUS_OK) return status;
        status = encode_text(c, text, n);
        free(text);
    } else {
        status = encode_text(c, s->data, s->n);
    }
    buffer_clear(&c->segment);
    return status;
}

static enum status add_text(struct encoder *c, const char *text, size_t n) {
    return buffer_append(&c->segment, text, n) ? STATUS_OK : error_memory(c->e);
}

// Adds trusted text: what lies between the tokens of m goes to add_rest, the tokens close the segment.
static enum status add_tokens(struct encoder *c, const struct added_matcher *m, const char *text, size_t n,
                              enum status (*add_rest)(struct encoder *c, const char *text, size_t n)) {
    size_t from = 0, at = 0;
    const struct added_token *found;
    enum status status = STATUS_OK;
    while (status == STATUS_OK && (found = added_matcher_search(m, text, n, from, &at)) != NULL) {
        status = add_rest(c, text + from, at - from);
        if (status == STATUS_OK) status = close_segment(c);
        if (status == STATUS_OK) status = token_list_push(c->list, found->id, c->e);
        from = at + found->n_match;
    }
    return status == STATUS_OK ? add_rest(c, text + from, n - from) : status;
}

// Adds trusted text in which the tokens that are searched before normalisation have been found. The others are searched
// in the span's own NFC. Normalising that again with its neighbours changes nothing that normalising once would not.
static enum status add_normalized(struct encoder *c, const char *text, size_t n) {
    if (c->t->added.normalized.n == 0) return add_text(c, text, n);
    if (!c->t->nfc || is_ascii(text, n)) return add_tokens(c, &c->t->added.normalized, text, n, add_text);
    char *nfc;
    size_t n_nfc;
    enum status status = normalizer_nfc(text, n, &nfc, &n_nfc, c->e);
    if (status != STATUS_OK) return status;
    status = add_tokens(c, &c->t->added.normalized, nfc, n_nfc, add_text);
    free(nfc);
    return status;
}

static enum status add_span(struct encoder *c, const struct text_span *span) {
    if (span->n == 0) return STATUS_OK;
    return span->trusted ? add_tokens(c, &c->t->added.raw, span->text, span->n, add_normalized)
                         : add_text(c, span->text, span->n);
}

static enum status check_spans(const struct text_span *spans, size_t n_spans, struct error *e) {
    size_t total = 0;
    for (size_t i = 0; i < n_spans; i++) {
        if (spans[i].n > TOKENIZER_TEXT_BYTES_MAX - total)
            return error_set(e, STATUS_LIMIT, "the text is longer than %zu bytes", TOKENIZER_TEXT_BYTES_MAX);
        size_t valid = unicode_valid_prefix(spans[i].text, spans[i].n);
        if (valid < spans[i].n) return error_set(e, STATUS_INVALID, "the text is not UTF-8 at byte %zu", total + valid);
        total += spans[i].n;
    }
    return STATUS_OK;
}

enum status tokenizer_append_spans(const struct tokenizer *t, const struct text_span *spans, size_t n_spans,
                                   struct token_list *list, struct error *e) {
    must(!list->limit || list->n <= list->limit);
    enum status status = check_spans(spans, n_spans, e);
    if (status != STATUS_OK) return status;
    struct encoder c = {.t = t, .list = list, .e = e, .run = pretokenizer_run_create(t->pretokenizer)};
    if (!c.run) return error_memory(e);
    buffer_init(&c.segment, 0);
    size_t n_before = list->n;
    for (size_t i = 0; i < n_spans && status == STATUS_OK; i++) status = add_span(&c, &spans[i]);
    if (status == STATUS_OK) status = close_segment(&c);
    if (status != STATUS_OK) list->n = n_before;
    buffer_free(&c.segment);
    bpe_scratch_free(&c.scratch);
    pretokenizer_run_free(c.run);
    return status;
}

enum status tokenizer_append(const struct tokenizer *t, const char *text, size_t n, bool parse_added,
                             struct token_list *list, struct error *e) {
    struct text_span span = {.text = text, .n = n, .trusted = parse_added};
    return tokenizer_append_spans(t, &span, 1, list, e);
}

enum status tokenizer_encode_spans(const struct tokenizer *t, const struct text_span *spans, size_t n_spans,
                                   int32_t **ids, size_t *n_ids, struct error *e) {
    struct token_list list = {0};
    enum status status = tokenizer_append_spans(t, spans, n_spans, &list, e);
    if (status == STATUS_OK && !list.ids && !(list.ids = malloc(sizeof *list.ids))) status = error_memory(e);
    if (status != STATUS_OK) {
        token_list_free(&list);
        return status;
    }
    *ids = list.ids;
    *n_ids = list.n;
    return STATUS_OK;
}

enum status tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, bool parse_added, int32_t **ids,
                             size_t *n_ids, struct error *e) {
    struct text_span span = {.text = text, .n = n, .trusted = parse_added};
    return tokenizer_encode_spans(t, &span, 1, ids, n_ids, e);
}
