// Owns the measurement of memory: how fast this machine's threads together read data that no cache holds, or how fast a
// device with memory of its own copies.
#ifndef TF_CLI_BANDWIDTH_H
#define TF_CLI_BANDWIDTH_H

#include "ops/device.h"

// Bytes a second, the best of a few passes over a buffer much larger than common caches. n_threads 0: one a core.
enum status bandwidth_measure(int n_threads, double *bytes_per_s, struct error *e);

// Of copies within the device's memory, bytes read and bytes written counted.
enum status bandwidth_measure_device(struct device *d, double *bytes_per_s, struct error *e);

#endif
