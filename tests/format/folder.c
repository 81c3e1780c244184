#include "tests/format/folder.h"

#include "base/mapped_file.h"
#include <dirent.h>
#include <ftw.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct folder folder_create(void) {
    struct folder f = {"/tmp/tf-test-XXXXXX"};
    must(mkdtemp(f.path));
    return f;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *at) {
    (void)info, (void)kind, (void)at;
    return remove(path);
}

void folder_remove(const struct folder *f) { must(nftw(f->path, remove_one, 8, FTW_DEPTH | FTW_PHYS) == 0); }

const char *folder_file(const struct folder *f, const char *name) {
    static char paths[8][512];
    static unsigned next;
    char *path = paths[next++ % 8];
    must(snprintf(path, sizeof paths[0], "%s/%s", f->path, name) < (int)sizeof paths[0]);
    return path;
}

void folder_write(const struct folder *f, const char *name, const void *data, size_t n) {
    FILE *file = fopen(folder_file(f, name), "wb");
    must(file);
    must(fwrite(data, 1, n, file) == n);
    must(fclose(file) == 0);
}

void folder_write_text(const struct folder *f, const char *name, const char *text) {
    folder_write(f, name, text, strlen(text));
}

void folder_write_safetensors(const struct folder *f, const char *name, const char *header, size_t n) {
    size_t length = strlen(header);
    unsigned char *bytes = malloc(8 + length + n);
    must(bytes);
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)length >> (8 * i));
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < n; i++) bytes[8 + length + i] = (unsigned char)(i * 7);
    folder_write(f, name, bytes, 8 + length + n);
    free(bytes);
}

void folder_copy(const struct folder *f, const char *from) {
    DIR *dir = opendir(from);
    must(dir);
    for (struct dirent *entry; (entry = readdir(dir));) {
        if (entry->d_name[0] == '.') continue;
        char path[512], *data;
        size_t n;
        snprintf(path, sizeof path, "%s/%s", from, entry->d_name);
        must(!file_read(path, (size_t)1 << 30, &data, &n, NULL));
        folder_write(f, entry->d_name, data, n);
        free(data);
    }
    closedir(dir);
}
