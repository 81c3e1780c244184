// Where data lies: pieces do not overlap, are aligned, and have the sizes that the memory design counts on.
#include "model/layout.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

#define KIB 1024
#define MIB (1024 * KIB)

static struct model_config shape_27b(void) {
    return (struct model_config){
        .family = MODEL_QWEN35,
        .n_layers = 64,
        .n_hidden = 5120,
        .n_vocab = 248320,
        .n_attention_layers = 16,
        .n_delta_layers = 48,
        .n_heads = 24,
        .n_kv_heads = 4,
        .head_dim = 256,
        .n_rotary = 64,
        .n_key_heads = 16,
        .n_value_heads = 48,
        .key_dim = 128,
        .value_dim = 128,
        .n_taps = 4,
        .n_intermediate = 17408,
    };
}

static struct model_config shape_35b(void) {
    return (struct model_config){
        .family = MODEL_QWEN35_MOE,
        .n_layers = 40,
        .n_hidden = 2048,
        .n_vocab = 248320,
        .n_attention_layers = 10,
        .n_delta_layers = 30,
        .n_heads = 16,
        .n_kv_heads = 2,
        .head_dim = 256,
        .n_rotary = 64,
        .n_key_heads = 16,
        .n_value_heads = 32,
        .key_dim = 128,
        .value_dim = 128,
        .n_taps = 4,
        .n_experts = 256,
        .n_experts_used = 8,
        .expert_width = 512,
        .shared_width = 512,
    };
}

static void test_pages_of_real_shapes(void **state) {
    (void)state;
    struct model_config dense = shape_27b(), moe = shape_35b();
    assert_int_equal(page_lay_out(&dense, 256, DTYPE_BF16).page_bytes, 16 * MIB);
    assert_int_equal(page_lay_out(&moe, 256, DTYPE_BF16).page_bytes, 5 * MIB);
    assert_int_equal(page_lay_out(&dense, 1, DTYPE_BF16).page_bytes, 64 * KIB);
    assert_int_equal(page_lay_out(&moe, 1, DTYPE_BF16).page_bytes, 20 * KIB);
    assert_int_equal(page_lay_out(&moe, 96, DTYPE_F32).page_bytes, 2 * 96 * 20 * KIB);
}

// A byte an element and four a vector: in heads of 256, 65/128 of bf16.
static void test_pages_of_e4m3(void **state) {
    (void)state;
    struct model_config dense = shape_27b(), moe = shape_35b();
    assert_int_equal(page_lay_out(&dense, 256, DTYPE_E4M3).page_bytes, 16 * MIB / 128 * 65);
    assert_int_equal(page_lay_out(&moe, 256, DTYPE_E4M3).page_bytes, 5 * MIB / 128 * 65);
    struct model_config odd = moe; // heads of 7, in 3 layers of 1 KV head
    odd.n_attention_layers = 3;
    odd.n_kv_heads = 1;
    odd.head_dim = 7;
    for (int32_t rows = 1; rows <= 4096; rows++) {
        struct model_config configs[] = {dense, moe, odd};
        for (int i = 0; i < 3; i++) {
            const struct model_config *c = &configs[i];
            struct page_layout l = page_lay_out(c, rows, DTYPE_E4M3);
            int64_t n_vector = 2 * c->n_kv_heads * rows;
            assert_int_equal(l.layer_bytes, n_vector * c->head_dim);
            assert_int_equal(l.scale_bytes, n_vector * 4);
            assert_int_equal(l.scale_start % 4, 0);
            assert_true(l.scale_start >= c->n_attention_layers * l.layer_bytes);
            assert_true(l.scale_start < c->n_attention_layers * l.layer_bytes + 4);
            int64_t end = l.scale_start + c->n_attention_layers * l.scale_bytes;
            assert_true(l.page_bytes % LAYOUT_ALIGN == 0 && l.page_bytes >= end && l.page_bytes < end + LAYOUT_ALIGN);
        }
    }
    assert_int_equal(page_lay_out(&dense, 256, DTYPE_BF16).scale_bytes, 0);
}

// 40 MiB of the targets in the memory design belong to a drafter's ring.
static void test_runs_of_real_shapes(void **state) {
    (void)state;
    struct model_config dense = shape_27b(), moe = shape_35b();
    struct run_layout l = run_lay_out(&dense, 8, DTYPE_BF16);
    assert_int_equal(l.ring_start, 144 * MIB);
    assert_true(l.bytes <= 190 * (int64_t)MIB);
    assert_true(run_lay_out(&dense, 16, DTYPE_BF16).bytes <= 215 * (int64_t)MIB);
    l = run_lay_out(&moe, 8, DTYPE_BF16);
    assert_int_equal(l.ring_start, 60 * MIB);
    assert_true(l.bytes <= 85 * (int64_t)MIB);
    assert_true(run_lay_out(&moe, 16, DTYPE_BF16).bytes <= 95 * (int64_t)MIB);
}

// A ring holds the rows of a round and those before it that the first of them reads; a log twice the window.
static void test_parts_of_a_run(void **state) {
    (void)state;
    struct model_config c = shape_35b();
    for (int32_t w = 1; w <= 16; w++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            struct run_layout l = run_lay_out(&c, w, bf16 ? DTYPE_BF16 : DTYPE_F32);
            assert_true(l.ring_rows >= w + 3);
            assert_true(l.ring_bytes >= (int64_t)l.ring_rows * 8192 * (bf16 ? 2 : 4));
            assert_true(l.log_bytes >= (int64_t)2 * w * (16 * 128 + 32 * 128 + 32) * 4);
            assert_true(l.state_bytes % LAYOUT_ALIGN == 0 && l.ring_bytes % LAYOUT_ALIGN == 0 &&
                        l.log_bytes % LAYOUT_ALIGN == 0);
            assert_int_equal(run_state_offset(&l, 30), l.ring_start);
            assert_int_equal(run_ring_offset(&l, 30), l.log_start);
            assert_int_equal(run_log_offset(&l, 30), l.bytes);
            assert_int_equal(l.kept_bytes, l.log_start);
        }
}

