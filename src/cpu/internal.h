// Owns what the CPU backend's files share: the device and its scratch. Kernels for an instruction set see
// kernel_table.h only.
#ifndef TF_CPU_INTERNAL_H
#define TF_CPU_INTERNAL_H

#include "base/workers.h"
#include "cpu/kernel_table.h"

#define CPU_ALIGN 256 // of device memory

struct cpu_scratch {
    char *shared, *threads; // one shared part; thread i's part is at threads + i * thread_bytes
    size_t shared_bytes, thread_bytes;
};

struct cpu_device {
    struct device base;
    struct cpu_kernels kernels;
    struct workers *workers;
    int n_threads;
    enum cpu_isa isa;
    struct device_limits limits; // as reserved
    struct cpu_scratch scratch;
    char name[64];
};

static inline struct cpu_device *cpu_device_of(struct device *d) { return (struct cpu_device *)d; }

// Hands out scratch from the front of a block; with base NULL it only adds up, for reserve().
struct cpu_carver {
    char *base;
    size_t used;
};

static inline void *cpu_carve(struct cpu_carver *c, size_t bytes) {
    void *p = c->base != NULL ? c->base + c->used : NULL;
    c->used += (bytes + CPU_ROW_ALIGN - 1) / CPU_ROW_ALIGN * CPU_ROW_ALIGN;
    return p;
}

#endif
