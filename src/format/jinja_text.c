// Strings: bytes with their origin. A part of a string shares its bytes; new text is built once.
#include "format/jinja_render.h"
#include "format/unicode.h"
#include <string.h>

#define LARGE_BYTES ((size_t)1 << 20) // from here on growth is by half, so that little of the memory limit is idle

static size_t grown(size_t n) { return n < LARGE_BYTES ? n * 2 + 64 : n + n / 2; }

static bool builder_reserve(struct render *r, struct builder *b, size_t n) {
    if (n > SIZE_MAX / 4 - b->n) return render_fail(r, STATUS_LIMIT, "a string is too long");
    if (b->n + n <= b->capacity) return true;
    size_t capacity = grown(b->n + n);
    char *text = render_alloc(r, capacity, 1);
    unsigned char *trust = text && b->trust ? render_alloc(r, capacity, 1) : NULL;
    if (r->status) return false;
    if (b->n) memcpy(text, b->text, b->n);
    if (b->n && trust) memcpy(trust, b->trust, b->n);
    b->text = text;
    b->trust = trust;
    b->capacity = capacity;
    return true;
}

// Until both kinds of text are in a builder, one flag tells of all of it and no map is needed.
static bool builder_add_map(struct render *r, struct builder *b) {
    if (b->trust) return true;
    b->trust = render_alloc(r, b->capacity + 1, 1);
    if (b->trust) memset(b->trust, b->trusted, b->n);
    return b->trust;
}

bool builder_append(struct render *r, struct builder *b, const char *text, size_t n, bool trusted) {
    if (!n) return true;
    if (!builder_reserve(r, b, n) || !render_step(r, n / 16)) return false;
    if (!b->n && !b->trust) b->trusted = trusted;
    if (trusted != b->trusted && !builder_add_map(r, b)) return false;
    memcpy(b->text + b->n, text, n);
    if (b->trust) memset(b->trust + b->n, trusted, n);
    b->n += n;
    return true;
}

bool builder_append_value(struct render *r, struct builder *b, const struct value *text) {
    if (!text->trust || !text->n) return builder_append(r, b, text->text, text->n, text->trusted);
    if (!builder_reserve(r, b, text->n) || !builder_add_map(r, b) || !render_step(r, text->n / 16)) return false;
    memcpy(b->text + b->n, text->text, text->n);
    memcpy(b->trust + b->n, text->trust, text->n);
    b->n += text->n;
    return true;
}

struct value builder_finish(struct builder *b) {
    return (struct value){
        .type = VALUE_STRING, .trusted = b->trusted, .n = b->n, .trust = b->trust, .text = b->text ? b->text : ""};
}

// A template that puts a string together piece by piece extends the newest concatenation; copying it every time would
// take quadratic time and memory.
bool value_concat(struct render *r, const struct value *a, const struct value *b, struct value *out) {
    struct builder *tail = &r->tail;
    if (!a->n || !b->n) {
        *out = a->n ? *a : *b;
        return true;
    }
    bool extends = tail->text && a->trust && a->text + a->n == tail->text + tail->n &&
                   a->trust + a->n == tail->trust + tail->n && b->n <= tail->capacity - tail->n;
    if (!extends) {
        *tail = (struct builder){0};
        if (!builder_reserve(r, tail, a->n + b->n) || !builder_add_map(r, tail) || !builder_append_value(r, tail, a))
            return false;
    }
    if (!builder_append_value(r, tail, b)) return false;
    size_t n = a->n + b->n, start = tail->n - n;
    *out = (struct value){.type = VALUE_STRING, .n = n, .text = tail->text + start, .trust = tail->trust + start};
    return true;
}

bool text_escape(struct render *r, const struct value *text, struct value *out) {
    static const char special[] = "&<>'\"";
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    struct builder b = {.trusted = text->trusted};
    size_t kept = 0;
    for (size_t i = 0; !text->markup && i < text->n; i++) {
        const char *found = text->text[i] ? strchr(special, text->text[i]) : NULL;
        if (!found) continue;
        struct value before = value_part(text, kept, i);
        const char *entity = entities[found - special];
        bool trusted = text->trust ? text->trust[i] : text->trusted;
        if (!builder_append_value(r, &b, &before) || !builder_append(r, &b, entity, strlen(entity), trusted))
            return false;
        kept = i + 1;
    }
    struct value rest = value_part(text, kept, text->n);
    if (kept && !builder_append_value(r, &b, &rest)) return false;
    *out = kept ? builder_finish(&b) : *text;
    out->markup = true;
    return render_step(r, text->n / 16);
}

