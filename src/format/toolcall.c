// The reply as a whole: reasoning, content, and where calls begin.
#include "format/toolcall.h"
#include "format/toolcall_internal.h"
#include <stdlib.h>
#include <string.h>

// Bytes that failed calls may have cost before the search for calls ends: text made to look like calls stays cheap.
#define WASTE_MAX  TOOLCALL_HELD_BYTES_MAX
#define DROP_BYTES 8192 // decided bytes are dropped from the buffer when there are this many

static const char think_open[] = "<think>", think_close[] = "</think>";

// ---- reporting ----

void toolcall_report(struct toolcall_parser *p, enum toolcall_event_kind kind, const char *text, size_t n,
                     bool truncated) {
    if (p->status != STATUS_OK) return;
    struct toolcall_event e = {.kind = kind, .text = text, .n = n, .index = p->totals.n_calls, .truncated = truncated};
    p->status = p->sink(p->user, &e);
}

void toolcall_flush(struct toolcall_parser *p) {
    size_t n = p->hold - p->emitted;
    if (n == 0) return;
    bool thought = p->state == IN_THINK;
    *(thought ? &p->totals.reasoning : &p->totals.content) += n;
    toolcall_report(p, thought ? TOOLCALL_REASONING : TOOLCALL_CONTENT, p->in.data + p->emitted, n, false);
    p->emitted = p->hold;
}

void toolcall_skip(struct toolcall_parser *p, uint64_t *total) {
    *total += p->at - p->emitted;
    p->hold = p->emitted = p->at;
}

// ---- text ----

bool toolcall_is_space(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\f' || c == '\v'; }

void toolcall_skip_spaces(const struct toolcall_parser *p, size_t *at) {
    while (*at < p->in.n && toolcall_is_space(p->in.data[*at])) ++*at;
}

enum toolcall_match toolcall_match(const struct toolcall_parser *p, size_t at, const char *tag) {
    size_t n = strlen(tag), have = p->in.n - at;
    if (memcmp(p->in.data + at, tag, have < n ? have : n) != 0) return MATCH_NO;
    return have < n ? MATCH_MORE : MATCH_YES;
}

// ---- reasoning and content ----

static bool begins_with_think(struct toolcall_parser *p) {
    toolcall_skip_spaces(p, &p->at);
    enum toolcall_match m = p->at > TOOLCALL_HELD_BYTES_MAX ? MATCH_NO : toolcall_match(p, p->at, think_open);
    if (m == MATCH_MORE && !p->final) return false;
    if (m == MATCH_YES) {
        p->at += strlen(think_open);
        toolcall_skip(p, &p->totals.framing);
        p->state = AT_THINK_LEAD;
    } else {
        p->at = 0;
        p->state = IN_CONTENT;
    }
    return true;
}

static bool skip_newlines(struct toolcall_parser *p, enum toolcall_state next) {
    while (p->at < p->in.n && p->in.data[p->at] == '\n') p->at++;
    toolcall_skip(p, &p->totals.framing);
    if (p->at == p->in.n) return false;
    p->state = next;
    return true;
}

// The byte at `at` begins no tag: it is decided, unless it is white space that may belong to a tag. A run that is too
// long to hold does not.
static void pass_byte(struct toolcall_parser *p, bool may_belong) {
    if (!may_belong || p->at - p->hold >= TOOLCALL_HELD_BYTES_MAX) p->hold = p->at + 1;
}

static bool read_think(struct toolcall_parser *p) {
    for (; p->at < p->in.n; p->at++) {
        char c = p->in.data[p->at];
        if (p->matched > 0 && c == think_close[p->matched]) {
            if (++p->matched < strlen(think_close)) continue;
            p->at++;
            p->matched = 0;
            toolcall_flush(p);
            toolcall_skip(p, &p->totals.framing);
            p->state = AT_CONTENT_LEAD;
            return true;
        }
        if (p->matched > 0) p->hold = p->at; // it was no closing tag
        p->matched = c == '<';
        if (c != '<') pass_byte(p, c == '\n');
    }
    return false;
}

// Content has come where calls could have stood.
static bool is_past_calls(const struct toolcall_parser *p) {
    return p->calls_first && (p->totals.content > 0 || p->hold > p->emitted);
}

static bool pass_all(struct toolcall_parser *p) {
    p->hold = p->at = p->in.n;
    p->matched = 0;
    return false;
}

static bool read_content(struct toolcall_parser *p) {
    if (p->tools == NULL || p->wasted > WASTE_MAX || is_past_calls(p)) return pass_all(p);
    for (; p->at < p->in.n; p->at++) {
        char c = p->in.data[p->at];
        if (p->matched == 1) p->tag = c == 't' ? TOOLCALL_OPEN : FUNCTION_OPEN;
        if (p->matched > 0 && c == p->tag[p->matched]) {
            if (p->tag[++p->matched] != 0) continue;
            p->at++;
            if (is_past_calls(p)) return pass_all(p);
            toolcall_begin_call(p);
            return true;
        }
        if (p->matched > 0) p->hold = p->at;
        p->matched = c == '<';
        if (c != '<') pass_byte(p, toolcall_is_space(c));
    }
    return false;
}

// One step; false when more text is needed.
static bool step(struct toolcall_parser *p) {
    switch (p->state) {
    case AT_BEGIN: return begins_with_think(p);
    case AT_THINK_LEAD: return skip_newlines(p, IN_THINK);
    case IN_THINK: return read_think(p);
    case AT_CONTENT_LEAD: return skip_newlines(p, IN_CONTENT);
    case IN_CONTENT: return read_content(p);
    case IN_CALL: return toolcall_step_call(p);
    case AFTER_CALL: return toolcall_step_after_call(p);
    default:
        p->at = p->in.n;
        toolcall_skip(p, &p->totals.ignored);
        return false;
    }
}

// Drops from the buffer what no later step looks at. As much is dropped as is moved, so that time stays linear.
static void drop(struct toolcall_parser *p) {
    struct toolcall_call *c = &p->call;
    bool certain = p->state == IN_CALL && c->certain;
    size_t n = !certain ? p->emitted : c->stage == CALL_VALUE ? c->mark : p->at;
    if (n < DROP_BYTES || n < p->in.n / 2) return;
    if (certain) p->totals.calls += n - p->emitted;
    size_t *const offsets[] = {&p->at, &p->hold, &p->emitted, &c->opener, &c->opener_end, &c->mark, &c->look};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) *offsets[i] = *offsets[i] > n ? *offsets[i] - n : 0;
    buffer_remove_front(&p->in, n);
}

