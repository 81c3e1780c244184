#include "server/api_error.h"
#include <stdio.h>
#include <string.h>

// "/messages/3/content must be ..." names the field "messages[3].content", which is how OpenAI writes it.
static void find_param(struct api_error *e) {
    const char *at = e->text;
    size_t n = 0;
    while (*at == '/' && n + 4 < sizeof e->param) {
        size_t step = strcspn(++at, "/ ,:");
        if (step == 0) break;
        bool index = strspn(at, "0123456789") == step;
        if (step + n + 4 > sizeof e->param) break;
        const char *form = index ? "[%.*s]" : n > 0 ? ".%.*s" : "%.*s";
        n += (size_t)snprintf(e->param + n, sizeof e->param - n, form, (int)step, at);
        at += step;
    }
}

static bool refuse(struct api_error *e, unsigned http, const char *code, const char *text) {
    *e = (struct api_error){.http = http, .code = code};
    struct error clean; // error_set makes any bytes one line of UTF-8
    error_set(&clean, STATUS_INVALID, "%s", text);
    memcpy(e->text, clean.text, sizeof e->text);
    if (http == 400) find_param(e);
    if (http == 429 || http == 503) e->retry_after_s = 1;
    return false;
}

bool api_refuse(struct api_error *e, unsigned http, const char *code, const char *format, ...) {
    char text[ERROR_TEXT_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return refuse(e, http, code, text);
}

bool api_refuse_error(struct api_error *e, const struct error *error) {
    switch (error->code) {
    case STATUS_INVALID: return refuse(e, 400, NULL, error->text);
    case STATUS_UNSUPPORTED: return refuse(e, 400, "unsupported", error->text);
    case STATUS_LIMIT: return refuse(e, 400, "limit_exceeded", error->text);
    case STATUS_NOT_FOUND: return refuse(e, 404, "not_found", error->text);
    case STATUS_BUSY: return refuse(e, 429, "busy", error->text);
    case STATUS_CANCELLED: return refuse(e, 503, "cancelled", error->text);
    case STATUS_MEMORY: return refuse(e, 503, "out_of_memory", error->text);
    case STATUS_DEVICE: return refuse(e, 503, "engine_failed", error->text);
    case STATUS_IO:
    case STATUS_OK: break;
    }
    return refuse(e, 500, "internal_error", error->text);
}

static const char *type_of(unsigned http) {
    if (http == 401) return "authentication_error";
    if (http == 429) return "rate_limit_error";
    return http >= 500 ? "server_error" : "invalid_request_error";
}

static void write_text_or_null(struct buffer *b, const char *text) {
    if (text == NULL || *text == 0) {
        buffer_append_text(b, "null");
    } else {
        json_write_string(b, text, strlen(text));
    }
}

static const char *messages_type_of(unsigned http) {
    if (http == 404) return "not_found_error";
    if (http == 413) return "request_too_large";
    if (http == 503) return "overloaded_error";
    return http >= 500 ? "api_error" : type_of(http);
}

static void write_error(struct buffer *b, const struct api_error *e, const char *type) {
    buffer_append_text(b, "\"error\":{\"message\":");
    json_write_string(b, e->text, strlen(e->text));
    buffer_printf(b, ",\"type\":\"%s\",\"param\":", type);
    write_text_or_null(b, e->param);
    buffer_append_text(b, ",\"code\":");
    write_text_or_null(b, e->code);
    buffer_append_text(b, "}}");
}

void api_error_write(struct buffer *b, const struct api_error *e) {
    buffer_append_text(b, "{");
    write_error(b, e, type_of(e->http));
}

void api_error_write_messages(struct buffer *b, const struct api_error *e) {
    buffer_append_text(b, "{\"type\":\"error\",");
    write_error(b, e, messages_type_of(e->http));
}
