// Grammars for tests: of one schema or one list of tools, and what they accept.
#ifndef TF_TESTS_FORMAT_GRAMMARS_H
#define TF_TESTS_FORMAT_GRAMMARS_H

#include "format/grammar.h"
#include <jansson.h>

// `schema` is JSON: an object is a schema, an array a list of tools, of which one call is to be made.
enum status grammar_of_json(const json_t *schema, struct grammar **out, struct error *e);
enum status grammar_of_schema(const char *schema, struct grammar **out, struct error *e);
bool grammar_accepts(const struct grammar *g, const char *text, size_t n);

#endif
