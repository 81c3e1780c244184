// Owns token ids -> text, one id at a time: what comes out is always valid UTF-8, and all of it joined is what decoding
// the whole list at once gives. Ids that have no token (holes, padding rows of the model) have no text. One detokenizer
// belongs to one reply and one thread at a time; the tokenizer must outlive it.
#ifndef TF_FORMAT_DETOKENIZER_H
#define TF_FORMAT_DETOKENIZER_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct tokenizer;
struct detokenizer;

// skip_special leaves out the text of special tokens; added tokens that are not special (<think>, <tool_call>) show.
// NULL when memory is out. Nothing below allocates.
struct detokenizer *detokenizer_create(const struct tokenizer *t, bool skip_special);
void detokenizer_free(struct detokenizer *d);  // NULL is fine
void detokenizer_reset(struct detokenizer *d); // as just created

// Takes one id and returns the text that became complete, *n bytes (often none), not NUL-terminated, valid until the
// next call. An incomplete character (at most 3 bytes) is held back; what can no longer become one is U+FFFD.
const char *detokenizer_feed(struct detokenizer *d, int32_t id, size_t *n);
// There are no more ids: returns U+FFFD if a character was left incomplete, else nothing, and starts anew.
const char *detokenizer_finish(struct detokenizer *d, size_t *n);

// All ids at once: malloc'd, NUL-terminated text of *n bytes. Errors: MEMORY.
enum status detokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n_ids, bool skip_special,
                               char **text, size_t *n, struct error *e);

#endif
