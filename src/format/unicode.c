#include "format/unicode.h"

#include "base/buffer.h"
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

// ---- UTF-8 ----

// Bytes of the character that begins with `lead`, or 0 when none does.
static size_t utf8_length(unsigned char lead) {
    if (lead < 0x80) return 1;
    if (lead < 0xc2) return 0; // a continuation byte, or the start of an overlong form
    if (lead < 0xe0) return 2;
    if (lead < 0xf0) return 3;
    return lead < 0xf5 ? 4 : 0;
}

// Whether `byte` may stand at index `at` (1..3) of a character that begins with `lead`. Only the second byte's range
// depends on the lead: that is what excludes overlong forms, surrogates and code points above U+10FFFF.
static bool utf8_continues(unsigned char lead, size_t at, unsigned char byte) {
    unsigned char low = 0x80, high = 0xbf;
    if (at == 1) {
        if (lead == 0xe0) low = 0xa0;
        if (lead == 0xed) high = 0x9f;
        if (lead == 0xf0) low = 0x90;
        if (lead == 0xf4) high = 0x8f;
    }
    return byte >= low && byte <= high;
}

size_t unicode_valid_prefix(const char *text, size_t n) {
    const unsigned char *s = (const unsigned char *)text;
    size_t at = 0;
    while (at < n) {
        size_t length = utf8_length(s[at]);
        if (length == 0 || length > n - at) return at;
        for (size_t i = 1; i < length; i++)
            if (!utf8_continues(s[at], i, s[at + i])) return at;
        at += length;
    }
    return n;
}

bool unicode_valid(const char *text, size_t n) { return unicode_valid_prefix(text, n) == n; }

uint32_t unicode_next(const char *text, size_t n, size_t *at) {
    must(*at < n);
    const unsigned char *s = (const unsigned char *)text + *at;
    size_t length = utf8_length(s[0]);
    must(length > 0 && length <= n - *at);
    *at += length;
    switch (length) {
    case 1: return s[0];
    case 2: return (s[0] & 0x1fu) << 6 | (s[1] & 0x3fu);
    case 3: return (s[0] & 0x0fu) << 12 | (s[1] & 0x3fu) << 6 | (s[2] & 0x3fu);
    default: return (s[0] & 0x07u) << 18 | (s[1] & 0x3fu) << 12 | (s[2] & 0x3fu) << 6 | (s[3] & 0x3fu);
    }
}

uint32_t unicode_previous(const char *text, size_t *at) {
    size_t end = *at, start = end;
    do {
        must(start > 0);
        start--;
    } while (((unsigned char)text[start] & 0xc0) == 0x80);
    *at = start;
    return unicode_next(text, end, &start);
}

size_t unicode_write(uint32_t cp, char out[4]) {
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)cp, (utf8proc_uint8_t *)out);
}

size_t unicode_count(const char *text, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}

// ---- white space ----

bool unicode_is_space(uint32_t cp) {
    if (cp < 0x80) return (cp >= 0x09 && cp <= 0x0d) || (cp >= 0x1c && cp <= 0x20);
    return cp == 0x85 || cp == 0xa0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 ||
           cp == 0x202f || cp == 0x205f || cp == 0x3000;
}

void unicode_strip(const char **text, size_t *n) {
    size_t start = 0, end = *n;
    for (size_t at = 0; at < end; start = at)
        if (!unicode_is_space(unicode_next(*text, end, &at))) break;
    for (size_t at = end; at > start; end = at)
        if (!unicode_is_space(unicode_previous(*text, &at))) break;
    *text += start;
    *n = end - start;
}

// ---- NFC ----
// utf8proc's own utf8proc_map would do, but it puts marks in order by exchanging neighbours, which takes quadratic time
// on a long run of marks. So the steps are taken one by one here, with a counting sort in the middle.

struct code_points {
    utf8proc_int32_t *cp;
    size_t n, capacity;
};

static bool code_points_reserve(struct code_points *s, size_t more) {
    if (s->capacity - s->n >= more) return true;
    size_t capacity = 2 * s->capacity + more + 64;
    utf8proc_int32_t *cp = realloc(s->cp, capacity * sizeof *cp);
    if (!cp) return false;
    s->cp = cp;
    s->capacity = capacity;
    return true;
}

static unsigned combining_class(utf8proc_int32_t cp) {
    return (unsigned)utf8proc_get_property(cp)->combining_class & 0xffu;
}

#define INSERTION_SORT_MAX 16

// Sorts cp[0..n), all marks, by combining class; equal classes keep their order.
static bool sort_marks(utf8proc_int32_t *cp, size_t n) {
    if (n <= INSERTION_SORT_MAX) {
        for (size_t i = 1; i < n; i++) {
            utf8proc_int32_t mark = cp[i];
            unsigned ccc = combining_class(mark);
            size_t j = i;
            for (; j > 0 && combining_class(cp[j - 1]) > ccc; j--) cp[j] = cp[j - 1];
            cp[j] = mark;
        }
        return true;
    }
    utf8proc_int32_t *copy = malloc(n * sizeof *copy);
    if (!copy) return false;
    memcpy(copy, cp, n * sizeof *copy);
    size_t place[257] = {0}; // after the sums: where the next mark of each class goes
    for (size_t i = 0; i < n; i++) place[combining_class(copy[i]) + 1]++;
    for (int ccc = 0; ccc < 256; ccc++) place[ccc + 1] += place[ccc];
    for (size_t i = 0; i < n; i++) cp[place[combining_class(copy[i])]++] = copy[i];
    free(copy);
    return true;
}

