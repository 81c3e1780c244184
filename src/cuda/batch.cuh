// Owns a batch as kernels see it, and the uploads by which its tables come to the device.
#ifndef TF_CUDA_BATCH_CUH
#define TF_CUDA_BATCH_CUH

#include <cuda_runtime.h>
#include <stddef.h>
#include <stdint.h>

#define CUDA_TABLE_SLOTS 4 // uploads of batch tables that may be under way at once

// A lane as kernels see it. part_base: chunk results of the lanes before it, for the rows form of attention.
struct lane_entry {
    int32_t row0, n_row, position, n_pending;
    int64_t page_at; // of its first page in the table of pages
    int64_t part_base;
    char *run;
};

// Of a lane, once more, right before its pages: what must be known of it as soon as these are.
struct lane_reach {
    int32_t position, n_row;
};
static __host__ __device__ inline struct lane_reach *reach_of(const int32_t *pages) {
    return (struct lane_reach *)pages - 1;
}

struct keep_entry {
    int32_t position;
    char *run;
};

// The batch on the device.
struct batch_view {
    const struct lane_entry *lanes;
    const int32_t *lane_of_row, *ids, *pages;
    const struct keep_entry *keeps;
    int32_t n_row, n_lane, n_keep, max_window;
    int32_t widest; // the pages of lane i begin at i * widest, and as many places may be read
};

// Uploads: each goes through its own slot of pinned memory, which is free again when its event has happened.
struct upload_ring {
    char *pinned, *device; // CUDA_TABLE_SLOTS times slot_bytes
    size_t slot_bytes;
    cudaEvent_t done[CUDA_TABLE_SLOTS];
    int next;
};

#endif
