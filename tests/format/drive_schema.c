// Schemas, for a Python test. Each line of standard input is {"schema", "texts", "generate", "seed"} or the same with
// "tools" in place of "schema"; each line of output is {"error"} or {"accepted": [...], "generated": [...]}, where the
// generated texts are random walks through the grammar.
#include "base/random.h"
#include "format/schema.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX       (1 << 16)
#define HURRY          120 // bytes after which a walk heads for the end
#define LINE_BYTES_MAX ((size_t)4 << 20)

static enum status compile(const json_t *line, struct grammar **out, struct error *e) {
    struct schema_compiler *c = NULL;
    struct grammar *g = NULL;
    int32_t root = 0;
    struct json_view view = json_root(line), schema = {.value = NULL};
    enum status status = grammar_create(&g, e);
    if (status == STATUS_OK) status = schema_compiler_create(g, &c, e);
    if (status == STATUS_OK && json_find(&view, "tools", &schema)) {
        status = schema_add_call(c, &schema, NULL, &root, e);
    } else if (status == STATUS_OK) {
        schema = json_root(json_object_get(line, "schema"));
        status = schema_add_value(c, &schema, &root, e);
    }
    if (status == STATUS_OK) status = schema_finish(c, root, e);
    schema_compiler_free(c);
    if (status != STATUS_OK) grammar_free(g);
    if (status == STATUS_OK) *out = g;
    return status;
}

static bool accepts(const struct grammar *g, const char *text, size_t n) {
    static struct grammar_state states[2];
    grammar_start(g, &states[0]);
    for (size_t i = 0; i < n; i++)
        if (!grammar_step(g, &states[i % 2], (unsigned char)text[i], &states[(i + 1) % 2])) return false;
    return states[n % 2].complete;
}

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
    static const char closers[] = "}]\"<\n/>fptn,0123456789:ea";
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
    for (const char *c = closers; hurry && *c != 0; c++)
        if (memchr(live, *c, (size_t)n) != NULL) return (unsigned char)*c;
    // Often something printable, so that texts are not all escapes and odd characters.
    for (uint64_t attempt = 1; attempt < 4; attempt++) {
        int byte = live[random_bits(seed, at, attempt) % (uint64_t)n];
        if (byte > 0x20 && byte < 0x7f && byte != '\\') return byte;
    }
    return live[bits / 4 % (uint64_t)n];
}

static size_t generate(const struct grammar *g, uint64_t seed, char *text) {
    static struct grammar_state states[2], scratch;
    size_t n = 0;
    grammar_start(g, &states[0]);
    for (;;) {
        int byte = next_byte(g, &states[n % 2], &scratch, seed, text, n);
        if (byte < 0) return n;
        must(n < TEXT_MAX);
        must(grammar_step(g, &states[n % 2], (unsigned char)byte, &states[(n + 1) % 2]));
        text[n++] = (char)byte;
    }
}

static void answer(const json_t *line) {
    static char text[TEXT_MAX];
    struct grammar *g = NULL;
    struct error e;
    struct buffer out;
    buffer_init(&out, 0);
    if (compile(line, &g, &e) != STATUS_OK) {
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
        bool accepted = accepts(g, json_string_value(t), json_string_length(t));
        buffer_printf(&out, "%s%s", i > 0 ? ", " : "", accepted ? "true" : "false");
    }
    buffer_append_text(&out, "], \"generated\": [");
    int n = (int)json_integer_value(json_object_get(line, "generate"));
    uint64_t seed = (uint64_t)json_integer_value(json_object_get(line, "seed"));
    for (int i = 0; i < n; i++) {
        size_t length = generate(g, seed * 1000 + (uint64_t)i, text);
        must(accepts(g, text, length));
        if (i > 0) buffer_append_text(&out, ", ");
        json_write_string(&out, text, length);
    }
    printf("%s]}\n", out.data);
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
