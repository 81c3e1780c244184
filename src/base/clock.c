#include "base/clock.h"
#include <errno.h>
#include <time.h>

#define NS_PER_SECOND 1000000000

int64_t clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * NS_PER_SECOND + t.tv_nsec;
}

int64_t clock_unix_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec;
}

void clock_sleep_ns(int64_t ns) {
    if (ns <= 0) return;
    int64_t end = clock_ns() + ns;
    struct timespec t = {.tv_sec = end / NS_PER_SECOND, .tv_nsec = end % NS_PER_SECOND};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) continue;
}
