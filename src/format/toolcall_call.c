// One call: from its opening tag to what follows its end. Whatever cannot become a call is given back as content.
#include "format/json.h"
#include "format/toolcall_internal.h"
#include "format/toolcall_schema.h"
#include <string.h>

static const char call_close[] = "</tool_call>";
static const char parameter_open[] = "<parameter=", parameter_close[] = "</parameter>";

// ---- beginning and end ----

void toolcall_begin_call(struct toolcall_parser *p) {
    struct toolcall_call *c = &p->call;
    toolcall_flush(p);
    p->state = IN_CALL;
    c->wrapped = strcmp(p->tag, TOOLCALL_OPEN) == 0;
    c->stage = c->wrapped ? CALL_OPEN : CALL_NAME;
    c->opener = p->at - p->matched;
    c->opener_end = p->at;
    c->certain = false;
    c->n_parameters = 0;
    p->matched = 0;
    buffer_clear(&c->arguments);
    json_object_clear(c->keys);
}

static void fail_call(struct toolcall_parser *p) {
    p->wasted += p->at - p->call.opener;
    p->state = IN_CONTENT;
    p->at = p->hold = p->call.opener_end;
}

static void report_arguments(struct toolcall_parser *p) {
    struct buffer *b = &p->call.arguments;
    if (b->failed && p->status == STATUS_OK) p->status = STATUS_MEMORY;
    if (b->n > 0) toolcall_report(p, TOOLCALL_ARGUMENTS, b->data, b->n, false);
    buffer_clear(b);
}

static void make_certain(struct toolcall_parser *p) {
    p->totals.framing += p->call.opener - p->emitted;
    p->hold = p->emitted = p->call.opener;
    p->call.certain = true;
    toolcall_report(p, TOOLCALL_START, p->call.name, p->call.n_name, false);
    report_arguments(p);
}

// closer: the tag that belongs to the call and has not been seen.
static void complete_call(struct toolcall_parser *p, const char *closer, bool truncated) {
    struct toolcall_call *c = &p->call;
    if (!c->certain && p->at - c->opener > TOOLCALL_HELD_BYTES_MAX) {
        fail_call(p);
        return;
    }
    if (c->stage != CALL_JSON) buffer_append_text(&c->arguments, c->n_parameters == 0 ? "{}" : "}");
    if (!c->certain) make_certain(p);
    report_arguments(p);
    toolcall_skip(p, &p->totals.calls);
    toolcall_report(p, TOOLCALL_END, "", 0, truncated);
    p->totals.n_calls++;
    c->closer = closer;
    p->state = AFTER_CALL;
    if (!p->one_call || truncated) return;
    toolcall_report(p, TOOLCALL_STOP, "", 0, false);
    p->state = STOPPED;
}

// The reply ends before the call does.
static void cut_call(struct toolcall_parser *p) {
    p->at = p->in.n;
    if (p->call.certain)
        complete_call(p, NULL, true);
    else
        fail_call(p);
}

bool toolcall_step_after_call(struct toolcall_parser *p) {
    const char *closer = p->call.closer;
    toolcall_skip_spaces(p, &p->at);
    toolcall_skip(p, &p->totals.framing);
    if (p->at == p->in.n) return false;
    enum toolcall_match m = closer != NULL ? toolcall_match(p, p->at, closer) : MATCH_NO;
    if (m == MATCH_MORE && !p->final) return false;
    if (m == MATCH_NO) {
        p->state = IN_CONTENT;
        return true;
    }
    p->at = m == MATCH_YES ? p->at + strlen(closer) : p->in.n;
    toolcall_skip(p, &p->totals.calls);
    p->call.closer = NULL;
    return true;
}

// ---- names ----

// A name of n bytes and ">" at `from`. No control character is part of a name.
static enum toolcall_match match_name(const struct toolcall_parser *p, size_t from, size_t *n) {
    for (size_t i = from; i < p->in.n; i++) {
        char c = p->in.data[i];
        *n = i - from;
        if (c == '>' && *n > 0) return MATCH_YES;
        if (c == '>' || c == '<' || (unsigned char)c < 0x20 || *n == TOOLCALL_NAME_BYTES_MAX) return MATCH_NO;
    }
    return MATCH_MORE;
}

static bool open_call(struct toolcall_parser *p) {
    struct toolcall_call *c = &p->call;
    toolcall_skip_spaces(p, &p->at);
    enum toolcall_match m = toolcall_match(p, p->at, FUNCTION_OPEN);
    if (m == MATCH_MORE && !p->final) return false;
    if (m == MATCH_YES) {
        p->at += strlen(FUNCTION_OPEN);
        c->stage = CALL_NAME;
    } else if (p->at < p->in.n && p->in.data[p->at] == '{') {
        c->mark = p->at;
        c->depth = 0;
        c->quoted = c->escaped = false;
        c->stage = CALL_JSON;
    } else {
        fail_call(p);
    }
    return true;
}

