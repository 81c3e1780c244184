// Any bytes as a JSON text: what is accepted must come back equal from its own written form, in every style.
#include "format/json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    if (n == 0) return 0;
    int flags = data[0] & (JSON_PARSE_DUPLICATES | JSON_PARSE_NUL | JSON_PARSE_ANY);
    json_t *value = NULL;
    struct error e = {0};
    enum status status = json_parse((const char *)data + 1, n - 1, (size_t)1 << 20, flags, &value, &e);
    must(status == STATUS_OK || (e.code == status && e.text[0] && !value));
    if (status) return 0;
    for (int style = JSON_STYLE_COMPACT; style <= JSON_STYLE_INDENT; style++) {
        struct buffer b;
        json_t *again = NULL;
        buffer_init(&b, 0);
        must(json_write(&b, value, (enum json_style)style));
        must(!json_parse(b.data, b.n, SIZE_MAX, JSON_PARSE_NUL | JSON_PARSE_ANY, &again, &e));
        must(json_equal(value, again));
        json_decref(again);
        buffer_free(&b);
    }
    json_decref(value);
    return 0;
}