struct piece {
    const char *start, *end;
};

static struct piece piece_of(struct tensor t) {
    const char *data = t.data;
    return (struct piece){data, data + (size_t)(t.n_row * t.stride) * dtype_bytes(t.dtype)};
}

static void must_be_apart(const struct piece *pieces, int n, const char *base, int64_t bytes) {
    for (int i = 0; i < n; i++) {
        assert_non_null(pieces[i].start);
        assert_true((pieces[i].start - base) % LAYOUT_ALIGN == 0);
        assert_true(pieces[i].start >= base && pieces[i].end <= base + bytes);
        for (int j = 0; j < i; j++) assert_true(pieces[i].start >= pieces[j].end || pieces[j].start >= pieces[i].end);
    }
}

static void check_scratch(const struct model_config *c, enum dtype activation) {
    enum { ROWS = 130, LOGITS = 3 };
    struct scratch s;
    struct scratch_shape shape = {
        .activation = activation, .n_rows = ROWS, .n_logits = LOGITS, .mtp = true, .n_taps = 2};
    int64_t bytes = scratch_lay_out(c, &shape, NULL, &s);
    assert_null(s.x.data);
    char *base = malloc((size_t)bytes);
    assert_non_null(base);
    assert_int_equal(scratch_lay_out(c, &shape, base, &s), bytes);
    struct piece own[] = {piece_of(s.x), piece_of(s.hidden), piece_of(s.logits)};
    struct piece attention[8] = {own[0],
                                 own[1],
                                 own[2],
                                 piece_of(s.attention.qg),
                                 piece_of(s.attention.k),
                                 piece_of(s.attention.v),
                                 piece_of(s.attention.q),
                                 piece_of(s.attention.out)};
    struct piece delta[9] = {own[0],
                             own[1],
                             own[2],
                             piece_of(s.delta.m),
                             piece_of(s.delta.c),
                             piece_of(s.delta.z),
                             piece_of(s.delta.a),
                             piece_of(s.delta.b),
                             piece_of(s.delta.out)};
    must_be_apart(attention, 8, base, bytes);
    must_be_apart(delta, 9, base, bytes);
    if (c->n_experts == 0) {
        struct piece mlp[5] = {own[0], own[1], own[2], piece_of(s.mlp.gate), piece_of(s.mlp.up)};
        must_be_apart(mlp, 5, base, bytes);
    } else {
        const char *ids = (const char *)s.moe.ids, *weights = (const char *)s.moe.weights,
                   *shared = (const char *)s.moe.shared;
        struct piece moe[10] = {own[0],
                                own[1],
                                own[2],
                                piece_of(s.moe.x),
                                piece_of(s.moe.gate),
                                piece_of(s.moe.up),
                                piece_of(s.moe.shared_out),
                                {ids, ids + ROWS * 8 * 4},
                                {weights, weights + ROWS * 8 * 4},
                                {shared, shared + ROWS * 4}};
        must_be_apart(moe, 10, base, bytes);
    }
    assert_true(s.delta.a.dtype == DTYPE_F32 && s.delta.b.dtype == DTYPE_F32 && s.logits.dtype == DTYPE_F32);
    assert_int_equal(s.x.dtype, activation);
    free(base);
}

static void test_scratch(void **state) {
    (void)state;
    struct model_config dense = shape_27b(), moe = shape_35b();
    check_scratch(&dense, DTYPE_BF16);
    check_scratch(&moe, DTYPE_BF16);
    check_scratch(&moe, DTYPE_F32);
}

// What drafting keeps lies between the rings and the logs, so that it is kept with the states.
static void test_what_drafting_keeps(void **state) {
    (void)state;
    struct model_config dense = shape_27b();
    struct run_layout plain = run_lay_out(&dense, 8, DTYPE_BF16), l = plain;
    run_add_drafts(&l, &dense, 8, DTYPE_BF16, false, 0);
    assert_memory_equal(&l.kept_bytes, &plain.kept_bytes, sizeof l.kept_bytes);
    assert_int_equal(l.bytes, plain.bytes);
    run_add_drafts(&l, &dense, 8, DTYPE_BF16, true, 512);
    assert_int_equal(l.hidden_rows, 16); // a round's rows, and as many that wait
    assert_int_equal(l.hidden_start, plain.log_start);
    assert_true(l.drafter_start >= l.hidden_start + 16 * 5120 * 2);
    assert_int_equal(l.drafter_start % LAYOUT_ALIGN, 0);
    assert_int_equal(l.log_start, l.drafter_start + 512);
    assert_int_equal(l.kept_bytes, l.log_start);
    assert_int_equal(l.bytes - l.log_start, plain.bytes - plain.log_start);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pages_of_real_shapes), cmocka_unit_test(test_pages_of_e4m3),
        cmocka_unit_test(test_runs_of_real_shapes),  cmocka_unit_test(test_parts_of_a_run),
        cmocka_unit_test(test_what_drafting_keeps),  cmocka_unit_test(test_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
