#include "format/safetensors.h"

#include "base/arena.h"
#include "base/mapped_file.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const struct {
    const char *name;
    size_t bytes;
} types[] = {
    [SAFETENSORS_BOOL] = {"BOOL", 1},       [SAFETENSORS_U8] = {"U8", 1},
    [SAFETENSORS_I8] = {"I8", 1},           [SAFETENSORS_F8_E4M3] = {"F8_E4M3", 1},
    [SAFETENSORS_F8_E5M2] = {"F8_E5M2", 1}, [SAFETENSORS_F8_E8M0] = {"F8_E8M0", 1},
    [SAFETENSORS_U16] = {"U16", 2},         [SAFETENSORS_I16] = {"I16", 2},
    [SAFETENSORS_F16] = {"F16", 2},         [SAFETENSORS_BF16] = {"BF16", 2},
    [SAFETENSORS_U32] = {"U32", 4},         [SAFETENSORS_I32] = {"I32", 4},
    [SAFETENSORS_F32] = {"F32", 4},         [SAFETENSORS_U64] = {"U64", 8},
    [SAFETENSORS_I64] = {"I64", 8},         [SAFETENSORS_F64] = {"F64", 8},
};

const char *safetensors_type_name(enum safetensors_type type) { return types[type].name; }
size_t safetensors_type_bytes(enum safetensors_type type) { return types[type].bytes; }

const char *safetensors_shape_text(const struct safetensors_tensor *t, char *text, size_t n) {
    size_t used = (size_t)snprintf(text, n, "[");
    for (int i = 0; i < t->n_dims && used < n; i++)
        used += (size_t)snprintf(text + used, n - used, i ? ", %" PRId64 : "%" PRId64, t->shape[i]);
    if (used < n) snprintf(text + used, n - used, "]");
    return text;
}

struct safetensors {
    struct arena *arena; // path, names, tensors
    const char *path;
    const char *format;
    struct mapped_file map; // data NULL when parsed from memory
    const unsigned char *data;
    size_t size;
    struct safetensors_tensor *tensors;
    size_t n_tensors;
};

// ---- the header ----
// The header's shape is fixed: {"name": {"dtype": "X", "shape": [..], "data_offsets": [a, b]}, ...} and one optional
// member "__metadata__" of strings. A parser for just that, without recursion, needs no memory beyond the tensors.

struct cursor {
    const char *p, *end;
};

struct header_entry {
    struct safetensors_tensor tensor;
    uint64_t first, last; // data_offsets
};

static void skip_space(struct cursor *c) {
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\t' || *c->p == '\n' || *c->p == '\r')) c->p++;
}

static bool take(struct cursor *c, char wanted) {
    skip_space(c);
    if (c->p == c->end || *c->p != wanted) return false;
    c->p++;
    return true;
}

// A string's raw text between its quotes. *plain: it holds no escape, so the text is the value.
static bool take_string(struct cursor *c, const char **text, size_t *n, bool *plain) {
    if (!take(c, '"')) return false;
    *text = c->p;
    *plain = true;
    while (c->p < c->end && *c->p != '"') {
        if ((unsigned char)*c->p < 0x20) return false;
        if (*c->p == '\\') {
            *plain = false;
            if (++c->p == c->end) return false;
        }
        c->p++;
    }
    if (c->p == c->end) return false;
    *n = (size_t)(c->p - *text);
    c->p++;
    return true;
}

static bool take_count(struct cursor *c, uint64_t *out) { // a plain non-negative integer up to 2^63 - 1
    skip_space(c);
    uint64_t x = 0;
    const char *start = c->p;
    for (; c->p < c->end && *c->p >= '0' && *c->p <= '9'; c->p++) {
        uint64_t digit = (uint64_t)(*c->p - '0');
        if (x > (INT64_MAX - digit) / 10) return false;
        x = x * 10 + digit;
    }
    if (c->p == start || (*start == '0' && c->p - start > 1)) return false;
    *out = x;
    return true;
}

static bool text_is(const char *text, size_t n, const char *wanted) {
    return n == strlen(wanted) && !memcmp(text, wanted, n);
}

// "[1, 2, 3]" into out; false when it is something else or longer than max.
static bool take_counts(struct cursor *c, uint64_t *out, int max, int *n) {
    *n = 0;
    if (!take(c, '[')) return false;
    if (take(c, ']')) return true;
    do {
        if (*n == max || !take_count(c, &out[(*n)++])) return false;
    } while (take(c, ','));
    return take(c, ']');
}

