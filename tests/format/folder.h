// Owns a temporary folder for a test, and ways to put files there. Failures end the test.
#ifndef TF_TESTS_FORMAT_FOLDER_H
#define TF_TESTS_FORMAT_FOLDER_H

#include <stddef.h>

struct folder {
    char path[64];
};

struct folder folder_create(void);
void folder_remove(const struct folder *f); // with everything in it

// folder/name; the text is valid until the eighth call after it.
const char *folder_file(const struct folder *f, const char *name);
void folder_write(const struct folder *f, const char *name, const void *data, size_t n);
void folder_write_text(const struct folder *f, const char *name, const char *text);
// A safetensors file of this header text and n data bytes, each byte (i * 7) & 0xff.
void folder_write_safetensors(const struct folder *f, const char *name, const char *header, size_t n);
void folder_copy(const struct folder *f, const char *from); // the files of another folder

#endif
