// Owns bringing weights into the memory of a device that has its own: a model's, and what a drafter's need for it. One
// thread.
#ifndef TF_MODEL_WEIGHTS_DEVICE_H
#define TF_MODEL_WEIGHTS_DEVICE_H

#include "model/weights.h"
#include "ops/device.h"

// Called with the bytes copied so far.
typedef void weights_progress_fn(void *context, int64_t bytes_done);

// What brings weights into one block of device memory. Everything is visited twice in the same order: with memory NULL
// bytes are only added up; then each is copied behind the one before, and what was visited refers to the copy.
struct weights_mover {
    struct device *device;
    char *memory;
    int64_t used;
    weights_progress_fn *progress; // NULL is fine
    void *context;
};
void weights_move_vector(struct weights_mover *m, const float **v, int64_t n);
void weights_move_matrix(struct weights_mover *m, struct weight *w);
void weights_move_linear(struct weights_mover *m, struct weight *w); // one that only embed and linear read

// Copies all that the forward pass reads, and with `mtp` the MTP head, into one block of device memory, and makes `w`
// refer to it. Experts of a layer lie at equal distances. The caller releases *memory after the last use.
enum status weights_to_device(struct model_weights *w, const struct model_config *c, bool mtp, struct device *d,
                              weights_progress_fn *progress, void *context, void **memory, struct error *e);

#endif
