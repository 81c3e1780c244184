// The CPU backend's devices: every instruction set that this machine has, in every compute mode.
#include "check/check.h"
#include "cpu/device_cpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct device *open_device(enum compute compute, int n_threads, enum cpu_isa isa) {
    struct device *d;
    struct error e;
    if (cpu_device_create(compute, false, n_threads, isa, &d, &e) == STATUS_OK) return d;
    fprintf(stderr, "%s\n", e.text);
    exit(2);
}

static int open_all(struct subject *out, int max) {
    int n = 0;
    for (int isa = ISA_C; isa <= (int)cpu_isa_detect(); isa++) {
        for (int compute = COMPUTE_F32; compute <= COMPUTE_INT8; compute++) {
            must(n < max);
            struct subject *s = &out[n++];
            s->device = open_device((enum compute)compute, 2, (enum cpu_isa)isa);
            s->others[0] = open_device((enum compute)compute, 1, (enum cpu_isa)isa);
            s->others[1] = open_device((enum compute)compute, 3, (enum cpu_isa)isa);
            s->ops = *s->device->ops;
            snprintf(s->name, sizeof s->name, "%.*s", (int)strcspn(s->device->name, ","), s->device->name);
        }
    }
    return n;
}

static void close_all(struct subject *subjects, int n) {
    for (int i = 0; i < n; i++) {
        device_free(subjects[i].device);
        device_free(subjects[i].others[0]);
        device_free(subjects[i].others[1]);
    }
}

const struct registry check_registry = {"cpu", open_all, close_all};
