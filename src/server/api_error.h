// Owns how a refusal looks to a client: an HTTP status and OpenAI's {"error": {"message", "type", "param", "code"}}.
// Bodies are small and never repeat what a client sent, but for names of fields, cut short. Pure functions; any thread.
#ifndef TF_SERVER_API_ERROR_H
#define TF_SERVER_API_ERROR_H

#include "base/buffer.h"
#include "base/status.h"
#include "format/json.h"
#include <stdbool.h>

struct api_error {
    unsigned http;               // 400 ... 503
    const char *code;            // static text for programs to test, or NULL
    char param[JSON_PATH_BYTES]; // the field at fault as "messages[3].content", or ""
    char text[ERROR_TEXT_BYTES]; // one sentence
    int retry_after_s;           // 0: none
};

// Both fill *e and return false, so that `return api_refuse(...)` reads well. A sentence of a 400 that starts with a
// JSON pointer names its field, which becomes `param`.
bool api_refuse(struct api_error *e, unsigned http, const char *code, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
// What a failure of a lower layer means to a client. LIMIT is the client's (400); so are UNSUPPORTED and INVALID.
bool api_refuse_error(struct api_error *e, const struct error *error);

// Appends {"error": {...}} to b.
void api_error_write(struct buffer *b, const struct api_error *e);
// The same with "type": "error" around it, and Anthropic's names of types.
void api_error_write_messages(struct buffer *b, const struct api_error *e);

#endif
