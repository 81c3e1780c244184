// The CPU backend's devices: every instruction set that this machine has, in every compute mode.
#include "check/check.h"
#include "cpu/device_cpu.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct device *open_device(enum compute compute, int n_threads, enum cpu_isa isa) {
    struct device *d;
    struct error e;
    if (cpu_device_create(compute, true, n_threads, isa, &d, &e) == STATUS_OK) return d;
    fprintf(stderr, "%s\n", e.text);
    exit(2);
}

static void open_subject(struct subject *s, enum compute compute, enum cpu_isa isa, enum dtype activation) {
    static const int n_threads[] = {2, 1, 3};
    struct device *devices[3];
    for (int i = 0; i < 3; i++) {
        devices[i] = open_device(compute, n_threads[i], isa);
        must(devices[i]->compute == compute);
        devices[i]->activation = activation;
    }
    *s = (struct subject){.device = devices[0], .others = {devices[1], devices[2]}, .ops = *devices[0]->ops};
    const char *name = s->device->name;
    snprintf(s->name, sizeof s->name, "%.*s%s", (int)strcspn(name, ","), name,
             activation == DTYPE_BF16 ? ", bf16 activations" : "");
}

// The device asks for fp32 activations, but its operations take what they are given: where bf16 products are formed,
// bf16 activations are tried as well.
static int open_all(struct subject *out, int max) {
    static const enum compute computes[] = {COMPUTE_F32, COMPUTE_BF16, COMPUTE_BF16, COMPUTE_INT8};
    static const enum dtype activations[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F32, DTYPE_F32};
    int n = 0;
    for (int isa = ISA_C; isa <= (int)cpu_isa_detect(); isa++)
        for (int i = 0; i < 4; i++) {
            must(n < max);
            open_subject(&out[n++], computes[i], (enum cpu_isa)isa, activations[i]);
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
