#include "cli/bandwidth.h"
#include "base/clock.h"
#include "base/machine.h"
#include "base/workers.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BYTES  ((size_t)1 << 30)
#define BLOCK  ((size_t)1 << 20)
#define PASSES 4

struct reader {
    const uint64_t *data;
    uint64_t *sums; // [n_blocks], so that no read can be left out
};

static void read_blocks(void *context, long first, long last, int thread) {
    (void)thread;
    struct reader *r = context;
    enum { WORDS = BLOCK / sizeof(uint64_t) };
    for (long b = first; b < last; b++) {
        const uint64_t *p = r->data + (size_t)b * WORDS;
        uint64_t sum[8] = {0};
        for (size_t i = 0; i < WORDS; i += 8)
            for (size_t j = 0; j < 8; j++) sum[j] += p[i + j];
        r->sums[b] = sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
    }
}

enum status bandwidth_measure(int n_threads, double *bytes_per_s, struct error *e) {
    struct workers *workers = NULL;
    struct reader r = {0};
    void *data = aligned_alloc(4096, BYTES);
    r.sums = calloc(BYTES / BLOCK, sizeof *r.sums);
    enum status s = data == NULL || r.sums == NULL ? error_memory(e) : STATUS_OK;
    if (s == STATUS_OK) s = workers_create(n_threads > 0 ? n_threads : machine_cores(), &workers, e);
    if (s == STATUS_OK) {
        memset(data, 1, BYTES);
        r.data = data;
        double best = 0;
        for (int pass = 0; pass < PASSES; pass++) {
            int64_t start = clock_ns();
            workers_run(workers, BYTES / BLOCK, 1, read_blocks, &r);
            double rate = (double)BYTES * 1e9 / (double)(clock_ns() - start);
            if (rate > best) best = rate;
        }
        *bytes_per_s = best;
    }
    workers_free(workers);
    free(r.sums);
    free(data);
    return s;
}

enum status bandwidth_measure_device(struct device *d, double *bytes_per_s, struct error *e) {
    char *data = d->alloc(d, 2 * BYTES);
    if (data == NULL)
        return error_set(e, STATUS_MEMORY, "%s has no %zu MiB to be measured with", d->name, 2 * BYTES >> 20);
    enum status s = STATUS_OK;
    double best = 0;
    for (int pass = 0; pass < PASSES && s == STATUS_OK; pass++) {
        int64_t start = clock_ns();
        for (int i = 0; i < PASSES; i++) d->copy(d, data, data + BYTES, BYTES);
        s = d->sync(d, e);
        double rate = 2.0 * PASSES * (double)BYTES * 1e9 / (double)(clock_ns() - start);
        if (rate > best) best = rate;
    }
    d->release(d, data);
    if (s == STATUS_OK) *bytes_per_s = best;
    return s;
}
