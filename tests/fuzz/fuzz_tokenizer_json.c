// tokenizer.json, and after a NUL byte tokenizer_config.json. The first "*":0 stands for the 256 one-byte pieces with
// ids 0 to 255, which every vocabulary needs, so that inputs can be small. What loads must encode and decode.
#include "base/buffer.h"
#include "format/detokenizer.h"
#include "format/tokenizer.h"
#include "format/unicode.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static void append_alphabet(struct buffer *b) {
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; byte++) {
        bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
        char letter[4];
        size_t n = unicode_write(printable ? byte : next++, letter);
        buffer_append_text(b, byte == 0 ? "\"" : ",\"");
        if (letter[0] == '"' || letter[0] == '\\') buffer_append_text(b, "\\");
        buffer_append(b, letter, n);
        buffer_printf(b, "\":%u", byte);
    }
}

static void expand(const char *text, size_t n, struct buffer *out) {
    static const char mark[] = "\"*\":0";
    const char *found = n > 0 ? memmem(text, n, mark, sizeof mark - 1) : NULL;
    size_t before = found ? (size_t)(found - text) : n;
    if (before > 0) buffer_append(out, text, before);
    if (!found) return;
    append_alphabet(out);
    buffer_append(out, found + sizeof mark - 1, n - before - (sizeof mark - 1));
}

static void use(const struct tokenizer *t) {
    static const char text[] = "Hello  \xe4\xbd\xa0\xe5\xa5\xbd e\xcc\x81'S\t123\r\n\n <a><|im_end|>\xf0\x9f\x9a\x80 ";
    for (int parse_added = 0; parse_added < 2; parse_added++) {
        int32_t *ids;
        size_t n_ids, n;
        struct error e;
        enum status status = tokenizer_encode(t, text, sizeof text - 1, parse_added, &ids, &n_ids, &e);
        must(status == STATUS_OK || status == STATUS_LIMIT); // a pattern may take too many steps
        if (status != STATUS_OK) continue;
        for (size_t i = 0; i < n_ids; i++) {
            must(ids[i] >= 0 && ids[i] < tokenizer_count_ids(t) && tokenizer_has_id(t, ids[i]));
            must(parse_added || !tokenizer_is_added(t, ids[i]));
        }
        char *decoded;
        must(detokenizer_decode(t, ids, n_ids, false, &decoded, &n, &e) == STATUS_OK && unicode_valid(decoded, n));
        free(decoded);
        free(ids);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    const char *text = (const char *)data, *end = n > 0 ? memchr(text, '\0', n) : NULL;
    size_t n_json = end ? (size_t)(end - text) : n;
    struct buffer json;
    buffer_init(&json, 0);
    expand(text, n_json, &json);
    struct tokenizer *t = NULL;
    struct error e;
    enum status status =
        tokenizer_load_memory("tokenizer.json", json.data ? json.data : "", json.n, "tokenizer_config.json",
                              end ? end + 1 : NULL, end ? n - n_json - 1 : 0, &t, &e);
    if (status == STATUS_OK)
        use(t);
    else
        must(!t && e.code == status && e.text[0] && unicode_valid(e.text, strlen(e.text)));
    tokenizer_free(t);
    buffer_free(&json);
    return 0;
}
