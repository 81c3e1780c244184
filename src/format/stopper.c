// One Knuth-Morris-Pratt automaton a stop string: what is held back is the longest prefix of any of them that the text
// ends with.
#include "format/stopper.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct pattern {
    size_t n, state; // state: bytes of it that the text ends with
    char text[STOPPER_BYTES_MAX];
    uint16_t fallback[STOPPER_BYTES_MAX]; // of the first i + 1 bytes: the longest proper prefix that is also a suffix
};

struct stopper {
    size_t n_patterns;
    struct pattern patterns[STOPPER_STRINGS_MAX];
    const struct pattern *found; // NULL: none was completed
    size_t n_held;
    char held[STOPPER_BYTES_MAX];
};

static size_t advance(const struct pattern *p, size_t state, char byte) {
    while (state > 0 && (state == p->n || p->text[state] != byte)) state = p->fallback[state - 1];
    return p->text[state] == byte ? state + 1 : 0;
}

static enum status add_pattern(struct stopper *s, const struct json_view *v, struct error *e) {
    const char *text;
    size_t n;
    enum status st = json_as_string(v, &text, &n, e);
    if (st != STATUS_OK) return st;
    if (n == 0) return error_set(e, STATUS_INVALID, "%s must not be an empty string", v->path);
    if (n > STOPPER_BYTES_MAX)
        return error_set(e, STATUS_LIMIT, "%s has %zu bytes; a stop string may have at most %d", v->path, n,
                         STOPPER_BYTES_MAX);
    struct pattern *p = &s->patterns[s->n_patterns++];
    p->n = n;
    memcpy(p->text, text, n);
    for (size_t i = 1; i < n; i++) p->fallback[i] = (uint16_t)advance(p, p->fallback[i - 1], text[i]);
    return STATUS_OK;
}

static enum status add_patterns(struct stopper *s, const struct json_view *stop, struct error *e) {
    if (stop->value == NULL || json_is_null(stop->value)) return STATUS_OK;
    if (json_is_string(stop->value)) return add_pattern(s, stop, e);
    if (!json_is_array(stop->value))
        return error_set(e, STATUS_INVALID, "%s must be a string or an array of strings", stop->path);
    if (json_length(stop) > STOPPER_STRINGS_MAX)
        return error_set(e, STATUS_LIMIT, "%s has %zu stop strings; at most %d are possible", stop->path,
                         json_length(stop), STOPPER_STRINGS_MAX);
    for (size_t i = 0; i < json_length(stop); i++) {
        struct json_view v;
        if (!json_element(stop, i, &v))
            return error_set(e, STATUS_INVALID, "%s/%zu must be a string, not null", stop->path, i);
        enum status st = add_pattern(s, &v, e);
        if (st != STATUS_OK) return st;
    }
    return STATUS_OK;
}

enum status stopper_create(const struct json_view *stop, struct stopper **out, struct error *e) {
    struct stopper *s = calloc(1, sizeof *s);
    if (s == NULL) return error_memory(e);
    enum status st = add_patterns(s, stop, e);
    if (st != STATUS_OK) {
        free(s);
        return st;
    }
    *out = s;
    return STATUS_OK;
}

void stopper_free(struct stopper *s) { free(s); }

bool stopper_is_empty(const struct stopper *s) { return s->n_patterns == 0; }

// The longest pattern that this byte completes, or 0.
static size_t step(struct stopper *s, char byte) {
    size_t longest = 0;
    for (size_t i = 0; i < s->n_patterns; i++) {
        struct pattern *p = &s->patterns[i];
        p->state = advance(p, p->state, byte);
        if (p->state != p->n || p->n <= longest) continue;
        longest = p->n;
        s->found = p;
    }
    return longest;
}

static size_t longest_prefix(const struct stopper *s) {
    size_t longest = 0;
    for (size_t i = 0; i < s->n_patterns; i++)
        if (s->patterns[i].state > longest) longest = s->patterns[i].state;
    return longest;
}

// Appends all but the last n_kept bytes of held + text[0..n), and holds those.
static void release(struct stopper *s, const char *text, size_t n, size_t n_kept, struct buffer *out) {
    size_t n_out = s->n_held + n - n_kept;
    size_t from_held = n_out < s->n_held ? n_out : s->n_held;
    buffer_append(out, s->held, from_held);
    buffer_append(out, text, n_out - from_held);
    memmove(s->held, s->held + from_held, s->n_held - from_held);
    s->n_held -= from_held;
    memcpy(s->held + s->n_held, text + (n_out - from_held), n - (n_out - from_held));
    s->n_held += n - (n_out - from_held);
}

bool stopper_feed(struct stopper *s, const char *text, size_t n, struct buffer *out, size_t *used) {
    *used = n;
    if (n == 0) return false; // text may be NULL then
    for (size_t i = 0; i < n; i++) {
        size_t completed = step(s, text[i]);
        if (completed == 0) continue;
        release(s, text, i + 1, completed, out);
        s->n_held = 0; // the stop string itself
        *used = i + 1;
        return true;
    }
    release(s, text, n, longest_prefix(s), out);
    return false;
}

const char *stopper_get_found(const struct stopper *s, size_t *n) {
    if (s->found == NULL) return NULL;
    *n = s->found->n;
    return s->found->text;
}

void stopper_flush(struct stopper *s, struct buffer *out) {
    buffer_append(out, s->held, s->n_held);
    s->n_held = 0;
}
