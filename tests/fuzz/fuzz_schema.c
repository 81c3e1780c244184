// Any bytes as a schema, or, when they are an array, as tools. What is accepted must lead to an end from everywhere: a
// walk through the grammar that the input's own bytes choose never gets stuck, and no state is larger than it may be.
#include "format/json.h"
#include "format/schema.h"
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define STEPS 200

static bool compile(const json_t *value, struct grammar **out) {
    struct schema_compiler *c = NULL;
    struct grammar *g = NULL;
    int32_t root = 0;
    struct error e = {0};
    struct json_view view = json_root(value);
    enum status status = grammar_create(&g, &e);
    if (status == STATUS_OK) status = schema_compiler_create(g, &c, &e);
    if (status == STATUS_OK)
        status =
            json_is_array(value) ? schema_add_call(c, &view, NULL, &root, &e) : schema_add_value(c, &view, &root, &e);
    if (status == STATUS_OK) status = schema_finish(c, root, &e);
    schema_compiler_free(c);
    must(status == STATUS_OK || e.text[0] != 0);
    must(status != STATUS_MEMORY);
    if (status != STATUS_OK) grammar_free(g);
    *out = g;
    return status == STATUS_OK;
}

// The first byte from `from` on that may come; -1: none.
static int next_byte(const struct grammar *g, const struct grammar_state *s, unsigned from, struct grammar_state *to) {
    for (unsigned i = 0; i < 256; i++)
        if (grammar_step(g, s, (unsigned char)(from + i), to)) return (int)((from + i) & 0xff);
    return -1;
}

static void walk(const struct grammar *g, const uint8_t *data, size_t n) {
    static struct grammar_state states[2];
    grammar_start(g, &states[0]);
    must(states[0].n_readings > 0 || states[0].complete);
    for (size_t i = 0; i < STEPS; i++) {
        const struct grammar_state *s = &states[i % 2];
        must(s->n_readings <= GRAMMAR_READINGS && s->n_frames <= GRAMMAR_FRAMES);
        int byte = next_byte(g, s, n > 0 ? data[i * 7 % n] : 0, &states[(i + 1) % 2]);
        must(byte >= 0 || s->complete);
        if (byte < 0) return;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    json_t *value;
    struct grammar *g;
    if (json_parse((const char *)data, n, 1 << 20, JSON_PARSE_ANY, &value, NULL) != STATUS_OK) return 0;
    if (compile(value, &g)) {
        walk(g, data, n);
        grammar_free(g);
    }
    json_decref(value);
    return 0;
}
