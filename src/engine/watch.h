// Owns what gates see of an engine at work. Plain data; the functions are called on the engine's thread.
#ifndef TF_ENGINE_WATCH_H
#define TF_ENGINE_WATCH_H

#include <stdint.h>

// One prompt pass: prompt rows [start, start + n_row) of a request, and the SHA-256 of the fp32 logits of the row that
// the pass ends with.
struct pass_report {
    int64_t request; // request_number
    int32_t start, n_row;
    unsigned char sha256[32];
};
typedef void pass_fn(void *context, const struct pass_report *report);

// The lane of a request that has ended by its own stop or limit: SHA-256 of its recurrent states with all kept rows
// folded in, of the convolutions' last rows, and of the keys and values before `position`.
struct state_report {
    int64_t request;
    int32_t position; // rows that the lane holds
    unsigned char sha256[32];
    // Of the MTP head's keys and values up to `position`; zeros where it does not draft, or no longer.
    unsigned char mtp_sha256[32];
    unsigned char block_sha256[32]; // of a block drafter's, before `position`; zeros where it does not draft
};
typedef void state_fn(void *context, const struct state_report *report);

#endif
