// Any bytes as a safetensors file: of what is accepted, every tensor lies in the file and together they fill it.
#include "format/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct safetensors *s = NULL;
    struct error e = {0};
    enum status status = safetensors_parse("f", data, n, &s, &e);
    must(status == STATUS_OK || (e.code == status && !strncmp(e.text, "f: ", 3) && !s));
    if (status) return 0;
    size_t bytes = 0;
    for (size_t i = 0; i < safetensors_count(s); i++) {
        const struct safetensors_tensor *t = safetensors_tensor_at(s, i);
        must(t->data >= data + 8 && t->bytes <= (size_t)(data + n - t->data));
        must(t->n_dims >= 0 && t->n_dims <= SAFETENSORS_DIMS_MAX);
        size_t product = safetensors_type_bytes(t->type);
        bool empty = false;
        for (int d = 0; d < t->n_dims; d++) empty |= t->shape[d] == 0;
        for (int d = 0; d < t->n_dims && !empty; d++) product *= (size_t)t->shape[d];
        must(t->bytes == (empty ? 0 : product));
        char text[64];
        must(strlen(safetensors_shape_text(t, text, sizeof text)) < sizeof text);
        bytes += t->bytes;
    }
    must(bytes <= n - 8 && safetensors_file_bytes(s) == n);
    safetensors_free(s);
    return 0;
}
