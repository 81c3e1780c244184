// Owns how JSON enters and leaves the program: a bounded parse over jansson, getters whose errors name the value by its
// JSON pointer (RFC 6901), and text whose numbers read back as the same numbers. Refuses what is not strict JSON, text
// that is not UTF-8, halves of surrogate pairs, and nesting or sizes beyond the stated limits. Any thread may call; a
// value belongs to one thread at a time.
#ifndef TF_FORMAT_JSON_H
#define TF_FORMAT_JSON_H

#include "base/buffer.h"
#include "base/status.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define JSON_DEPTH_MAX  64  // objects and arrays inside each other, here and in json_write
#define JSON_PATH_BYTES 160 // a longer pointer is cut, and ends in "..."

enum json_parse_flags {
    JSON_PARSE_DEFAULT = 0,
    JSON_PARSE_DUPLICATES = 1, // a repeated key is allowed and its last value counts; otherwise it is refused
    JSON_PARSE_NUL = 2,        // "\u0000" is allowed in strings (never in keys); otherwise it is refused
    JSON_PARSE_ANY = 4,        // the text may be any value; otherwise only an object or array
};

// Parses text[0..n) whole. Errors: INVALID (the sentence gives the pointer and line, and never repeats the text), LIMIT
// (more than max_bytes, or deeper than JSON_DEPTH_MAX), MEMORY. The caller owns *out (json_decref).
enum status json_parse(const char *text, size_t n, size_t max_bytes, int flags, json_t **out, struct error *e);

// The same for a file; every sentence names its path. NOT_FOUND and IO as file_read gives them.
enum status json_parse_file(const char *path, size_t max_bytes, int flags, json_t **out, struct error *e);

// A value and where it stands. It borrows the value, which must outlive it.
struct json_view {
    const json_t *value;
    char path[JSON_PATH_BYTES]; // "" is the root; otherwise "/text_config/layer_types/3"
};

struct json_view json_root(const json_t *value);

// Steps into an object or array. False (and *out unset) when there is no such member, when it is null, or when v is not
// an object or array. `out` may be `v` itself.
bool json_find(const struct json_view *v, const char *key, struct json_view *out);
bool json_element(const struct json_view *v, size_t index, struct json_view *out);
// Along a JSON pointer, "" or "/a/0/b": steps of at most 255 bytes, their escapes ("~0", "~1") undone.
bool json_find_pointer(const struct json_view *v, const char *pointer, struct json_view *out);
size_t json_length(const struct json_view *v); // elements or members; 0 for other values

// What v is, or INVALID with "<path> must be an integer from 1 to 8, not a string". A number with a fraction or an
// exponent is not an integer. Integers are fine where a real is asked; a real is always finite.
enum status json_as_int(const struct json_view *v, int64_t min, int64_t max, int64_t *out, struct error *e);
enum status json_as_real(const struct json_view *v, double min, double max, double *out, struct error *e);
enum status json_as_bool(const struct json_view *v, bool *out, struct error *e);
enum status json_as_string(const struct json_view *v, const char **out, size_t *n, struct error *e); // n may be NULL
enum status json_must_be(const struct json_view *v, json_type type, struct error *e);

// The member `key` of the object v, checked as above. An absent or null member is INVALID ("<path> is missing") when
// need is JSON_REQUIRED; with JSON_OPTIONAL the call succeeds and leaves *out as it was.
enum json_need { JSON_REQUIRED, JSON_OPTIONAL };
enum status json_get_int(const struct json_view *v, const char *key, enum json_need need, int64_t min, int64_t max,
                         int64_t *out, struct error *e);
enum status json_get_real(const struct json_view *v, const char *key, enum json_need need, double min, double max,
                          double *out, struct error *e);
enum status json_get_bool(const struct json_view *v, const char *key, enum json_need need, bool *out, struct error *e);
enum status json_get_string(const struct json_view *v, const char *key, enum json_need need, const char **out,
                            size_t *n, struct error *e);
// type is JSON_OBJECT or JSON_ARRAY. When optional and absent, out->value is NULL.
enum status json_get_view(const struct json_view *v, const char *key, enum json_need need, json_type type,
                          struct json_view *out, struct error *e);

// ---- writing ----

enum json_style {
    JSON_STYLE_COMPACT, // {"a":1,"b":[2,3]}
    JSON_STYLE_SPACED,  // {"a": 1, "b": [2, 3]}: byte for byte what Python's json.dumps(ensure_ascii=False) gives
    JSON_STYLE_INDENT,  // two spaces a level, as json.dumps(indent=2, ensure_ascii=False): for files that people read
};

// Appends the value as text, keys in insertion order, characters outside ASCII as they are, reals as json_write_real
// gives them. False, with b->failed set, when the buffer refuses or the value is deeper than JSON_DEPTH_MAX.
bool json_write(struct buffer *b, const json_t *value, enum json_style style);
bool json_write_string(struct buffer *b, const char *text, size_t n);  // with quotes; text must be UTF-8
bool json_write_escaped(struct buffer *b, const char *text, size_t n); // what stands between the quotes
// The shortest text that reads back as the same double, laid out as Python's repr does: 0.1, 1.0, 1e-05, 1e+16. JSON
// has no NaN or infinity: those become null.
bool json_write_real(struct buffer *b, double x);

#endif
