// What a reply cost, and the ids themselves.
#include "server/wire.h"
#include <inttypes.h>
#include <openssl/evp.h>

void wire_write_usage(struct buffer *b, const struct generation *g) {
    int32_t n = generation_count_ids(g);
    buffer_printf(b,
                  "{\"prompt_tokens\":%" PRId32 ",\"completion_tokens\":%" PRId32 ",\"total_tokens\":%" PRId64
                  ",\"prompt_tokens_details\":{\"cached_tokens\":%" PRId32 "}"
                  ",\"completion_tokens_details\":{\"reasoning_tokens\":%" PRId32 "}}",
                  g->n_prompt, n, (int64_t)g->n_prompt + n, g->view.n_cached, g->totals.n_reasoning);
}

static void write_milliseconds(struct buffer *b, const char *name, int64_t ns) {
    buffer_printf(b, ",\"%s\":", name);
    json_write_real(b, (double)(ns / 1000) / 1000.0);
}

// SHA-256 over the ids as 32-bit little-endian integers, which is what x86 holds in memory.
static void write_digest(struct buffer *b, const struct generation *g) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned n_digest = 0;
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    bool ok = context != NULL && EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1;
    for (int32_t i = 0, n = generation_count_ids(g); ok && i < n; i++) {
        uint32_t id = (uint32_t)generation_token(g, i)->id;
        unsigned char bytes[4] = {(unsigned char)id, (unsigned char)(id >> 8), (unsigned char)(id >> 16),
                                  (unsigned char)(id >> 24)};
        ok = EVP_DigestUpdate(context, bytes, sizeof bytes) == 1;
    }
    ok = ok && EVP_DigestFinal_ex(context, digest, &n_digest) == 1;
    EVP_MD_CTX_free(context);
    buffer_append_text(b, ok ? "\"" : "null");
    for (unsigned i = 0; ok && i < n_digest; i++) buffer_printf(b, "%02x", digest[i]);
    if (ok) buffer_append_text(b, "\"");
}

void wire_write_tokenfold(struct buffer *b, const struct generation *g) {
    const struct request_view *v = &g->view;
    buffer_append_text(b, "{\"token_sha256\":");
    write_digest(b, g);
    write_milliseconds(b, "queue_ms", v->queue_ns);
    write_milliseconds(b, "prompt_ms", v->prompt_ns);
    write_milliseconds(b, "decode_ms", v->decode_ns);
    buffer_printf(
        b, ",\"rounds\":%" PRId32 ",\"drafted\":%" PRId32 ",\"accepted\":%" PRId32 ",\"resumed_position\":%" PRId32 "}",
        v->n_rounds, v->n_drafted, v->n_accepted, v->n_cached);
}

void wire_write_ids(struct buffer *b, const struct generation *g, int32_t first, int32_t last) {
    buffer_append_text(b, "[");
    for (int32_t i = first; i < last; i++)
        buffer_printf(b, "%s%" PRId32, i > first ? "," : "", generation_token(g, i)->id);
    buffer_append_text(b, "]");
}

void wire_write_prompt_ids(struct buffer *b, const struct generation *g) {
    buffer_append_text(b, "[");
    for (int32_t i = 0; i < g->n_prompt; i++) buffer_printf(b, "%s%" PRId32, i > 0 ? "," : "", g->prompt[i]);
    buffer_append_text(b, "]");
}
