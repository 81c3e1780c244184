// Owns a byte-pair vocabulary: pieces (byte strings with ids), the merges that build longer pieces from shorter ones,
// and the merging of a stretch of text. Part of the tokenizer; other layers use format/tokenizer.h.
// Filled by one thread; afterwards it never changes and any number of threads may encode with it.
#ifndef TF_FORMAT_BPE_H
#define TF_FORMAT_BPE_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bpe;
struct token_list;

// Room for ids 0..n_ids-1, n_pieces pieces of x_bytes bytes together, and n_merges merges. NULL when memory is out.
struct bpe *bpe_create(size_t n_ids, size_t n_pieces, size_t x_bytes, size_t n_merges);
void bpe_free(struct bpe *b); // NULL is fine

// Each returns false, changing nothing, when the piece is empty, the id is taken or a piece with these bytes exists ...
bool bpe_add_piece(struct bpe *b, int32_t id, const char *bytes, size_t n);
// ... when the pair has a merge already. The pieces must exist. Earlier merges come first when text is merged.
bool bpe_add_merge(struct bpe *b, int32_t left, int32_t right, int32_t merged);
// The first byte value that has no piece, or -1. Encoding needs all 256.
int bpe_missing_byte(const struct bpe *b);
// With this on, text that is a piece as a whole becomes that piece, whatever the merges would make of it.
void bpe_set_ignore_merges(struct bpe *b, bool on);

int32_t bpe_find(const struct bpe *b, const char *bytes, size_t n); // -1: no such piece
size_t bpe_count_ids(const struct bpe *b);                          // as given to bpe_create
const char *bpe_bytes(const struct bpe *b, int32_t id, size_t *n);  // NULL, *n = 0: no such piece

// What one encoding thread needs besides the vocabulary; zero-initialised it is empty. It grows with the longest text.
struct bpe_scratch {
    struct bpe_symbol *symbols;
    uint64_t *heap;
    size_t capacity;
};
void bpe_scratch_free(struct bpe_scratch *s);

// Appends the ids of bytes[0..n), n < 2^31, in O(n log n) time. Errors: MEMORY, or LIMIT from token_list_push.
enum status bpe_encode(const struct bpe *b, const char *bytes, size_t n, struct bpe_scratch *s, struct token_list *list,
                       struct error *e);

// Appends one id within list->limit (format/tokenizer.h).
enum status token_list_push(struct token_list *list, int32_t id, struct error *e);

#endif
