// Owns time: monotonic for durations, wall clock for what users see.
#ifndef TF_BASE_CLOCK_H
#define TF_BASE_CLOCK_H

#include <stdint.h>

int64_t clock_ns(void); // monotonic
int64_t clock_unix_seconds(void);
void clock_sleep_ns(int64_t ns);

#endif
