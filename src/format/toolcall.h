// Owns the reading of a reply: it splits the text that a model writes into reasoning, content and tool calls while the
// text arrives. It refuses nothing: what is not a call of an offered tool is content, byte for byte. The events are the
// same however the text is cut into pieces, but for where a run of text is cut; time is linear in the text, and what is
// held back is bounded. The text is UTF-8 in all (a piece may end inside a character). One parser a reply, one thread
// at a time.
//
// Reasoning. With starts_in_think the reply begins inside a think block; otherwise, with may_think, a reply that begins
// with "<think>" (white space before it aside) opens one. It ends at the first "</think>"; the newlines around the two
// tags belong to them. Text in a block that never ends is reasoning, whatever it looks like.
//
// Calls, only when tools are given:
//   <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n...</function>\n</tool_call>
//   <tool_call>\n{"name": NAME, "arguments": {...}}\n</tool_call>
// White space around a call belongs to it. NAME must be offered. A VALUE loses one newline at each end, and ends at the
// first "</parameter>" that "<parameter=KEY>", "</function>", "</tool_call>" or the end of the reply follows. By the
// offered schema it becomes a JSON string, number, boolean, null, object or array; what does not parse as the type it
// should have is a string. Of a KEY that comes twice the first counts. Arguments in the JSON form are passed on as they
// stand.
// Recovered: a missing "<tool_call>"; "</function>" or "</tool_call>" missing or cut short; the two swapped.
// A call is reported as soon as it is certain: in a "<tool_call>" from the first "<parameter=KEY>\n" on, where KEY is
// in the schema, so that long values stream; otherwise when it is complete. When the reply ends inside a call that is
// already reported, the JSON is closed and the call's end says so (`truncated`): report finish_reason "length" or
// "stop" then, never "tool_calls", because the call must not be run.
#ifndef TF_FORMAT_TOOLCALL_H
#define TF_FORMAT_TOOLCALL_H

#include "base/status.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TOOLCALL_NAME_BYTES_MAX 256 // of a function or parameter name in a reply
// Text held back until it is clear what it is. Beyond, it is content; or a string, if it is a value of a reported call.
#define TOOLCALL_HELD_BYTES_MAX (4u << 20)

enum toolcall_event_kind {
    TOOLCALL_REASONING, // text: more of the reasoning
    TOOLCALL_CONTENT,   // text: more of the content
    TOOLCALL_START,     // text: the function's name; index: 0, 1, 2, ... in order
    TOOLCALL_ARGUMENTS, // text: the next piece of the arguments, a JSON object once all pieces are joined
    TOOLCALL_END,       // the call `index` is complete, or `truncated`
    TOOLCALL_STOP,      // the one call that parallel_calls = false allows is complete: nothing further is reported
};

struct toolcall_event {
    enum toolcall_event_kind kind;
    const char *text; // n bytes, not NUL-terminated, valid during the callback; empty for END and STOP
    size_t n;
    size_t index;   // of the call, for START, ARGUMENTS and END
    bool truncated; // END only
};

// Takes one event. Anything but STATUS_OK stops the parser: that call and all later ones return it.
typedef enum status (*toolcall_sink)(void *user, const struct toolcall_event *event);

struct toolcall_options {
    bool starts_in_think;
    bool may_think;
    bool one_call;       // parallel_tool_calls = false
    bool calls_first;    // a call is looked for only where no content comes before it
    const json_t *tools; // as in the request; NULL or []: the text is never searched for calls. Held until free.
};

struct toolcall_parser;

enum status toolcall_parser_create(const struct toolcall_options *options, toolcall_sink sink, void *user,
                                   struct toolcall_parser **out, struct error *e);
void toolcall_parser_free(struct toolcall_parser *p); // NULL is fine

// The next piece of the reply, any cut of it. Errors: MEMORY, or what the sink returned.
enum status toolcall_parser_feed(struct toolcall_parser *p, const char *text, size_t n);
// The reply has ended: what is held back is decided and reported. Once.
enum status toolcall_parser_finish(struct toolcall_parser *p);

// Where every byte fed went; after finish, fed = reasoning + content + calls + framing + ignored.
struct toolcall_totals {
    uint64_t fed, reasoning, content;
    uint64_t calls;   // bytes that made up calls
    uint64_t framing; // think tags, and white space next to them and to calls
    uint64_t ignored; // after TOOLCALL_STOP
    size_t n_calls;
};
struct toolcall_totals toolcall_parser_totals(const struct toolcall_parser *p);

#endif
