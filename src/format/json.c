#include "format/json.h"

#include "base/mapped_file.h"
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- pointers ----

static void path_append(char *path, const char *key, size_t n) {
    size_t used = strlen(path);
    if (used >= 3 && !strcmp(path + used - 3, "...")) return;
    const size_t room = JSON_PATH_BYTES - 4; // always enough left for "..." and the NUL
    char step[JSON_PATH_BYTES];
    size_t m = 0;
    step[m++] = '/';
    for (size_t i = 0; i < n && m + 2 < sizeof step; i++) {
        if (key[i] == '~' || key[i] == '/') {
            step[m++] = '~';
            step[m++] = key[i] == '~' ? '0' : '1';
        } else {
            step[m++] = key[i];
        }
    }
    if (used + m > room) {
        memcpy(path + used, "...", 4);
        return;
    }
    memcpy(path + used, step, m);
    path[used + m] = '\0';
}

static void path_append_index(char *path, size_t index) {
    char text[24];
    int n = snprintf(text, sizeof text, "%zu", index);
    path_append(path, text, (size_t)n);
}

// ---- the scan before the parse ----
// jansson recurses once a level and reports errors without saying in which member they are. This walk over the bytes
// keeps its own bounded stack, so it can refuse deep text first and can say where any byte stands. It does not check
// the grammar: on text that is not JSON it merely stays in bounds, and jansson refuses afterwards.

struct scan_frame {
    bool object, wants_key;
    size_t key, n_key; // the raw text between the quotes of the last key
    size_t index;      // elements passed, in an array
};

struct scan {
    const char *text;
    size_t n, at;
    int depth;
    struct scan_frame frames[JSON_DEPTH_MAX];
};

enum scan_result { SCAN_DONE, SCAN_TOO_DEEP, SCAN_BAD_UTF8, SCAN_HALF_PAIR };