// ---- the interface ----

enum status toolcall_parser_create(const struct toolcall_options *options, toolcall_sink sink, void *user,
                                   struct toolcall_parser **out, struct error *e) {
    struct toolcall_parser *p = calloc(1, sizeof *p);
    if (p == NULL) return error_memory(e);
    p->sink = sink;
    p->user = user;
    p->one_call = options->one_call;
    p->calls_first = options->calls_first;
    p->state = options->starts_in_think ? AT_THINK_LEAD : options->may_think ? AT_BEGIN : IN_CONTENT;
    if (json_array_size(options->tools) > 0) p->tools = json_incref((json_t *)options->tools);
    buffer_init(&p->in, 0);
    buffer_init(&p->call.arguments, 0);
    p->call.keys = json_object();
    if (p->call.keys == NULL || !buffer_append(&p->in, "", 0)) { // so that in.data is never NULL
        toolcall_parser_free(p);
        return error_memory(e);
    }
    *out = p;
    return STATUS_OK;
}

void toolcall_parser_free(struct toolcall_parser *p) {
    if (p == NULL) return;
    buffer_free(&p->in);
    buffer_free(&p->call.arguments);
    json_decref(p->call.keys);
    json_decref(p->tools);
    free(p);
}

static void advance(struct toolcall_parser *p) {
    while (p->status == STATUS_OK && step(p)) {
    }
    if (p->final) p->hold = p->in.n;
    toolcall_flush(p);
}

enum status toolcall_parser_feed(struct toolcall_parser *p, const char *text, size_t n) {
    if (p->status != STATUS_OK || n == 0) return p->status;
    if (!buffer_append(&p->in, text, n)) return p->status = STATUS_MEMORY;
    p->totals.fed += n;
    advance(p);
    drop(p);
    return p->status;
}

enum status toolcall_parser_finish(struct toolcall_parser *p) {
    p->final = true;
    if (p->status == STATUS_OK) advance(p);
    return p->status;
}

struct toolcall_totals toolcall_parser_totals(const struct toolcall_parser *p) {
    return p->totals;
}
