// Owns the shipped drafter on the CPU backend with memory for a few streams of made-up taps, for tests that drive
// drafter.h directly. All memory starts as NaN garbage. Failures end the test.
#ifndef TF_TESTS_MODEL_DRAFTER_RIG_H
#define TF_TESTS_MODEL_DRAFTER_RIG_H

#include "cpu/device_cpu.h"
#include "model/drafter_internal.h"
#include "tests/format/folder.h"

#define DRAFTER_TARGET    "models/fold-s"
#define DRAFTER_SHIPPED   "models/fold-s-DFlash2"
#define DRAFTER_LAST      1234 // id of every stream's last token
#define DRAFTER_LANES     4    // and parts of runs for two more
#define DRAFTER_LONGEST   900
#define DRAFTER_EXACT_REL 2e-5 // of fp32: the angles of rotations are rounded to it too

struct drafter_rig {
    struct folder folder;
    struct device *device;
    struct model *model;
    struct drafter *drafter;
    struct model_limits limits;
    int64_t lane_bytes;
    char *lanes; // [LANES + 2]
    float *taps; // [LONGEST][n_tap][H]: made-up streams
};

// A copy of the shipped drafter with another window; 0: its own.
struct folder drafter_copy(int32_t window);
struct drafter_rig drafter_rig_open(const struct folder *f, enum compute compute, enum cpu_isa isa, int bits);
void drafter_rig_close(struct drafter_rig *r); // removes the folder
void *drafter_rig_lane(const struct drafter_rig *r, int i);

// A stream whose taps are the made-up ones, `shift` positions later.
struct drafter_stream {
    struct drafter_rig *rig;
    void *own;
    struct drafter_lane state;
    int32_t position, shift;
};

void drafter_stream_rows(struct drafter_stream *s, int32_t n_row, int32_t n_kept); // a round
void drafter_stream_prompt(struct drafter_stream *s, int32_t n, const struct keep *keeps, int32_t n_keep,
                           void *const *kept);

struct drafter_answer {
    int32_t ids[DRAFTER_MAX_BLOCK];
    float confidence[DRAFTER_MAX_BLOCK];
    int32_t n;
};

void drafter_rig_propose(struct drafter_stream *const *streams, int32_t n, int32_t n_want, double temperature,
                         struct drafter_answer *answers);

void must_work(enum status s, const struct error *e);
double rel_l2(const float *got, const float *want, int64_t n);

#endif
