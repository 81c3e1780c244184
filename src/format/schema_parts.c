// The nodes that every grammar of JSON has.
#include "format/schema_internal.h"
#include <string.h>

// White space as models write it between tokens of JSON: none, a space, or a new line with its indentation. Bounded, so
// that a model cannot spend a reply on it.
#define SPACE  "( |\\n {0,32})?"
#define NUMBER "-?(0|[1-9][0-9]{0,14})(\\.[0-9]{1,16})?([eE][-+]?[0-9]{1,2})?"

static const uint32_t ascii[][2] = {{0, 0x7f}};

enum status schema_regex(struct schema_compiler *c, const char *pattern, int32_t *start, struct error *e) {
    const struct pattern_alphabet alphabet = {ascii, 1};
    struct dfa made = {0};
    int32_t first;
    enum status status = pattern_compile(pattern, strlen(pattern), &alphabet, &made, &first, &c->n_steps, e);
    if (status == STATUS_OK) status = dfa_append_live(grammar_dfa(c->g), &made, first, start, e);
    c->n_work += made.n_states;
    must(status != STATUS_UNSUPPORTED); // these patterns are our own
    dfa_free(&made);
    return status;
}

enum status schema_regex_node(struct schema_compiler *c, const char *pattern, int32_t *node, struct error *e) {
    int32_t start;
    enum status status = schema_regex(c, pattern, &start, e);
    if (status == STATUS_OK) status = grammar_reserve(c->g, node, e);
    if (status == STATUS_OK) grammar_set_dfa(c->g, *node, start);
    return status;
}

enum status schema_prepare(struct schema_compiler *c, struct error *e) {
    const struct {
        int32_t *start;
        const char *pattern;
    } words[] = {{&c->open_object, "^\\{" SPACE "$"}, {&c->close_object, "^" SPACE "\\}$"},
                 {&c->open_array, "^\\[" SPACE "$"},  {&c->close_array, "^" SPACE "\\]$"},
                 {&c->separator, "^," SPACE "$"},     {&c->space, "^" SPACE "$"}};
    enum status status = STATUS_OK;
    c->plain_number[0] = c->plain_number[1] = DFA_NONE;
    for (size_t i = 0; status == STATUS_OK && i < sizeof words / sizeof *words; i++)
        status = schema_regex(c, words[i].pattern, words[i].start, e);
    return status;
}

enum status schema_list(struct schema_compiler *c, int32_t element, uint32_t min, uint32_t max, int32_t node) {
    const struct grammar_frame_words words = {c->open_array, c->separator, c->close_array};
    grammar_set_list(c->g, node, &words, element, min, max);
    return STATUS_OK;
}

// A string without a pattern.
static enum status add_string(struct schema_compiler *c, enum schema_form form, int32_t *node, struct error *e) {
    const struct grammar_string s = {.max = GRAMMAR_UNBOUNDED, .pattern = DFA_NONE, .guard = form != FORM_JSON};
    enum status status = grammar_reserve(c->g, node, e);
    if (status == STATUS_OK) grammar_set_string(c->g, *node, &s);
    return status;
}

// An object whose members are all alike: a list of them.
enum status schema_map(struct schema_compiler *c, enum schema_form form, int32_t value, int32_t node, struct error *e) {
    const struct grammar_frame_words words = {c->open_object, c->separator, c->close_object};
    int32_t parts[3] = {0, 0, value}, member;
    enum status status = add_string(c, form, &parts[0], e);
    if (status == STATUS_OK) status = schema_regex_node(c, "^:" SPACE "$", &parts[1], e);
    if (status == STATUS_OK) status = grammar_reserve(c->g, &member, e);
    if (status == STATUS_OK) status = grammar_set_sequence(c->g, member, parts, 3, e);
    if (status == STATUS_OK) grammar_set_list(c->g, node, &words, member, 0, GRAMMAR_UNBOUNDED);
    return status;
}

// The nodes of any value and of any object, which contain each other.
static enum status make_any(struct schema_compiler *c, enum schema_form form, struct error *e) {
    int32_t parts[4], *array = &parts[0], *string = &parts[1], *other = &parts[2], *object = &parts[3], any;
    enum status status = grammar_reserve(c->g, array, e);
    if (status == STATUS_OK) status = add_string(c, form, string, e);
    if (status == STATUS_OK) status = schema_regex_node(c, "^(true|false|null|" NUMBER ")$", other, e);
    if (status == STATUS_OK) status = grammar_reserve(c->g, object, e);
    if (status == STATUS_OK) status = grammar_reserve(c->g, &any, e);
    if (status == STATUS_OK) status = grammar_set_choice(c->g, any, parts, 4, e);
    if (status == STATUS_OK) status = schema_list(c, any, 0, GRAMMAR_UNBOUNDED, *array);
    if (status == STATUS_OK) status = schema_map(c, form, any, *object, e);
    if (status != STATUS_OK) return status;
    c->any[form] = any;
    c->any_object[form] = *object;
    return STATUS_OK;
}

enum status schema_any(struct schema_compiler *c, enum schema_form form, int32_t *node, struct error *e) {
    enum status status = c->any[form] == 0 ? make_any(c, form, e) : STATUS_OK;
    if (status == STATUS_OK) *node = c->any[form];
    return status;
}

enum status schema_any_object(struct schema_compiler *c, enum schema_form form, int32_t *node, struct error *e) {
    enum status status = c->any[form] == 0 ? make_any(c, form, e) : STATUS_OK;
    if (status == STATUS_OK) *node = c->any_object[form];
    return status;
}

enum status schema_add_words(struct schema_compiler *c, const char *text, int32_t *node, struct error *e) {
    struct dfa_word word = {.text = text, .n = strlen(text), .tag = 0};
    int32_t start;
    enum status status = dfa_add_words(grammar_dfa(c->g), &word, 1, &start, e);
    if (status == STATUS_OK) status = grammar_reserve(c->g, node, e);
    if (status == STATUS_OK) grammar_set_dfa(c->g, *node, start);
    return status;
}

enum status schema_add_newlines(struct schema_compiler *c, int count, int32_t *node, struct error *e) {
    char pattern[32];
    snprintf(pattern, sizeof pattern, "^\\n{0,%d}$", count);
    return schema_regex_node(c, pattern, node, e);
}
