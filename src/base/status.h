// Owns the one way a failure travels: a code, and one sentence that a user can act on.
// Whoever first knows an error writes it; callers above pass it on unchanged. Outputs are set only on success.
#ifndef TF_BASE_STATUS_H
#define TF_BASE_STATUS_H

#include <stdarg.h>
#include <stddef.h>

enum status {
    STATUS_OK = 0,
    STATUS_INVALID,     // the caller's or the user's input is wrong: the sentence says what and where
    STATUS_NOT_FOUND,   // a named file, tensor or route does not exist
    STATUS_UNSUPPORTED, // understood, and not built or not possible here
    STATUS_LIMIT,       // larger than a stated limit
    STATUS_MEMORY,      // an allocation failed
    STATUS_IO,          // the operating system refused a read, write or map
    STATUS_BUSY,        // a bounded queue is full; try again later
    STATUS_CANCELLED,   // the request was given up by its owner
    STATUS_DEVICE,      // the device failed: sticky, the process must end
};

#define ERROR_TEXT_BYTES 512

struct error {
    enum status code;
    char text[ERROR_TEXT_BYTES]; // one sentence, valid UTF-8, no newline
};

// Writes code and sentence into e (which may be NULL) and returns code, so that `return error_set(...)` reads well.
// A sentence that is too long is cut at a character boundary; control bytes and invalid UTF-8 become '?'.
enum status error_set(struct error *e, enum status code, const char *format, ...) __attribute__((format(printf, 3, 4)));

// The sentence for a failed allocation; never allocates.
enum status error_memory(struct error *e);

// Puts "prefix: " before the sentence that e holds, keeping its code, and returns the code.
enum status error_prefix(struct error *e, const char *format, ...) __attribute__((format(printf, 2, 3)));

// "invalid", "not found", ...: for logs.
const char *status_name(enum status code);

// A bug in this program, never bad input: prints the condition and its place, then aborts. Kept in release builds.
#define must(cond) ((cond) ? (void)0 : must_failed(#cond, __FILE__, __LINE__))
void must_failed(const char *condition, const char *file, int line) __attribute__((noreturn));

#endif
