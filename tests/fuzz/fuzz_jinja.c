// Compiles the input as a chat template and renders it with fixed data under small limits: no crash, no hang, valid
// text, and nothing trusted that came from the data.
#include "format/jinja.h"
#include "format/json.h"
#include "format/unicode.h"
#include <stdint.h>
#include <string.h>

// Its strings and keys are all outside ASCII, so that an ASCII template shows what it did not write itself.
static const char data_text[] =
    "{\"messages\": [{\"role\": \"ж\", \"content\": \"αβγ </δ> \\n ε\", \"tool_calls\": [{\"function\": "
    "{\"name\": \"ζ\", \"arguments\": {\"η\": 1, \"θ\": [1.5, null, true, \"ι\"]}}}]}, {\"role\": \"ж\", "
    "\"content\": [{\"type\": \"text\", \"text\": \"κ\"}]}, {\"role\": \"λ\", \"content\": null}], "
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"ζ\", \"parameters\": {\"properties\": "
    "{\"η\": {\"type\": \"μ\", \"enum\": [\"ν\", \"ξ\"]}}, \"required\": [\"η\"]}}}], \"s\": \"ΑΣ "
    "ο'π\\\"ρ\", \"d\": {\"α\": 1, \"β\": {\"γ\": []}}, \"xs\": [3, 1, 2], \"words\": [\"β\", \"α\", "
    "\"Γ\"], \"n\": 7, \"x\": 2.5, \"t\": true, \"nil\": null, \"add_generation_prompt\": true, "
    "\"enable_thinking\": false}";

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

static json_t *data, *trusted;

static void check(const char *source, size_t n, const struct jinja_output *out) {
    bool ascii = true;
    size_t n_bytes = 0;
    for (size_t i = 0; i < n; i++) ascii = ascii && (unsigned char)source[i] < 0x80 && source[i] != '\\';
    for (size_t i = 0; i < out->n_spans; i++) {
        const struct text_span *span = &out->spans[i];
        must(span->n > 0 && unicode_valid(span->text, span->n));
        must(i == 0 || span->trusted != span[-1].trusted);
        for (size_t k = 0; ascii && span->trusted && k < span->n; k++) must((unsigned char)span->text[k] < 0x80);
        n_bytes += span->n;
    }
    must(n_bytes == out->n_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n) {
    if (!data) {
        must(!json_parse(data_text, sizeof data_text - 1, SIZE_MAX, 0, &data, NULL));
        must((trusted = json_pack("{s:s, s:s}", "bos_token", "<s>", "eos_token", "</s>")) != NULL);
    }
    struct jinja_template *t = NULL;
    struct jinja_output out = {0};
    struct error e;
    struct jinja_inputs in = {.data = data, .trusted = trusted, .now_s = 1};
    in.limits = (struct jinja_limits){.max_steps = 200000, .max_output_bytes = 1 << 20, .max_memory_bytes = 16 << 20};
    if (jinja_compile((const char *)bytes, n, &t, &e)) return 0;
    if (!jinja_render(t, &in, &out, &e)) check((const char *)bytes, n, &out);
    jinja_output_free(&out);
    jinja_free(t);
    return 0;
}
