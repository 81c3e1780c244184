// Owns the products of a round that follow each other with nothing between: they are put aside and become one launch,
// whose blocks ask for the weights of the next product while they finish the one before (series_q4.cu).
#ifndef TF_CUDA_SERIES_CUH
#define TF_CUDA_SERIES_CUH

#include "cuda/linear_q4.cuh"

#define SERIES_MOST 4 // behind a mixer: its output; gate, up and activation; down; what the next mixer begins with
#define SERIES_ROWS 16

// A product; or, where `gated` has data, gate and up as its two parts, and swiglu of them into `gated`.
struct series_link {
    struct q4_job product;
    struct tensor gated;
};

struct series {
    struct series_link link[SERIES_MOST];
    int n_link;        // the weights of all are arranged (arranged.cuh), or of none
    unsigned *arrived; // on the device: blocks that have come to a meeting of any series; NULL: no series are started
};

// Puts a product aside, behind those of as many rows that wait already. False, with nothing put aside: it is none for a
// series, and nothing waits any more.
bool series_add(struct cuda_device *d, const struct q4_job *product, const struct tensor *gated);

// Whether as many rows of gate, up and activation can be put aside.
bool series_has_room(const struct cuda_device *d, int64_t n_row, int64_t n_in, int64_t n_out);

// gate, up and activation of one row, or of 9 to 16, as a launch of its own (gated_q4.cu).
void gated_q4(struct cuda_device *d, const struct q4_job *product, const struct tensor &out);

#endif
