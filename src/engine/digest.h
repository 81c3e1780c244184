// Owns the fingerprint of a reply, by which replies are compared without their ids. Any thread may call it.
#ifndef TF_ENGINE_DIGEST_H
#define TF_ENGINE_DIGEST_H

#include "engine/engine.h"

#define DIGEST_BYTES 65 // 64 hexadecimal digits and NUL

// SHA-256 over the ids of tokens[0..n) as 32-bit little-endian integers. False, and hex empty, when memory runs out.
bool digest_tokens(const struct request_token *tokens, int32_t n, char hex[DIGEST_BYTES]);

#endif
