// Owns the tokens that are recognised in text before anything else looks at it: their ids, texts and flags, and the
// search for them. Part of the tokenizer; other layers use format/tokenizer.h. Filled by one thread; after
// added_tokens_finish it never changes and any number of threads may search.
#ifndef TF_FORMAT_ADDED_TOKENS_H
#define TF_FORMAT_ADDED_TOKENS_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ADDED_TOKENS_MAX      65536
#define ADDED_TOKEN_BYTES_MAX 1024 // a search looks this far ahead at most, so it takes linear time

struct added_token {
    int32_t id;
    char *text; // what it stands for, and what is shown for it
    size_t n;
    char *match; // what is searched: text, or its NFC
    size_t n_match;
    bool special, normalized; // normalized: searched in text after normalisation, otherwise before
    size_t order;             // of adding
};

// The tokens of one kind, sorted by `match`, so that those beginning with the same bytes are neighbours.
struct added_matcher {
    const struct added_token **tokens;
    size_t n;
    bool first[256]; // bytes that some token begins with
};

struct added_tokens {
    struct added_token *tokens; // sorted by id after added_tokens_finish
    size_t n, capacity;
    const struct added_token **by_text;
    struct added_matcher raw, normalized;
};

void added_tokens_free(struct added_tokens *a); // a zero-initialised one is fine

// Copies the text. Errors: INVALID (empty, or not UTF-8), LIMIT, MEMORY.
enum status added_tokens_add(struct added_tokens *a, int32_t id, const char *text, size_t n, bool special,
                             bool normalized, struct error *e);
// Sorts. A token given twice, with the same id and text, counts once, as it was given first; otherwise one id or one
// text given twice is refused. `nfc`: text is normalised before `normalized` tokens are searched. Errors: INVALID,
// MEMORY.
enum status added_tokens_finish(struct added_tokens *a, bool nfc, struct error *e);

// After added_tokens_finish; NULL when there is none.
const struct added_token *added_tokens_by_id(const struct added_tokens *a, int32_t id);
const struct added_token *added_tokens_by_text(const struct added_tokens *a, const char *text, size_t n);

// The leftmost token in text[from..n), and of those that begin there the longest. *at is where it begins.
const struct added_token *added_matcher_search(const struct added_matcher *m, const char *text, size_t n, size_t from,
                                               size_t *at);

#endif
