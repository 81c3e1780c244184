#include "server/auth.h"
#include "base/mapped_file.h"
#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#define KEY_FILE_BYTES_MAX ((size_t)1 << 20)
#define KEY_BYTES_MAX      4096

struct auth {
    size_t n;
    unsigned char digests[AUTH_KEYS_MAX][SHA256_DIGEST_LENGTH];
};

static bool is_usable(const char *key, size_t n) {
    if (n == 0 || n > KEY_BYTES_MAX) return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)key[i] <= 0x20 || (unsigned char)key[i] == 0x7f) return false;
    return true;
}

// The sentences never repeat a key.
static enum status add_key(struct auth *a, const char *key, size_t n, struct error *e) {
    if (!is_usable(key, n))
        return error_set(e, STATUS_INVALID, "an API key must have 1 to %d characters and no blanks", KEY_BYTES_MAX);
    if (a->n == AUTH_KEYS_MAX) return error_set(e, STATUS_LIMIT, "there are more than %d API keys", AUTH_KEYS_MAX);
    SHA256((const unsigned char *)key, n, a->digests[a->n++]);
    return STATUS_OK;
}

static enum status add_lines(struct auth *a, const char *text, size_t n, const char *path, struct error *e) {
    size_t before = a->n;
    for (size_t at = 0; at < n;) {
        const char *line = text + at, *end = memchr(line, '\n', n - at);
        size_t length = end != NULL ? (size_t)(end - line) : n - at;
        at += length + 1;
        if (length > 0 && line[length - 1] == '\r') length--;
        if (length == 0 || line[0] == '#') continue;
        enum status status = add_key(a, line, length, e);
        if (status != STATUS_OK) {
            error_prefix(e, "%s", path);
            return status;
        }
    }
    return a->n > before ? STATUS_OK : error_set(e, STATUS_INVALID, "%s holds no API key", path);
}

static enum status add_file(struct auth *a, const char *path, struct error *e) {
    struct stat info;
    if (stat(path, &info) != 0)
        return error_set(e, errno == ENOENT ? STATUS_NOT_FOUND : STATUS_IO, "%s: %s", path, strerror(errno));
    if (info.st_mode & (S_IRGRP | S_IWGRP | S_IROTH | S_IWOTH))
        return error_set(e, STATUS_INVALID, "%s can be read or written by others: chmod 600 it", path);
    char *text;
    size_t n;
    enum status status = file_read(path, KEY_FILE_BYTES_MAX, &text, &n, e);
    if (status != STATUS_OK) return status;
    status = add_lines(a, text, n, path, e);
    OPENSSL_cleanse(text, n);
    free(text);
    return status;
}

enum status auth_create(const char *const *keys, size_t n_keys, const char *file, struct auth **out, struct error *e) {
    struct auth *a = calloc(1, sizeof *a);
    if (a == NULL) return error_memory(e);
    enum status status = STATUS_OK;
    for (size_t i = 0; i < n_keys && status == STATUS_OK; i++) status = add_key(a, keys[i], strlen(keys[i]), e);
    if (status == STATUS_OK && file != NULL) status = add_file(a, file, e);
    if (status != STATUS_OK) {
        auth_free(a);
        return status;
    }
    *out = a;
    return STATUS_OK;
}

void auth_free(struct auth *a) { free(a); }

bool auth_is_open(const struct auth *a) { return a->n == 0; }

// The key in the value of an Authorization header; NULL: there is none.
static const char *bearer_key(const char *header) {
    static const char scheme[] = "Bearer ";
    if (header == NULL || strncasecmp(header, scheme, sizeof scheme - 1) != 0) return NULL;
    const char *key = header + sizeof scheme - 1;
    while (*key == ' ') key++;
    return key;
}

bool auth_allows_key(const struct auth *a, const char *key) {
    if (auth_is_open(a)) return true;
    if (key == NULL) return false;
    unsigned char digest[SHA256_DIGEST_LENGTH];
    SHA256((const unsigned char *)key, strlen(key), digest);
    unsigned found = 0;
    for (size_t i = 0; i < a->n; i++) found |= CRYPTO_memcmp(digest, a->digests[i], sizeof digest) == 0;
    return found != 0;
}

bool auth_allows(const struct auth *a, const char *header) { return auth_allows_key(a, bearer_key(header)); }

uint64_t auth_salt(const struct auth *a, const char *header, const char *key) {
    if (auth_is_open(a)) return 0;
    if (auth_allows(a, header)) key = bearer_key(header);
    must(key != NULL);
    unsigned char digest[SHA256_DIGEST_LENGTH];
    uint64_t salt = 0;
    SHA256((const unsigned char *)key, strlen(key), digest);
    memcpy(&salt, digest, sizeof salt);
    return salt != 0 ? salt : 1;
}
