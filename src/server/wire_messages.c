// Anthropic's messages, whole and streamed.
#include "server/wire.h"
#include <inttypes.h>
#include <string.h>

// ---- parts ----

static void write_usage(struct buffer *b, const struct generation *g) {
    int32_t cached = g->view.n_cached;
    buffer_printf(b,
                  "{\"input_tokens\":%" PRId32 ",\"cache_creation_input_tokens\":0,\"cache_read_input_tokens\":%" PRId32
                  ",\"output_tokens\":%" PRId32 "}",
                  g->n_prompt - cached, cached, generation_count_ids(g));
}

static void write_head(struct buffer *b, const struct generation *g) {
    const char *name = g->service->options->name;
    buffer_printf(b, "{\"id\":\"msg_%s\",\"type\":\"message\",\"role\":\"assistant\",\"model\":", g->nonce);
    wire_write_text(b, name, strlen(name));
}

static void write_stop(struct buffer *b, const struct generation *g) {
    size_t n = 0;
    const char *stop = reply_get_stop(g->reply, &n);
    const char *reason = strcmp(g->finish_reason, "tool_calls") == 0 ? "tool_use"
                         : strcmp(g->finish_reason, "length") == 0   ? "max_tokens"
                         : stop != NULL                              ? "stop_sequence"
                                                                     : "end_turn";
    buffer_printf(b, "\"stop_reason\":\"%s\",\"stop_sequence\":", reason);
    if (stop != NULL) {
        wire_write_text(b, stop, n);
    } else {
        buffer_append_text(b, "null");
    }
}

static void write_extras(struct buffer *b, const struct generation *g) {
    buffer_append_text(b, ",\"usage\":");
    write_usage(b, g);
    buffer_append_text(b, ",\"tokenfold\":");
    wire_write_tokenfold(b, g);
    if (g->return_token_ids) {
        buffer_append_text(b, ",\"prompt_token_ids\":");
        wire_write_prompt_ids(b, g);
        buffer_append_text(b, ",\"token_ids\":");
        wire_write_ids(b, g, 0, generation_count_ids(g));
    }
    buffer_append_text(b, "}");
}

// What a block starts with, up to its text.
static void write_block_head(struct buffer *b, const struct generation *g, const struct wire_block *block) {
    switch (block->kind) {
    case DELTA_REASONING: buffer_append_text(b, "{\"type\":\"thinking\",\"signature\":\"\",\"thinking\":"); return;
    case DELTA_CONTENT: buffer_append_text(b, "{\"type\":\"text\",\"text\":"); return;
    case DELTA_CALL:
    case DELTA_ARGUMENTS: break;
    }
    buffer_printf(b, "{\"type\":\"tool_use\",\"id\":\"toolu_%s%zu\",\"name\":", g->nonce, block->call);
    wire_write_text(b, block->name.data, block->name.n);
    buffer_append_text(b, ",\"input\":");
}

// ---- streams ----

static void open_event(struct buffer *b, const char *type) {
    buffer_printf(b, "event: %s\ndata: {\"type\":\"%s\"", type, type);
}

static void close_event(struct buffer *b) { buffer_append_text(b, "}\n\n"); }

static void write_opening(struct buffer *b, const struct generation *g, struct wire_progress *p) {
    (void)p;
    open_event(b, "message_start");
    buffer_append_text(b, ",\"message\":");
    write_head(b, g);
    buffer_append_text(b, ",\"content\":[],\"stop_reason\":null,\"stop_sequence\":null,\"usage\":");
    write_usage(b, g);
    buffer_append_text(b, "}");
    close_event(b);
}

static void end_block(struct buffer *b, size_t index) {
    open_event(b, "content_block_stop");
    buffer_printf(b, ",\"index\":%zu", index);
    close_event(b);
}

