// Owns `run --logits`: the logits of every row of a prompt, computed without the engine. Main thread only.
#ifndef TF_CLI_PROMPT_LOGITS_H
#define TF_CLI_PROMPT_LOGITS_H

#include "base/status.h"
#include "ops/device.h"
#include <stdint.h>

// Runs the prompt through the checkpoint in dir, in passes of pass_rows rows (0: a default) and with keys and values
// stored as kv, and writes the safetensors file `path` with one tensor, logits [n_ids, V] F32. The device must be new.
enum status prompt_logits_write(const char *dir, struct device *device, enum dtype kv, const int32_t *ids,
                                int32_t n_ids, int32_t pass_rows, const char *path, struct error *e);

#endif
