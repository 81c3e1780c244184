#include "ops/device.h"

void device_free(struct device *d) {
    if (d != NULL) d->destroy(d);
}

// What is filled is copied behind itself, twice as much each time: a copy from the host for every piece would be most
// of the time of a gate.
void device_fill(struct device *d, void *device_memory, uint16_t pattern, size_t bytes) {
    uint16_t piece[2048];
    size_t done = bytes < sizeof piece ? bytes : sizeof piece;
    for (size_t i = 0; i < sizeof piece / sizeof *piece; i++) piece[i] = pattern;
    d->copy_in(d, device_memory, piece, done);
    while (done < bytes) {
        size_t n = bytes - done < done ? bytes - done : done;
        d->copy(d, (char *)device_memory + done, device_memory, n);
        done += n;
    }
}
