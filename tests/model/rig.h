// Owns a loaded checkpoint on the CPU backend with memory for a few streams, for tests that drive model.h directly.
// Device memory is host memory here, so tests compare bytes in place. All memory starts as NaN garbage: whatever reads
// a byte that was not written before makes a test fail.
#ifndef TF_TESTS_MODEL_RIG_H
#define TF_TESTS_MODEL_RIG_H

#include "cpu/device_cpu.h"
#include "model/layout.h"
#include "model/model.h"
#include <stdbool.h>

#define RIG_LANES  4
#define RIG_RUNS   16 // runs for kept and copied states lie behind the lanes'
#define RIG_WINDOW 16

struct rig_options {
    enum compute compute;
    enum cpu_isa isa;
    int n_threads;                    // 0: 2
    int32_t page_rows;                // 0: 256
    int32_t context;                  // 0: 512
    bool fp8;                         // keys and values in e4m3; else the device's own type
    int fill;                         // byte that memory starts as: 0 is 0xff (NaN garbage), -1 is zeros
    void (*prepare)(struct device *); // called before the model is loaded; may be NULL
};

struct rig {
    struct device *device;
    struct model *model;
    const struct model_config *config;
    struct model_limits limits;
    struct run_layout run_layout;
    struct page_layout page_layout;
    int64_t page_bytes, run_bytes;
    int32_t n_page; // of one lane
    char *pages, *runs;
    int fill;
};

struct rig *rig_open(const char *dir, const struct rig_options *options);
void rig_close(struct rig *r);
void rig_fill(struct rig *r); // overwrites pages, runs and all scratch with the fill byte

// One stream on a lane's memory.
struct stream {
    struct rig *rig;
    int32_t table[4700]; // page numbers
    int32_t n_page, position, n_pending;
    void *run;
};

// A stream at position 0 on lane `lane`. shuffle 0: pages in order; else a permutation of all lanes' pages made from
// it.
void stream_open(struct stream *s, struct rig *r, int32_t lane, uint64_t shuffle);

// Computes the prompt rows ids[position..n) in passes of pass_rows. logits: the last row's [V] (want LAST), or of all
// rows computed (want ALL, [n - position, V]).
void stream_prompt(struct stream *s, const int32_t *ids, int32_t n, int32_t pass_rows, enum logits_wanted want,
                   float *logits);

// One round over n_stream streams; stream i brings n_rows[i] rows, ids and logits concatenated. Positions do not move.
void streams_round(struct stream *const *streams, int32_t n_stream, const int32_t *n_rows, const int32_t *ids,
                   float *logits);
void stream_accept(struct stream *s, int32_t n); // of its newest round, n rows stay

struct lane stream_lane(const struct stream *s);
void *rig_run(const struct rig *r, int32_t index);

// Copies the recurrent states and the conv rows that the next row reads, in order of position, so that two streams at
// the same position can be compared whatever their runs look like. Pending rows are folded in, on a copy.
int64_t stream_state_bytes(const struct rig *r);
void stream_read_state(const struct stream *s, void *out);
void run_read_state(const struct rig *r, void *run, int32_t position, void *out);

// Keys and values of positions [0, n) as they are stored, layer by layer, in order of position; each vector's scale
// behind it, if it has one.
int64_t stream_kv_bytes(const struct rig *r, int32_t n);
void stream_read_kv(const struct stream *s, int32_t n, void *out);

int32_t argmax(const float *logits, int64_t n);

#endif
