#include "base/status.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Room for one more whole character past the longest sentence, so that a cut never falls inside one.
#define RAW_BYTES (ERROR_TEXT_BYTES + 4)

// The length of the printable UTF-8 character at s (s is NUL-terminated), or 0: overlong forms, surrogates, numbers
// past U+10FFFF and control characters are not printable.
static size_t printable_bytes(const unsigned char *s) {
    if (s[0] >= 0x20 && s[0] < 0x7f) return 1;
    if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
    size_t n = s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : 4;
    for (size_t i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    bool bad = (s[0] == 0xc2 && s[1] < 0xa0) || (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
               (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f);
    return bad ? 0 : n;
}

// Copies raw into e->text. Every byte of raw gives one byte of text, so the cut below is the only one.
static void set_text(struct error *e, const char *raw) {
    const unsigned char *s = (const unsigned char *)raw;
    size_t n = 0;
    while (*s) {
        size_t bytes = printable_bytes(s);
        size_t step = bytes ? bytes : 1;
        if (n + step >= ERROR_TEXT_BYTES) break;
        if (bytes)
            memcpy(e->text + n, s, bytes);
        else
            e->text[n] = '?';
        n += step;
        s += step;
    }
    e->text[n] = '\0';
}

enum status error_set(struct error *e, enum status code, const char *format, ...) {
    if (!e) return code;
    char raw[RAW_BYTES];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    e->code = code;
    set_text(e, n < 0 ? "the message of this error could not be written" : raw);
    return code;
}

enum status error_memory(struct error *e) { return error_set(e, STATUS_MEMORY, "out of memory"); }

enum status error_prefix(struct error *e, const char *format, ...) {
    if (!e) return STATUS_OK;
    char raw[RAW_BYTES];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    if (n < 0) return e->code;
    size_t used = strlen(raw);
    snprintf(raw + used, sizeof raw - used, ": %s", e->text);
    set_text(e, raw);
    return e->code;
}

const char *status_name(enum status code) {
    switch (code) {
    case STATUS_OK: return "ok";
    case STATUS_INVALID: return "invalid";
    case STATUS_NOT_FOUND: return "not found";
    case STATUS_UNSUPPORTED: return "unsupported";
    case STATUS_LIMIT: return "limit";
    case STATUS_MEMORY: return "out of memory";
    case STATUS_IO: return "i/o";
    case STATUS_BUSY: return "busy";
    case STATUS_CANCELLED: return "cancelled";
    case STATUS_DEVICE: return "device";
    }
    return "unknown";
}

void must_failed(const char *condition, const char *file, int line) {
    fprintf(stderr, "bug: %s does not hold at %s:%d\n", condition, file, line);
    abort();
}
