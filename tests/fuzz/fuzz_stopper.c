// Any stop strings and any text, against a plain search. The input: how many strings, their lengths, the length of the
// pieces, the strings, the text.
#include "format/stopper.h"
#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define HEAD_BYTES (STOPPER_STRINGS_MAX + 2)

struct strings {
    size_t n;
    const char *text[STOPPER_STRINGS_MAX];
    size_t lengths[STOPPER_STRINGS_MAX];
};

static struct stopper *create(const struct strings *strings) {
    json_t *list = json_array();
    must(list != NULL);
    for (size_t i = 0; i < strings->n; i++) // the search is over bytes, so any will do
        must(json_array_append_new(list, json_stringn_nocheck(strings->text[i], strings->lengths[i])) == 0);
    struct json_view view = json_root(list);
    struct stopper *s;
    must(stopper_create(&view, &s, NULL) == STATUS_OK);
    must(stopper_is_empty(s) == (strings->n == 0));
    json_decref(list);
    return s;
}

// The longest string that ends at text[end], or 0.
static size_t longest_at(const struct strings *strings, const char *text, size_t end) {
    size_t longest = 0;
    for (size_t i = 0; i < strings->n; i++) {
        size_t m = strings->lengths[i];
        if (m <= end && m > longest && memcmp(text + end - m, strings->text[i], m) == 0) longest = m;
    }
    return longest;
}

// How much of the end of text[0..n) is the beginning of a string.
static size_t longest_begun(const struct strings *strings, const char *text, size_t n) {
    size_t longest = 0;
    for (size_t i = 0; i < strings->n; i++)
        for (size_t m = longest + 1; m <= strings->lengths[i] && m <= n; m++)
            if (memcmp(text + n - m, strings->text[i], m) == 0) longest = m;
    return longest;
}

static void check(const struct strings *strings, const char *text, size_t n, size_t n_piece) {
    struct stopper *s = create(strings);
    struct buffer out;
    buffer_init(&out, 0);
    size_t end = 1, used = 0, at = 0;
    while (end <= n && longest_at(strings, text, end) == 0) end++;
    size_t n_shown = end <= n ? end - longest_at(strings, text, end) : n;
    bool hit = false;
    while (at < n && !hit) {
        size_t m = n - at < n_piece ? n - at : n_piece;
        hit = stopper_feed(s, text + at, m, &out, &used);
        at += used;
        must(hit || used == m);
        if (!hit) must(out.n == at - longest_begun(strings, text, at)); // held as long as needed, and no longer
    }
    must(hit == (end <= n) && at == (hit ? end : n));
    if (!hit) stopper_flush(s, &out);
    must(!out.failed && out.n == n_shown && (out.n == 0 || memcmp(out.data, text, out.n) == 0));
    buffer_free(&out);
    stopper_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n < HEAD_BYTES) return 0;
    struct strings strings = {.n = data[0] % (STOPPER_STRINGS_MAX + 1)};
    const char *text = (const char *)data + HEAD_BYTES;
    size_t left = n - HEAD_BYTES;
    for (size_t i = 0; i < strings.n; i++) {
        size_t m = 1u + data[1 + i];
        if (m > left) return 0;
        strings.text[i] = text;
        strings.lengths[i] = m;
        text += m;
        left -= m;
    }
    if (left > 4096) left = 4096; // the plain search is slow
    check(&strings, text, left, 1u + data[HEAD_BYTES - 1]);
    return 0;
}
