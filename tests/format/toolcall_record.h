// Runs the parser over a text cut into pieces, checks what must hold for every text, and writes the events as a line:
// "|r:reasoning|c:content|f0:name|a0:arguments|e0|s"; a truncated call ends with "|t0". Adjacent pieces are joined.
#ifndef TF_TESTS_TOOLCALL_RECORD_H
#define TF_TESTS_TOOLCALL_RECORD_H

#include "base/buffer.h"
#include "format/toolcall.h"
#include "format/unicode.h"

struct record {
    struct buffer line;
    struct buffer shown;     // reasoning and content
    struct buffer arguments; // of the open call
    enum toolcall_event_kind last;
    bool any, open, stopped, is_text;
    size_t n_calls, n_reasoning, n_content;
};

static inline void record_init(struct record *r) { *r = (struct record){.is_text = true}; }

static inline void record_free(struct record *r) {
    buffer_free(&r->line);
    buffer_free(&r->shown);
    buffer_free(&r->arguments);
}

static inline void record_check_arguments(struct record *r) {
    if (!r->is_text) return;
    json_t *v = json_loadb(r->arguments.data, r->arguments.n, JSON_ALLOW_NUL, NULL);
    must(json_is_object(v));
    json_decref(v);
}

static inline enum status record_take(void *user, const struct toolcall_event *e) {
    struct record *r = user;
    bool joins = r->any && r->last == e->kind && (r->open || e->kind < TOOLCALL_START);
    must(!r->stopped && (e->n > 0) == (e->kind < TOOLCALL_END));
    r->any = true;
    r->last = e->kind;
    switch (e->kind) {
    case TOOLCALL_REASONING:
    case TOOLCALL_CONTENT:
        must(!r->open);
        *(e->kind == TOOLCALL_CONTENT ? &r->n_content : &r->n_reasoning) += e->n;
        buffer_append(&r->shown, e->text, e->n);
        if (!joins) buffer_append_text(&r->line, e->kind == TOOLCALL_CONTENT ? "|c:" : "|r:");
        break;
    case TOOLCALL_START:
        must(!r->open && e->index == r->n_calls);
        r->open = true;
        buffer_clear(&r->arguments);
        buffer_printf(&r->line, "|f%zu:", e->index);
        break;
    case TOOLCALL_ARGUMENTS:
        must(r->open && e->index == r->n_calls);
        buffer_append(&r->arguments, e->text, e->n);
        if (!joins) buffer_printf(&r->line, "|a%zu:", e->index);
        break;
    case TOOLCALL_END:
        must(r->open && e->index == r->n_calls++);
        r->open = false;
        record_check_arguments(r);
        buffer_printf(&r->line, "|%c%zu", e->truncated ? 't' : 'e', e->index);
        break;
    case TOOLCALL_STOP:
        must(!r->open && r->n_calls == 1);
        r->stopped = true;
        buffer_append_text(&r->line, "|s");
        break;
    }
    buffer_append(&r->line, e->text, e->n);
    return STATUS_OK;
}

// What is shown is the text with some of it left out.
static inline bool record_is_verbatim(const struct record *r, const char *text, size_t n) {
    size_t at = 0;
    for (size_t i = 0; i < n && at < r->shown.n; i++) at += text[i] == r->shown.data[at];
    return at == r->shown.n;
}

// Feeds the text in pieces that end at cuts[0..n_cuts), rising, and at n.
static inline struct toolcall_totals record_run(struct record *r, const struct toolcall_options *o, const char *text,
                                                size_t n, const size_t *cuts, size_t n_cuts) {
    struct toolcall_parser *p;
    record_init(r);
    r->is_text = unicode_valid(text, n);
    must(toolcall_parser_create(o, record_take, r, &p, NULL) == STATUS_OK);
    size_t at = 0;
    for (size_t i = 0; i <= n_cuts; i++) {
        size_t end = i < n_cuts ? cuts[i] : n;
        must(toolcall_parser_feed(p, text + at, end - at) == STATUS_OK);
        at = end;
    }
    must(toolcall_parser_finish(p) == STATUS_OK);
    struct toolcall_totals t = toolcall_parser_totals(p);
    toolcall_parser_free(p);
    must(!r->open && t.fed == n && t.fed == t.reasoning + t.content + t.calls + t.framing + t.ignored);
    must(t.reasoning == r->n_reasoning && t.content == r->n_content && t.n_calls == r->n_calls);
    must(record_is_verbatim(r, text, n));
    if (o->tools == NULL) must(t.n_calls == 0 && t.calls == 0);
    if (o->tools == NULL && !o->starts_in_think && !o->may_think) must(t.content == n);
    must(r->stopped || t.ignored == 0);
    return t;
}

static inline bool record_same(const struct record *a, const struct record *b) {
    return a->line.n == b->line.n && (a->line.n == 0 || memcmp(a->line.data, b->line.data, a->line.n) == 0);
}

#endif
