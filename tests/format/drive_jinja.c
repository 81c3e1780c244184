// Renders one template a line, {"template": ..., "data": {...}, "trusted": {...}}, and answers with a line that is
// {"text": ..., "trusted": "110..."} (one digit a byte) or {"error": ..., "status": ...}: for test_jinja.py.
#include "format/jinja.h"
#include "format/json.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *render(const json_t *request) {
    struct error e = {0};
    struct jinja_template *t = NULL;
    struct jinja_output out = {0};
    struct jinja_inputs in = {.data = json_object_get(request, "data"), .trusted = json_object_get(request, "trusted")};
    const json_t *source = json_object_get(request, "template");
    enum status status = jinja_compile(json_string_value(source), json_string_length(source), &t, &e);
    if (!status) status = jinja_render(t, &in, &out, &e);
    jinja_free(t);
    if (status) return json_pack("{s:s, s:s}", "error", e.text, "status", status_name(status));
    struct buffer text, trust;
    buffer_init(&text, 0);
    buffer_init(&trust, 0);
    for (size_t i = 0; i < out.n_spans; i++) {
        buffer_append(&text, out.spans[i].text, out.spans[i].n);
        for (size_t k = 0; k < out.spans[i].n; k++) buffer_append(&trust, out.spans[i].trusted ? "1" : "0", 1);
    }
    json_t *answer = json_pack("{s:s%, s:s%}", "text", text.data ? text.data : "", text.n, "trusted",
                               trust.data ? trust.data : "", trust.n);
    buffer_free(&text);
    buffer_free(&trust);
    jinja_output_free(&out);
    return answer;
}

int main(void) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    while ((n = getline(&line, &capacity, stdin)) > 0) {
        json_t *request = NULL;
        struct error e;
        if (json_parse(line, (size_t)n, SIZE_MAX, JSON_PARSE_NUL, &request, &e)) {
            fprintf(stderr, "%s\n", e.text);
            return 1;
        }
        json_t *answer = render(request);
        struct buffer b;
        buffer_init(&b, 0);
        json_write(&b, answer, JSON_STYLE_COMPACT);
        puts(b.data);
        fflush(stdout);
        buffer_free(&b);
        json_decref(answer);
        json_decref(request);
    }
    free(line);
    return 0;
}
