// Owns JSON Schema -> grammar, for the part of it that docs/structured-output.md lists. Every text that the grammar
// accepts is valid; what the schema would allow beyond that (other orders of members, members that it does not name,
// other spellings) is not asked of a model. What cannot be kept to is refused with the JSON pointer of the keyword.
// Time and memory are bounded. One thread at a time.
#ifndef TF_FORMAT_SCHEMA_H
#define TF_FORMAT_SCHEMA_H

#include "format/grammar_build.h"
#include "format/json.h"

struct schema_compiler; // makes the nodes of one grammar; holds views of the schemas until it is freed

enum status schema_compiler_create(struct grammar *g, struct schema_compiler **out, struct error *e);
void schema_compiler_free(struct schema_compiler *c); // NULL is fine

// A node for the values of a schema; its path begins the pointers of sentences. Errors: INVALID, UNSUPPORTED, LIMIT,
// MEMORY.
enum status schema_add_value(struct schema_compiler *c, const struct json_view *schema, int32_t *node, struct error *e);
// Any JSON object.
enum status schema_add_object(struct schema_compiler *c, int32_t *node, struct error *e);

// One call of one of these functions as format/toolcall.h reads it, with arguments that are valid for its parameters.
// tools: as in a request, checked already; only: the one that may be called, or NULL.
enum status schema_add_call(struct schema_compiler *c, const struct json_view *tools, const char *only, int32_t *node,
                            struct error *e);

// Pieces of a reply around these: a fixed text; `count` newlines at most.
enum status schema_add_words(struct schema_compiler *c, const char *text, int32_t *node, struct error *e);
enum status schema_add_newlines(struct schema_compiler *c, int count, int32_t *node, struct error *e);

// Ends the grammar, as grammar_finish, and refuses what could never be met.
enum status schema_finish(struct schema_compiler *c, int32_t root, struct error *e);

#endif
