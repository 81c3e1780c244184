// OpenAI's responses, whole and streamed.
#include "server/wire.h"
#include <inttypes.h>
#include <string.h>

// ---- the response object ----

static void write_usage(struct buffer *b, const struct generation *g) {
    int32_t n = generation_count_ids(g);
    buffer_printf(b,
                  "{\"input_tokens\":%" PRId32 ",\"input_tokens_details\":{\"cached_tokens\":%" PRId32
                  "},\"output_tokens\":%" PRId32 ",\"output_tokens_details\":{\"reasoning_tokens\":%" PRId32
                  "},\"total_tokens\":%" PRId64 "}",
                  g->n_prompt, g->view.n_cached, n, g->totals.n_reasoning, (int64_t)g->n_prompt + n);
}

// "msg_...0": an item's own id. A call's call_id, which the client answers to, is another one.
static void write_item_id(struct buffer *b, const struct generation *g, const struct wire_block *block, size_t index) {
    const char *prefix = block->kind == DELTA_REASONING ? "rs" : block->kind == DELTA_CONTENT ? "msg" : "fc";
    buffer_printf(b, "\"%s_%s%zu\"", prefix, g->nonce, index);
}

static void write_part(struct buffer *b, const struct wire_block *block, bool empty) {
    bool text = block->kind == DELTA_CONTENT;
    buffer_append_text(b, text ? "{\"type\":\"output_text\",\"annotations\":[],\"logprobs\":[],\"text\":"
                               : "{\"type\":\"reasoning_text\",\"text\":");
    wire_write_text(b, block->text.data, empty ? 0 : block->text.n);
    buffer_append_text(b, "}");
}

static void write_item(struct buffer *b, const struct generation *g, const struct wire_blocks *w, size_t index,
                       const char *status) {
    const struct wire_block *block = &w->list[index];
    bool empty = strcmp(status, "in_progress") == 0; // what it will hold comes in events of its own
    buffer_append_text(b, "{\"id\":");
    write_item_id(b, g, block, index);
    buffer_printf(b, ",\"status\":\"%s\"", status);
    if (block->kind == DELTA_CALL) {
        buffer_printf(b, ",\"type\":\"function_call\",\"call_id\":\"call_%s%zu\",\"name\":", g->nonce, block->call);
        wire_write_text(b, block->name.data, block->name.n);
        buffer_append_text(b, ",\"arguments\":");
        wire_write_text(b, block->text.data, empty ? 0 : block->text.n);
        buffer_append_text(b, "}");
        return;
    }
    buffer_append_text(b, block->kind == DELTA_CONTENT ? ",\"type\":\"message\",\"role\":\"assistant\",\"content\":["
                                                       : ",\"type\":\"reasoning\",\"summary\":[],\"content\":[");
    if (!empty) write_part(b, block, false);
    buffer_append_text(b, "]}");
}

static bool is_complete(const struct generation *g) { return strcmp(g->finish_reason, "length") != 0; }

// The last item of a reply that was cut off is not complete, and neither is a call that ended before its arguments.
static const char *status_of(const struct generation *g, const struct wire_blocks *w, size_t index) {
    bool last_call = w->list[index].kind == DELTA_CALL && w->list[index].call + 1 == g->totals.n_calls;
    if (last_call && g->totals.truncated) return "incomplete";
    return index + 1 < w->n || is_complete(g) ? "completed" : "incomplete";
}

