// Owns a read-only view of a whole regular file. Any thread may read it.
#ifndef TF_BASE_MAPPED_FILE_H
#define TF_BASE_MAPPED_FILE_H

#include "base/status.h"
#include <stddef.h>

struct mapped_file {
    const unsigned char *data; // NULL for an empty file
    size_t size;
    int fd; // kept open, so that mapped_file_check can see a file that shrinks
};

// Refuses what is not a regular file. The sentence names the path.
enum status mapped_file_open(const char *path, struct mapped_file *file, struct error *e);
// Refuses a file that is shorter than when it was opened: touching what is gone would end the process.
enum status mapped_file_check(const struct mapped_file *file, const char *path, struct error *e);
void mapped_file_close(struct mapped_file *file); // a zeroed struct is fine; leaves one behind

// Reads a small regular file whole into malloc'd, NUL-terminated memory; STATUS_LIMIT beyond limit bytes.
enum status file_read(const char *path, size_t limit, char **data, size_t *n, struct error *e);

#endif