static bool take_type(struct cursor *c, enum safetensors_type *out, bool *known) {
    const char *text;
    size_t n;
    bool plain;
    if (!take_string(c, &text, &n, &plain)) return false;
    *known = false;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (!text_is(text, n, types[i].name)) continue;
        *out = (enum safetensors_type)i;
        *known = true;
    }
    return true;
}

// Everything after a tensor's name. The sentence does not name the path; the caller adds it.
static enum status take_tensor(struct cursor *c, struct header_entry *entry, struct error *e) {
    struct safetensors_tensor *t = &entry->tensor;
    bool known = false;
    unsigned seen = 0;
    if (!take(c, '{')) return error_set(e, STATUS_INVALID, "the header entry of %s is not an object", t->name);
    do {
        const char *key;
        size_t n;
        bool plain, ok = false;
        if (!take_string(c, &key, &n, &plain) || !take(c, ':'))
            return error_set(e, STATUS_INVALID, "the header entry of %s is malformed", t->name);
        unsigned bit = 0;
        if (text_is(key, n, "dtype")) {
            bit = 1;
            ok = take_type(c, &t->type, &known);
        } else if (text_is(key, n, "shape")) {
            bit = 2;
            uint64_t shape[SAFETENSORS_DIMS_MAX];
            ok = take_counts(c, shape, SAFETENSORS_DIMS_MAX, &t->n_dims);
            for (int i = 0; ok && i < t->n_dims; i++) t->shape[i] = (int64_t)shape[i];
        } else if (text_is(key, n, "data_offsets")) {
            bit = 4;
            uint64_t offsets[2];
            int count;
            ok = take_counts(c, offsets, 2, &count) && count == 2 && offsets[0] <= offsets[1];
            if (ok) entry->first = offsets[0], entry->last = offsets[1];
        }
        if (!ok || (seen & bit))
            return error_set(e, STATUS_INVALID, "the header entry of %s has a bad \"%.*s\"", t->name,
                             (int)(n < 40 ? n : 40), key);
        seen |= bit;
    } while (take(c, ','));
    if (!take(c, '}') || seen != 7)
        return error_set(e, STATUS_INVALID, "the header entry of %s lacks dtype, shape or data_offsets", t->name);
    if (!known) return error_set(e, STATUS_UNSUPPORTED, "tensor %s has an unknown dtype", t->name);
    return STATUS_OK;
}

static enum status take_metadata(struct safetensors *s, struct cursor *c, struct error *e) {
    bool ok = take(c, '{');
    if (ok && take(c, '}')) return STATUS_OK;
    while (ok) {
        const char *key, *value;
        size_t n_key, n;
        bool plain;
        ok = take_string(c, &key, &n_key, &plain) && take(c, ':') && take_string(c, &value, &n, &plain);
        if (ok && plain && text_is(key, n_key, "format")) {
            s->format = arena_copy(s->arena, value, n);
            if (!s->format) return error_memory(e);
        }
        if (!ok || !take(c, ',')) break;
    }
    if (!ok || !take(c, '}'))
        return error_set(e, STATUS_INVALID, "the header's __metadata__ is not an object of strings");
    return STATUS_OK;
}

struct entry_list {
    struct header_entry *entries;
    size_t n, capacity;
};

static struct header_entry *list_add(struct entry_list *list) {
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 64;
        void *grown = realloc(list->entries, capacity * sizeof *list->entries);
        if (!grown) return NULL;
        list->entries = grown;
        list->capacity = capacity;
    }
    struct header_entry *entry = &list->entries[list->n++];
    memset(entry, 0, sizeof *entry);
    return entry;
}

