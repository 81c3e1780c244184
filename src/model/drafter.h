// Owns a block drafter (DFlash, DFlash2) beside the model it was trained for: its checkpoint, what it keeps of each
// stream, and its proposals. It reads the target's residual stream after some layers ("taps") as keys and values of its
// own, and proposes all tokens of a block in one pass; embedding and output matrix are the target's. Nothing here can
// change a reply: whoever asks checks each proposal against the draw (ops/draw.h). Refuses a checkpoint that is
// incomplete, malformed, or made for another model. Only the engine thread (or a program's single thread) calls it
// after drafter_open.
#ifndef TF_MODEL_DRAFTER_H
#define TF_MODEL_DRAFTER_H

#include "base/status.h"
#include "model/model.h"
#include "ops/draw.h"
#include <stdbool.h>

struct drafter;

// Reads and checks headers and small vectors: configuration, names, shapes, types, and that it fits the target, which
// must outlive it. bits: 4: matrices that the file does not hold quantised are quantised when they are loaded, to 4
// bits in groups of 64 (those that make convolution kernels or the selector's edges to 8); 0: all are used as the file
// has them. Sentences start with the folder.
enum status drafter_open(const char *dir, const struct model *target, int bits, struct drafter **out, struct error *e);
void drafter_free(struct drafter *d); // NULL is fine; frees device memory, so before the device

// ---- sizes, from drafter_open on ----

const char *drafter_kind(const struct drafter *d); // "DFlash2"
int32_t drafter_block(const struct drafter *d);    // rows of a block: the last token and block - 1 drafts
const int32_t *drafter_tap_layers(const struct drafter *d, int32_t *n); // of the target, rising
int64_t drafter_weight_bytes(const struct drafter *d);                  // as they will be used
int64_t drafter_round_bytes(const struct drafter *d); // of them and of the target's, that proposing reads
// Of a lane run, a multiple of 256: keys and values of a window, and the newest rows' taps, which have not become any
// yet. kv and activation are the device's types.
int64_t drafter_lane_bytes(const struct drafter *d, enum dtype kv, enum dtype activation);
int64_t drafter_scratch_bytes(const struct drafter *d, const struct device *device, const struct model_limits *limits);
// Raises what the device is to reserve to what the drafter's operations take.
void drafter_raise_limits(const struct drafter *d, const struct model_limits *limits, struct device_limits *out);

// After model_load: brings the weights to where the device reads them, and takes scratch. UNSUPPORTED where the device
// has no operations for drafters.
enum status drafter_load(struct drafter *d, struct device *device, const struct model_limits *limits, struct error *e);
// After model_set_limits: scratch is given back and taken anew.
enum status drafter_set_limits(struct drafter *d, const struct model_limits *limits, struct error *e);
void drafter_poison(struct drafter *d); // for tests: overwrites scratch with bytes 0xff

// ---- streams ----

// What of a stream's rows the drafter knows: keys and values of [first, absorbed), and taps of the rows after it. A
// stream starts with {0, 0}; one that resumes at position p from a run that was kept there, with {0, p}.
struct drafter_lane {
    int32_t first, absorbed;
};

// The rows of a call of model_prompt or model_round, as the drafter reads them: taps[i] is [rows, H], the residual
// stream after the i-th tapped layer, in the activation type.
#define DRAFTER_MAX_TAPS 16
struct drafter_taps {
    struct tensor rows[DRAFTER_MAX_TAPS];
};

// After a prompt pass: its rows become keys and values. own is the drafter's part of the lane's run; kept[i] that of
// the run of pass->keeps[i], which gets what the stream's part would be at that position.
void drafter_prompt(struct drafter *d, const struct prompt_pass *pass, const struct drafter_taps *taps, void *own,
                    void *const *kept, struct drafter_lane *state);

// After a round: the first n_kept of the lane's rows, at lane->position on, are the stream's. Their taps are put aside,
// which costs a copy and nothing else.
void drafter_absorb(struct drafter *d, const struct lane *lane, int32_t n_kept, const struct drafter_taps *taps,
                    void *own);

// The same of all rows of some lanes' windows, before it is known which of them stay: they become keys and values at
// once, and those that do not stay are never seen. lanes: n in one round of n_row rows, in order; own: of each lane. Of
// a lane the caller counts those that stay as absorbed; all before them have to be.
void drafter_store_windows(struct drafter *d, const struct lane *lanes, int32_t n, int32_t n_row,
                           const struct drafter_taps *taps, void *const *own);

// A question for the tokens after a stream's last one, which is no row of the target's yet.
struct drafter_ask {
    int32_t position, last; // of the last token, and its id
    void *own;              // the drafter's part of the stream's run
    struct drafter_lane *state;
    const struct draw_params *draw; // of the draw of the token after it: position + 1, what is seen up to it
    int32_t n_want;                 // 1..block - 1
    int32_t *ids;                   // out: [n_want]; their draws have draw->position, draw->position + 1, ...
    float *confidence;              // out: [n_want], each draft's share of the candidates' probability
    int32_t n;                      // out: n_want, or fewer when no candidate may be drawn
    int32_t *candidates;            // out: [DRAW_MAX_TOP], of the first draft; NULL: not wanted
    int32_t n_candidate;            // out
    // Where what may come depends on the drafts before: draw->allowed is for the first one, and candidates of the later
    // ones are chosen among these ids (NULL: as the first) and then asked for. follow is told which one was chosen.
    const uint32_t *allowed_later;
    bool (*may_follow)(void *context, int32_t id); // NULL: all may
    void (*follow)(void *context, int32_t id);
    void *context;
};

// For asks of which position, own and state are set: those that could not put n_more rows aside have all of theirs
// turned into keys and values.
void drafter_make_room(struct drafter *d, struct drafter_ask *asks, int32_t n, int32_t n_more);

// For tests: what the drafter knows of a stream, in order of position: all keys and values that its next block could
// see, of layers, then of heads.
void drafter_visit(struct drafter *d, const struct drafter_ask *ask, model_visit_fn *fn, void *context);

// Proposes for all asks (at most max_lanes), many in one batch. A stream's proposals have the same bits alone and in
// company. A draft is argmax(score / T + noise) over the candidates, with the request's bias, penalties and filters,
// and the noise of the target's draw at the position that it is for.
enum status drafter_propose(struct drafter *d, struct drafter_ask *asks, int32_t n, struct error *e);

#endif
