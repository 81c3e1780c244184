// Owns what a request says about the form of its reply (response_format and its kin, tool_choice, strict tools), and
// makes the grammar of it: a thought first where the reply begins with one, then JSON, calls, or both. Everything is
// refused here, before a reply begins. Any thread.
#ifndef TF_SERVER_STRUCTURED_H
#define TF_SERVER_STRUCTURED_H

#include "format/masker.h"
#include "server/prompt.h"

// The vocabulary of masks, made when it is first needed.
struct vocabulary_slot;
struct vocabulary_slot *vocabulary_slot_create(void); // NULL when memory is out
void vocabulary_slot_free(struct vocabulary_slot *slot);

// Reads a format object into f->format. `wraps`: the schema and what belongs to it stand in a member "json_schema".
bool structured_read_format(const struct json_view *v, bool wraps, struct request_fields *f, struct api_error *e);

// The masker of a reply, or NULL in *out when it may be any text. calls_first: calls are looked for only where the
// reply begins with them.
bool structured_open(const struct service *s, enum route_id route, const struct request_fields *f,
                     const struct prompt *prompt, struct masker **out, bool *calls_first, struct api_error *e);

#endif
