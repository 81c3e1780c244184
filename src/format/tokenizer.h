// Owns text -> token ids: byte-level BPE read from a checkpoint's tokenizer.json, with added tokens.
// Refuses at load, naming the JSON pointer, whatever would make ids differ from what the file means: other models,
// normalisers, pre-tokenisers and decoders than those of byte-level BPE, and pattern syntax that PCRE2 and Oniguruma
// read differently. Refuses text that is not UTF-8. A loaded tokenizer never changes: any number of threads may use it.
#ifndef TF_FORMAT_TOKENIZER_H
#define TF_FORMAT_TOKENIZER_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TOKENIZER_FILE_BYTES_MAX ((size_t)64 << 20) // tokenizer.json; that of Qwen 3.5 has some 13 MB
#define TOKENIZER_ID_MAX         ((1 << 24) - 1)
#define TOKENIZER_TEXT_BYTES_MAX ((size_t)64 << 20) // of all spans of one call together

struct tokenizer;

// Reads tokenizer.json. Tokens under added_tokens_decoder of tokenizer_config.json (config_path, or NULL) that
// tokenizer.json lacks are added; where both have a token, tokenizer.json counts. Sentences start with the path.
// Errors: INVALID (malformed or contradictory), UNSUPPORTED (another kind of tokenizer), NOT_FOUND, IO, LIMIT, MEMORY.
enum status tokenizer_load(const char *path, const char *config_path, struct tokenizer **out, struct error *e);

// The same from memory; `name` and `config_name` stand for the paths in sentences. config may be NULL.
enum status tokenizer_load_memory(const char *name, const char *json, size_t n_json, const char *config_name,
                                  const char *config, size_t n_config, struct tokenizer **out, struct error *e);
void tokenizer_free(struct tokenizer *t); // NULL is fine

// ---- encoding ----

// Encodes text[0..n), which must be UTF-8 (NUL bytes are text). With parse_added, the text of an added token becomes
// that token; without, it becomes ordinary pieces, and no id of an added token can come out. *ids is malloc'd (never
// NULL on success, also for no ids). Errors: INVALID (not UTF-8), LIMIT (too long, or more pattern steps than a bound
// that grows with the text), MEMORY.
enum status tokenizer_encode(const struct tokenizer *t, const char *text, size_t n, bool parse_added, int32_t **ids,
                             size_t *n_ids, struct error *e);

// One stretch of a text put together from several authors. The template's own text is trusted; what users and tools
// wrote is not, so that a "<|im_end|>" typed by them never ends a turn.
struct text_span {
    const char *text; // UTF-8 by itself: a character may not cross spans
    size_t n;
    bool trusted;
};

// Encodes the concatenation of the spans. An added token is recognised only where it lies wholly in one trusted span,
// and it always splits the text there; everything between such tokens is normalised, split and merged as one string,
// whatever the spans' borders.
enum status tokenizer_encode_spans(const struct tokenizer *t, const struct text_span *spans, size_t n_spans,
                                   int32_t **ids, size_t *n_ids, struct error *e);

// A growing list of ids with a bound. Zero-initialised it is empty and unbounded.
struct token_list {
    int32_t *ids; // malloc'd
    size_t n, capacity;
    size_t limit; // ids the list may hold; 0: no bound
};

void token_list_free(struct token_list *list); // keeps the limit

// Append to the list. On failure the list holds what it held before. LIMIT when it would pass list->limit: the work
// stops there, so that a text of any length costs no more than the limit allows.
enum status tokenizer_append(const struct tokenizer *t, const char *text, size_t n, bool parse_added,
                             struct token_list *list, struct error *e);
enum status tokenizer_append_spans(const struct tokenizer *t, const struct text_span *spans, size_t n_spans,
                                   struct token_list *list, struct error *e);

// ---- the id space: 0 .. count - 1, in which holes are allowed ----

int32_t tokenizer_count_ids(const struct tokenizer *t);       // largest id + 1
bool tokenizer_has_id(const struct tokenizer *t, int32_t id); // false for holes and for any int outside the space

// The raw bytes of a token, often not UTF-8 by themselves; for an added token, its text. NULL and *n = 0 when there is
// no such token. The bytes belong to the tokenizer.
const char *tokenizer_id_bytes(const struct tokenizer *t, int32_t id, size_t *n);
size_t tokenizer_id_bytes_max(const struct tokenizer *t); // of the longest token

bool tokenizer_is_added(const struct tokenizer *t, int32_t id);
bool tokenizer_is_special(const struct tokenizer *t, int32_t id); // added, and left out of text shown to people

// The id of the added token with exactly this text, or -1.
int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t n);

#endif
