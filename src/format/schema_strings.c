// Strings: lengths, patterns and formats.
#include "format/schema_internal.h"
#include <string.h>

#define MONTH_DAYS                                                                                                     \
    "((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
#define DATE  "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})-" MONTH_DAYS
#define TIME  "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[-+]([01][0-9]|2[0-3]):[0-5][0-9])"
#define BYTE  "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define LABEL "[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?"

// What is written in these formats has the format; not everything that has it is written (29 February, unusual
// addresses).
static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
    {"ipv4", "^" BYTE "\\." BYTE "\\." BYTE "\\." BYTE "$"},
    {"email", "^[a-z0-9]([-a-z0-9_+]{0,30}[a-z0-9])?(\\.[a-z0-9]{1,30})?@" LABEL "(\\." LABEL ")?\\.[a-z]{2,10}$"},
};

// What a string can be made of: in JSON what has an escape of one letter or needs none; between tags no '<' either, so
// that no tag ends in it.
static const uint32_t json_characters[][2] = {{8, 10}, {12, 13}, {0x20, 0xd7ff}, {0xe000, 0x10ffff}};
static const uint32_t raw_characters[][2] = {{9, 10}, {0x20, '<' - 1}, {'<' + 1, 0xd7ff}, {0xe000, 0x10ffff}};

// The automaton of a pattern or format and the lengths, or DFA_NONE when nothing but lengths is asked.
static enum status find_pattern(const struct schema_context *x, uint32_t min, uint32_t max, int32_t *start,
                                struct error *e) {
    const struct pattern_alphabet json = {json_characters, 4}, raw = {raw_characters, 4};
    const char *pattern = NULL, *format = NULL, *keyword = "pattern";
    size_t n = 0;
    struct error own;
    enum status status = json_get_string(x->schema, "pattern", JSON_OPTIONAL, &pattern, &n, e);
    if (status == STATUS_OK) status = json_get_string(x->schema, "format", JSON_OPTIONAL, &format, NULL, e);
    if (status != STATUS_OK) return status;
    *start = DFA_NONE;
    if (format != NULL) {
        if (pattern != NULL) return schema_refuse_value(x->schema, "format", "is not supported beside a pattern", e);
        for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
            if (strcmp(formats[i].name, format) == 0) pattern = formats[i].pattern;
        if (pattern == NULL) return schema_refuse_value(x->schema, "format", "names a format that is not supported", e);
        n = strlen(pattern);
        keyword = "format";
    }
    if (pattern == NULL) return STATUS_OK;
    struct dfa any_length = {0}, bounded = {0};
    int32_t first, second;
    status = pattern_compile(pattern, n, x->form == FORM_PARAMETER ? &raw : &json, &any_length, &first, &x->c->n_steps,
                             &own);
    if (status == STATUS_OK) x->c->n_work += any_length.n_states;
    bool bounds = min > 0 || max != GRAMMAR_UNBOUNDED;
    if (status == STATUS_OK && bounds) {
        status = dfa_bound_characters(&any_length, first, min, max, &bounded, &second, &own);
        int64_t n_pair = (int64_t)any_length.n_states * (max == GRAMMAR_UNBOUNDED ? min : max);
        x->c->n_steps += (n_pair < DFA_STATES_MAX ? n_pair : 0) / 16 + 8 * (int64_t)bounded.n_states;
    }
    if (status == STATUS_OK)
        status = dfa_append_live(grammar_dfa(x->c->g), bounds ? &bounded : &any_length, bounds ? second : first, start,
                                 &own);
    dfa_free(&any_length);
    dfa_free(&bounded);
    if (status == STATUS_MEMORY) return error_memory(e);
    if (status != STATUS_OK) return error_set(e, status, "%s/%s %s", x->schema->path, keyword, own.text);
    return *start != DFA_NONE
               ? STATUS_OK
               : schema_refuse_value(x->schema, keyword, "is matched by no text that could be written", e);
}

// A parameter's text is taken as it is, unless its schema has other types too: then what looks like one is taken so.
static enum status set_parameter(const struct schema_context *x, uint32_t min, uint32_t max, int32_t pattern,
                                 int32_t node, struct error *e) {
    bool ambiguous = (x->types & (VALUE_OBJECT | VALUE_ARRAY)) != 0;
    if (pattern == DFA_NONE) {
        const struct grammar_text text = {.min = min, .max = max, .stops = {"</parameter>", NULL}, .plain = ambiguous};
        if (ambiguous && max == 0) return schema_refuse(x->schema, "maxLength", e);
        grammar_set_text(x->c->g, node, &text);
        return STATUS_OK;
    }
    if (ambiguous) return schema_refuse_value(x->schema, "pattern", "is not supported beside objects and arrays", e);
    grammar_set_dfa(x->c->g, node, pattern);
    return STATUS_OK;
}

enum status schema_set_string(const struct schema_context *x, int32_t node, struct error *e) {
    uint32_t min = 0, max = GRAMMAR_UNBOUNDED;
    int32_t pattern;
    enum status status = schema_read_count(x->schema, "minLength", &min, e);
    if (status == STATUS_OK) status = schema_read_count(x->schema, "maxLength", &max, e);
    if (status != STATUS_OK) return status;
    if (max < min) return schema_refuse_value(x->schema, "maxLength", "is below minLength", e);
    status = find_pattern(x, min, max, &pattern, e);
    if (status != STATUS_OK) return status;
    if (x->form == FORM_PARAMETER) return set_parameter(x, min, max, pattern, node, e);
    struct grammar_string s = {.min = min, .max = max, .pattern = pattern, .guard = x->form == FORM_IN_TAGS};
    if (pattern != DFA_NONE) { // it knows the lengths
        s.min = 0;
        s.max = GRAMMAR_UNBOUNDED;
    }
    grammar_set_string(x->c->g, node, &s);
    return STATUS_OK;
}
