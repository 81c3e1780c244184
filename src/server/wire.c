// Chat completions and completions, whole and streamed.
#include "server/wire.h"
#include <inttypes.h>
#include <string.h>

static bool is_chat(const struct generation *g) { return g->route == ROUTE_CHAT; }

// What every object of a reply starts with, up to its one choice.
static void write_head(struct buffer *b, const struct generation *g, bool chunk) {
    const char *name = g->service->options->name;
    const char *object = !is_chat(g) ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
    buffer_printf(b, "{\"id\":\"%s-%s\",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":",
                  is_chat(g) ? "chatcmpl" : "cmpl", g->nonce, object, g->created);
    wire_write_text(b, name, strlen(name));
    buffer_printf(b, ",\"system_fingerprint\":\"%s\"", g->service->fingerprint);
}

static void write_call_id(struct buffer *b, const struct generation *g, size_t call) {
    buffer_printf(b, "\"call_%s%zu\"", g->nonce, call);
}

// ---- streams ----

static void open_event(struct buffer *b, const struct generation *g) {
    buffer_append_text(b, "data: ");
    write_head(b, g, true);
}

static void close_event(struct buffer *b) { buffer_append_text(b, "}\n\n"); }

// Closes the one choice. Log probabilities and ids go with the first chunk that is written after they are known.
static void end_choice(struct buffer *b, const struct generation *g, struct wire_progress *p, const char *reason) {
    wire_write_logprobs(b, g, p->n_logprobs, g->totals.n_shown);
    if (g->totals.n_shown > p->n_logprobs) p->n_logprobs = g->totals.n_shown;
    if (g->return_token_ids) {
        buffer_append_text(b, ",\"token_ids\":");
        wire_write_ids(b, g, p->n_ids, generation_count_ids(g));
        p->n_ids = generation_count_ids(g);
    }
    if (reason != NULL) {
        buffer_printf(b, ",\"finish_reason\":\"%s\"}]", reason);
    } else {
        buffer_append_text(b, ",\"finish_reason\":null}]");
    }
}

static void write_no_usage(struct buffer *b, const struct generation *g) {
    if (g->include_usage) buffer_append_text(b, ",\"usage\":null");
}

static void write_opening(struct buffer *b, const struct generation *g, struct wire_progress *p) {
    (void)p;
    if (!is_chat(g) && !g->return_token_ids) { // nothing to say yet, but a first byte to send
        buffer_append_text(b, ": accepted\n\n");
        return;
    }
    open_event(b, g);
    buffer_printf(b, ",\"choices\":[{\"index\":0,%s,\"logprobs\":null,\"finish_reason\":null}]",
                  is_chat(g) ? "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}" : "\"text\":\"\"");
    if (g->return_token_ids) {
        buffer_append_text(b, ",\"prompt_token_ids\":");
        wire_write_prompt_ids(b, g);
    }
    write_no_usage(b, g);
    close_event(b);
}

static void write_delta(struct buffer *b, const struct generation *g, const struct delta *d) {
    if (!is_chat(g)) {
        buffer_append_text(b, "\"text\":");
        wire_write_text(b, d->text, d->n);
        return;
    }
    switch (d->kind) {
    case DELTA_REASONING:
    case DELTA_CONTENT:
        buffer_printf(b, "\"delta\":{\"%s\":", d->kind == DELTA_CONTENT ? "content" : "reasoning_content");
        wire_write_text(b, d->text, d->n);
        buffer_append_text(b, "}");
        return;
    case DELTA_CALL:
        buffer_printf(b, "\"delta\":{\"tool_calls\":[{\"index\":%zu,\"id\":", d->call);
        write_call_id(b, g, d->call);
        buffer_append_text(b, ",\"type\":\"function\",\"function\":{\"name\":");
        wire_write_text(b, d->text, d->n);
        buffer_append_text(b, ",\"arguments\":\"\"}}]}");
        return;
    case DELTA_ARGUMENTS:
        buffer_printf(b, "\"delta\":{\"tool_calls\":[{\"index\":%zu,\"function\":{\"arguments\":", d->call);
        wire_write_text(b, d->text, d->n);
        buffer_append_text(b, "}}]}");
        return;
    }
}

static void write_chunk(struct buffer *b, const struct generation *g, const struct delta *d, struct wire_progress *p) {
    open_event(b, g);
    buffer_append_text(b, ",\"choices\":[{\"index\":0,");
    write_delta(b, g, d);
    end_choice(b, g, p, NULL);
    write_no_usage(b, g);
    close_event(b);
}

