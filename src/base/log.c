#include "base/log.h"
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// PIPE_BUF on Linux: the longest write that a pipe takes whole, so that lines of several processes do not mix either.
#define LINE_BYTES 4096

static _Atomic int minimum_level = LOG_INFO;

void log_set_level(enum log_level level) { atomic_store_explicit(&minimum_level, (int)level, memory_order_relaxed); }

// Writes "2026-01-31T09:00:00.250Z WARN  " and returns its length.
static size_t write_head(char *line, size_t bytes, enum log_level level) {
    static const char *const names[] = {"DEBUG", "INFO ", "WARN ", "ERROR"};
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(line, bytes, "%Y-%m-%dT%H:%M:%S", &utc);
    return n + (size_t)snprintf(line + n, bytes - n, ".%03dZ %s ", (int)(now.tv_nsec / 1000000), names[level]);
}

void log_line(enum log_level level, const char *format, ...) {
    if ((int)level < atomic_load_explicit(&minimum_level, memory_order_relaxed)) return;
    int saved_errno = errno;
    char line[LINE_BYTES];
    size_t head = write_head(line, sizeof line, level);
    va_list args;
    va_start(args, format);
    int wanted = vsnprintf(line + head, sizeof line - head, format, args);
    va_end(args);
    size_t room = sizeof line - head - 1; // the newline takes the place of the NUL
    size_t n = wanted < 0 ? 0 : (size_t)wanted;
    if (n > room) {
        n = room;
        memcpy(line + head + n - 3, "...", 3);
    }
    // A client's text may be part of the message: it must not start a line of its own or move the cursor.
    for (size_t i = head; i < head + n; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f) line[i] = '?';
    line[head + n] = '\n';
    while (write(STDERR_FILENO, line, head + n + 1) < 0 && errno == EINTR) continue;
    errno = saved_errno;
}
