// Copies on the device (ops/device.h): each sees what those before it left, though they touch each other's rows; and
// transfers between it and the host, which go on beside them.
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

// Ranges of a buffer that others lie between go to the host, and from there into another buffer, while copies on the
// device go on elsewhere. `most` bytes of a range: many are a piece, or one is many.
static void transfer_case(struct run *r, uint64_t seed, int n_range, size_t most) {
    struct device *d = r->subject->device;
    struct transfer_range out[DEVICE_TRANSFER_RANGES], in[DEVICE_TRANSFER_RANGES];
    struct stage s;
    struct error error;
    case_begin(r, "a transfer of %d ranges of up to %zu bytes", n_range, most);
    size_t bytes = (size_t)n_range * most, n_busy = ROWS * WIDTH * sizeof(float);
    char *values = arena_alloc(r->arena, bytes), *host = arena_alloc(r->arena, bytes);
    char *want = arena_alloc(r->arena, bytes), *got = arena_alloc(r->arena, bytes);
    unsigned char *may = arena_alloc(r->arena, bytes), *all = arena_alloc(r->arena, n_busy);
    must(values != NULL && host != NULL && want != NULL && got != NULL && may != NULL && all != NULL);
    for (size_t i = 0; i < bytes; i++) values[i] = (char)((i + seed) * 2654435761u >> 13);
    memset(host, 0x55, bytes);
    memset(want, 0x11, bytes);
    memset(got, 0x11, bytes);
    memset(may, 0, bytes);
    memset(all, 1, n_busy);
    stage_open(&s, r, d);
    char *from = stage_input(&s, values, bytes);
    char *busy = stage_inout(&s, values_normal(r, seed, ROWS * WIDTH, 1, DTYPE_F32), n_busy, all);
    for (int i = 0; i < n_range; i++) {
        size_t n = i == n_range / 2 ? 0 : 1 + random_bits(seed, (uint64_t)i, 1) % most;
        size_t at = (size_t)i * most, to = (size_t)(n_range - 1 - i) * most;
        out[i] = (struct transfer_range){from + at, host + at, n};
        in[i] = (struct transfer_range){NULL, host + at, n};
        memcpy(want + to, values + at, n);
        memset(may + to, 1, n);
    }
    char *back = stage_inout(&s, got, bytes, may);
    for (int i = 0; i < n_range; i++) in[i].device = back + (size_t)(n_range - 1 - i) * most;
    for (int turn = 0; turn < 2; turn++) {
        d->transfer(d, turn == 0, turn == 0 ? out : in, n_range);
        for (int i = 1; i < 20; i++) d->copy(d, busy, busy + (size_t)i * WIDTH * 4, WIDTH * 4);
        while (!d->transfer_done(d, turn == 0)) {
        }
    }
    expect(r, d->sync(d, &error) == STATUS_OK, "the device failed");
    for (int i = 0; i < n_range; i++)
        expect(r, memcmp(out[i].host, values + (size_t)i * most, out[i].bytes) == 0, "range %d on the host", i);
    stage_read_bytes(&s, back, got, bytes);
    expect(r, memcmp(got, want, bytes) == 0, "ranges that came back");
    stage_close(&s);
}

static void run_copy(struct run *r) {
    copy_case(r, 301, 1, 0);
    copy_case(r, 302, 7, 0);
    copy_case(r, 303, 3, 4);
    released_case(r, (size_t)64 << 20);
    transfer_case(r, 304, 1, 100);
    transfer_case(r, 305, DEVICE_TRANSFER_RANGES, 3000);
    transfer_case(r, 306, 4, (size_t)3 << 20);
}

const struct suite suite_copy = {"rows", "copy", run_copy, NULL, 0, {.max_rows = 1, .max_round_rows = 1}};