static size_t utf8_bytes(const unsigned char *s, size_t n) { // 0: not a character of valid UTF-8
    unsigned c = s[0];
    size_t m = c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : (c & 0xf0) == 0xe0 ? 3 : c >= 0xf0 && c < 0xf5 ? 4 : 0;
    if (m == 0 || m > n) return 0;
    for (size_t i = 1; i < m; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if (c == 0xe0 && s[1] < 0xa0) return 0; // overlong
    if (c == 0xed && s[1] > 0x9f) return 0; // a surrogate
    if (c == 0xf0 && s[1] < 0x90) return 0; // overlong
    if (c == 0xf4 && s[1] > 0x8f) return 0; // beyond U+10FFFF
    return m;
}

// The code unit of "\uXXXX" at s, or -1 when that is not what stands there.
static int escaped_unit(const char *s, size_t n) {
    if (n < 6 || s[0] != '\\' || s[1] != 'u') return -1;
    int unit = 0;
    for (int i = 2; i < 6; i++) {
        char c = s[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return -1;
        unit = unit * 16 + digit;
    }
    return unit;
}

// s->at stands after the opening quote; leaves it after the closing one, or at the offence.
static enum scan_result scan_string(struct scan *s) {
    while (s->at < s->n) {
        const char *p = s->text + s->at;
        size_t left = s->n - s->at;
        if (*p == '"') {
            s->at++;
            return SCAN_DONE;
        }
        if (*p == '\\') {
            int unit = escaped_unit(p, left);
            if (unit >= 0xdc00 && unit <= 0xdfff) return SCAN_HALF_PAIR;
            if (unit >= 0xd800 && unit <= 0xdbff) {
                int low = escaped_unit(p + 6, left - 6);
                if (low < 0xdc00 || low > 0xdfff) return SCAN_HALF_PAIR;
                s->at += 12;
            } else {
                s->at += unit >= 0 ? 6 : left < 2 ? left : 2;
            }
            continue;
        }
        size_t m = utf8_bytes((const unsigned char *)p, left);
        if (m == 0) return SCAN_BAD_UTF8;
        s->at += m;
    }
    return SCAN_DONE;
}

// Walks until `stop` bytes have been passed or something is wrong; the frames then say where that is.
static enum scan_result scan_until(struct scan *s, size_t stop) {
    while (s->at < stop && s->at < s->n) {
        char c = s->text[s->at++];
        struct scan_frame *top = s->depth ? &s->frames[s->depth - 1] : NULL;
        if (c == '{' || c == '[') {
            if (s->depth == JSON_DEPTH_MAX) return SCAN_TOO_DEEP;
            s->frames[s->depth++] = (struct scan_frame){.object = c == '{', .wants_key = c == '{'};
        } else if (top && c == (top->object ? '}' : ']')) {
            s->depth--;
        } else if (c == ',' && top) {
            top->index++;
            top->wants_key = top->object;
        } else if (c == '"') {
            size_t start = s->at;
            enum scan_result r = scan_string(s);
            if (r != SCAN_DONE) return r;
            if (top && top->wants_key && s->at > start) {
                top->key = start;
                top->n_key = s->at - start - 1;
                top->wants_key = false;
            }
        }
    }
    return SCAN_DONE;
}

static void scan_path(const struct scan *s, char *path) {
    path[0] = '\0';
    for (int i = 0; i < s->depth; i++) {
        const struct scan_frame *f = &s->frames[i];
        if (!f->object)
            path_append_index(path, f->index);
        else if (!f->wants_key)
            path_append(path, s->text + f->key, f->n_key);
    }
}

static size_t line_of(const char *text, size_t at) {
    size_t line = 1;
    for (size_t i = 0; i < at; i++) line += text[i] == '\n';
    return line;
}

static enum status parse_error(const struct scan *s, enum status code, const char *what, struct error *e) {
    char path[JSON_PATH_BYTES];
    scan_path(s, path);
    return error_set(e, code, "%s at line %zu%s%s", what, line_of(s->text, s->at < s->n ? s->at : s->n),
                     path[0] ? ", in " : "", path);
}

// jansson's own words quote the input, which may be a secret or not be text at all; these do not.
static const char *parse_complaint(enum json_error_code code) {
    switch (code) {
    case json_error_premature_end_of_input: return "the JSON text ends too early,";
    case json_error_end_of_input_expected: return "there is more text after the JSON value,";
    case json_error_null_character:
    case json_error_null_byte_in_key: return "a string holds the character U+0000,";
    case json_error_duplicate_key: return "a key is repeated";
    case json_error_numeric_overflow: return "a number is too large";
    case json_error_invalid_utf8: return "the text is not valid UTF-8";
    default: return "the text is not valid JSON";
    }
}

// jansson reports some failed allocations as bad syntax and overlooks others, which leaves strings cut short; its
// allocator, set once for the process, tells of all.
static _Thread_local bool allocation_failed;

static void *allocate(size_t n) {
    void *memory = malloc(n);
    if (!memory) allocation_failed = true;
    return memory;
}

static void set_allocator(void) { json_set_alloc_funcs(allocate, free); }

enum status json_parse(const char *text, size_t n, size_t max_bytes, int flags, json_t **out, struct error *e) {
    if (n > max_bytes) return error_set(e, STATUS_LIMIT, "the JSON text has %zu bytes; the limit is %zu", n, max_bytes);
    struct scan s = {.text = text, .n = n};
    switch (scan_until(&s, n)) {
    case SCAN_DONE: break;
    case SCAN_TOO_DEEP: return error_set(e, STATUS_LIMIT, "the JSON text nests deeper than %d levels", JSON_DEPTH_MAX);
    case SCAN_BAD_UTF8: return parse_error(&s, STATUS_INVALID, "a string is not valid UTF-8", e);
    case SCAN_HALF_PAIR:
        return parse_error(&s, STATUS_INVALID, "a string holds half of a surrogate pair, which is no character,", e);
    }
    json_error_t why = {0};
    size_t options = 0;
    if (!(flags & JSON_PARSE_DUPLICATES)) options |= JSON_REJECT_DUPLICATES;
    if (flags & JSON_PARSE_NUL) options |= JSON_ALLOW_NUL;
    if (flags & JSON_PARSE_ANY) options |= JSON_DECODE_ANY;
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, set_allocator);
    allocation_failed = false;
    json_t *value = json_loadb(text, n, options, &why);
    if (allocation_failed) {
        json_decref(value);
        return error_memory(e);
    }
    if (!value) {
        struct scan place = {.text = text, .n = n};
        scan_until(&place, why.position > 0 ? (size_t)why.position : 0);
        return parse_error(&place, STATUS_INVALID, parse_complaint(json_error_code(&why)), e);
    }
    *out = value;
    return STATUS_OK;
}

enum status json_parse_file(const char *path, size_t max_bytes, int flags, json_t **out, struct error *e) {
    char *text;
    size_t n;
    enum status status = file_read(path, max_bytes, &text, &n, e);
    if (status) return status;
    status = json_parse(text, n, max_bytes, flags, out, e);
    free(text);
    if (status) error_prefix(e, "%s", path);
    return status;
}

// ---- views ----

struct json_view json_root(const json_t *value) {
    return (struct json_view){.value = value};
}

bool json_find(const struct json_view *v, const char *key, struct json_view *out) {
    const json_t *value = json_object_get(v->value, key);
    if (!value || json_is_null(value)) return false;
    *out = *v;
    out->value = value;
    path_append(out->path, key, strlen(key));
    return true;
}

bool json_element(const struct json_view *v, size_t index, struct json_view *out) {
    const json_t *value = json_array_get(v->value, index);
    if (!value || json_is_null(value)) return false;
    *out = *v;
    out->value = value;
    path_append_index(out->path, index);
    return true;
}

// The step of a JSON pointer at *at, with its escapes undone; false at the end, and when it is too long.
static bool next_step(const char **at, char step[256]) {
    size_t n = 0;
    if (**at != '/') return false;
    for (++*at; **at != 0 && **at != '/' && n < 255; ++*at) {
        char c = **at;
        if (c == '~' && ((*at)[1] == '0' || (*at)[1] == '1')) c = *++*at == '0' ? '~' : '/';
        step[n++] = c;
    }
    step[n] = 0;
    return **at == 0 || **at == '/';
}

bool json_find_pointer(const struct json_view *v, const char *pointer, struct json_view *out) {
    char step[256];
    struct json_view at = *v;
    while (next_step(&pointer, step)) {
        bool is_index = step[0] != 0 && strspn(step, "0123456789") == strlen(step) && strlen(step) < 8;
        bool found = json_is_array(at.value) ? is_index && json_element(&at, (size_t)atoi(step), &at)
                                             : json_find(&at, step, &at);
        if (!found) return false;
    }
    if (*pointer != 0) return false;
    *out = at;
    return true;
}

size_t json_length(const struct json_view *v) {
    return json_is_array(v->value) ? json_array_size(v->value) : json_object_size(v->value);
}

static const char *type_name(const json_t *value) {
    if (!value) return "absent";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number with a fraction";
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    case JSON_NULL: break;
    }
    return "null";
}

