// Owns the program's log: one line an event on stderr, from any thread, never torn.
#ifndef TF_BASE_LOG_H
#define TF_BASE_LOG_H

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

void log_set_level(enum log_level level); // default LOG_INFO
void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
