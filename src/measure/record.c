#include "measure/record.h"
#include "base/clock.h"
#include "format/json.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_MOST 65536

// ---- reading ----

static enum status read_rates(const struct record *r, const struct json_view *line, double rates[ARMS_MAX],
                              bool differs[ARMS_MAX], bool *same_arms, struct error *e) {
    struct json_view arms, arm;
    const char *name;
    enum status s = json_get_view(line, "arms", JSON_REQUIRED, JSON_ARRAY, &arms, e);
    *same_arms = s == STATUS_OK && json_length(&arms) == (size_t)r->n_arms;
    for (int i = 0; i < r->n_arms && s == STATUS_OK && *same_arms; i++) {
        if (!json_element(&arms, (size_t)i, &arm)) return error_set(e, STATUS_INVALID, "/arms is cut short");
        s = json_get_string(&arm, "name", JSON_REQUIRED, &name, NULL, e);
        if (s == STATUS_OK) *same_arms = strcmp(name, r->arms[i].name) == 0;
        if (s == STATUS_OK) s = json_get_real(&arm, "tokens_per_s", JSON_REQUIRED, 1e-9, 1e12, &rates[i], e);
        if (s == STATUS_OK) s = json_get_bool(&arm, "other_tokens", JSON_REQUIRED, &differs[i], e);
    }
    return s;
}

static enum status add_line(const struct record *r, const json_t *root, struct cell_rounds *cells, int n, int *n_other,
                            struct error *e) {
    struct json_view line = json_root(root);
    const char *about, *text;
    double rates[ARMS_MAX] = {0};
    bool differs[ARMS_MAX] = {0}, same = false;
    enum status s = json_must_be(&line, JSON_OBJECT, e);
    if (s == STATUS_OK) s = json_get_string(&line, "about", JSON_REQUIRED, &about, NULL, e);
    if (s == STATUS_OK) s = json_get_string(&line, "cell", JSON_REQUIRED, &text, NULL, e);
    if (s == STATUS_OK) s = read_rates(r, &line, rates, differs, &same, e);
    if (s != STATUS_OK) return s;
    for (int i = 0; i < n && same && strcmp(about, r->about) == 0; i++) {
        char own[CELL_TEXT];
        cell_write(&cells[i].cell, own);
        if (strcmp(own, text) != 0) continue;
        for (int arm = 0; arm < r->n_arms; arm++) cells[i].differs[arm] |= differs[arm];
        return cell_rounds_add(&cells[i], rates, e);
    }
    ++*n_other;
    return STATUS_OK;
}

enum status record_read(const struct record *r, struct cell_rounds *cells, int n, int *n_other, struct error *e) {
    FILE *file = fopen(r->path, "r");
    char *line = malloc(LINE_MOST);
    enum status s = line == NULL ? error_memory(e) : STATUS_OK;
    *n_other = 0;
    if (file == NULL && errno != ENOENT && s == STATUS_OK)
        s = error_set(e, STATUS_IO, "--append %s: %s", r->path, strerror(errno));
    for (int number = 1; s == STATUS_OK && file != NULL && fgets(line, LINE_MOST, file) != NULL; number++) {
        json_t *root;
        s = json_parse(line, strlen(line), LINE_MOST, JSON_PARSE_DEFAULT, &root, e);
        if (s == STATUS_OK) {
            s = add_line(r, root, cells, n, n_other, e);
            json_decref(root);
        }
        if (s != STATUS_OK && s != STATUS_MEMORY) error_prefix(e, "--append %s, line %d", r->path, number);
    }
    if (file != NULL) fclose(file);
    free(line);
    return s;
}

// ---- writing ----

enum status record_append(void *context, const struct cell_rounds *c, struct error *e) {
    const struct record *r = context;
    const double *rates = c->rates[c->n - 1];
    char text[CELL_TEXT];
    struct buffer b;
    cell_write(&c->cell, text);
    json_t *arms = json_array();
    for (int i = 0; i < r->n_arms; i++)
        json_array_append_new(arms, json_pack("{s:s, s:f, s:b}", "name", r->arms[i].name, "tokens_per_s", rates[i],
                                              "other_tokens", (int)c->differs[i]));
    json_t *line = json_pack("{s:I, s:s, s:s, s:o}", "time", (json_int_t)clock_unix_seconds(), "about", r->about,
                             "cell", text, "arms", arms);
    buffer_init(&b, 0);
    enum status s = line != NULL && json_write(&b, line, JSON_STYLE_COMPACT) && buffer_append_text(&b, "\n")
                        ? STATUS_OK
                        : error_memory(e);
    FILE *file = s == STATUS_OK ? fopen(r->path, "a") : NULL;
    if (s == STATUS_OK && (file == NULL || fputs(b.data, file) < 0))
        s = error_set(e, STATUS_IO, "--append %s: %s", r->path, strerror(errno));
    if (file != NULL && fclose(file) != 0 && s == STATUS_OK)
        s = error_set(e, STATUS_IO, "--append %s: %s", r->path, strerror(errno));
    json_decref(line);
    buffer_free(&b);
    return s;
}
