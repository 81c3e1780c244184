#include "engine/digest.h"
#include <openssl/evp.h>
#include <stdio.h>

bool digest_tokens(const struct request_token *tokens, int32_t n, char hex[DIGEST_BYTES]) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n_digest = 0;
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool ok = context != NULL && EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1;
    for (int32_t i = 0; ok && i < n; i++) {
        uint32_t id = (uint32_t)tokens[i].id;
        unsigned char bytes[4] = {(unsigned char)id, (unsigned char)(id >> 8), (unsigned char)(id >> 16),
                                  (unsigned char)(id >> 24)};
        ok = EVP_DigestUpdate(context, bytes, sizeof bytes) == 1;
    }
    ok = ok && EVP_DigestFinal_ex(context, digest, &n_digest) == 1;
    EVP_MD_CTX_free(context);
    hex[0] = 0;
    for (unsigned i = 0; ok && i < n_digest; i++) snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    return ok;
}