// w NULL: the reply is only about to begin. failure NULL: it did not fail.
static void write_response(struct buffer *b, const struct generation *g, const struct wire_blocks *w,
                           const struct api_error *failure) {
    const char *name = g->service->options->name;
    bool over = w != NULL && failure == NULL;
    const char *status = failure != NULL  ? "failed"
                         : !over          ? "in_progress"
                         : is_complete(g) ? "completed"
                                          : "incomplete";
    buffer_printf(b, "{\"id\":\"resp_%s\",\"object\":\"response\",\"created_at\":%" PRId64 ",\"status\":\"%s\"",
                  g->nonce, g->created, status);
    buffer_append_text(b, ",\"error\":");
    if (failure != NULL) {
        buffer_printf(b,
                      "{\"code\":\"%s\",\"message\":", failure->http == 429 ? "rate_limit_exceeded" : "server_error");
        wire_write_text(b, failure->text, strlen(failure->text));
        buffer_append_text(b, "}");
    } else {
        buffer_append_text(b, "null");
    }
    buffer_printf(b, ",\"incomplete_details\":%s,\"model\":",
                  over && !is_complete(g) ? "{\"reason\":\"max_output_tokens\"}" : "null");
    wire_write_text(b, name, strlen(name));
    buffer_append(b, g->echo.data, g->echo.n);
    buffer_append_text(b, ",\"output\":[");
    for (size_t i = 0; w != NULL && i < w->n; i++) {
        if (i > 0) buffer_append_text(b, ",");
        write_item(b, g, w, i, over ? status_of(g, w, i) : "incomplete");
    }
    buffer_append_text(b, "],\"usage\":");
    if (over) {
        write_usage(b, g);
        buffer_append_text(b, ",\"tokenfold\":");
        wire_write_tokenfold(b, g);
    } else {
        buffer_append_text(b, "null");
    }
    if (over && g->return_token_ids) {
        buffer_append_text(b, ",\"prompt_token_ids\":");
        wire_write_prompt_ids(b, g);
        buffer_append_text(b, ",\"token_ids\":");
        wire_write_ids(b, g, 0, generation_count_ids(g));
    }
    buffer_append_text(b, "}");
}

static void write_value(struct buffer *b, const char *name, const json_t *value, const char *otherwise) {
    buffer_printf(b, ",\"%s\":", name);
    if (value == NULL || json_is_null(value)) {
        buffer_append_text(b, otherwise);
    } else {
        json_write(b, value, JSON_STYLE_COMPACT);
    }
}

void wire_responses_write_echo(struct buffer *b, const struct request_fields *f) {
    buffer_append_text(
        b, ",\"background\":false,\"previous_response_id\":null,\"store\":false,\"truncation\":\"disabled\"");
    const json_t *format = json_object_get(f->text.value, "format");
    buffer_append_text(b, ",\"text\":{\"format\":");
    if (format == NULL || json_is_null(format) || !json_write(b, format, JSON_STYLE_COMPACT))
        buffer_append_text(b, "{\"type\":\"text\"}");
    buffer_append_text(b, "}");
    write_value(b, "instructions", f->instructions.value, "null");
    write_value(b, "reasoning", f->reasoning.value, "{\"effort\":null,\"summary\":null}");
    write_value(b, "metadata", f->metadata.value, "{}");
    write_value(b, "tools", f->given_tools.value, "[]");
    write_value(b, "tool_choice", f->given_choice.value, "\"auto\"");
    buffer_printf(b, ",\"parallel_tool_calls\":%s,\"max_output_tokens\":", f->parallel_calls ? "true" : "false");
    if (f->max_tokens > 0) {
        buffer_printf(b, "%" PRId64, f->max_tokens);
    } else {
        buffer_append_text(b, "null");
    }
    buffer_append_text(b, ",\"temperature\":");
    json_write_real(b, f->temperature);
    buffer_append_text(b, ",\"top_p\":");
    json_write_real(b, f->top_p);
}

// ---- streams ----

static void open_event(struct buffer *b, struct wire_progress *p, const char *type) {
    buffer_printf(b, "event: %s\ndata: {\"type\":\"%s\",\"sequence_number\":%" PRId64, type, type, p->n_events++);
}

static void close_event(struct buffer *b) { buffer_append_text(b, "}\n\n"); }

// An event about the content of the last item.
static void open_item_event(struct buffer *b, const struct generation *g, struct wire_progress *p, const char *type) {
    size_t index = p->blocks.n - 1;
    const struct wire_block *block = &p->blocks.list[index];
    open_event(b, p, type);
    buffer_append_text(b, ",\"item_id\":");
    write_item_id(b, g, block, index);
    buffer_printf(b, ",\"output_index\":%zu", index);
    if (block->kind != DELTA_CALL) buffer_append_text(b, ",\"content_index\":0");
}

static void write_state(struct buffer *b, const struct generation *g, struct wire_progress *p, const char *type,
                        const struct wire_blocks *w, const struct api_error *failure) {
    open_event(b, p, type);
    buffer_append_text(b, ",\"response\":");
    write_response(b, g, w, failure);
    close_event(b);
}

static void write_opening(struct buffer *b, const struct generation *g, struct wire_progress *p) {
    write_state(b, g, p, "response.created", NULL, NULL);
    write_state(b, g, p, "response.in_progress", NULL, NULL);
}

