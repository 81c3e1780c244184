// Owns UTF-8 and the few Unicode properties that the format layer needs: validation, code points, NFC, white space as
// Python sees it, and a decoder that turns any bytes into valid text. Pure functions; any thread.
#ifndef TF_FORMAT_UNICODE_H
#define TF_FORMAT_UNICODE_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Where text[0..n) stops being UTF-8 (no overlong forms, no surrogates, nothing above U+10FFFF); n when all of it is.
size_t unicode_valid_prefix(const char *text, size_t n);
bool unicode_valid(const char *text, size_t n);

// Reads the code point at text[*at] and moves *at past it. Needs *at < n and valid text.
uint32_t unicode_next(const char *text, size_t n, size_t *at);
// Reads the code point that ends at text[*at] and moves *at to its start. Needs *at > 0 and valid text.
uint32_t unicode_previous(const char *text, size_t *at);
// Writes cp (a scalar value) as 1 to 4 bytes; returns how many.
size_t unicode_write(uint32_t cp, char out[4]);
size_t unicode_count(const char *text, size_t n); // code points of valid text

// Python's str.isspace for one character: White_Space, and the separators U+001C..U+001F besides.
bool unicode_is_space(uint32_t cp);
// Python's str.strip(): moves *text and *n to the part without white space at either end. Needs valid text.
void unicode_strip(const char **text, size_t *n);

// NFC of valid text, malloc'd and NUL-terminated. `is_boundary` (or NULL) names code points to be copied as they are,
// across which nothing is reordered or composed. Time and memory are linear in n, also for long runs of marks.
// Errors: MEMORY; LIMIT above UNICODE_NFC_BYTES_MAX.
#define UNICODE_NFC_BYTES_MAX ((size_t)64 << 20)
enum status unicode_nfc(const char *text, size_t n, bool (*is_boundary)(uint32_t cp), char **out, size_t *n_out,
                        struct error *e);

// ---- bytes of any kind -> valid UTF-8, in pieces ----

// Replaces what is not UTF-8 by U+FFFD, one for each maximal part of a character that was cut off or went wrong (the
// Unicode standard's practice, and bytes.decode("utf-8", "replace") of Python). However the bytes are cut into pieces,
// the outputs joined are the same. Zero-initialised it is at a character's start.
struct utf8_decoder {
    unsigned char tail[4]; // the beginning of a character that may still be completed
    unsigned char n_tail;  // at most 3 between calls
};

// The most bytes that decoding n bytes can write, held-back tail included.
#define UTF8_DECODED_MAX(n) (3 * ((size_t)(n) + 3))

// Decodes n more bytes into out, which has room for UTF8_DECODED_MAX(n); returns the bytes written.
size_t utf8_decoder_feed(struct utf8_decoder *d, const char *bytes, size_t n, char *out);
// There is no more: writes U+FFFD (3 bytes) for a held-back tail, else nothing, and starts anew.
size_t utf8_decoder_finish(struct utf8_decoder *d, char out[3]);

#endif
