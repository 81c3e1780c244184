// Owns the way from the bodies of /v1/messages and /v1/responses to the messages, tools and tool_choice of a chat, so
// that every route goes through the same template. It checks all that it reads: refusals name the place in the body
// that was sent. Pure; any thread.
#ifndef TF_SERVER_TRANSLATE_H
#define TF_SERVER_TRANSLATE_H

#include "server/fields.h"

// Sets messages, tools, tool_choice, parallel_calls, thinking and reasoning_effort in *f from what fields_read found.
// Does nothing for the routes whose bodies have that form already.
bool translate_fields(const struct service *s, enum route_id route, struct request_fields *f, struct api_error *e);

// ---- the parts; each of one format (translate_messages.c, translate_responses.c) ----

bool translate_messages(const struct service *s, struct request_fields *f, struct api_error *e);
bool translate_responses(const struct service *s, struct request_fields *f, struct api_error *e);

// ---- what both formats share ----

// The i-th element of an array; a null is refused.
bool translate_element(const struct json_view *list, size_t i, struct json_view *out, struct api_error *e);
// A required member that is text, or, when it is not required, "" for want of it.
bool translate_text(const struct json_view *v, const char *name, enum json_need need, const char **text, size_t *n,
                    struct api_error *e);
// Appends v, which is text or a list of parts {"type": ..., "text"} whose type is one of `types` (separated by '|'),
// with `between` between the parts.
bool translate_content(const struct json_view *v, const char *types, const char *between, struct buffer *out,
                       struct api_error *e);
// Appends a chat's function tool; parameters may be NULL.
bool translate_tool(json_t *tools, const char *name, const char *description, const json_t *parameters,
                    struct api_error *e);
bool translate_has_tool(const json_t *tools, const char *name);
// An effort that the template does not know still says whether to think.
void translate_effort(const struct service *s, const char *effort, struct request_fields *f);
bool translate_memory(struct api_error *e); // refuses for want of memory

// Fills f->owned_tools from f->given_tools with a route's own reader, which appends to `tools`.
typedef bool translate_tool_fn(const struct json_view *tool, json_t *tools, struct api_error *e);
bool translate_tools(struct request_fields *f, translate_tool_fn *read_tool, struct api_error *e);

#endif
