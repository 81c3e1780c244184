// Owns the safetensors file format: 8 bytes of header length (little endian), a JSON header, then the bytes of all
// tensors. Reading maps the file and hands out references into the mapping; nothing is copied. Refuses every file whose
// header and size do not agree exactly, so that a half-finished download is never served. Any thread may read an open
// file; the header's memory is bounded by its length.
#ifndef TF_FORMAT_SAFETENSORS_H
#define TF_FORMAT_SAFETENSORS_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SAFETENSORS_DIMS_MAX   8
#define SAFETENSORS_HEADER_MAX 100000000 // the format's own limit

enum safetensors_type {
    SAFETENSORS_BOOL,
    SAFETENSORS_U8,
    SAFETENSORS_I8,
    SAFETENSORS_F8_E4M3,
    SAFETENSORS_F8_E5M2,
    SAFETENSORS_F8_E8M0,
    SAFETENSORS_U16,
    SAFETENSORS_I16,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_U32,
    SAFETENSORS_I32,
    SAFETENSORS_F32,
    SAFETENSORS_U64,
    SAFETENSORS_I64,
    SAFETENSORS_F64,
};

const char *safetensors_type_name(enum safetensors_type type); // "BF16"
size_t safetensors_type_bytes(enum safetensors_type type);

struct safetensors_tensor {
    const char *name; // NUL-terminated
    const char *file; // path of its file, for sentences
    enum safetensors_type type;
    int n_dims;
    int64_t shape[SAFETENSORS_DIMS_MAX]; // row-major, last dimension contiguous; n_dims 0 is a scalar
    const unsigned char *data;           // into the mapping; aligned only as the file happens to be
    size_t bytes;
};

// "[512, 64]", for sentences; cut to fit n.
const char *safetensors_shape_text(const struct safetensors_tensor *t, char *text, size_t n);

struct safetensors;

// Sentences start with the path. Errors: INVALID (says the tensor where one is at fault; a file of the wrong length
// gives the expected and the actual one), LIMIT, NOT_FOUND, IO, MEMORY.
enum status safetensors_open(const char *path, struct safetensors **out, struct error *e);
// The same for bytes in memory that outlive it.
enum status safetensors_parse(const char *path, const unsigned char *data, size_t n, struct safetensors **out,
                              struct error *e);
void safetensors_free(struct safetensors *s); // NULL is fine

const char *safetensors_path(const struct safetensors *s);
size_t safetensors_file_bytes(const struct safetensors *s);
const char *safetensors_format(const struct safetensors *s); // metadata "format" ("mlx", "pt"); "" when absent
size_t safetensors_count(const struct safetensors *s);
const struct safetensors_tensor *safetensors_tensor_at(const struct safetensors *s,
                                                       size_t i);            // in order of their bytes
enum status safetensors_check(const struct safetensors *s, struct error *e); // the file is still as long as when opened

// Brings bytes [first, first + n) of the file into memory; n is cut at the file's end. A file that shrank since it was
// opened is INVALID, not a crash, where the kernel can tell (Linux 5.14).
enum status safetensors_prefetch(const struct safetensors *s, size_t first, size_t n, struct error *e);

// ---- writing ----

struct safetensors_entry {
    const char *name; // without quotes and backslashes
    enum safetensors_type type;
    int n_dims;
    int64_t shape[SAFETENSORS_DIMS_MAX];
};

struct safetensors_writer;

// Bytes of the whole file for these entries, header included.
enum status safetensors_size(const struct safetensors_entry *entries, size_t n, const char *format, uint64_t *bytes,
                             struct error *e);

// Creates the file at its full length, tensors in the order given, with the header written and all data still a hole
// that reads as zeros. It is called PATH.part until it is finished, and takes PATH's place then; what is there and is
// no regular file is INVALID. format is the metadata "format", or NULL. Names and entries are not kept.
enum status safetensors_writer_create(const char *path, const struct safetensors_entry *entries, size_t n,
                                      const char *format, struct safetensors_writer **out, struct error *e);
// Writes n bytes at `offset` within tensor i. Several threads may write at once.
enum status safetensors_writer_write(struct safetensors_writer *w, size_t i, uint64_t offset, const void *data,
                                     size_t n, struct error *e);
// Closes the file and gives it its name; a write error that the system reports only now is IO, and removes it. Frees w
// either way.
enum status safetensors_writer_finish(struct safetensors_writer *w, struct error *e);
void safetensors_writer_abandon(struct safetensors_writer *w); // PATH stays as it was; NULL is fine

#endif
