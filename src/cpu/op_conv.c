// conv: a block of rows and channels at a time, so that a channel's taps are widened once for all rows of the block.
#include "cpu/ops.h"
#include <string.h>

#define ROWS     16
#define CHANNELS 256
#define MAX_TAPS 8

struct conv_task {
    struct cpu_device *d;
    const struct conv_args *a;
    long n_channel_block;
};

static void *ring_row(const struct conv_args *a, void *run, int64_t position, int64_t channel) {
    int64_t element = position % a->ring_rows * a->m.n_col + channel;
    return (char *)run + a->ring_offset + element * (int64_t)dtype_bytes(a->m.dtype);
}

// Channels [c0, c0 + n) of m at the lane's row i, which is before the batch when negative.
static const float *load_row(const struct conv_task *task, const struct lane *lane, int64_t i, int64_t c0, int64_t n,
                             float *buffer) {
    const struct conv_args *a = task->a;
    int64_t position = lane->position + i;
    if (position < 0) return memset(buffer, 0, (size_t)n * sizeof *buffer);
    const void *from = i < 0 ? ring_row(a, lane->run, position, c0) : cpu_row(a->m, lane->row0 + i, c0);
    return cpu_floats(task->d, a->m.dtype, from, n, buffer);
}

static int64_t row_blocks(const struct lane *lane) { return (lane->n_row + ROWS - 1) / ROWS; }

static void conv_items(void *context, long first, long last, int thread) {
    (void)thread;
    struct conv_task *task = context;
    const struct conv_args *a = task->a;
    for (long item = first; item < last; item++) {
        float widened[ROWS + MAX_TAPS - 1][CHANNELS], made[ROWS][CHANNELS], *out[ROWS];
        const float *rows[ROWS + MAX_TAPS - 1];
        const struct lane *lane = a->batch->lanes;
        int64_t block = item / task->n_channel_block;
        for (; block >= row_blocks(lane); lane++) block -= row_blocks(lane);
        int64_t i0 = block * ROWS, c0 = item % task->n_channel_block * CHANNELS;
        int64_t n = a->m.n_col - c0 < CHANNELS ? a->m.n_col - c0 : CHANNELS;
        int64_t n_row = lane->n_row - i0 < ROWS ? lane->n_row - i0 : ROWS;
        for (int64_t i = 0; i < n_row + a->n_tap - 1; i++)
            rows[i] = load_row(task, lane, i0 + i - (a->n_tap - 1), c0, n, widened[i]);
        for (int64_t i = 0; i < n_row; i++)
            out[i] = a->out.dtype == DTYPE_F32 ? cpu_row(a->out, lane->row0 + i0 + i, c0) : made[i];
        task->d->kernels.conv(rows, a->weight + c0 * a->n_tap, a->n_tap, n_row, n, out);
        for (int64_t i = 0; i < n_row; i++)
            cpu_finish(task->d, a->out.dtype, out[i], n, cpu_row(a->out, lane->row0 + i0 + i, c0));
    }
}

// Copies rows [from, to) of the lane, those of the batch, into a ring.
static void keep_rows(const struct conv_args *a, const struct lane *lane, int64_t from, int64_t to, void *run) {
    size_t bytes = (size_t)a->m.n_col * dtype_bytes(a->m.dtype);
    for (int64_t i = from < 0 ? 0 : from; i < to; i++)
        memcpy(ring_row(a, run, lane->position + i, 0), cpu_row(a->m, lane->row0 + i, 0), bytes);
}

void cpu_conv(struct device *base, const struct conv_args *a) {
    const struct batch *b = a->batch;
    must(a->n_tap >= 1 && a->n_tap <= MAX_TAPS);
    struct conv_task task = {.d = cpu_device_of(base), .a = a};
    task.n_channel_block = (a->m.n_col + CHANNELS - 1) / CHANNELS;
    int64_t n_block = 0;
    for (int i = 0; i < b->n_lane; i++) n_block += row_blocks(&b->lanes[i]);
    workers_run(task.d->workers, (long)n_block * task.n_channel_block, 4, conv_items, &task);
    // Only now: the items above still read the rings' old rows.
    for (int i = 0; i < b->n_lane; i++) {
        const struct lane *lane = &b->lanes[i];
        keep_rows(a, lane, b->form == FORM_ROWS ? 0 : lane->n_row - (a->n_tap - 1), lane->n_row, lane->run);
    }
    for (int i = 0; i < b->n_keep; i++) {
        int64_t end = b->keeps[i].position - b->lanes[0].position;
        keep_rows(a, &b->lanes[0], end - (a->n_tap - 1), end, b->keeps[i].run);
    }
}
