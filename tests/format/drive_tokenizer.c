// Encodes and decodes for test_tokenizer_real.py: drive_tokenizer TOKENIZER.JSON [TOKENIZER_CONFIG.JSON].
// A request on stdin is one letter, a 32-bit length and that many bytes: E encode with added tokens, P encode without,
// D decode, S decode without special tokens. An answer on stdout is a 32-bit length and that many bytes: ids are 32-bit
// integers, text is UTF-8. Everything is in the machine's own byte order.
#include "format/detokenizer.h"
#include "format/tokenizer.h"
#include <stdio.h>
#include <stdlib.h>

static void answer(const void *data, size_t n) {
    uint32_t length = (uint32_t)n;
    fwrite(&length, sizeof length, 1, stdout);
    fwrite(data, 1, n, stdout);
}

static enum status serve(const struct tokenizer *t, char kind, const char *data, size_t n, struct error *e) {
    if (kind == 'E' || kind == 'P') {
        int32_t *ids;
        size_t n_ids;
        enum status status = tokenizer_encode(t, data, n, kind == 'E', &ids, &n_ids, e);
        if (status != STATUS_OK) return status;
        answer(ids, n_ids * sizeof *ids);
        free(ids);
        return STATUS_OK;
    }
    char *text;
    size_t n_text;
    const int32_t *ids = (const int32_t *)(const void *)data;
    enum status status = detokenizer_decode(t, ids, n / sizeof *ids, kind == 'S', &text, &n_text, e);
    if (status != STATUS_OK) return status;
    answer(text, n_text);
    free(text);
    return STATUS_OK;
}

int main(int n_arguments, char **arguments) {
    struct error e = {0};
    struct tokenizer *t = NULL;
    const char *path = n_arguments > 1 ? arguments[1] : "", *config = n_arguments > 2 ? arguments[2] : NULL;
    enum status status = tokenizer_load(path, config, &t, &e);
    int kind;
    while (status == STATUS_OK && (kind = getchar()) != EOF) {
        uint32_t n;
        if (fread(&n, sizeof n, 1, stdin) != 1) break;
        char *data = malloc(n + 1);
        must(data);
        if (fread(data, 1, n, stdin) == n) status = serve(t, (char)kind, data, n, &e);
        free(data);
    }
    tokenizer_free(t);
    if (status != STATUS_OK) fprintf(stderr, "%s\n", e.text);
    return status != STATUS_OK;
}
