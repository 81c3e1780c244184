// Copies on the device (ops/device.h): each sees what those before it left, though they touch each other's rows.
#include "check/check.h"
#include "base/random.h"
#include <string.h>

#define ROWS   48
#define WIDTH  96 // floats of a row
#define COPIES 300

// Rows [0, n) of a row are copied, from anywhere to anywhere but onto themselves.
static void copy_case(struct run *r, uint64_t seed, int most_rows, int shift) {
    struct device *d = r->subject->device;
    struct stage s;
    case_begin(r, "%d copies of up to %d rows, %d bytes into them", COPIES, most_rows, shift);
    size_t bytes = ROWS * WIDTH * sizeof(float);
    float *start = values_normal(r, seed, ROWS * WIDTH, 1, DTYPE_F32), *got = arena_alloc(r->arena, bytes);
    char *want = arena_alloc(r->arena, bytes);
    unsigned char *all = arena_alloc(r->arena, bytes);
    must(want != NULL && got != NULL && all != NULL);
    memcpy(want, start, bytes);
    memset(all, 1, bytes);
    stage_open(&s, r, d);
    char *on_device = stage_inout(&s, start, bytes, all);
    for (uint64_t i = 0; i < COPIES; i++) {
        size_t n_row = 1 + random_bits(seed, i, 0) % (uint64_t)most_rows, n = n_row * WIDTH * sizeof(float);
        size_t to = random_bits(seed, i, 1) % (ROWS - n_row + 1), from = random_bits(seed, i, 2) % (ROWS - n_row + 1);
        if (to < from + n_row && from < to + n_row) continue;
        size_t skip = (size_t)shift, at = to * WIDTH * sizeof(float), source = from * WIDTH * sizeof(float);
        d->copy(d, on_device + at + skip, on_device + source + skip, n - skip);
        memcpy(want + at + skip, want + source + skip, n - skip);
    }
    stage_read_bytes(&s, on_device, got, bytes);
    stage_close(&s);
    expect_same_bits(r, "all rows", got, (const float *)(const void *)want, ROWS * WIDTH);
}

// Memory may be released while copies into it are put aside. As large as this, it is not mapped afterwards.
static void released_case(struct run *r, size_t bytes) {
    struct device *d = r->subject->device;
    struct error e;
    case_begin(r, "copies into memory that is released, %zu bytes", bytes);
    char *memory = d->alloc(d, bytes);
    expect(r, memory != NULL, "no memory");
    if (memory == NULL) return;
    d->copy(d, memory, memory + bytes / 2, WIDTH * sizeof(float));
    d->copy(d, memory + bytes - WIDTH * sizeof(float), memory + bytes / 2, WIDTH * sizeof(float));
    d->release(d, memory);
    enum status status = d->sync(d, &e);
    expect(r, status == STATUS_OK, "%s", status == STATUS_OK ? "" : e.text);
}

static void run_copy(struct run *r) {
    copy_case(r, 301, 1, 0);
    copy_case(r, 302, 7, 0);
    copy_case(r, 303, 3, 4);
    released_case(r, (size_t)64 << 20);
}

const struct suite suite_copy = {"rows", "copy", run_copy, NULL, 0, {.max_rows = 1, .max_round_rows = 1}};
