// A device with its own memory gets a copy of the weights, and may put matrices into an order of its own: those that
// only embed and linear read, and no others. Here it is a CPU that turns over the bits of what it arranges, and turns
// them back for those two alone.
#include "tests/model/rig.h"
#include "tests/model/tiny.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_PROMPT 70
#define N_ROW    3

static struct ops own; // the CPU's operations with these before them
static const struct ops *cpu;
static int n_asked;

static void turn(const void *data, size_t bytes) {
    unsigned char *at = (unsigned char *)(uintptr_t)data;
    for (size_t i = 0; i < bytes; i++) at[i] ^= 0xff;
}

static void turn_matrix(const struct weight *w) {
    size_t scales = (size_t)(w->n_out * (w->n_in / w->group)) * dtype_bytes(w->dtype);
    turn(w->data, (size_t)w->n_out * weight_row_bytes(w));
    turn(w->scales, scales);
    turn(w->biases, scales);
}

static void arrange(struct device *d, struct weight *w) {
    (void)d;
    assert_false(w->arranged);
    n_asked++;
    if (w->kind != WEIGHT_AFFINE) return;
    turn_matrix(w);
    w->arranged = true;
}

static int64_t memory_of(struct device *d, int64_t *total) {
    (void)d;
    return *total = (int64_t)1 << 40;
}

static void embed(struct device *d, const struct embed_args *a) {
    if (a->table->arranged) turn_matrix(a->table);
    cpu->embed(d, a);
    if (a->table->arranged) turn_matrix(a->table);
}

static void linear(struct device *d, const struct linear_args *a) {
    for (int p = 0; p < a->n_parts; p++)
        if (a->part[p].w->arranged) turn_matrix(a->part[p].w);
    cpu->linear(d, a);
    for (int p = 0; p < a->n_parts; p++)
        if (a->part[p].w->arranged) turn_matrix(a->part[p].w);
}

static void router(struct device *d, const struct router_args *a) {
    assert_false(a->gate->arranged || a->shared_gate->arranged);
    cpu->router(d, a);
}

static void experts(struct device *d, const struct experts_args *a) {
    for (int i = 0; i < a->n_expert; i++) assert_false(a->gate[i].arranged || a->up[i].arranged || a->down[i].arranged);
    cpu->experts(d, a);
}

static bool moe(struct device *d, const struct moe_args *a) {
    assert_false(a->gate->arranged || a->up->arranged || a->down->arranged);
    (void)d;
    return false; // by router and experts
}

static void prepare(struct device *d) {
    cpu = d->ops;
    own = *cpu;
    own.embed = embed;
    own.linear = linear;
    own.router = router;
    own.experts = experts;
    own.moe = moe;
    own.linear_swiglu = NULL;
    d->ops = &own;
    d->memory = memory_of;
    d->arrange = arrange;
}

// The last row of a prompt, and a window behind it.
static float *logits_of(const char *dir, void (*with)(struct device *), size_t *n) {
    struct rig *r = rig_open(dir, &(struct rig_options){.compute = COMPUTE_BF16, .isa = ISA_C, .prepare = with});
    size_t n_vocab = (size_t)r->config->n_vocab;
    float *logits = malloc((1 + N_ROW) * n_vocab * sizeof *logits);
    int32_t ids[N_PROMPT + N_ROW], n_row = N_ROW;
    struct stream s;
    assert_non_null(logits);
    for (int i = 0; i < N_PROMPT + N_ROW; i++) ids[i] = (int32_t)((size_t)(i * 37 + 5) % n_vocab);
    stream_open(&s, r, 0, 0);
    stream_prompt(&s, ids, N_PROMPT, 64, LOGITS_LAST, logits);
    struct stream *streams = &s;
    streams_round(&streams, 1, &n_row, ids + N_PROMPT, logits + n_vocab);
    rig_close(r);
    *n = (1 + N_ROW) * n_vocab;
    return logits;
}

static void same_with_arranged(struct tiny_options options, int expected) {
    struct folder f = folder_create();
    struct tiny *t = tiny_create(options);
    tiny_write(t, &f, 1);
    size_t n, m;
    n_asked = 0;
    float *want = logits_of(f.path, NULL, &n), *got = logits_of(f.path, prepare, &m);
    assert_int_equal(n, m);
    assert_memory_equal(want, got, n * sizeof *want);
    assert_int_equal(n_asked, expected);
    free(want);
    free(got);
    tiny_free(t);
    folder_remove(&f);
}

// Of each layer an attention's four matrices or a delta rule's five, and a dense block's three; and the output's.
static void test_dense(void **state) {
    (void)state;
    same_with_arranged((struct tiny_options){.layout = TINY_MLX}, 16);
}
static void test_tied(void **state) {
    (void)state;
    same_with_arranged((struct tiny_options){.layout = TINY_MLX, .tied = true}, 16);
}
static void test_experts(void **state) {
    (void)state;
    same_with_arranged((struct tiny_options){.layout = TINY_MLX, .moe = true}, 10);
}

// A head that drafts has a layer, and a projection before it.
static void test_head(void **state) {
    (void)state;
    struct folder f = folder_create();
    struct tiny *t = tiny_create((struct tiny_options){.layout = TINY_MLX, .mtp = true});
    struct model *m;
    struct device *d;
    struct error e;
    tiny_write(t, &f, 1);
    assert_int_equal(model_open(f.path, &m, &e), STATUS_OK);
    assert_int_equal(cpu_device_create(COMPUTE_BF16, true, 1, ISA_C, &d, &e), STATUS_OK);
    prepare(d);
    model_set_drafts(m, &(struct model_drafts){.mtp = true});
    struct model_limits limits = {
        .max_lanes = 1, .max_window = RIG_WINDOW, .max_context = 512, .page_rows = 256, .pass_rows = 512, .kv = d->kv};
    n_asked = 0;
    assert_int_equal(model_load(m, d, &limits, NULL, NULL, &e), STATUS_OK);
    assert_int_equal(n_asked, 16 + 8);
    model_free(m);
    device_free(d);
    tiny_free(t);
    folder_remove(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_dense), cmocka_unit_test(test_tied),
                                       cmocka_unit_test(test_experts), cmocka_unit_test(test_head)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