size_t text_find(const struct value *text, const struct value *part, size_t from) {
    if (from > text->n || part->n > text->n - from) return SIZE_MAX;
    if (!part->n) return from;
    const char *found = memmem(text->text + from, text->n - from, part->text, part->n);
    return found ? (size_t)(found - text->text) : SIZE_MAX;
}

static bool is_stripped(struct render *r, uint32_t cp, const struct value *chars) {
    if (!chars) return unicode_is_space(cp);
    for (size_t at = 0; at < chars->n && render_step(r, 1);)
        if (unicode_next(chars->text, chars->n, &at) == cp) return true;
    return false;
}

bool text_strip(struct render *r, const struct value *text, const struct value *chars, bool left, bool right,
                struct value *out) {
    size_t start = 0, end = text->n, at;
    while (left && start < end) {
        at = start;
        if (!is_stripped(r, unicode_next(text->text, text->n, &at), chars)) break;
        start = at;
    }
    while (right && end > start) {
        at = end;
        if (!is_stripped(r, unicode_previous(text->text, &at), chars)) break;
        end = at;
    }
    *out = value_part(text, start, end);
    return render_step(r, (text->n - (end - start)) / 16);
}

// An empty `old` matches before each character and at the end, as in Python.
bool text_replace(struct render *r, const struct value *text, const struct value *old, const struct value *with,
                  int64_t limit, struct value *out) {
    struct builder b = {.trusted = true};
    size_t from = 0, at = 0;
    if (!render_step(r, text->n / 16 + 1)) return false;
    while (limit && at <= text->n) {
        size_t found = text_find(text, old, at), end = found;
        if (found == SIZE_MAX) break;
        if (!old->n && found < text->n)
            unicode_next(text->text, text->n, &end); // the character after an empty match stays
        struct value kept = value_part(text, from, found);
        if (!builder_append_value(r, &b, &kept) || !builder_append_value(r, &b, with) || !render_step(r, 1))
            return false;
        from = found + old->n;
        at = old->n ? from : found < text->n ? end : found + 1;
        limit -= limit > 0;
    }
    struct value rest = value_part(text, from, text->n);
    if (!from && !b.n) {
        *out = *text;
        return true;
    }
    if (!builder_append_value(r, &b, &rest)) return false;
    *out = builder_finish(&b);
    return true;
}

// Where str.splitlines ends a line: the place behind the break that stands at `at`, or `at`.
static size_t line_break(const struct value *text, size_t at) {
    size_t end = at;
    uint32_t cp = unicode_next(text->text, text->n, &end);
    if (cp == '\r' && end < text->n && text->text[end] == '\n') return end + 1;
    bool breaks =
        (cp >= 0x0a && cp <= 0x0d) || (cp >= 0x1c && cp <= 0x1e) || cp == 0x85 || cp == 0x2028 || cp == 0x2029;
    return breaks ? end : at;
}

bool text_split_lines(struct render *r, const struct value *text, bool keep_ends, struct value *out) {
    struct value *items = NULL;
    size_t n = 0, start = 0;
    for (int pass = 0; pass < 2; pass++) { // counts, then fills
        if (pass && !(items = render_alloc(r, n + 1, sizeof *items))) return false;
        n = start = 0;
        for (size_t at = 0; at < text->n;) {
            size_t end = line_break(text, at);
            if (end == at) {
                unicode_next(text->text, text->n, &at);
                if (at < text->n) continue;
                end = at;
            }
            size_t text_ends = at < end ? at : end;
            if (items) items[n] = value_part(text, start, keep_ends ? end : text_ends);
            n++;
            start = at = end;
        }
    }
    return render_step(r, text->n / 8 + n) && value_list(r, SEQUENCE_LIST, items, n, out);
}

bool value_join(struct render *r, const struct value *separator, const struct value *items, bool convert,
                struct value *out) {
    struct builder b = {.trusted = true};
    struct iterator *it = value_iterate(r, items);
    struct value v;
    enum next next = NEXT_ERROR;
    for (bool first = true; it && (next = iterator_next(r, it, &v)) == NEXT_ITEM; first = false) {
        if (!convert && v.type != VALUE_STRING)
            return render_fail(r, STATUS_INVALID, "'join' needs strings, not a %s", value_type_name(&v));
        if ((!first && !builder_append_value(r, &b, separator)) || !value_to_text(r, &v, &v) ||
            !builder_append_value(r, &b, &v))
            return false;
    }
    *out = builder_finish(&b);
    return next == NEXT_END;
}
