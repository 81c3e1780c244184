#include "tests/format/grammars.h"
#include "format/schema.h"
#include <string.h>

enum status grammar_of_json(const json_t *schema, struct grammar **out, struct error *e) {
    struct schema_compiler *c = NULL;
    struct grammar *g = NULL;
    int32_t root = 0;
    struct json_view view = json_root(schema);
    enum status status = grammar_create(&g, e);
    if (status == STATUS_OK) status = schema_compiler_create(g, &c, e);
    if (status == STATUS_OK)
        status =
            json_is_array(schema) ? schema_add_call(c, &view, NULL, &root, e) : schema_add_value(c, &view, &root, e);
    if (status == STATUS_OK) status = schema_finish(c, root, e);
    schema_compiler_free(c);
    if (status == STATUS_OK)
        *out = g;
    else
        grammar_free(g);
    return status;
}

enum status grammar_of_schema(const char *schema, struct grammar **out, struct error *e) {
    json_t *value;
    enum status status = json_parse(schema, strlen(schema), strlen(schema), JSON_PARSE_ANY, &value, e);
    if (status != STATUS_OK) return status;
    status = grammar_of_json(value, out, e);
    json_decref(value);
    return status;
}

bool grammar_accepts(const struct grammar *g, const char *text, size_t n) {
    static _Thread_local struct grammar_state states[2];
    grammar_start(g, &states[0]);
    for (size_t i = 0; i < n; i++)
        if (!grammar_step(g, &states[i % 2], (unsigned char)text[i], &states[(i + 1) % 2])) return false;
    return states[n % 2].complete;
}
