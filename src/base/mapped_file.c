#include "base/mapped_file.h"
#include "base/buffer.h"
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static enum status system_error(struct error *e, const char *doing, const char *path) {
    int code = errno;
    char reason[128];
    const char *text = strerror_r(code, reason, sizeof reason); // the GNU form: the text may or may not be in `reason`
    enum status status = code == ENOENT || code == ENOTDIR ? STATUS_NOT_FOUND : STATUS_IO;
    return error_set(e, status, "cannot %s %s: %s", doing, path, text);
}

// Opens a regular file for reading. The descriptor is never 0, so that a zeroed struct mapped_file holds none.
static enum status open_regular(const char *path, int *out, struct stat *info, struct error *e) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // not blocking: a pipe must be refused, not waited for
    if (fd == 0) {
        fd = fcntl(0, F_DUPFD_CLOEXEC, 3);
        close(0);
    }
    if (fd < 0) return system_error(e, "open", path);
    enum status status = STATUS_OK;
    if (fstat(fd, info) != 0)
        status = system_error(e, "read", path);
    else if (!S_ISREG(info->st_mode))
        status = error_set(e, STATUS_INVALID, "%s is %s, not a regular file", path,
                           S_ISDIR(info->st_mode) ? "a folder" : "a device, pipe or socket");
    if (status != STATUS_OK) {
        close(fd);
        return status;
    }
    *out = fd;
    return STATUS_OK;
}

enum status mapped_file_open(const char *path, struct mapped_file *file, struct error *e) {
    int fd;
    struct stat info;
    enum status status = open_regular(path, &fd, &info, e);
    if (status != STATUS_OK) return status;
    void *data = NULL;
    if (info.st_size > 0) {
        data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            status = system_error(e, "map", path);
            close(fd);
            return status;
        }
    }
    *file = (struct mapped_file){.data = data, .size = (size_t)info.st_size, .fd = fd};
    return STATUS_OK;
}

enum status mapped_file_check(const struct mapped_file *file, const char *path, struct error *e) {
    struct stat info;
    if (fstat(file->fd, &info) != 0) return system_error(e, "read", path);
    if ((uint64_t)info.st_size < file->size)
        return error_set(e, STATUS_IO, "%s became shorter while it was being read: %zu bytes at first, %lld now", path,
                         file->size, (long long)info.st_size);
    return STATUS_OK;
}

void mapped_file_close(struct mapped_file *file) {
    if (file->data) munmap((void *)(uintptr_t)file->data, file->size);
    if (file->fd > 0) close(file->fd);
    *file = (struct mapped_file){0};
}

// Reads until the end rather than up to st_size, which is 0 for the files of /proc.
static enum status read_all(int fd, const char *path, struct buffer *b, size_t limit, struct error *e) {
    for (;;) {
        char chunk[16384];
        ssize_t got = read(fd, chunk, sizeof chunk);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return system_error(e, "read", path);
        if (got == 0) return STATUS_OK;
        if ((size_t)got > limit - b->n)
            return error_set(e, STATUS_LIMIT, "%s is larger than %zu bytes, the most that is read of such a file", path,
                             limit);
        if (!buffer_append(b, chunk, (size_t)got)) return error_memory(e);
    }
}

enum status file_read(const char *path, size_t limit, char **data, size_t *n, struct error *e) {
    int fd;
    struct stat info;
    enum status status = open_regular(path, &fd, &info, e);
    if (status != STATUS_OK) return status;
    struct buffer b;
    buffer_init(&b, 0);
    status = read_all(fd, path, &b, limit, e);
    close(fd);
    size_t bytes = 0;
    char *text = status == STATUS_OK ? buffer_take(&b, &bytes) : NULL;
    buffer_free(&b);
    if (status != STATUS_OK) return status;
    if (!text) return error_memory(e);
    *data = text;
    *n = bytes;
    return STATUS_OK;
}
