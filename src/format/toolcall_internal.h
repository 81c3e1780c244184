// What toolcall.c (the reply as a whole) and toolcall_call.c (one call) share: the state of a parser. It works over one
// buffer, `in`, with three marks: `at` is the next byte to look at, what lies before `hold` is decided, and what lies
// before `emitted` is reported and counted. emitted <= hold <= at. A call that turns out to be none is undone by
// setting `at` back to the end of its opening tag.
#ifndef TF_FORMAT_TOOLCALL_INTERNAL_H
#define TF_FORMAT_TOOLCALL_INTERNAL_H

#include "base/buffer.h"
#include "format/toolcall.h"

#define TOOLCALL_OPEN  "<tool_call>"
#define FUNCTION_OPEN  "<function="
#define FUNCTION_CLOSE "</function>"

enum toolcall_state {
    AT_BEGIN,      // a "<think>" may follow
    AT_THINK_LEAD, // newlines after "<think>"
    IN_THINK,
    AT_CONTENT_LEAD, // newlines after "</think>"
    IN_CONTENT,
    IN_CALL,    // the stages below
    AFTER_CALL, // white space, and a closing tag that may come late
    STOPPED,
};

enum toolcall_stage { CALL_OPEN, CALL_NAME, CALL_BODY, CALL_KEY, CALL_VALUE_LEAD, CALL_VALUE, CALL_JSON };

struct toolcall_call {
    enum toolcall_stage stage;
    bool wrapped;              // it began with "<tool_call>"
    bool certain;              // its start is reported: it cannot be undone
    size_t opener, opener_end; // in the buffer
    char name[TOOLCALL_NAME_BYTES_MAX], key[TOOLCALL_NAME_BYTES_MAX];
    size_t n_name, n_key, n_parameters;
    const json_t *parameters; // the function's schema
    json_t *keys;             // an object whose members are the keys seen
    // Of the value being read: the bits of its types; whether its key is in the schema, and has been seen before;
    // whether it goes out as it comes; where the part that is not out begins; how far what follows it was looked at.
    unsigned types;
    bool known, repeated, streaming;
    size_t mark, look;
    // Of the JSON form, which begins at `mark`.
    size_t depth;
    bool quoted, escaped;
    struct buffer arguments; // not reported yet
    const char *closer;      // after the call: the tag that may still follow, or NULL
};

struct toolcall_parser {
    toolcall_sink sink;
    void *user;
    enum status status;
    json_t *tools; // NULL: no search for calls
    bool one_call, calls_first, final;
    enum toolcall_state state;
    struct buffer in;
    size_t at, hold, emitted;
    size_t matched;  // bytes of `tag` that end at `at`
    const char *tag; // the opening tag of a call that is being matched
    struct toolcall_call call;
    size_t wasted; // bytes of all calls that turned out to be none
    struct toolcall_totals totals;
};

// ---- toolcall.c ----

void toolcall_report(struct toolcall_parser *p, enum toolcall_event_kind kind, const char *text, size_t n,
                     bool truncated);
void toolcall_flush(struct toolcall_parser *p);                 // reports what is decided as reasoning or content
void toolcall_skip(struct toolcall_parser *p, uint64_t *total); // all up to `at` is decided, counted, and not shown

bool toolcall_is_space(char c);
void toolcall_skip_spaces(const struct toolcall_parser *p, size_t *at);

// Whether `tag` stands at `at`. MORE: the text ends before that is clear, even if there is no more to come.
enum toolcall_match { MATCH_NO, MATCH_MORE, MATCH_YES };
enum toolcall_match toolcall_match(const struct toolcall_parser *p, size_t at, const char *tag);

// ---- toolcall_call.c ----

void toolcall_begin_call(struct toolcall_parser *p); // p->tag has been matched in full
// One step in IN_CALL or AFTER_CALL; false when more text is needed.
bool toolcall_step_call(struct toolcall_parser *p);
bool toolcall_step_after_call(struct toolcall_parser *p);

#endif
