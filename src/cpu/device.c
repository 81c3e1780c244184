// The CPU device: memory, scratch, and the table of operations.
#include "base/machine.h"
#include "cpu/ops.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_PAGE ((size_t)2 << 20)

static void *cpu_alloc(struct device *d, size_t bytes) {
    (void)d;
    // Rows of activations lie in as many pages as there are rows; with huge pages their addresses stay at hand.
    size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : CPU_ALIGN;
    if (bytes > SIZE_MAX - align) return NULL;
    size_t rounded = (bytes / align + 1) * align;
    void *memory = aligned_alloc(align, rounded);
    if (memory != NULL && align == HUGE_PAGE) madvise(memory, rounded, MADV_HUGEPAGE); // if it cannot be had, none
    return memory;
}

static void cpu_release(struct device *d, void *memory) {
    (void)d;
    free(memory);
}

static void cpu_copy_in(struct device *d, void *device_memory, const void *host, size_t bytes) {
    (void)d;
    if (bytes > 0) memcpy(device_memory, host, bytes);
}

static void cpu_copy_out(struct device *d, void *host, const void *device_memory, size_t bytes) {
    (void)d;
    if (bytes > 0) memcpy(host, device_memory, bytes);
}

static void cpu_copy(struct device *d, void *to, const void *from, size_t bytes) {
    (void)d;
    if (bytes > 0) memcpy(to, from, bytes);
}

// There is nothing beside which it could be done: all cores belong to the operations.
static void cpu_transfer(struct device *d, bool to_host, const struct transfer_range *ranges, int n) {
    for (int i = 0; i < n; i++)
        (to_host ? cpu_copy(d, ranges[i].host, ranges[i].device, ranges[i].bytes)
                 : cpu_copy(d, ranges[i].device, ranges[i].host, ranges[i].bytes));
}

static bool cpu_transfer_done(struct device *d, bool wait) {
    (void)d;
    (void)wait;
    return true;
}

static void cpu_begin(struct device *d, const struct batch *batch) {
    (void)d;
    (void)batch; // host memory is device memory: the operations read the lanes where they are
}

static enum status cpu_sync(struct device *d, struct error *e) {
    (void)d;
    (void)e;
    return STATUS_OK;
}

static struct cpu_need scratch_need(const struct cpu_device *d, const struct device_limits *l) {
    struct cpu_need need = {0};
    cpu_need_rows(d, l, &need);
    cpu_need_linear(d, l, &need);
    cpu_need_qk_store(d, l, &need);
    cpu_need_attention(d, l, &need);
    cpu_need_delta(d, l, &need);
    cpu_need_router(d, l, &need);
    cpu_need_experts(d, l, &need);
    cpu_need_draw(d, l, &need);
    // Whole pages a thread, so that two threads never write one cache line.
    need.thread = (need.thread + 4095) / 4096 * 4096;
    return need;
}

static size_t cpu_reserve_bytes(struct device *base, const struct device_limits *l) {
    const struct cpu_device *d = cpu_device_of(base);
    struct cpu_need need = scratch_need(d, l);
    return need.shared + need.thread * (size_t)d->n_threads;
}

static enum status cpu_reserve(struct device *base, const struct device_limits *l, struct error *e) {
    struct cpu_device *d = cpu_device_of(base);
    struct cpu_need need = scratch_need(d, l);
    char *shared = cpu_alloc(base, need.shared);
    char *threads = cpu_alloc(base, need.thread * (size_t)d->n_threads);
    if (shared == NULL || threads == NULL) {
        free(shared);
        free(threads);
        return error_memory(e);
    }
    free(d->scratch.shared);
    free(d->scratch.threads);
    d->scratch = (struct cpu_scratch){shared, threads, need.shared, need.thread};
    d->limits = *l;
    return STATUS_OK;
}

static void cpu_poison(struct device *base) {
    struct cpu_device *d = cpu_device_of(base);
    memset(d->scratch.shared, 0xff, d->scratch.shared_bytes);
    memset(d->scratch.threads, 0xff, d->scratch.thread_bytes * (size_t)d->n_threads);
}

static void cpu_destroy(struct device *base) {
    struct cpu_device *d = cpu_device_of(base);
    workers_free(d->workers);
    free(d->scratch.shared);
    free(d->scratch.threads);
    free(d);
}

static const struct ops cpu_ops = {
    .begin = cpu_begin,
    .embed = cpu_embed,
    .norm = cpu_norm,
    .linear = cpu_linear,
    .qk_store = cpu_qk_store,
    .attention = cpu_attention,
    .conv = cpu_conv,
    .delta = cpu_delta,
    .delta_commit = cpu_delta_commit,
    .swiglu = cpu_swiglu,
    .router = cpu_router,
    .experts = cpu_experts,
    .draw = cpu_draw,
    .block_conv = cpu_block_conv,
    .block_attention = cpu_block_attention,
};

static void fill_device(struct cpu_device *d, enum compute compute) {
    static const char *const compute_names[] = {"auto", "f32", "bf16", "int8"};
    snprintf(d->name, sizeof d->name, "cpu %s %s, %d thread%s", cpu_isa_name(d->isa), compute_names[compute],
             d->n_threads, d->n_threads == 1 ? "" : "s");
    d->base = (struct device){
        .ops = &cpu_ops,
        .name = d->name,
        .compute = compute,
        .activation = DTYPE_F32, // on a CPU they cost nothing beside the weights; a linear rounds what it multiplies
        .kv = compute == COMPUTE_F32 ? DTYPE_F32 : DTYPE_BF16,
        .in_host_memory = true,
        .alloc = cpu_alloc,
        .release = cpu_release,
        .copy_in = cpu_copy_in,
        .copy_out = cpu_copy_out,
        .copy = cpu_copy,
        .transfer = cpu_transfer,
        .transfer_done = cpu_transfer_done,
        .reserve = cpu_reserve,
        .reserve_bytes = cpu_reserve_bytes,
        .sync = cpu_sync,
        .poison = cpu_poison,
        .destroy = cpu_destroy,
    };
}

enum status cpu_device_create(enum compute compute, bool quantised, int n_threads, enum cpu_isa isa,
                              struct device **out, struct error *e) {
    if (compute == COMPUTE_AUTO || (compute == COMPUTE_INT8 && !quantised)) compute = COMPUTE_BF16;
    if (n_threads == 0) n_threads = machine_cores();
    struct cpu_device *d = calloc(1, sizeof *d);
    if (d == NULL) return error_memory(e);
    // Asked before the workers start: threads inherit the permission to use AMX tiles.
    enum cpu_isa best = cpu_isa_detect();
    d->isa = isa < best ? isa : best;
    enum status s = workers_create(n_threads, &d->workers, e);
    if (s != STATUS_OK) {
        free(d);
        return s;
    }
    d->n_threads = n_threads;
    cpu_kernels_fill(&d->kernels, compute);
#if defined(__x86_64__)
    if (d->isa != ISA_C) cpu_x86_overlay(&d->kernels, d->isa, compute);
#endif
    fill_device(d, compute);
    *out = &d->base;
    return STATUS_OK;
}