static void begin_block(struct buffer *b, const struct generation *g, const struct wire_blocks *w) {
    const struct wire_block *block = &w->list[w->n - 1];
    open_event(b, "content_block_start");
    buffer_printf(b, ",\"index\":%zu,\"content_block\":", w->n - 1);
    write_block_head(b, g, block);
    buffer_append_text(b, block->kind == DELTA_CALL ? "{}}" : "\"\"}");
    close_event(b);
}

static void write_delta(struct buffer *b, size_t index, const struct delta *d) {
    const char *name = d->kind == DELTA_REASONING ? "thinking_delta\",\"thinking"
                       : d->kind == DELTA_CONTENT ? "text_delta\",\"text"
                                                  : "input_json_delta\",\"partial_json";
    open_event(b, "content_block_delta");
    buffer_printf(b, ",\"index\":%zu,\"delta\":{\"type\":\"%s\":", index, name);
    wire_write_text(b, d->text, d->n);
    buffer_append_text(b, "}");
    close_event(b);
}

static void write_deltas(struct buffer *b, const struct generation *g, struct wire_progress *p) {
    for (size_t i = 0, n = reply_count_deltas(g->reply); i < n; i++) {
        struct delta d = reply_get_delta(g->reply, i);
        if (d.n == 0) continue;
        bool begins = wire_blocks_begins(&p->blocks, &d);
        if (begins && p->blocks.n > 0) end_block(b, p->blocks.n - 1);
        if (!wire_blocks_add(&p->blocks, &d)) {
            b->failed = true;
            return;
        }
        if (begins) begin_block(b, g, &p->blocks);
        if (d.kind != DELTA_CALL) write_delta(b, p->blocks.n - 1, &d);
    }
    reply_clear(g->reply);
}

static void write_ending(struct buffer *b, const struct generation *g, struct wire_progress *p) {
    if (p->blocks.n > 0) end_block(b, p->blocks.n - 1);
    open_event(b, "message_delta");
    buffer_append_text(b, ",\"delta\":{");
    write_stop(b, g);
    buffer_append_text(b, "}");
    write_extras(b, g);
    buffer_append_text(b, "\n\n");
    open_event(b, "message_stop");
    close_event(b);
}

static void write_failure(struct buffer *b, const struct generation *g, const struct api_error *e,
                          struct wire_progress *p) {
    (void)g;
    (void)p;
    buffer_append_text(b, "event: error\ndata: ");
    api_error_write_messages(b, e);
    buffer_append_text(b, "\n\n");
}

// ---- whole replies ----

// The parser writes arguments as a JSON object, or hands on an object that the model wrote; JSON that is not one would
// break the reply around it, and is given as text.
static void write_input(struct buffer *b, const struct wire_block *block) {
    json_t *parsed = NULL;
    struct error error;
    enum status status = block->text.n == 0 ? STATUS_INVALID
                                            : json_parse(block->text.data, block->text.n, block->text.n,
                                                         JSON_PARSE_DUPLICATES | JSON_PARSE_NUL, &parsed, &error);
    if (status == STATUS_OK && json_is_object(parsed)) {
        buffer_append(b, block->text.data, block->text.n);
    } else if (block->text.n == 0) {
        buffer_append_text(b, "{}");
    } else {
        buffer_append_text(b, "{\"arguments\":");
        wire_write_text(b, block->text.data, block->text.n);
        buffer_append_text(b, "}");
    }
    json_decref(parsed);
}

static void write_whole(struct buffer *b, const struct generation *g, const struct wire_blocks *w) {
    write_head(b, g);
    buffer_append_text(b, ",\"content\":[");
    for (size_t i = 0; i < w->n; i++) {
        const struct wire_block *block = &w->list[i];
        if (i > 0) buffer_append_text(b, ",");
        write_block_head(b, g, block);
        if (block->kind == DELTA_CALL) {
            write_input(b, block);
        } else {
            wire_write_text(b, block->text.data, block->text.n);
        }
        buffer_append_text(b, "}");
    }
    buffer_append_text(b, "],");
    write_stop(b, g);
    write_extras(b, g);
}

const struct wire wire_messages = {write_opening, write_deltas, write_ending, write_failure, write_whole};