static enum status parse_header(struct safetensors *s, const char *text, size_t n, struct entry_list *list,
                                struct error *e) {
    struct cursor c = {text, text + n};
    if (!take(&c, '{')) return error_set(e, STATUS_INVALID, "the header is not a JSON object");
    bool empty = take(&c, '}');
    while (!empty) {
        const char *name;
        size_t n_name;
        bool plain;
        if (!take_string(&c, &name, &n_name, &plain) || !take(&c, ':'))
            return error_set(e, STATUS_INVALID, "the header is malformed at byte %zu", (size_t)(c.p - text));
        if (!plain)
            return error_set(e, STATUS_INVALID, "the header has a name with escapes, %.*s",
                             (int)(n_name < 100 ? n_name : 100), name);
        enum status status;
        if (text_is(name, n_name, "__metadata__")) {
            status = take_metadata(s, &c, e);
        } else {
            struct header_entry *entry = list_add(list);
            char *copy = arena_copy(s->arena, name, n_name);
            if (!entry || !copy) return error_memory(e);
            entry->tensor.name = copy;
            entry->tensor.file = s->path;
            status = take_tensor(&c, entry, e);
        }
        if (status) return status;
        if (!take(&c, ',')) break;
    }
    if (!empty && !take(&c, '}')) return error_set(e, STATUS_INVALID, "the header ends in mid-object");
    skip_space(&c);
    if (c.p != c.end) return error_set(e, STATUS_INVALID, "the header has text after its object");
    return STATUS_OK;
}

// ---- what the header says against the file ----

static int by_offset(const void *x, const void *y) {
    const struct header_entry *a = x, *b = y;
    if (a->first != b->first) return a->first < b->first ? -1 : 1;
    if (a->last != b->last) return a->last < b->last ? -1 : 1;
    return strcmp(a->tensor.name, b->tensor.name);
}

static int by_name(const void *x, const void *y) {
    const struct safetensors_tensor *const *a = x, *const *b = y;
    return strcmp((*a)->name, (*b)->name);
}

static enum status check_bytes(const struct header_entry *entry, struct error *e) {
    const struct safetensors_tensor *t = &entry->tensor;
    uint64_t bytes = types[t->type].bytes;
    bool overflow = false;
    for (int i = 0; i < t->n_dims; i++) overflow |= __builtin_mul_overflow(bytes, (uint64_t)t->shape[i], &bytes);
    // A zero dimension makes the product 0 whatever the others did before it.
    for (int i = 0; i < t->n_dims; i++)
        if (t->shape[i] == 0) bytes = 0, overflow = false;
    char shape[96];
    if (overflow)
        return error_set(e, STATUS_INVALID, "tensor %s has the impossible shape %s", t->name,
                         safetensors_shape_text(t, shape, sizeof shape));
    if (bytes != entry->last - entry->first)
        return error_set(e, STATUS_INVALID,
                         "tensor %s of shape %s %s needs %" PRIu64 " bytes, but its data_offsets give it %" PRIu64,
                         t->name, types[t->type].name, safetensors_shape_text(t, shape, sizeof shape), bytes,
                         entry->last - entry->first);
    return STATUS_OK;
}

// Tensors must fill the data exactly, one after another: this one rule refuses overlaps, holes and ranges outside.
static enum status place_tensors(struct safetensors *s, struct entry_list *list, size_t data_start, struct error *e) {
    if (list->n) qsort(list->entries, list->n, sizeof *list->entries, by_offset);
    uint64_t end = 0;
    for (size_t i = 0; i < list->n; i++) {
        const struct header_entry *entry = &list->entries[i];
        enum status status = check_bytes(entry, e);
        if (status) return status;
        if (entry->first != end)
            return error_set(e, STATUS_INVALID,
                             "tensor %s begins at data byte %" PRIu64 ", but the bytes before it end at %" PRIu64,
                             entry->tensor.name, entry->first, end);
        end = entry->last;
    }
    if (end != s->size - data_start)
        return error_set(e, STATUS_INVALID,
                         "the file has %zu bytes but its header describes %" PRIu64
                         "; it is damaged or was not downloaded completely",
                         s->size, end + data_start);
    s->tensors = arena_alloc(s->arena, (list->n + 1) * sizeof *s->tensors);
    const struct safetensors_tensor **names = malloc((list->n + 1) * sizeof *names);
    if (!s->tensors || !names) {
        free(names);
        return error_memory(e);
    }
    for (size_t i = 0; i < list->n; i++) {
        s->tensors[i] = list->entries[i].tensor;
        s->tensors[i].data = s->data + data_start + list->entries[i].first;
        s->tensors[i].bytes = (size_t)(list->entries[i].last - list->entries[i].first);
        names[i] = &s->tensors[i];
    }
    s->n_tensors = list->n;
    qsort(names, list->n, sizeof *names, by_name);
    enum status status = STATUS_OK;
    for (size_t i = 1; i < list->n && !status; i++)
        if (!strcmp(names[i - 1]->name, names[i]->name))
            status = error_set(e, STATUS_INVALID, "tensor %s is described twice", names[i]->name);
    free(names);
    return status;
}

