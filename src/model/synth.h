// Owns the making of random checkpoints with the shapes of real ones, so that everything but the words can be tried and
// measured without a download: MLX 4-bit weights with an MTP head, config, tokenizer and chat template; and the block
// drafters of some of them, each in a folder of its own. What is written is a function of shape and seed alone. Refuses
// to write into a folder that holds anything else. One thread calls.
#ifndef TF_MODEL_SYNTH_H
#define TF_MODEL_SYNTH_H

#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

const char *synth_shape_name(int i); // "tiny", ...; NULL past the last

typedef void synth_progress_fn(void *context, int64_t bytes_done, int64_t bytes_total);

struct synth_options {
    const char *shape;
    uint64_t seed;
    bool headers_only;           // the weights stay a hole in the files, which reads as zeros
    int n_threads;               // >= 1
    synth_progress_fn *progress; // may be NULL
    void *context;
};

// Makes the folder `dir` (its parent must exist) or replaces what an earlier call wrote into it. Errors: INVALID
// (unknown shape, a folder with other things in it), LIMIT (the disk has too little room), IO, MEMORY.
enum status synth_write(const char *dir, const struct synth_options *options, struct error *e);

#endif
