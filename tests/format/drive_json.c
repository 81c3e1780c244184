// Reads one JSON text a line and writes it back in the style named by the first argument, or "refused": for
// test_json.py.
#include "format/json.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int n_arguments, char **arguments) {
    const char *name = n_arguments > 1 ? arguments[1] : "";
    enum json_style style = !strcmp(name, "spaced")   ? JSON_STYLE_SPACED
                            : !strcmp(name, "indent") ? JSON_STYLE_INDENT
                                                      : JSON_STYLE_COMPACT;
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    while ((n = getline(&line, &capacity, stdin)) > 0) {
        json_t *value = NULL;
        struct buffer b;
        buffer_init(&b, 0);
        size_t length = (size_t)n - (line[n - 1] == '\n');
        if (json_parse(line, length, SIZE_MAX, JSON_PARSE_ANY | JSON_PARSE_NUL, &value, NULL))
            buffer_append_text(&b, "refused");
        else
            json_write(&b, value, style);
        puts(b.data);
        buffer_free(&b);
        json_decref(value);
    }
    free(line);
    return 0;
}
