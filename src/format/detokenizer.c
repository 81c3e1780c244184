#include "format/detokenizer.h"

#include "base/buffer.h"
#include "format/tokenizer.h"
#include "format/unicode.h"
#include <stdlib.h>

struct detokenizer {
    const struct tokenizer *t;
    struct utf8_decoder decoder;
    bool skip_special;
    char text[]; // room for what the longest token can give
};

struct detokenizer *detokenizer_create(const struct tokenizer *t, bool skip_special) {
    struct detokenizer *d = malloc(sizeof *d + UTF8_DECODED_MAX(tokenizer_id_bytes_max(t)));
    if (!d) return NULL;
    d->t = t;
    d->skip_special = skip_special;
    detokenizer_reset(d);
    return d;
}

void detokenizer_free(struct detokenizer *d) { free(d); }

void detokenizer_reset(struct detokenizer *d) { d->decoder = (struct utf8_decoder){0}; }

const char *detokenizer_feed(struct detokenizer *d, int32_t id, size_t *n) {
    size_t n_bytes = 0;
    const char *bytes = NULL;
    if (!d->skip_special || !tokenizer_is_special(d->t, id)) bytes = tokenizer_id_bytes(d->t, id, &n_bytes);
    *n = bytes ? utf8_decoder_feed(&d->decoder, bytes, n_bytes, d->text) : 0;
    return d->text;
}

const char *detokenizer_finish(struct detokenizer *d, size_t *n) {
    *n = utf8_decoder_finish(&d->decoder, d->text);
    return d->text;
}

enum status detokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n_ids, bool skip_special,
                               char **text, size_t *n, struct error *e) {
    struct detokenizer *d = detokenizer_create(t, skip_special);
    if (!d) return error_memory(e);
    struct buffer b;
    buffer_init(&b, 0);
    size_t n_part;
    for (size_t i = 0; i < n_ids; i++) {
        const char *part = detokenizer_feed(d, ids[i], &n_part);
        buffer_append(&b, part, n_part);
    }
    const char *rest = detokenizer_finish(d, &n_part);
    buffer_append(&b, rest, n_part);
    detokenizer_free(d);
    char *whole = buffer_take(&b, n);
    buffer_free(&b);
    if (!whole) return error_memory(e);
    *text = whole;
    return STATUS_OK;
}
