// What a reply cost, and the ids themselves.
#include "engine/digest.h"
#include "server/wire.h"
#include <inttypes.h>

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

void wire_write_tokenfold(struct buffer *b, const struct generation *g) {
    const struct request_view *v = &g->view;
    char digest[DIGEST_BYTES];
    bool ok = digest_tokens(request_tokens(g->request), generation_count_ids(g), digest);
    const char *quote = ok ? "\"" : "";
    buffer_printf(b, "{\"request\":%" PRId64 ",\"token_sha256\":%s%s%s", request_number(g->request), quote,
                  ok ? digest : "null", quote);
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
