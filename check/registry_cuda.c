// The CUDA backend's device.
#include "check/check.h"
#include "cuda/device_cuda.h"
#include <stdio.h>

// Of keys and values: a subject each.
static const enum dtype kv_types[] = {DTYPE_BF16};

static int open_all(struct subject *out, int max) {
    int n = 0;
    for (int i = 0; i < (int)(sizeof kv_types / sizeof kv_types[0]) && i < max; i++) {
        struct error e;
        struct device *d;
        if (cuda_device_create(0, &d, &e) != STATUS_OK) {
            printf("SKIP %s\n", e.text);
            return 0;
        }
        d->kv = kv_types[i];
        out[n] = (struct subject){.device = d, .ops = *d->ops, .matrix_units = true};
        snprintf(out[n].name, sizeof out[n].name, "%.40s, %s kv", d->name, d->kv == DTYPE_E4M3 ? "e4m3" : "bf16");
        n++;
    }
    return n;
}

static void close_all(struct subject *subjects, int n) {
    for (int i = 0; i < n; i++) device_free(subjects[i].device);
}

const struct registry check_registry = {"cuda", open_all, close_all};
