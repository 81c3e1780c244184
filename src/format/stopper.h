// Owns the search for stop strings in text that arrives in pieces: it holds back what may yet become a stop string, so
// that none is ever half-shown, and says where one was completed. Refuses empty and over-long stop strings and too many
// of them. Time is linear in the text. One thread at a time.
#ifndef TF_FORMAT_STOPPER_H
#define TF_FORMAT_STOPPER_H

#include "base/buffer.h"
#include "base/status.h"
#include "format/json.h"
#include <stdbool.h>
#include <stddef.h>

#define STOPPER_STRINGS_MAX 4   // as the OpenAI API has it
#define STOPPER_BYTES_MAX   256 // of one string

struct stopper;

// stop: null, a string, or an array of strings (both may be absent: a NULL value); null and [] match nothing. Errors:
// INVALID with the JSON pointer (an empty string, not a string), LIMIT (too many, too long), MEMORY.
enum status stopper_create(const struct json_view *stop, struct stopper **out, struct error *e);
void stopper_free(struct stopper *s); // NULL is fine
bool stopper_is_empty(const struct stopper *s);

// Takes the next piece and appends to `out` all text that can no longer be part of a stop string. Returns true when a
// stop string was completed in this piece: *used is then the number of bytes of the piece up to its last byte, what
// precedes the stop string has been appended, and nothing more may be fed. Of two completed by the same byte the longer
// counts. Otherwise *used is n. out->failed tells that memory was out.
bool stopper_feed(struct stopper *s, const char *text, size_t n, struct buffer *out, size_t *used);

// The stop string that was completed, of *n bytes, or NULL. Valid until the stopper is freed.
const char *stopper_get_found(const struct stopper *s, size_t *n);

// The reply ended without a stop string: appends what was held back.
void stopper_flush(struct stopper *s, struct buffer *out);

#endif
