// Numbers: as they are, and in a range.
#include "format/decimal_range.h"
#include "format/schema_internal.h"

static enum status read_bound(const struct json_view *schema, const char *keyword, bool open, bool is_high,
                              struct decimal_bound *bound, struct error *e) {
    struct json_view v;
    double value;
    if (!json_find(schema, keyword, &v)) return STATUS_OK;
    enum status status = json_as_real(&v, -1e308, 1e308, &value, e);
    if (status != STATUS_OK) return status;
    // Of two bounds the narrower counts.
    bool narrower =
        !bound->given || (is_high ? value < bound->value : value > bound->value) || (open && value == bound->value);
    if (narrower) *bound = (struct decimal_bound){.given = true, .open = open, .value = value};
    return STATUS_OK;
}

enum status schema_set_number(const struct schema_context *x, bool integer, int32_t node, struct error *e) {
    // No more digits than a double keeps, so that programs of every kind read back what was written.
    static const char any_integer[] = "^-?(0|[1-9][0-9]{0,14})$";
    static const char any_number[] = "^-?(0|[1-9][0-9]{0,14})(\\.[0-9]{1,16})?([eE][-+]?[0-9]{1,2})?$";
    struct decimal_bound low = {0}, high = {0};
    struct grammar *g = x->c->g;
    int32_t start = DFA_NONE, first;
    enum status status = read_bound(x->schema, "minimum", false, false, &low, e);
    if (status == STATUS_OK) status = read_bound(x->schema, "exclusiveMinimum", true, false, &low, e);
    if (status == STATUS_OK) status = read_bound(x->schema, "maximum", false, true, &high, e);
    if (status == STATUS_OK) status = read_bound(x->schema, "exclusiveMaximum", true, true, &high, e);
    if (status != STATUS_OK) return status;
    if (!low.given && !high.given) {
        int32_t *plain = &x->c->plain_number[integer];
        if (*plain == DFA_NONE) status = schema_regex(x->c, integer ? any_integer : any_number, plain, e);
        start = *plain;
    } else {
        struct dfa made = {0};
        struct error own;
        status = decimal_range(low, high, integer, &made, &first, &x->c->n_steps, &own);
        if (status == STATUS_OK) status = dfa_append_live(grammar_dfa(g), &made, first, &start, &own);
        x->c->n_work += made.n_states;
        dfa_free(&made);
        if (status == STATUS_MEMORY) return error_memory(e);
        const char *keyword = json_object_get(x->schema->value, "minimum") != NULL            ? "minimum"
                              : json_object_get(x->schema->value, "maximum") != NULL          ? "maximum"
                              : json_object_get(x->schema->value, "exclusiveMinimum") != NULL ? "exclusiveMinimum"
                                                                                              : "exclusiveMaximum";
        if (status != STATUS_OK) return error_set(e, status, "%s/%s %s", x->schema->path, keyword, own.text);
        if (start == DFA_NONE)
            return schema_refuse_value(x->schema, keyword, "leaves no number that could be written", e);
    }
    if (status == STATUS_OK) grammar_set_dfa(g, node, start);
    return status;
}