static void begin_item(struct buffer *b, const struct generation *g, struct wire_progress *p) {
    size_t index = p->blocks.n - 1;
    open_event(b, p, "response.output_item.added");
    buffer_printf(b, ",\"output_index\":%zu,\"item\":", index);
    write_item(b, g, &p->blocks, index, "in_progress");
    close_event(b);
    if (p->blocks.list[index].kind == DELTA_CALL) return;
    open_item_event(b, g, p, "response.content_part.added");
    buffer_append_text(b, ",\"part\":");
    write_part(b, &p->blocks.list[index], true);
    close_event(b);
}

static void end_text(struct buffer *b, const struct generation *g, struct wire_progress *p) {
    const struct wire_block *block = &p->blocks.list[p->blocks.n - 1];
    bool text = block->kind == DELTA_CONTENT;
    open_item_event(b, g, p, text ? "response.output_text.done" : "response.reasoning_text.done");
    if (text) buffer_append_text(b, ",\"logprobs\":[]");
    buffer_append_text(b, ",\"text\":");
    wire_write_text(b, block->text.data, block->text.n);
    close_event(b);
    open_item_event(b, g, p, "response.content_part.done");
    buffer_append_text(b, ",\"part\":");
    write_part(b, block, false);
    close_event(b);
}

static void end_call(struct buffer *b, const struct generation *g, struct wire_progress *p) {
    const struct wire_block *block = &p->blocks.list[p->blocks.n - 1];
    open_item_event(b, g, p, "response.function_call_arguments.done");
    buffer_append_text(b, ",\"name\":");
    wire_write_text(b, block->name.data, block->name.n);
    buffer_append_text(b, ",\"arguments\":");
    wire_write_text(b, block->text.data, block->text.n);
    close_event(b);
}

static void end_item(struct buffer *b, const struct generation *g, struct wire_progress *p, const char *status) {
    if (p->blocks.n == 0) return;
    size_t index = p->blocks.n - 1;
    if (p->blocks.list[index].kind == DELTA_CALL) {
        end_call(b, g, p);
    } else {
        end_text(b, g, p);
    }
    open_event(b, p, "response.output_item.done");
    buffer_printf(b, ",\"output_index\":%zu,\"item\":", index);
    write_item(b, g, &p->blocks, index, status);
    close_event(b);
}

static void write_delta(struct buffer *b, const struct generation *g, const struct delta *d, struct wire_progress *p) {
    open_item_event(b, g, p,
                    d->kind == DELTA_REASONING ? "response.reasoning_text.delta"
                    : d->kind == DELTA_CONTENT ? "response.output_text.delta"
                                               : "response.function_call_arguments.delta");
    if (d->kind == DELTA_CONTENT) buffer_append_text(b, ",\"logprobs\":[]");
    buffer_append_text(b, ",\"delta\":");
    wire_write_text(b, d->text, d->n);
    close_event(b);
}

static void write_deltas(struct buffer *b, const struct generation *g, struct wire_progress *p) {
    for (size_t i = 0, n = reply_count_deltas(g->reply); i < n; i++) {
        struct delta d = reply_get_delta(g->reply, i);
        if (d.n == 0) continue;
        bool begins = wire_blocks_begins(&p->blocks, &d);
        if (begins) end_item(b, g, p, "completed");
        if (!wire_blocks_add(&p->blocks, &d)) {
            b->failed = true;
            return;
        }
        if (begins) begin_item(b, g, p);
        if (d.kind != DELTA_CALL) write_delta(b, g, &d, p);
    }
    reply_clear(g->reply);
}

static void write_ending(struct buffer *b, const struct generation *g, struct wire_progress *p) {
    if (p->blocks.n > 0) end_item(b, g, p, status_of(g, &p->blocks, p->blocks.n - 1));
    write_state(b, g, p, is_complete(g) ? "response.completed" : "response.incomplete", &p->blocks, NULL);
}

static void write_failure(struct buffer *b, const struct generation *g, const struct api_error *e,
                          struct wire_progress *p) {
    write_state(b, g, p, "response.failed", &p->blocks, e);
}

// ---- whole replies ----

static void write_whole(struct buffer *b, const struct generation *g, const struct wire_blocks *w) {
    write_response(b, g, w, NULL);
}

const struct wire wire_responses = {write_opening, write_deltas, write_ending, write_failure, write_whole};