static const char *path_of(const struct json_view *v) { return v->path[0] ? v->path : "the JSON value"; }

static enum status wrong_type(const struct json_view *v, const char *wanted, struct error *e) {
    return error_set(e, STATUS_INVALID, "%s must be %s, not %s", path_of(v), wanted, type_name(v->value));
}

enum status json_as_int(const struct json_view *v, int64_t min, int64_t max, int64_t *out, struct error *e) {
    if (!json_is_integer(v->value)) return wrong_type(v, "an integer", e);
    int64_t x = json_integer_value(v->value);
    if (x < min || x > max)
        return error_set(e, STATUS_INVALID, "%s must be an integer from %" PRId64 " to %" PRId64 ", not %" PRId64,
                         path_of(v), min, max, x);
    *out = x;
    return STATUS_OK;
}

enum status json_as_real(const struct json_view *v, double min, double max, double *out, struct error *e) {
    if (!json_is_number(v->value)) return wrong_type(v, "a number", e);
    double x = json_number_value(v->value);
    if (!(x >= min && x <= max))
        return error_set(e, STATUS_INVALID, "%s must be a number from %g to %g, not %g", path_of(v), min, max, x);
    *out = x;
    return STATUS_OK;
}

enum status json_as_bool(const struct json_view *v, bool *out, struct error *e) {
    if (!json_is_boolean(v->value)) return wrong_type(v, "true or false", e);
    *out = json_is_true(v->value);
    return STATUS_OK;
}

enum status json_as_string(const struct json_view *v, const char **out, size_t *n, struct error *e) {
    if (!json_is_string(v->value)) return wrong_type(v, "a string", e);
    *out = json_string_value(v->value);
    if (n) *n = json_string_length(v->value);
    return STATUS_OK;
}

enum status json_must_be(const struct json_view *v, json_type type, struct error *e) {
    must(type == JSON_OBJECT || type == JSON_ARRAY);
    if (v->value && json_typeof(v->value) == type) return STATUS_OK;
    return wrong_type(v, type == JSON_OBJECT ? "an object" : "an array", e);
}

// Sets *found. An absent member is an error only when it is required.
static enum status find_member(const struct json_view *v, const char *key, enum json_need need, struct json_view *out,
                               bool *found, struct error *e) {
    *found = json_find(v, key, out);
    if (*found || need == JSON_OPTIONAL) return STATUS_OK;
    struct json_view missing = *v;
    path_append(missing.path, key, strlen(key));
    return error_set(e, STATUS_INVALID, "%s is missing", missing.path);
}

enum status json_get_int(const struct json_view *v, const char *key, enum json_need need, int64_t min, int64_t max,
                         int64_t *out, struct error *e) {
    struct json_view member;
    bool found;
    enum status status = find_member(v, key, need, &member, &found, e);
    return status || !found ? status : json_as_int(&member, min, max, out, e);
}

enum status json_get_real(const struct json_view *v, const char *key, enum json_need need, double min, double max,
                          double *out, struct error *e) {
    struct json_view member;
    bool found;
    enum status status = find_member(v, key, need, &member, &found, e);
    return status || !found ? status : json_as_real(&member, min, max, out, e);
}

enum status json_get_bool(const struct json_view *v, const char *key, enum json_need need, bool *out, struct error *e) {
    struct json_view member;
    bool found;
    enum status status = find_member(v, key, need, &member, &found, e);
    return status || !found ? status : json_as_bool(&member, out, e);
}

enum status json_get_string(const struct json_view *v, const char *key, enum json_need need, const char **out,
                            size_t *n, struct error *e) {
    struct json_view member;
    bool found;
    enum status status = find_member(v, key, need, &member, &found, e);
    return status || !found ? status : json_as_string(&member, out, n, e);
}

enum status json_get_view(const struct json_view *v, const char *key, enum json_need need, json_type type,
                          struct json_view *out, struct error *e) {
    struct json_view member;
    bool found;
    enum status status = find_member(v, key, need, &member, &found, e);
    if (!status && found) status = json_must_be(&member, type, e);
    if (status) return status;
    if (found)
        *out = member;
    else
        *out = (struct json_view){0};
    return STATUS_OK;
}
