// Owns the NFC that tokenizers apply to text before it is cut: that of the reference implementation (the Hugging Face
// tokenizers library), whose tables are of an older Unicode version than utf8proc's. Part of the tokenizer. Any thread.
#ifndef TF_FORMAT_NORMALIZER_H
#define TF_FORMAT_NORMALIZER_H

#include "base/status.h"
#include <stddef.h>

// NFC of valid UTF-8, malloc'd and NUL-terminated, in linear time. Errors: LIMIT, MEMORY.
enum status normalizer_nfc(const char *text, size_t n, char **out, size_t *n_out, struct error *e);

#endif
