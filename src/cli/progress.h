// Owns the progress bar on stderr: drawn only on a terminal, erased when it is full. One thread at a time.
#ifndef TF_CLI_PROGRESS_H
#define TF_CLI_PROGRESS_H

#include <stdint.h>

// Fits engine_options.progress; context is the word shown before the bar, NULL for "loading".
void progress_show(void *context, int64_t bytes_done, int64_t bytes_total);

// Wipes the bar off the line, so that a sentence can be printed there; the next call draws it anew.
void progress_clear(void);

#endif