static void write_deltas(struct buffer *b, const struct generation *g, struct wire_progress *p) {
    for (size_t i = 0, n = reply_count_deltas(g->reply); i < n; i++) {
        struct delta d = reply_get_delta(g->reply, i);
        if (d.n > 0) write_chunk(b, g, &d, p);
    }
    reply_clear(g->reply);
}

static void write_ending(struct buffer *b, const struct generation *g, struct wire_progress *p) {
    open_event(b, g);
    buffer_printf(b, ",\"choices\":[{\"index\":0,%s", is_chat(g) ? "\"delta\":{}" : "\"text\":\"\"");
    end_choice(b, g, p, g->finish_reason);
    write_no_usage(b, g);
    buffer_append_text(b, ",\"tokenfold\":");
    wire_write_tokenfold(b, g);
    close_event(b);
    if (g->include_usage) {
        open_event(b, g);
        buffer_append_text(b, ",\"choices\":[],\"usage\":");
        wire_write_usage(b, g);
        close_event(b);
    }
    buffer_append_text(b, "data: [DONE]\n\n");
}

static void write_failure(struct buffer *b, const struct generation *g, const struct api_error *e,
                          struct wire_progress *p) {
    (void)g;
    (void)p;
    buffer_append_text(b, "data: ");
    api_error_write(b, e);
    buffer_append_text(b, "\n\ndata: [DONE]\n\n");
}

// ---- whole replies ----

// A member that holds the text of all blocks of one kind.
static void write_joined(struct buffer *b, const struct wire_blocks *w, const char *name, enum delta_kind kind) {
    buffer_printf(b, ",\"%s\":\"", name);
    for (size_t i = 0; i < w->n; i++)
        if (w->list[i].kind == kind && w->list[i].text.n > 0)
            json_write_escaped(b, w->list[i].text.data, w->list[i].text.n);
    buffer_append_text(b, "\"");
}

static void write_calls(struct buffer *b, const struct generation *g, const struct wire_blocks *w) {
    bool first = true;
    for (size_t i = 0; i < w->n; i++) {
        const struct wire_block *call = &w->list[i];
        if (call->kind != DELTA_CALL) continue;
        buffer_append_text(b, first ? ",\"tool_calls\":[{\"id\":" : ",{\"id\":");
        first = false;
        write_call_id(b, g, call->call);
        buffer_append_text(b, ",\"type\":\"function\",\"function\":{\"name\":");
        wire_write_text(b, call->name.data, call->name.n);
        buffer_append_text(b, ",\"arguments\":");
        wire_write_text(b, call->text.data, call->text.n);
        buffer_append_text(b, "}}");
    }
    if (!first) buffer_append_text(b, "]");
}

static void write_message(struct buffer *b, const struct generation *g, const struct wire_blocks *w) {
    buffer_append_text(b, "\"message\":{\"role\":\"assistant\"");
    if (g->totals.n_calls > 0 && !wire_blocks_have(w, DELTA_CONTENT)) {
        buffer_append_text(b, ",\"content\":null");
    } else {
        write_joined(b, w, "content", DELTA_CONTENT);
    }
    if (wire_blocks_have(w, DELTA_REASONING)) write_joined(b, w, "reasoning_content", DELTA_REASONING);
    write_calls(b, g, w);
    buffer_append_text(b, "}");
}

static void write_whole(struct buffer *b, const struct generation *g, const struct wire_blocks *w) {
    struct wire_progress p = {0};
    write_head(b, g, false);
    buffer_append_text(b, ",\"choices\":[{\"index\":0");
    if (is_chat(g)) {
        buffer_append_text(b, ",");
        write_message(b, g, w);
    } else {
        write_joined(b, w, "text", DELTA_CONTENT);
    }
    end_choice(b, g, &p, g->finish_reason);
    if (g->return_token_ids) {
        buffer_append_text(b, ",\"prompt_token_ids\":");
        wire_write_prompt_ids(b, g);
    }
    buffer_append_text(b, ",\"usage\":");
    wire_write_usage(b, g);
    buffer_append_text(b, ",\"tokenfold\":");
    wire_write_tokenfold(b, g);
    buffer_append_text(b, "}");
}

const struct wire wire_openai = {write_opening, write_deltas, write_ending, write_failure, write_whole};
