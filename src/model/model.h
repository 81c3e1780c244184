// Owns one loaded model: its configuration, weights on a device, and the forward pass over `struct ops`. It holds no
// stream state: keys, values and recurrent states live in memory that the engine owns and names in each call.
// Only the engine thread (or a program's single thread) calls it after model_open.
#ifndef TF_MODEL_MODEL_H
#define TF_MODEL_MODEL_H

#include "base/status.h"
#include "model/config.h"
#include "ops/device.h"

#define PROMPT_CHUNK    64   // a prompt pass starts at a multiple of this
#define PROMPT_MAX_ROWS 4096 // and neither exceeds nor crosses a multiple of this

struct model;

typedef void model_progress_fn(void *context, int64_t bytes_done, int64_t bytes_total);

// Reads and checks headers only: configuration, tensor names, shapes. No device yet.
enum status model_open(const char *dir, struct model **out, struct error *e);
void model_free(struct model *m); // NULL is fine; frees its device scratch, so before the device

const struct model_config *model_get_config(const struct model *m);
bool model_is_quantised(const struct model *m);
int64_t model_weight_bytes(const struct model *m); // in the checkpoint, of the tensors that are used
int64_t model_round_bytes(const struct model *m);  // of them, what a round of one row reads: the floor of decoding
// The same of a round of n_row rows, which choose their experts by chance.
int64_t model_rows_bytes(const struct model *m, int64_t n_row);

// What drafting needs of the model, all zero: nothing. To be set before anything that depends on it is asked for:
// sizes, model_load, model_set_limits. A head that was not there at model_load cannot come later, where weights are
// copied.
struct drafter;
struct model_drafts {
    bool mtp;                      // the MTP head; model_mtp_absence has to be NULL
    const int32_t *taps;           // [n_taps] layers, rising; the caller's, as long as they are set
    int n_taps;                    // up to MODEL_TAPS_MAX
    int64_t lane_bytes;            // of each lane run for a drafter's own, a multiple of 256, among what is kept
    const struct drafter *drafter; // whose operations share the device's scratch; NULL: none
};
void model_set_drafts(struct model *m, const struct model_drafts *drafts);
const char *model_mtp_absence(const struct model *m); // why there is no head, as a sentence; NULL: there is one
int64_t model_mtp_bytes(const struct model *m);       // weights of the head, where drafting needs it

// What streams need, from the configuration alone.
int64_t model_page_bytes(const struct model *m, int32_t page_rows, enum dtype kv);
int64_t model_run_bytes(const struct model *m, int32_t max_window, enum dtype activation);
// Of a run's bytes, the first ones that a stream needs to go on after a prompt pass: states and conv rings.
int64_t model_kept_bytes(const struct model *m, int32_t max_window, enum dtype activation);

struct model_limits {
    int32_t max_lanes, max_window; // of a round, and rows of a lane in it
    int32_t max_rows;              // of a round, >= max_lanes; 0: max_lanes * max_window
    int32_t max_context;
    int32_t page_rows;
    int32_t pass_rows; // longest prompt pass, 64..PROMPT_MAX_ROWS
    enum dtype kv;
};

// Scratch that model_load will take on the device beside the weights: activations, logits, the backend's own.
int64_t model_scratch_bytes(const struct model *m, struct device *d, const struct model_limits *limits);

// Brings the weights to the device and takes all scratch. After it, no call here allocates.
enum status model_load(struct model *m, struct device *d, const struct model_limits *limits,
                       model_progress_fn *progress, void *context, struct error *e);

// After model_load: other limits. All scratch is given back and taken anew; weights stay where they are. When this
// fails, nothing may be computed until it has succeeded.
enum status model_set_limits(struct model *m, const struct model_limits *limits, struct error *e);

enum logits_wanted {
    LOGITS_NONE, // an inner pass of a prompt
    LOGITS_LAST, // of the pass's last row: logits has one row
    LOGITS_ALL,  // of every row, copied to `all` (host) [n_row, V]; logits is the last row
};

struct prompt_pass {
    const struct lane *lane; // row0 0; position a multiple of 64; n_pending 0; its pages cover the pass
    const int32_t *ids;      // [lane->n_row]
    const struct keep *keeps;
    int32_t n_keep;
    void *pages; // the page pool's base (device)
    enum logits_wanted want;
    float *all;
};

// Rows of the longest legal pass that starts at `position` (a multiple of 64), has at most n_left rows, and at most
// pass_rows (a multiple of 64).
int32_t model_pass_rows(int32_t position, int32_t n_left, int32_t pass_rows);

// Runs a prompt pass. logits (may be NULL with LOGITS_NONE): a view of device memory, [1, V] f32, valid until the next
// call.
enum status model_prompt(struct model *m, const struct prompt_pass *pass, struct tensor *logits, struct error *e);

struct round {
    const struct lane *lanes; // rows ascending without gaps; each 1..max_window rows
    int32_t n_lane, n_row;
    const int32_t *ids; // [n_row]
    void *pages;
};

// Runs a round: logits is [n_row, V] f32 on the device, valid until the next call.
enum status model_round(struct model *m, const struct round *round, struct tensor *logits, struct error *e);

// The stream behind layer taps[i], rows of the newest pass or round, until the next call: [n_row, H].
struct tensor model_tap(const struct model *m, int i);
void *model_lane_drafter(const struct model *m, void *run); // a drafter's own part of a run

// Folds a lane's pending rows into the recurrent states of all layers, so that they can be saved or compared.
void model_commit(struct model *m, const struct lane *lane);

// For tests: all that the stream's next row would be computed from, as bytes that do not depend on where they lie: of
// each delta layer the state (the lane's pending rows have been committed) and the convolution's last rows, of each
// attention layer keys and values before lane->position.
typedef void model_visit_fn(void *context, const void *bytes, size_t n);
void model_visit_lane(struct model *m, const struct lane *lane, const void *pages, model_visit_fn *fn, void *context);
// The same of the MTP head's keys and values.
void model_visit_mtp(struct model *m, const struct lane *lane, const void *pages, model_visit_fn *fn, void *context);

// For tests: overwrites all scratch, the device's own included, with bytes 0xff, which read as NaN.
void model_poison(struct model *m);

#endif
