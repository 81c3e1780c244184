// Owns the CUDA backend on paper: what a memory plan has to know of a GPU that is not in this machine. Plain C, in
// every build; nothing can be computed on it.
#ifndef TF_CUDA_PAPER_H
#define TF_CUDA_PAPER_H

#include "ops/device.h"

// Fills only what a plan reads: name, types, `memory` (there is more than any plan takes, since how much is not known;
// the total is 0), reserve_bytes, and alloc and copies stay NULL. Borrows nothing; not to be freed.
void cuda_paper_device(struct device *out);

#endif
