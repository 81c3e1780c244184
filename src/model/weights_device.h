// Owns bringing a model's weights into the memory of a device that has its own. One thread.
#ifndef TF_MODEL_WEIGHTS_DEVICE_H
#define TF_MODEL_WEIGHTS_DEVICE_H

#include "model/weights.h"
#include "ops/device.h"

// Called with the bytes copied so far.
typedef void weights_progress_fn(void *context, int64_t bytes_done);

// Copies all that the forward pass reads, and with `mtp` the MTP head, into one block of device memory, and makes `w`
// refer to it. Experts of a layer lie at equal distances. The caller releases *memory after the last use.
enum status weights_to_device(struct model_weights *w, const struct model_config *c, bool mtp, struct device *d,
                              weights_progress_fn *progress, void *context, void **memory, struct error *e);

#endif
