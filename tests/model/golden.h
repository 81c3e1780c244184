// Owns the golden outputs of one fixture folder: ids, logits and residual streams of transformers in double
// precision (tools/golden_reference.py), and its greedy replies. A missing or malformed file ends the test program.
#ifndef TF_TESTS_MODEL_GOLDEN_H
#define TF_TESTS_MODEL_GOLDEN_H

#include "format/safetensors.h"
#include <jansson.h>
#include <stdint.h>

#define GOLDEN_GREEDY 48

extern const char *const golden_folders[]; // ends with NULL
extern const int32_t golden_lengths[8];

struct golden {
    char dir[512];
    struct safetensors *file;
    json_t *info;
};

const char *golden_root(void); // $TF_GOLDEN, or build/golden, which is unpacked when needed
struct golden *golden_open(const char *folder);
void golden_close(struct golden *g);

const int32_t *golden_ids(const struct golden *g, int32_t length); // [length]
const float *golden_logits(const struct golden *g, int32_t length,
                           int32_t *n_rows);                       // of the last n_rows rows, [n_rows, V]
const float *golden_hidden(const struct golden *g, int32_t layer); // the layer's input, [65, H]
double golden_greedy(const struct golden *g, int32_t length,
                     int32_t ids[GOLDEN_GREEDY]); // returns the smallest top-2 gap

#endif
