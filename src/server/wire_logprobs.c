// Log probabilities in both shapes. `bytes` are a token's own bytes: those of all tokens joined are the text, also
// where a character is spread over several.
#include "server/wire.h"
#include "format/unicode.h"
#include <inttypes.h>
#include <string.h>

#define TOKEN_BYTES_MAX 4096 // of one token; longer ones are cut in the text form

// A token as text: bytes that are not UTF-8 by themselves become U+FFFD.
static void write_token(struct buffer *b, const char *bytes, size_t n) {
    char text[UTF8_DECODED_MAX(TOKEN_BYTES_MAX) + 3];
    struct utf8_decoder decoder = {0};
    size_t used = utf8_decoder_feed(&decoder, bytes, n < TOKEN_BYTES_MAX ? n : TOKEN_BYTES_MAX, text);
    used += utf8_decoder_finish(&decoder, text + used);
    wire_write_text(b, text, used);
}

// A log probability as JSON, which has no infinity: what cannot occur is as unlikely as a double of this size says.
static void write_logprob(struct buffer *b, float logprob) {
    json_write_real(b, logprob > -9999 ? (double)logprob : -9999.0);
}

static const char *bytes_of(const struct generation *g, int32_t id, size_t *n) {
    const struct tokenizer *t = g->service->info->tokenizer;
    *n = 0;
    const char *bytes = t != NULL && id >= 0 ? tokenizer_id_bytes(t, id, n) : NULL;
    return bytes != NULL ? bytes : "";
}

static const struct draw_top *tops_of(const struct generation *g, int32_t i) {
    return request_tops(g->request) + (size_t)i * (size_t)g->n_top;
}

// ---- chat ----

static void write_entry(struct buffer *b, const struct generation *g, int32_t id, float logprob) {
    size_t n;
    const char *bytes = bytes_of(g, id, &n);
    buffer_append_text(b, "{\"token\":");
    write_token(b, bytes, n);
    buffer_append_text(b, ",\"logprob\":");
    write_logprob(b, logprob);
    buffer_append_text(b, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++) buffer_printf(b, "%s%u", i > 0 ? "," : "", (unsigned char)bytes[i]);
    buffer_append_text(b, "]");
}

static void write_chat(struct buffer *b, const struct generation *g, int32_t first, int32_t last) {
    buffer_append_text(b, "{\"content\":[");
    for (int32_t i = first; i < last; i++) {
        const struct request_token *token = generation_token(g, i);
        if (i > first) buffer_append_text(b, ",");
        write_entry(b, g, token->id, token->logprob);
        buffer_append_text(b, ",\"top_logprobs\":[");
        for (int32_t k = 0; k < g->n_top && tops_of(g, i)[k].id >= 0; k++) {
            if (k > 0) buffer_append_text(b, ",");
            write_entry(b, g, tops_of(g, i)[k].id, tops_of(g, i)[k].logprob);
            buffer_append_text(b, "}");
        }
        buffer_append_text(b, "]}");
    }
    buffer_append_text(b, "]}");
}

// ---- completions ----

// A token as a key: no two tokens may have the same, so one that is not UTF-8 by itself is written byte by byte.
static void write_key(struct buffer *b, const char *bytes, size_t n) {
    if (unicode_valid(bytes, n)) {
        wire_write_text(b, bytes, n);
        return;
    }
    buffer_append_text(b, "\"bytes:");
    for (size_t i = 0; i < n; i++) buffer_printf(b, "\\\\x%02x", (unsigned char)bytes[i]);
    buffer_append_text(b, "\"");
}

static void write_id_key(struct buffer *b, const struct generation *g, int32_t id) {
    size_t n;
    const char *bytes = bytes_of(g, id, &n);
    write_key(b, bytes, n);
}

static void write_top_object(struct buffer *b, const struct generation *g, int32_t i) {
    buffer_append_text(b, "{");
    for (int32_t k = 0; k < g->n_top && tops_of(g, i)[k].id >= 0; k++) {
        if (k > 0) buffer_append_text(b, ",");
        write_id_key(b, g, tops_of(g, i)[k].id);
        buffer_append_text(b, ":");
        write_logprob(b, tops_of(g, i)[k].logprob);
    }
    buffer_append_text(b, "}");
}

static void write_legacy(struct buffer *b, const struct generation *g, int32_t first, int32_t last) {
    buffer_append_text(b, "{\"tokens\":[");
    for (int32_t i = first; i < last; i++) {
        if (i > first) buffer_append_text(b, ",");
        write_id_key(b, g, generation_token(g, i)->id);
    }
    buffer_append_text(b, "],\"token_logprobs\":[");
    for (int32_t i = first; i < last; i++) {
        if (i > first) buffer_append_text(b, ",");
        write_logprob(b, generation_token(g, i)->logprob);
    }
    buffer_append_text(b, "],\"top_logprobs\":");
    if (g->n_top > 0) {
        buffer_append_text(b, "[");
        for (int32_t i = first; i < last; i++) {
            if (i > first) buffer_append_text(b, ",");
            write_top_object(b, g, i);
        }
        buffer_append_text(b, "]");
    } else {
        buffer_append_text(b, "null");
    }
    buffer_append_text(b, ",\"text_offset\":[");
    for (int32_t i = first; i < last; i++)
        buffer_printf(b, "%s%zu", i > first ? "," : "", reply_token_place(g->reply, i));
    buffer_append_text(b, "]}");
}

void wire_write_logprobs(struct buffer *b, const struct generation *g, int32_t first, int32_t last) {
    buffer_append_text(b, ",\"logprobs\":");
    if (g->n_top < 0 || first >= last) {
        buffer_append_text(b, "null");
    } else if (g->route == ROUTE_CHAT) {
        write_chat(b, g, first, last);
    } else {
        write_legacy(b, g, first, last);
    }
}
