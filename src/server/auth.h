// Owns the API keys: only their SHA-256 digests are kept, and every comparison looks at all of them in the same time.
// Immutable after creation; any thread.
#ifndef TF_SERVER_AUTH_H
#define TF_SERVER_AUTH_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AUTH_KEYS_MAX 1024

struct auth;

// file (or NULL) holds keys, one a line; empty lines and lines that start with '#' are left out. Refused are empty
// keys, keys with blanks or control characters, a file without keys, and one that its group or others may read.
enum status auth_create(const char *const *keys, size_t n_keys, const char *file, struct auth **out, struct error *e);
void auth_free(struct auth *a); // NULL is fine

bool auth_is_open(const struct auth *a); // there are no keys: everybody may ask
// header: the value of Authorization ("Bearer KEY"), or NULL when there is none.
bool auth_allows(const struct auth *a, const char *header);
bool auth_allows_key(const struct auth *a, const char *key); // the key alone; NULL is none
// A number for whichever of the two is allowed, one of which must be; never 0 but when everybody may ask.
uint64_t auth_salt(const struct auth *a, const char *header, const char *key);

#endif