static bool read_function(struct toolcall_parser *p) {
    struct toolcall_call *c = &p->call;
    const char *name = p->in.data + p->at;
    enum toolcall_match m = match_name(p, p->at, &c->n_name);
    if (m == MATCH_MORE && !p->final) return false;
    c->parameters = m == MATCH_YES ? toolcall_find_function(p->tools, name, c->n_name) : NULL;
    if (c->parameters == NULL) {
        fail_call(p);
        return true;
    }
    memcpy(c->name, name, c->n_name);
    p->at += c->n_name + 1;
    c->stage = CALL_BODY;
    return true;
}

static bool read_key(struct toolcall_parser *p) {
    struct toolcall_call *c = &p->call;
    enum toolcall_match m = match_name(p, p->at, &c->n_key);
    if (m == MATCH_MORE && !p->final) return false;
    if (m != MATCH_YES) {
        if (m == MATCH_NO)
            fail_call(p); // no call that is certain: value_ends has seen its next key
        else
            cut_call(p);
        return true;
    }
    memcpy(c->key, p->in.data + p->at, c->n_key);
    p->at += c->n_key + 1;
    c->known = toolcall_find_parameter(c->parameters, c->key, c->n_key, &c->types, NULL);
    c->repeated = json_object_getn(c->keys, c->key, c->n_key) != NULL; // the first one counts
    if (!c->repeated && json_object_setn_new_nocheck(c->keys, c->key, c->n_key, json_true()) != 0)
        p->status = STATUS_MEMORY;
    c->stage = CALL_VALUE_LEAD;
    return true;
}

// ---- values ----

static void append_key(struct toolcall_call *c) {
    buffer_append_text(&c->arguments, c->n_parameters++ == 0 ? "{" : ", ");
    json_write_string(&c->arguments, c->key, c->n_key);
    buffer_append_text(&c->arguments, ": ");
}

static void begin_streaming(struct toolcall_call *c) {
    c->streaming = true;
    if (c->repeated) return;
    append_key(c);
    buffer_append(&c->arguments, "\"", 1);
}

static bool begin_value(struct toolcall_parser *p) {
    struct toolcall_call *c = &p->call;
    if (p->at == p->in.n && !p->final) return false;
    bool newline = p->at < p->in.n && p->in.data[p->at] == '\n';
    if (c->wrapped && c->known && newline && !c->certain) make_certain(p);
    p->at += newline;
    c->mark = c->look = p->at;
    c->stage = CALL_VALUE;
    c->streaming = false;
    if (c->certain && (c->types == VALUE_STRING || c->repeated)) begin_streaming(c);
    return true;
}

// Where the value's text ends if its closing tag is at `at`.
static size_t end_of_text(const struct toolcall_parser *p) {
    return p->at > p->call.mark && p->in.data[p->at - 1] == '\n' ? p->at - 1 : p->at;
}

static void stream_value(struct toolcall_parser *p) {
    struct toolcall_call *c = &p->call;
    size_t end = end_of_text(p);
    if (!c->repeated) json_write_escaped(&c->arguments, p->in.data + c->mark, end - c->mark);
    c->mark = end;
    report_arguments(p);
}

static void end_value(struct toolcall_parser *p) {
    struct toolcall_call *c = &p->call;
    if (c->streaming) stream_value(p);
    if (c->streaming && !c->repeated) buffer_append(&c->arguments, "\"", 1);
    if (!c->streaming && !c->repeated) {
        append_key(c);
        if (!toolcall_append_value(&c->arguments, c->types, p->in.data + c->mark, end_of_text(p) - c->mark))
            p->status = STATUS_MEMORY;
    }
    if (c->certain) report_arguments(p);
    c->stage = CALL_BODY;
}

// Whether the "</parameter>" at `at` ends the value: something that belongs to a call must follow.
static enum toolcall_match value_ends(struct toolcall_parser *p) {
    size_t after = p->at + strlen(parameter_close), n, *look = &p->call.look;
    if (*look < after) *look = after;
    toolcall_skip_spaces(p, look); // from where the last look ended, so that long white space is walked once
    if (*look - after > TOOLCALL_HELD_BYTES_MAX) return MATCH_NO;
    enum toolcall_match parameter = toolcall_match(p, *look, parameter_open),
                        function = toolcall_match(p, *look, FUNCTION_CLOSE),
                        call = toolcall_match(p, *look, call_close);
    if (parameter == MATCH_YES) return match_name(p, *look + strlen(parameter_open), &n);
    if (function == MATCH_YES || call == MATCH_YES) return MATCH_YES;
    return parameter == MATCH_MORE || function == MATCH_MORE || call == MATCH_MORE ? MATCH_MORE : MATCH_NO;
}

// The closing tag from `from` on, or what may become one, or the end of the text.
static size_t find_close(const struct toolcall_parser *p, size_t from, bool *whole) {
    const char *tag = memmem(p->in.data + from, p->in.n - from, parameter_close, strlen(parameter_close));
    *whole = tag != NULL;
    if (tag != NULL) return (size_t)(tag - p->in.data);
    size_t n = strlen(parameter_close) - 1;
    if (p->in.n - from > n) from = p->in.n - n;
    while (from < p->in.n && toolcall_match(p, from, parameter_close) == MATCH_NO) from++;
    return from;
}

