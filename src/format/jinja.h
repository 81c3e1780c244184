// Owns chat templates as Hugging Face writes them: Jinja2 with trim_blocks and lstrip_blocks, in its immutable sandbox,
// plus raise_exception, strftime_now, the tojson that keeps characters outside ASCII, break and continue, and
// generation blocks, which are rendered like any other text. A template either renders byte for byte as Python's jinja2
// does, or is refused when it is compiled, with the line and the construct; what only shows at rendering is an error,
// not a guess. (Integers have 64 bits: what passes them is an error.)
// Every byte that is rendered carries its origin: *trusted* when it comes from the template's own literals (or from the
// trusted variables), *untrusted* when any request data had a part in it, through every operator, method and filter. So
// a tokenizer can read control tokens in what the template wrote and nowhere else.
// A compiled template is immutable: any thread may render it. A render belongs to the calling thread. Neither a
// template nor its data can make a render recurse, run or allocate beyond the limits.
#ifndef TF_FORMAT_JINJA_H
#define TF_FORMAT_JINJA_H

#include "base/status.h"
#include "format/tokenizer.h" // struct text_span
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#define JINJA_SOURCE_BYTES_MAX (1u << 20) // a longer template is refused
#define JINJA_NESTING_MAX      100        // blocks and parentheses inside each other in the source

struct jinja_template;
struct arena;

// Compiles source[0..n), which must be UTF-8. Errors: INVALID (not a template; the sentence says "line 12: ..."),
// UNSUPPORTED (a construct, name, filter, test or method that this interpreter does not know), LIMIT, MEMORY.
enum status jinja_compile(const char *source, size_t n, struct jinja_template **out, struct error *e);
void jinja_free(struct jinja_template *t); // NULL is fine

// Zero in a field means the default beside it.
struct jinja_limits {
    uint64_t max_steps;      // 50,000,000: expressions evaluated, items visited, and bytes read / 16
    size_t max_output_bytes; // 64 MiB
    size_t max_memory_bytes; // 512 MiB, everything a render allocates, its output included
    unsigned max_depth;      // 400: expressions, statements and macro calls inside each other, and nested values
};

struct jinja_inputs {
    const json_t *data;    // object: variables from a request; every string, number and key in them is untrusted
    const json_t *trusted; // object or NULL: variables from the checkpoint, such as bos_token; `data` wins on a clash
    int64_t now_s;         // Unix time that strftime_now formats, in local time; 0: the current time
    struct jinja_limits limits;
};

// The rendered text in order; neighbours differ in `trusted`, none is empty. A character never straddles two spans.
struct jinja_output {
    const struct text_span *spans;
    size_t n_spans;
    size_t n_bytes;
    struct arena *memory; // holds all of it; freed by jinja_output_free
};

// Renders. Errors: INVALID (raise_exception: the sentence is the template's own; or a value of a wrong type: the
// sentence is "chat template, line 12: ..."), LIMIT (one of the limits), MEMORY. json values are borrowed during the
// call only.
enum status jinja_render(const struct jinja_template *t, const struct jinja_inputs *in, struct jinja_output *out,
                         struct error *e);
void jinja_output_free(struct jinja_output *out); // an all-zero struct is fine

// True when the template reads a variable of this name from outside (anywhere, reachable or not).
bool jinja_reads_variable(const struct jinja_template *t, const char *name);

#endif
