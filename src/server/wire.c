#include "server/wire.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

void wire_write_text(struct buffer *b, const char *text, size_t n) { json_write_string(b, n > 0 ? text : "", n); }

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

void wire_write_opening(struct buffer *b, const struct generation *g) {
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

void wire_write_deltas(struct buffer *b, const struct generation *g, struct wire_progress *p) {
    for (size_t i = 0, n = reply_count_deltas(g->reply); i < n; i++) {
        struct delta d = reply_get_delta(g->reply, i);
        if (d.n > 0) write_chunk(b, g, &d, p);
    }
    reply_clear(g->reply);
}

void wire_write_ending(struct buffer *b, const struct generation *g, struct wire_progress *p) {
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

void wire_write_failure(struct buffer *b, const struct api_error *e) {
    buffer_append_text(b, "data: ");
    api_error_write(b, e);
    buffer_append_text(b, "\n\ndata: [DONE]\n\n");
}

// ---- whole replies ----

static struct wire_call *call_of(struct wire_whole *w, size_t index) {
    if (index < w->n_calls) return &w->calls[index];
    struct wire_call *grown = realloc(w->calls, (index + 1) * sizeof *grown);
    if (grown == NULL) return NULL;
    w->calls = grown;
    for (; w->n_calls <= index; w->n_calls++) {
        buffer_init(&w->calls[w->n_calls].name, 0);
        buffer_init(&w->calls[w->n_calls].arguments, 0);
    }
    return &w->calls[index];
}

void wire_gather(struct wire_whole *w, const struct generation *g) {
    for (size_t i = 0, n = reply_count_deltas(g->reply); i < n; i++) {
        struct delta d = reply_get_delta(g->reply, i);
        struct buffer *into = d.kind == DELTA_REASONING ? &w->reasoning : &w->content;
        if (d.kind == DELTA_CALL || d.kind == DELTA_ARGUMENTS) {
            struct wire_call *call = call_of(w, d.call);
            into = call == NULL ? NULL : d.kind == DELTA_CALL ? &call->name : &call->arguments;
        }
        if (into == NULL || !buffer_append(into, d.text, d.n)) w->failed = true;
    }
    reply_clear(g->reply);
}

static void write_message(struct buffer *b, const struct generation *g, const struct wire_whole *w) {
    buffer_append_text(b, "\"message\":{\"role\":\"assistant\",\"content\":");
    if (w->n_calls > 0 && w->content.n == 0) {
        buffer_append_text(b, "null");
    } else {
        wire_write_text(b, w->content.data, w->content.n);
    }
    if (w->reasoning.n > 0) {
        buffer_append_text(b, ",\"reasoning_content\":");
        wire_write_text(b, w->reasoning.data, w->reasoning.n);
    }
    for (size_t i = 0; i < w->n_calls; i++) {
        buffer_append_text(b, i == 0 ? ",\"tool_calls\":[{\"id\":" : ",{\"id\":");
        write_call_id(b, g, i);
        buffer_append_text(b, ",\"type\":\"function\",\"function\":{\"name\":");
        wire_write_text(b, w->calls[i].name.data, w->calls[i].name.n);
        buffer_append_text(b, ",\"arguments\":");
        wire_write_text(b, w->calls[i].arguments.data, w->calls[i].arguments.n);
        buffer_append_text(b, "}}");
    }
    buffer_append_text(b, w->n_calls > 0 ? "]}" : "}");
}

void wire_write_whole(struct buffer *b, const struct generation *g, const struct wire_whole *w) {
    struct wire_progress p = {0};
    write_head(b, g, false);
    buffer_append_text(b, ",\"choices\":[{\"index\":0,");
    if (is_chat(g)) {
        write_message(b, g, w);
    } else {
        buffer_append_text(b, "\"text\":");
        wire_write_text(b, w->content.data, w->content.n);
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
    if (w->failed) b->failed = true;
}

void wire_free_whole(struct wire_whole *w) {
    for (size_t i = 0; i < w->n_calls; i++) {
        buffer_free(&w->calls[i].name);
        buffer_free(&w->calls[i].arguments);
    }
    free(w->calls);
    buffer_free(&w->content);
    buffer_free(&w->reasoning);
}
