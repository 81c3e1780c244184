#include "format/safetensors.h"

#include "base/buffer.h"
#include "format/json.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// The data begins at a multiple of this, so that the tensors of a file are as aligned as their own sizes allow.
#define DATA_ALIGNMENT 64

struct safetensors_writer {
    int fd;
    char *path, *part; // the file is `part` until it is whole
    uint64_t *starts;  // [n + 1] file offset of each tensor, and the end
    size_t n;
};

static enum status entry_bytes(const struct safetensors_entry *entry, uint64_t *bytes, struct error *e) {
    must(entry->n_dims >= 0 && entry->n_dims <= SAFETENSORS_DIMS_MAX);
    uint64_t b = safetensors_type_bytes(entry->type);
    bool overflow = false;
    for (int i = 0; i < entry->n_dims; i++) {
        must(entry->shape[i] >= 0);
        overflow |= __builtin_mul_overflow(b, (uint64_t)entry->shape[i], &b);
    }
    if (overflow || b > INT64_MAX) return error_set(e, STATUS_LIMIT, "tensor %s is too large for a file", entry->name);
    *bytes = b;
    return STATUS_OK;
}

// The length field and header, padded, into b; starts[i] relative to the data.
static enum status build_header(const struct safetensors_entry *entries, size_t n, const char *format, struct buffer *b,
                                uint64_t *starts, struct error *e) {
    uint64_t at = 0;
    buffer_append(b, "\0\0\0\0\0\0\0\0{", 9);
    if (format) {
        buffer_append_text(b, "\"__metadata__\":{\"format\":");
        json_write_string(b, format, strlen(format));
        buffer_append_text(b, n ? "}," : "}");
    }
    for (size_t i = 0; i < n; i++) {
        const struct safetensors_entry *entry = &entries[i];
        uint64_t bytes = 0;
        enum status status = entry_bytes(entry, &bytes, e);
        if (status) return status;
        must(!strpbrk(entry->name, "\"\\"));
        json_write_string(b, entry->name, strlen(entry->name));
        buffer_printf(b, ":{\"dtype\":\"%s\",\"shape\":[", safetensors_type_name(entry->type));
        for (int d = 0; d < entry->n_dims; d++) buffer_printf(b, d ? ",%" PRId64 : "%" PRId64, entry->shape[d]);
        buffer_printf(b, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}%s", at, at + bytes, i + 1 < n ? "," : "");
        starts[i] = at;
        if (__builtin_add_overflow(at, bytes, &at) || at > INT64_MAX / 2)
            return error_set(e, STATUS_LIMIT, "the tensors up to %s are too large for a file", entry->name);
    }
    starts[n] = at;
    buffer_append(b, "}", 1);
    while (!b->failed && b->n % DATA_ALIGNMENT) buffer_append(b, " ", 1);
    if (b->failed) return error_memory(e);
    uint64_t length = b->n - 8;
    if (length > SAFETENSORS_HEADER_MAX) return error_set(e, STATUS_LIMIT, "%zu tensors need too long a header", n);
    for (int i = 0; i < 8; i++) b->data[i] = (char)(length >> (8 * i));
    return STATUS_OK;
}

enum status safetensors_size(const struct safetensors_entry *entries, size_t n, const char *format, uint64_t *bytes,
                             struct error *e) {
    uint64_t *starts = calloc(n + 1, sizeof *starts);
    if (!starts) return error_memory(e);
    struct buffer header;
    buffer_init(&header, 0);
    enum status status = build_header(entries, n, format, &header, starts, e);
    if (!status) *bytes = header.n + starts[n];
    buffer_free(&header);
    free(starts);
    return status;
}

static enum status write_all(int fd, const char *path, const void *data, size_t n, uint64_t at, struct error *e) {
    const char *p = data;
    while (n) {
        ssize_t done = pwrite(fd, p, n, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0)
            return error_set(e, STATUS_IO, "%s: cannot be written: %s", path, strerror(done ? errno : ENOSPC));
        p += done;
        n -= (size_t)done;
        at += (uint64_t)done;
    }
    return STATUS_OK;
}

// What is there already and is no file (a device, a pipe) would be replaced by one.
static enum status create_part(struct safetensors_writer *w, struct error *e) {
    struct stat st;
    if (stat(w->path, &st) == 0 && !S_ISREG(st.st_mode))
        return error_set(e, STATUS_INVALID, "%s: exists and is no regular file", w->path);
    w->fd = open(w->part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    return w->fd >= 0 ? STATUS_OK : error_set(e, STATUS_IO, "%s: cannot be created: %s", w->path, strerror(errno));
}

enum status safetensors_writer_create(const char *path, const struct safetensors_entry *entries, size_t n,
                                      const char *format, struct safetensors_writer **out, struct error *e) {
    struct safetensors_writer *w = calloc(1, sizeof *w);
    if (!w) return error_memory(e);
    w->fd = -1;
    w->n = n;
    w->path = strdup(path);
    if (asprintf(&w->part, "%s.part", path) < 0) w->part = NULL;
    w->starts = calloc(n + 1, sizeof *w->starts);
    struct buffer header;
    buffer_init(&header, 0);
    enum status status =
        w->path && w->part && w->starts ? build_header(entries, n, format, &header, w->starts, e) : error_memory(e);
    if (!status) {
        for (size_t i = 0; i <= n; i++) w->starts[i] += header.n;
        status = create_part(w, e);
    }
    if (!status) status = write_all(w->fd, path, header.data, header.n, 0, e);
    if (!status && ftruncate(w->fd, (off_t)w->starts[n]))
        status = error_set(e, STATUS_IO, "%s: cannot be made %" PRIu64 " bytes long: %s", path, w->starts[n],
                           strerror(errno));
    buffer_free(&header);
    if (status)
        safetensors_writer_abandon(w);
    else
        *out = w;
    return status;
}

enum status safetensors_writer_write(struct safetensors_writer *w, size_t i, uint64_t offset, const void *data,
                                     size_t n, struct error *e) {
    must(i < w->n && n <= w->starts[i + 1] - w->starts[i] && offset <= w->starts[i + 1] - w->starts[i] - n);
    return write_all(w->fd, w->path, data, n, w->starts[i] + offset, e);
}

static void writer_free(struct safetensors_writer *w) {
    free(w->path);
    free(w->part);
    free(w->starts);
    free(w);
}

enum status safetensors_writer_finish(struct safetensors_writer *w, struct error *e) {
    enum status status = STATUS_OK;
    if (close(w->fd) || rename(w->part, w->path)) {
        status = error_set(e, STATUS_IO, "%s: cannot be written: %s", w->path, strerror(errno));
        unlink(w->part);
    }
    writer_free(w);
    return status;
}

void safetensors_writer_abandon(struct safetensors_writer *w) {
    if (!w) return;
    if (w->fd >= 0) {
        close(w->fd);
        unlink(w->part);
    }
    writer_free(w);
}
