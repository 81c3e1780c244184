// Owns the description of what one forward pass works on: which rows belong to which lane, and where each lane's
// keys, values and recurrent state lie.
#ifndef TF_OPS_BATCH_H
#define TF_OPS_BATCH_H

#include "ops/tensor.h"

// Prompt rows and reply rows are computed by different arithmetic and are never mixed (docs/architecture.md).
enum form {
    FORM_PROMPT, // one lane, up to 4096 rows, starting at a multiple of 64 and not crossing a multiple of 4096
    FORM_ROWS,   // a round: some lanes with 1..max_window rows each
};

// One stream's slice of a batch. Rows are contiguous, at positions position, position + 1, ...
struct lane {
    int32_t row0, n_row;
    int32_t position;     // absolute position of its first row
    int32_t n_pending;    // logged rows before `position` that are not in the recurrent state yet; 0 in FORM_PROMPT
    const int32_t *pages; // host memory: page number of positions [i * page_rows, (i + 1) * page_rows)
    int32_t n_page;
    void *run; // device memory: the lane's fixed part (recurrent states, conv rings, logs); 256-byte aligned
};

// A state to keep from the middle of a prompt pass: the recurrent state and conv rows as they are before `position`
// (a multiple of 64 in (first position, end of pass]) are written into `run`, which is laid out as a lane's.
struct keep {
    int32_t position;
    void *run;
};

struct batch {
    enum form form;
    int32_t n_row, n_lane, n_keep;
    int32_t max_window;       // W of the plan: logs hold 2 W rows
    const int32_t *ids;       // host memory: [n_row]
    const struct lane *lanes; // host memory: [n_lane], rows ascending
    const struct keep *keeps; // host memory: [n_keep], positions ascending
};

// One attention layer's place in the page pool. A page holds page_rows positions of all attention layers, layer-major:
// [layer][k | v][kv head][page_rows][head_dim]. K of head h, position p is at
//   pages + page(p) * page_bytes + layer_offset + (h * page_rows + p % page_rows) * head_dim * dtype_bytes
// and V lies n_kv_head * page_rows * head_dim * dtype_bytes after it.
// e4m3: those are codes, and behind the codes of all layers each page has fp32 scales
// [layer][k | v][kv head][page_rows]. That of K of head h, position p is at
//   pages + page(p) * page_bytes + scale_offset + (h * page_rows + p % page_rows) * 4
// and that of V n_kv_head * page_rows * 4 after it. With m = max |x| over the head's vector, fp32: scale = m / 448,
// code = e4m3(x / scale), to nearest even, codes of zero where m is 0; what is read is code * scale in fp32.
struct kv_layer {
    void *pages;
    int64_t page_bytes, layer_offset;
    int64_t scale_offset; // e4m3 only
    int32_t page_rows;    // 1..4096
    enum dtype dtype;     // f32, bf16 or e4m3
};

#endif
