// Any bytes through the two small tokenizers. What is checked: bytes that are not UTF-8 are refused and nothing else
// is; plain text gives no added token, decodes to its own NFC, and does not depend on how it is cut into spans; text
// given out token by token is the text given out at once.
#include "base/buffer.h"
#include "format/detokenizer.h"
#include "format/normalizer.h"
#include "format/tokenizer.h"
#include "format/unicode.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define FOLDER "tests/fixtures/tokenizer/"

static struct tokenizer *load(const char *path, const char *config) {
    struct tokenizer *t = NULL;
    struct error e;
    if (tokenizer_load(path, config, &t, &e) == STATUS_OK) return t;
    fprintf(stderr, "%s\n", e.text);
    exit(1);
}

static void check_stream(const struct tokenizer *t, const int32_t *ids, size_t n_ids, bool skip, const char *text,
                         size_t n) {
    struct detokenizer *d = detokenizer_create(t, skip);
    must(d);
    size_t at = 0, n_part;
    for (size_t i = 0; i <= n_ids; i++) {
        const char *part = i < n_ids ? detokenizer_feed(d, ids[i], &n_part) : detokenizer_finish(d, &n_part);
        must(n_part <= n - at && !memcmp(part, text + at, n_part) && unicode_valid(part, n_part));
        at += n_part;
    }
    must(at == n);
    detokenizer_free(d);
}

static void check_decoded(const struct tokenizer *t, const int32_t *ids, size_t n_ids, const char *expected,
                          size_t n_expected) {
    for (int skip = 0; skip < 2; skip++) {
        char *text;
        size_t n;
        must(detokenizer_decode(t, ids, n_ids, skip, &text, &n, NULL) == STATUS_OK);
        if (expected && !skip) must(n == n_expected && !memcmp(text, expected, n));
        check_stream(t, ids, n_ids, skip, text, n);
        free(text);
    }
}

// The text in three spans whose borders the hash chooses, all by a user.
static void check_spans(const struct tokenizer *t, const char *text, size_t n, uint32_t hash, const int32_t *ids,
                        size_t n_ids) {
    size_t first = hash % (n + 1), second = (hash >> 12) % (n + 1);
    if (first > second) {
        size_t swap = first;
        first = second;
        second = swap;
    }
    while (first < n && ((unsigned char)text[first] & 0xc0) == 0x80) first++;
    while (second < n && ((unsigned char)text[second] & 0xc0) == 0x80) second++;
    struct text_span spans[] = {
        {text, first, false}, {text + first, second - first, false}, {text + second, n - second, false}};
    int32_t *cut;
    size_t n_cut;
    must(tokenizer_encode_spans(t, spans, 3, &cut, &n_cut, NULL) == STATUS_OK);
    must(n_cut == n_ids && !memcmp(cut, ids, n_ids * sizeof *ids));
    free(cut);
    spans[hash % 3].trusted = true; // a template around, or inside, what users wrote
    must(tokenizer_encode_spans(t, spans, 3, &cut, &n_cut, NULL) == STATUS_OK);
    check_decoded(t, cut, n_cut, NULL, 0);
    free(cut);
}

static void check_text(const struct tokenizer *t, bool nfc, const char *text, size_t n) {
    int32_t *ids;
    size_t n_ids;
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < n; i++) hash = (hash ^ (unsigned char)text[i]) * 16777619u;
    must(tokenizer_encode(t, text, n, false, &ids, &n_ids, NULL) == STATUS_OK);
    for (size_t i = 0; i < n_ids; i++) must(!tokenizer_is_added(t, ids[i]));
    char *normal = NULL;
    size_t n_normal = n;
    if (nfc) must(normalizer_nfc(text, n, &normal, &n_normal, NULL) == STATUS_OK);
    check_decoded(t, ids, n_ids, nfc ? normal : text, n_normal);
    free(normal);
    check_spans(t, text, n, hash, ids, n_ids);
    free(ids);
    must(tokenizer_encode(t, text, n, true, &ids, &n_ids, NULL) == STATUS_OK);
    check_decoded(t, ids, n_ids, nfc ? NULL : text, n);
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static struct tokenizer *small, *gpt2;
    if (!small) {
        small = load(FOLDER "small/tokenizer.json", FOLDER "small/tokenizer_config.json");
        gpt2 = load(FOLDER "small_gpt2/tokenizer.json", FOLDER "small_gpt2/tokenizer_config.json");
    }
    const char *text = (const char *)data;
    if (unicode_valid(text, n)) {
        check_text(small, true, text, n);
        check_text(gpt2, false, text, n);
        return 0;
    }
    int32_t *ids;
    size_t n_ids;
    must(tokenizer_encode(small, text, n, n % 2, &ids, &n_ids, NULL) == STATUS_INVALID);
    // What is not text can still come out of a model: each byte as a token of its own, or several.
    struct token_list list = {0};
    for (size_t i = 0; i < n; i++) {
        uint32_t id = data[i] < 0xf0 ? data[i] : data[i] * 4u + (i > 0 ? data[i - 1] : 0);
        int32_t *grown = realloc(list.ids, (i + 1) * sizeof *grown);
        must(grown);
        list.ids = grown;
        list.ids[list.n++] = (int32_t)id;
    }
    check_decoded(small, list.ids, list.n, NULL, 0);
    token_list_free(&list);
    return 0;
}