static bool order_marks(struct code_points *s) {
    for (size_t i = 0; i < s->n;) {
        size_t end = i;
        while (end < s->n && combining_class(s->cp[end]) != 0) end++;
        if (end - i > 1 && !sort_marks(s->cp + i, end - i)) return false;
        i = end + 1;
    }
    return true;
}

// Appends the NFC of text[0..n) to out, using s as scratch.
static bool compose_run(const char *text, size_t n, struct code_points *s, struct buffer *out) {
    enum { LONGEST_DECOMPOSITION = 8 }; // Unicode's canonical ones have at most 4 code points
    s->n = 0;
    for (size_t at = 0; at < n;) {
        uint32_t cp = unicode_next(text, n, &at);
        if (!code_points_reserve(s, LONGEST_DECOMPOSITION + 1)) return false;
        utf8proc_ssize_t added = utf8proc_decompose_char((utf8proc_int32_t)cp, s->cp + s->n, LONGEST_DECOMPOSITION,
                                                         UTF8PROC_STABLE | UTF8PROC_DECOMPOSE, NULL);
        must(added >= 0 && added <= LONGEST_DECOMPOSITION);
        s->n += (size_t)added;
    }
    if (!order_marks(s)) return false;
    // The reserve above left room for the NUL that utf8proc_reencode puts behind the text it writes over s->cp.
    utf8proc_ssize_t bytes = utf8proc_reencode(s->cp, (utf8proc_ssize_t)s->n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    must(bytes >= 0);
    return buffer_append(out, s->cp, (size_t)bytes);
}

static bool nfc_into(const char *text, size_t n, bool (*is_boundary)(uint32_t cp), struct code_points *s,
                     struct buffer *out) {
    const unsigned char *byte = (const unsigned char *)text;
    size_t at = 0;
    while (at < n) {
        // An ASCII character is changed by nothing before it, and by what follows only if that is not ASCII.
        size_t start = at;
        while (at < n && byte[at] < 0x80 && (at + 1 == n || byte[at + 1] < 0x80)) at++;
        if (!buffer_append(out, text + start, at - start)) return false;
        if (at == n) break;
        start = at;
        if (is_boundary && is_boundary(unicode_next(text, n, &at))) {
            if (!buffer_append(out, text + start, at - start)) return false;
            continue;
        }
        at = start + utf8_length(byte[start]);
        while (at < n && byte[at] >= 0x80) {
            size_t next = at;
            if (is_boundary && is_boundary(unicode_next(text, n, &next))) break;
            at += utf8_length(byte[at]);
        }
        if (!compose_run(text + start, at - start, s, out)) return false;
    }
    return true;
}

enum status unicode_nfc(const char *text, size_t n, bool (*is_boundary)(uint32_t cp), char **out, size_t *n_out,
                        struct error *e) {
    if (n > UNICODE_NFC_BYTES_MAX)
        return error_set(e, STATUS_LIMIT, "a text of %zu bytes is longer than the %zu that can be normalised", n,
                         UNICODE_NFC_BYTES_MAX);
    struct code_points scratch = {0};
    struct buffer b;
    buffer_init(&b, 0);
    char *composed = NULL;
    if (nfc_into(text, n, is_boundary, &scratch, &b) && buffer_append(&b, "", 0)) composed = buffer_take(&b, n_out);
    buffer_free(&b);
    free(scratch.cp);
    if (!composed) return error_memory(e);
    *out = composed;
    return STATUS_OK;
}

// ---- any bytes -> UTF-8 ----

static const char replacement[3] = {'\xef', '\xbf', '\xbd'};

size_t utf8_decoder_feed(struct utf8_decoder *d, const char *bytes, size_t n, char *out) {
    size_t written = 0;
    for (size_t i = 0; i < n;) {
        unsigned char byte = (unsigned char)bytes[i];
        if (d->n_tail == 0 && byte < 0x80) {
            out[written++] = (char)byte;
            i++;
        } else if (d->n_tail == 0 && utf8_length(byte) != 0) {
            d->tail[d->n_tail++] = byte;
            i++;
        } else if (d->n_tail > 0 && utf8_continues(d->tail[0], d->n_tail, byte)) {
            d->tail[d->n_tail++] = byte;
            i++;
            if (d->n_tail == utf8_length(d->tail[0])) {
                memcpy(out + written, d->tail, d->n_tail);
                written += d->n_tail;
                d->n_tail = 0;
            }
        } else { // a byte that begins nothing, or one that ends a tail too early and is looked at again
            i += d->n_tail == 0;
            d->n_tail = 0;
            memcpy(out + written, replacement, sizeof replacement);
            written += sizeof replacement;
        }
    }
    return written;
}

size_t utf8_decoder_finish(struct utf8_decoder *d, char out[3]) {
    size_t written = d->n_tail > 0 ? sizeof replacement : 0;
    memcpy(out, replacement, written);
    d->n_tail = 0;
    return written;
}