static enum status parse(struct safetensors *s, struct error *e) {
    static const char lfs[] = "version https://git-lfs";
    if (s->size >= sizeof lfs - 1 && !memcmp(s->data, lfs, sizeof lfs - 1))
        return error_set(e, STATUS_INVALID,
                         "this is a Git LFS pointer, not the file itself; fetch it with `git lfs pull`");
    if (s->size < 8)
        return error_set(e, STATUS_INVALID, "the file has %zu bytes but a header needs at least 8", s->size);
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--) n = n << 8 | s->data[i];
    if (n > SAFETENSORS_HEADER_MAX)
        return error_set(e, STATUS_LIMIT,
                         "the header says it has %" PRIu64 " bytes, and %d is the limit; is this a safetensors file?",
                         n, SAFETENSORS_HEADER_MAX);
    if (n > s->size - 8)
        return error_set(e, STATUS_INVALID,
                         "the file has %zu bytes but its header alone needs %" PRIu64
                         "; it is damaged or was not downloaded completely",
                         s->size, n + 8);
    struct entry_list list = {0};
    enum status status = parse_header(s, (const char *)s->data + 8, (size_t)n, &list, e);
    if (!status) status = place_tensors(s, &list, (size_t)n + 8, e);
    free(list.entries);
    return status;
}

static enum status create(const char *path, struct safetensors **out, struct error *e) {
    struct safetensors *s = calloc(1, sizeof *s);
    if (!s || !(s->arena = arena_create(0)) || !(s->path = arena_copy(s->arena, path, strlen(path)))) {
        safetensors_free(s);
        return error_memory(e);
    }
    s->format = "";
    *out = s;
    return STATUS_OK;
}

enum status safetensors_parse(const char *path, const unsigned char *data, size_t n, struct safetensors **out,
                              struct error *e) {
    struct safetensors *s = NULL;
    enum status status = create(path, &s, e);
    if (status) return status;
    s->data = data;
    s->size = n;
    status = parse(s, e);
    if (status) {
        safetensors_free(s);
        error_prefix(e, "%s", path);
        return status;
    }
    *out = s;
    return STATUS_OK;
}

enum status safetensors_open(const char *path, struct safetensors **out, struct error *e) {
    struct mapped_file map;
    enum status status = mapped_file_open(path, &map, e);
    if (status) return status;
    status = safetensors_parse(path, map.data, map.size, out, e);
    if (status)
        mapped_file_close(&map);
    else
        (*out)->map = map;
    return status;
}

void safetensors_free(struct safetensors *s) {
    if (!s) return;
    if (s->map.data) mapped_file_close(&s->map);
    arena_free(s->arena);
    free(s);
}

const char *safetensors_path(const struct safetensors *s) { return s->path; }
size_t safetensors_file_bytes(const struct safetensors *s) { return s->size; }
const char *safetensors_format(const struct safetensors *s) { return s->format; }
size_t safetensors_count(const struct safetensors *s) { return s->n_tensors; }
const struct safetensors_tensor *safetensors_tensor_at(const struct safetensors *s, size_t i) { return &s->tensors[i]; }

enum status safetensors_check(const struct safetensors *s, struct error *e) {
    return s->map.data ? mapped_file_check(&s->map, s->path, e) : STATUS_OK;
}

enum status safetensors_prefetch(const struct safetensors *s, size_t first, size_t n, struct error *e) {
    if (first >= s->size || !s->map.data) return STATUS_OK;
    enum status status = safetensors_check(s, e);
    if (status) return status;
    if (n > s->size - first) n = s->size - first;
    size_t page = (size_t)sysconf(_SC_PAGESIZE), start = first / page * page;
    n += first - start;
#ifdef MADV_POPULATE_READ
    if (!madvise((void *)(s->data + start), n, MADV_POPULATE_READ)) return STATUS_OK;
    if (errno == EFAULT || errno == EHWPOISON)
        return error_set(e, STATUS_IO, "%s: bytes %zu to %zu cannot be read", s->path, start, start + n);
#endif
    // An older kernel: one read per page does the same, without the promise about files that shrink.
    for (size_t at = start; at < start + n; at += page) (void)*(const volatile unsigned char *)(s->data + at);
    return STATUS_OK;
}
