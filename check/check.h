// Owns the kernel contract tool: it runs every operation of a device on many cases and holds it to four gates
// (docs/correctness.md):
//   1. correct: within a frozen, named tolerance of an fp64 oracle written from the comments of ops/ops.h
//   2. independent: the same bits alone, in any batch, on any pages, cut anywhere, on any number of threads
//   3. contained: writes only what it may (guard bands, padding, everything not named as written), reads nothing
//      unwritten (outputs and scratch start as NaN), leaves its inputs as they were
//   4. within its recorded registers and shared memory: for GPU kernels; a CPU has nothing to record
// and it proves first that planted faults are caught. Knows a device through `struct device` only: memory goes through
// alloc and copies, so any backend can be tested by another registry. One thread.
#ifndef TF_CHECK_CHECK_H
#define TF_CHECK_CHECK_H

#include "base/arena.h"
#include "check/suites.h"
#include "ops/device.h"
#include <stdbool.h>

// A device under test, and the same kernels at other thread counts (NULL where there is no such thing).
struct subject {
    char name[64];
    struct device *device;
    struct device *others[2];
    struct ops ops;    // the device's, with a fault planted in one place or none
    bool matrix_units; // a GPU's: products are of fp16 in prompts and of bf16, in one or two terms, elsewhere
};

// What one program tests. Each program links one definition.
struct registry {
    const char *title;
    int (*open)(struct subject *out, int max); // number of subjects
    void (*close)(struct subject *subjects, int n);
};
extern const struct registry check_registry;

// Every suite reserves what its cases need and no more, so that an operation that takes more than it asked for is
// caught.
#define CHECK_WINDOW 16 // W of all batches

// A frozen bound: |got - want| <= atol * scale + rtol * |want| for each element, where scale is the root mean square of
// what is wanted, and ||got - want|| <= rel_l2 ||want|| over all.
struct tolerance {
    const char *name;
    double atol, rtol, rel_l2;
};

struct run {
    struct subject *subject;
    struct arena *arena; // of the case at hand
    const char *op;
    char case_name[160];
    long passed, failed;
    bool hunting, caught;     // a fault is planted: failures are what is wanted, and the first one ends the hunt
    int part, n_part, n_step; // of each n_part steps of a case the part-th alone, counted from 0; 0 of 1: all
    bool arranged; // weights are staged in the device's own order, where it has one for them (device.arrange)
};

// One operation's cases; small ones only when hunting.
struct suite {
    const char *suite, *op;
    void (*run)(struct run *r);
    const struct fault *faults;
    int n_faults;
    struct device_limits limits;
};

// A wrong kernel: the real one with its call or its result corrupted.
struct fault {
    const char *name;
    void (*plant)(struct ops *ops);
};

// ---- report.c ----

// The operations to call on a device: those of the subject, faults included, or another thread count's own.
static inline const struct ops *ops_of(const struct run *r, const struct device *d) {
    return d == r->subject->device ? &r->subject->ops : d->ops;
}

extern const struct tolerance element_f32, element_bf16, sum_f32, sum_16_bits, sum_fp16, sum_bf16;
// Of results in the activation type: made by few operations an element, or by sums (linears, attention, recurrences).
const struct tolerance *tolerance_element(const struct run *r);
const struct tolerance *tolerance_sum(const struct run *r);

void case_begin(struct run *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool case_done(const struct run *r); // hunting, and caught: nothing more to do
bool case_is_mine(struct run *r);    // asked before each step of cases that can be cut into parts (main.c, --part)
void expect(struct run *r, bool ok, const char *format, ...) __attribute__((format(printf, 3, 4)));
void expect_close(struct run *r, const char *what, const float *got, const double *want, size_t n,
                  const struct tolerance *t);
void expect_same_bits(struct run *r, const char *what, const float *got, const float *want, size_t n);

// ---- stage.c: device memory of one call, between guard bands ----

#define STAGE_MAX 256

struct stage_buffer {
    char *device; // the data; GUARD bytes before and after
    size_t bytes;
    unsigned char *before;          // contents at the start
    const unsigned char *may_write; // per byte; NULL: nothing, unless all_writable
    bool all_writable;
};

struct stage {
    struct run *run;
    struct device *device;
    struct stage_buffer buffers[STAGE_MAX];
    int n;
};

void stage_open(struct stage *s, struct run *r, struct device *d); // also poisons the device's scratch
void *stage_input(struct stage *s, const void *data, size_t bytes);
void *stage_output(struct stage *s, size_t bytes); // NaN
void *stage_inout(struct stage *s, const void *data, size_t bytes, const unsigned char *may_write);
struct tensor stage_tensor(struct stage *s, const float *values, int64_t n_row, int64_t n_col, enum dtype t);
struct tensor stage_tensor_out(struct stage *s, int64_t n_row, int64_t n_col, enum dtype t);
// One that is read and written: as stage_tensor, all of its elements writable.
struct tensor stage_tensor_inout(struct stage *s, const float *values, int64_t n_row, int64_t n_col, enum dtype t);
struct weight stage_weight(struct stage *s, const struct weight *host);
bool is_arranged(const struct device *d, const struct weight *w); // where run.arranged says so
float *stage_read(struct stage *s, struct tensor t);              // [n_row * n_col] of the run's arena
void stage_read_bytes(struct stage *s, const void *device, void *host, size_t bytes);
void stage_close(struct stage *s); // gate 3, then frees

// ---- values.c: inputs, from a counter-based generator ----

float *values_normal(struct run *r, uint64_t seed, size_t n, double scale, enum dtype rounded_to);
void values_round(float *x, size_t n, enum dtype t);
double *values_double(struct run *r, const float *x, size_t n);

struct weight_spec {
    enum weight_kind kind;
    enum dtype dtype;
    int bits, group;
    int64_t n_out, n_in;
};
// As tolerance_sum, of a product with a weight matrix.
const struct tolerance *tolerance_product(const struct run *r, enum form form, const struct weight_spec *spec);
// A host weight and its exact values [n_out * n_in].
struct weight values_weight(struct run *r, uint64_t seed, const struct weight_spec *spec, double **values);
const char *weight_name(const struct weight_spec *spec);

// ---- faults.c: corruptions that many faults share ----

void corrupt_scale(struct device *d, struct tensor t, int64_t row, int64_t col, double factor);
void corrupt_past_end(struct device *d, struct tensor t); // writes the element after the last row's end
void corrupt_last_bit(struct device *d, struct tensor t, int64_t row, int64_t col);
void corrupt_copy_row(struct device *d, struct tensor t, int64_t to, int64_t from);

#endif
