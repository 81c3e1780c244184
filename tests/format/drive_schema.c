// Schemas, for a Python test. Each line of standard input is {"schema", "texts", "generate", "seed"} or the same with
// "tools" in place of "schema"; each line of output is {"error"} or {"accepted": [...], "generated": [...]}, where the
// generated texts are random walks through the grammar; with tools also {"calls": [...]}, as these texts are read.
#include "base/random.h"
#include "format/json.h"
#include "format/toolcall.h"
#include "tests/format/grammars.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX       4096 // longer walks are given up: by chance alone some patterns are not met soon
#define HURRY          120  // bytes after which a walk heads for the end
#define LINE_BYTES_MAX ((size_t)4 << 20)

// The byte that goes on with the end of a parameter, as far as the text has come with it.
static unsigned char end_of_parameter(const char *text, size_t n) {
    static const char end[] = "\n</parameter>\n";
    size_t k = n < sizeof end - 2 ? n : sizeof end - 2;
    while (k > 0 && memcmp(text + n - k, end, k) != 0) k--;
    return (unsigned char)end[k];
}

// Bytes that end things come first once a walk is to end; -1: the text ends here.
static int next_byte(const struct grammar *g, const struct grammar_state *s, struct grammar_state *to, uint64_t seed,
                     const char *text, size_t at) {
    static const char *const orders[] = {"}]\"<\n/>fptn,0123456789:ea", "\"}]<\n/>fptn,0123456789:ea"};
    unsigned char live[256];
    int n = 0;
    bool hurry = at >= HURRY;
    for (int byte = 0; byte < 256; byte++)
        if (grammar_step(g, s, (unsigned char)byte, to)) live[n++] = (unsigned char)byte;
    must(n > 0 || s->complete);
    uint64_t bits = random_bits(seed, at, 0);
    if (s->complete && (n == 0 || hurry || bits % 4 == 0)) return -1;
    unsigned char end = end_of_parameter(text, at);
    if (hurry && text[0] == '<' && memchr(live, end, (size_t)n) != NULL) return end;
    // In more than one order, and at random now and then: a pattern may want something else before it lets a text end.
    for (const char *c = orders[bits >> 8 & 1]; hurry && (bits >> 9) % 4 != 0 && *c != 0; c++)
        if (memchr(live, *c, (size_t)n) != NULL) return (unsigned char)*c;
    // Often something printable, so that texts are not all escapes and odd characters.
    for (uint64_t attempt = 1; attempt < 4; attempt++) {
        int byte = live[random_bits(seed, at, attempt) % (uint64_t)n];
        if (byte > 0x20 && byte < 0x7f && byte != '\\') return byte;
    }
    return live[bits / 4 % (uint64_t)n];
}

// False when the walk came to no end.
static bool generate(const struct grammar *g, uint64_t seed, char *text, size_t *length) {
    static struct grammar_state states[2], scratch;
    size_t n = 0;
    grammar_start(g, &states[0]);
    for (;;) {
        int byte = next_byte(g, &states[n % 2], &scratch, seed, text, n);
        *length = n;
        if (byte < 0 || n == TEXT_MAX) return byte < 0;
        must(grammar_step(g, &states[n % 2], (unsigned char)byte, &states[(n + 1) % 2]));
        text[n++] = (char)byte;
    }
}

struct call {
    struct buffer name, arguments;
    int n;
    bool other;
};

static enum status take_event(void *user, const struct toolcall_event *event) {
    struct call *call = user;
    switch (event->kind) {
    case TOOLCALL_START:
        call->n++;
        buffer_append(&call->name, event->text, event->n);
        break;
    case TOOLCALL_ARGUMENTS: buffer_append(&call->arguments, event->text, event->n); break;
    case TOOLCALL_END: call->other |= event->truncated; break;
    default: call->other = true;
    }
    return STATUS_OK;
}

// The call that a text is, or null.
static void write_call(struct buffer *out, const json_t *tools, const char *text, size_t n) {
    struct toolcall_options options = {.tools = tools};
    struct toolcall_parser *p;
    struct call call = {.n = 0};
    must(toolcall_parser_create(&options, take_event, &call, &p, NULL) == STATUS_OK);
    must(toolcall_parser_feed(p, text, n) == STATUS_OK && toolcall_parser_finish(p) == STATUS_OK);
    toolcall_parser_free(p);
    if (call.n == 1 && !call.other) {
        buffer_append_text(out, "{\"name\": ");
        json_write_string(out, call.name.data, call.name.n);
        buffer_append_text(out, ", \"arguments\": ");
        json_write_string(out, call.arguments.data, call.arguments.n);
        buffer_append_text(out, "}");
    } else {
        buffer_append_text(out, "null");
    }
    buffer_free(&call.name);
    buffer_free(&call.arguments);
}

static void answer(const json_t *line) {
    static char text[TEXT_MAX];
    const json_t *tools = json_object_get(line, "tools");
    struct grammar *g = NULL;
    struct error e;
    struct buffer out;
    buffer_init(&out, 0);
    if (grammar_of_json(tools != NULL ? tools : json_object_get(line, "schema"), &g, &e) != STATUS_OK) {
        buffer_append_text(&out, "{\"error\": ");
        json_write_string(&out, e.text, strlen(e.text));
        printf("%s}\n", out.data);
        buffer_free(&out);
        return;
    }
    const json_t *texts = json_object_get(line, "texts");
    buffer_append_text(&out, "{\"accepted\": [");
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *t = json_array_get(texts, i);
        bool accepted = grammar_accepts(g, json_string_value(t), json_string_length(t));
        buffer_printf(&out, "%s%s", i > 0 ? ", " : "", accepted ? "true" : "false");
    }
    buffer_append_text(&out, "], \"generated\": [");
    int n = (int)json_integer_value(json_object_get(line, "generate"));
    uint64_t seed = (uint64_t)json_integer_value(json_object_get(line, "seed"));
    struct buffer calls;
    buffer_init(&calls, 0);
    buffer_append_text(&calls, "");
    const char *separator = "";
    for (int i = 0; i < n; i++) {
        size_t length;
        if (!generate(g, seed * 1000 + (uint64_t)i, text, &length)) continue;
        must(grammar_accepts(g, text, length));
        buffer_append_text(&out, separator);
        json_write_string(&out, text, length);
        if (tools != NULL) buffer_append_text(&calls, separator);
        if (tools != NULL) write_call(&calls, tools, text, length);
        separator = ", ";
    }
    printf("%s], \"calls\": [%s]}\n", out.data, calls.data);
    buffer_free(&calls);
    must(!out.failed);
    buffer_free(&out);
    grammar_free(g);
}

int main(void) {
    char *line = NULL;
    size_t capacity = 0;
    for (ssize_t n; (n = getline(&line, &capacity, stdin)) > 0; fflush(stdout)) {
        struct error e;
        json_t *value;
        if (json_parse(line, (size_t)n, LINE_BYTES_MAX, JSON_PARSE_NUL, &value, &e) != STATUS_OK) {
            printf("{\"bad\": \"%s\"}\n", e.text);
            continue;
        }
        answer(value);
        json_decref(value);
    }
    free(line);
    return 0;
}