static bool read_value(struct toolcall_parser *p) {
    struct toolcall_call *c = &p->call;
    bool whole;
    p->at = find_close(p, p->at, &whole);
    // Of a certain call, a value that is too long to hold becomes a string.
    if (c->certain && !c->streaming && p->at - c->mark > TOOLCALL_HELD_BYTES_MAX) begin_streaming(c);
    enum toolcall_match m = whole ? value_ends(p) : MATCH_MORE;
    if (m == MATCH_NO) {
        p->at++;
        return true;
    }
    if (m == MATCH_YES || (whole && p->final)) {
        end_value(p);
        p->at += strlen(parameter_close);
        return true;
    }
    if (!p->final) {
        if (c->streaming) stream_value(p);
        return false;
    }
    if (c->streaming) end_value(p); // in mid-value: only what has begun to go out is kept
    cut_call(p);
    return true;
}

// ---- between parameters ----

static bool read_body(struct toolcall_parser *p) {
    toolcall_skip_spaces(p, &p->at);
    enum toolcall_match parameter = toolcall_match(p, p->at, parameter_open),
                        function = toolcall_match(p, p->at, FUNCTION_CLOSE),
                        call = toolcall_match(p, p->at, call_close);
    if (parameter == MATCH_YES) {
        p->at += strlen(parameter_open);
        p->call.stage = CALL_KEY;
    } else if (function == MATCH_YES) {
        p->at += strlen(FUNCTION_CLOSE);
        complete_call(p, call_close, false);
    } else if (call == MATCH_YES) {
        p->at += strlen(call_close);
        complete_call(p, FUNCTION_CLOSE, false);
    } else if (parameter == MATCH_NO && function == MATCH_NO && call == MATCH_NO) {
        fail_call(p);
    } else if (!p->final) {
        return false;
    } else if (parameter == MATCH_NO || (p->at == p->in.n && p->call.n_parameters > 0)) {
        p->at = p->in.n;
        complete_call(p, NULL, false); // nothing but closing tags is missing
    } else {
        cut_call(p);
    }
    return true;
}

// ---- the JSON form ----

// The arguments of {"name": ..., "arguments": {...}}, as they stand. False: it is no call of an offered function.
static bool take_json(struct toolcall_parser *p, const json_t *v) {
    struct toolcall_call *c = &p->call;
    const char *text = p->in.data + c->mark;
    const json_t *name = json_object_get(v, "name"), *arguments = json_object_get(v, "arguments");
    size_t n = json_string_length(name), from, length;
    if (n > TOOLCALL_NAME_BYTES_MAX || (arguments != NULL && !json_is_object(arguments))) return false;
    if (!json_is_string(name) || toolcall_find_function(p->tools, json_string_value(name), n) == NULL) return false;
    memcpy(c->name, json_string_value(name), n);
    c->n_name = n;
    if (arguments == NULL) return buffer_append_text(&c->arguments, "{}"), true;
    if (!toolcall_find_member(text, p->at - c->mark, "arguments", &from, &length)) return false; // spelt with escapes
    buffer_append(&c->arguments, text + from, length);
    return true;
}

static void complete_json(struct toolcall_parser *p) {
    json_t *v = NULL;
    size_t n = p->at - p->call.mark;
    enum status status = json_parse(p->in.data + p->call.mark, n, n, JSON_PARSE_NUL, &v, NULL);
    if (status == STATUS_MEMORY)
        p->status = STATUS_MEMORY;
    else if (status == STATUS_OK && take_json(p, v))
        complete_call(p, call_close, false);
    else
        fail_call(p);
    json_decref(v);
}

static bool read_json(struct toolcall_parser *p) {
    struct toolcall_call *c = &p->call;
    for (; p->at < p->in.n; p->at++) {
        char byte = p->in.data[p->at];
        if (c->quoted) {
            c->quoted = byte != '"' || c->escaped;
            c->escaped = byte == '\\' && !c->escaped;
            continue;
        }
        if (byte == '"') c->quoted = true;
        if (byte == '{' || byte == '[') c->depth++;
        if (byte == '}' || byte == ']') c->depth--;
        if (c->depth > 0) continue;
        p->at++;
        complete_json(p);
        return true;
    }
    if (p->final) cut_call(p);
    return p->final;
}

bool toolcall_step_call(struct toolcall_parser *p) {
    if (!p->call.certain && p->at - p->call.opener > TOOLCALL_HELD_BYTES_MAX) {
        fail_call(p);
        return true;
    }
    switch (p->call.stage) {
    case CALL_OPEN: return open_call(p);
    case CALL_NAME: return read_function(p);
    case CALL_BODY: return read_body(p);
    case CALL_KEY: return read_key(p);
    case CALL_VALUE_LEAD: return begin_value(p);
    case CALL_VALUE: return read_value(p);
    default: return read_json(p);
    }
}
