// Owns the measurement of this machine's memory: how fast its threads together read data that no cache holds.
#ifndef TF_CLI_BANDWIDTH_H
#define TF_CLI_BANDWIDTH_H

#include "base/status.h"

// Bytes a second, the best of a few passes over a buffer much larger than common caches. n_threads 0: one a core.
enum status bandwidth_measure(int n_threads, double *bytes_per_s, struct error *e);

#endif
