#include "model/weights.h"

#include "base/numeric.h"
#include "format/checkpoint.h"
#include "format/mlx.h"
#include "tests/model/tiny.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_OF(a) (sizeof(a) / sizeof *(a))

static float value_at(const void *data, enum dtype type, int64_t i) {
    if (type == DTYPE_F32) return ((const float *)data)[i];
    uint16_t half = ((const uint16_t *)data)[i];
    return type == DTYPE_BF16 ? bf16_to_float(half) : f16_to_float(half);
}

static void weight_row(const struct weight *w, int64_t row, float *out) {
    struct weight r = weight_rows(*w, row, 1);
    if (r.kind == WEIGHT_PLAIN) {
        for (int64_t i = 0; i < r.n_in; i++) out[i] = value_at(r.data, r.dtype, i);
        return;
    }
    float scales[8], biases[8];
    for (int64_t g = 0; g < r.n_in / r.group; g++) {
        scales[g] = value_at(r.scales, r.dtype, g);
        biases[g] = value_at(r.biases, r.dtype, g);
    }
    mlx_dequantise_row(r.data, scales, biases, r.bits, r.group, r.n_in, out);
}

// A matrix holds the module's values from `first` on: exactly where plain, to a quantisation step otherwise.
static void check_matrix(const struct weight *w, int64_t n_out, int64_t n_in, const char *module, int64_t first,
                         double tolerance) {
    assert_int_equal(w->n_out, n_out);
    assert_int_equal(w->n_in, n_in);
    for (int64_t r = 0; r < n_out; r++) {
        float row[256];
        weight_row(w, r, row);
        for (int64_t i = 0; i < n_in; i++) {
            float wanted = tiny_value(module, first + r * n_in + i);
            if (!(fabsf(row[i] - wanted) <= tolerance))
                fail_msg("%s [%d, %d]: %g, not %g", module, (int)r, (int)i, (double)row[i], (double)wanted);
        }
    }
}

static void check_vector(const float *v, int64_t n, const char *module, float add, double tolerance) {
    assert_non_null(v);
    for (int64_t i = 0; i < n; i++) assert_true(fabsf(v[i] - (tiny_value(module, i) + add)) <= tolerance);
}

static void check_layer(const struct layer_weights *w, const char *prefix, bool attention, bool moe, bool split_values,
                        double t, double vt) {
    char m[120];
#define MODULE(name) (snprintf(m, sizeof m, "%s%s", prefix, name), m)
    assert_int_equal(w->kind, attention ? LAYER_ATTENTION : LAYER_DELTA);
    check_vector(w->input_norm, 64, MODULE("input_layernorm"), 1, vt);
    check_vector(w->post_norm, 64, MODULE("post_attention_layernorm"), 1, vt);
    if (attention) {
        check_matrix(&w->q, 128, 64, MODULE("self_attn.q_proj"), 0, t);
        check_matrix(&w->k, 32, 64, MODULE("self_attn.k_proj"), 0, t);
        check_matrix(&w->v, 32, 64, MODULE("self_attn.v_proj"), 0, t);
        check_matrix(&w->o, 64, 64, MODULE("self_attn.o_proj"), 0, t);
        check_vector(w->q_norm, 32, MODULE("self_attn.q_norm"), 1, vt);
        check_vector(w->k_norm, 32, MODULE("self_attn.k_norm"), 1, vt);
        assert_null(w->conv);
    } else {
        check_matrix(&w->qkv, 48, 64, MODULE("linear_attn.in_proj_qkv"), 0, t);
        check_matrix(&w->z, 32, 64, MODULE("linear_attn.in_proj_z"), 0, t);
        check_matrix(&w->b, 2, 64, MODULE("linear_attn.in_proj_b"), 0, t);
        check_matrix(&w->a, 2, 64, MODULE("linear_attn.in_proj_a"), 0, t);
        check_matrix(&w->out, 64, 32, MODULE("linear_attn.out_proj"), 0, t);
        check_vector(w->conv, 48 * 4, MODULE("linear_attn.conv1d"), 0, vt);
        check_vector(w->dt_bias, 2, MODULE("linear_attn.dt_bias"), 0, vt);
        check_vector(w->out_norm, 16, MODULE("linear_attn.norm"), 0, vt);
        for (int i = 0; i < 2; i++)
            assert_true(fabsf(w->neg_a[i] + expf(tiny_value(MODULE("linear_attn.A_log"), i))) < 1e-6f);
        assert_null(w->q_norm);
    }
    if (!moe) {
        check_matrix(&w->mlp.gate, 96, 64, MODULE("mlp.gate_proj"), 0, t);
        check_matrix(&w->mlp.up, 96, 64, MODULE("mlp.up_proj"), 0, t);
        check_matrix(&w->mlp.down, 64, 96, MODULE("mlp.down_proj"), 0, t);
        assert_null(w->expert_gate);
        assert_int_equal(w->router.kind, WEIGHT_NONE);
        return;
    }
    check_matrix(&w->router, 4, 64, MODULE("mlp.gate"), 0, t);
    check_matrix(&w->shared_gate, 1, 64, MODULE("mlp.shared_expert_gate"), 0, t);
    check_matrix(&w->mlp.gate, 64, 64, MODULE("mlp.shared_expert.gate_proj"), 0, t);
    check_matrix(&w->mlp.up, 64, 64, MODULE("mlp.shared_expert.up_proj"), 0, t);
    check_matrix(&w->mlp.down, 64, 64, MODULE("mlp.shared_expert.down_proj"), 0, t);
    for (int e = 0; e < 4; e++) {
        if (split_values) {
            check_matrix(&w->expert_gate[e], 32, 64, MODULE("mlp.switch_mlp.gate_proj"), e * 32 * 64, t);
            check_matrix(&w->expert_up[e], 32, 64, MODULE("mlp.switch_mlp.up_proj"), e * 32 * 64, t);
        } else {
            check_matrix(&w->expert_gate[e], 32, 64, MODULE("mlp.experts.gate_up_proj"), 2 * e * 32 * 64, t);
            check_matrix(&w->expert_up[e], 32, 64, MODULE("mlp.experts.gate_up_proj"), (2 * e + 1) * 32 * 64, t);
        }
        check_matrix(&w->expert_down[e], 64, 32, MODULE("mlp.experts.down_proj"), e * 64 * 32, t);
    }
#undef MODULE
}

static void check_all(struct tiny_options o, int n_shards) {
    struct tiny *t = tiny_create(o);
    struct tiny_loaded l;
    struct error e;
    if (tiny_load(t, n_shards, &l, &e)) fail_msg("%s", e.text);
    bool quantised = o.layout == TINY_MLX;
    // bf16 values pass through f32 and f16 unharmed, except where f16 meets its subnormals or bf16 the shifted norms.
    double exact = o.type == SAFETENSORS_F16 ? 1e-4 : 0, shift = o.type == SAFETENSORS_F16 ? 1e-3 : 8e-3;
    double tolerance = quantised ? 0.12 : exact, vector_tolerance = o.layout >= TINY_MLX ? shift : exact;
    const struct model_weights *w = l.weights;
    check_matrix(&w->embedding, 128, 64, "embed_tokens", 0, tolerance);
    check_matrix(&w->output, 128, 64, o.tied ? "embed_tokens" : "lm_head", 0, tolerance);
    assert_int_equal(w->output.data == w->embedding.data, o.tied);
    check_vector(w->final_norm, 64, "norm", 1, vector_tolerance);
    bool split_values = quantised && !o.one_by_one;
    check_layer(&w->layers[0], "layers.0.", false, o.moe, split_values, tolerance, vector_tolerance);
    check_layer(&w->layers[1], "layers.1.", true, o.moe, split_values, tolerance, vector_tolerance);
    assert_int_equal(w->mtp.present, o.mtp);
    if (o.mtp) {
        double mtp_tolerance = o.mtp_shifted ? shift : exact;
        assert_int_equal(w->mtp.file_norms_shifted, o.mtp_shifted);
        assert_int_equal(w->mtp.n_layers, 1);
        assert_string_equal(w->mtp.absence, "");
        check_matrix(&w->mtp.fc, 64, 128, "mtp.fc", 0, exact);
        check_vector(w->mtp.embedding_norm, 64, "mtp.pre_fc_norm_embedding", 1, mtp_tolerance);
        check_vector(w->mtp.hidden_norm, 64, "mtp.pre_fc_norm_hidden", 1, mtp_tolerance);
        check_vector(w->mtp.norm, 64, "mtp.norm", 1, mtp_tolerance);
        check_layer(&w->mtp.layers[0], "mtp.layers.0.", true, o.moe, false, exact, mtp_tolerance);
        assert_true(w->mtp_bytes > 0);
    } else {
        assert_non_null(strstr(w->mtp.absence, "no mtp.* tensors"));
        assert_int_equal(w->mtp_bytes, 0);
        assert_int_equal(weights_count(&w->mtp_census), 0);
    }
    // Every tensor has its place, so their bytes add up to the data of the files.
    int64_t bytes = 0;
    for (size_t i = 0; i < t->n; i++) bytes += (int64_t)t->tensors[i].bytes;
    assert_int_equal(w->used_bytes, bytes);
    assert_int_equal(w->copied_bytes, 0);
    int64_t layer0 = 2 * 64 + (48 + 32 + 2 + 2) * 64 + 64 * 32 + 48 * 4 + 2 + 2 + 16,
            layer1 = 2 * 64 + 192 * 64 + 64 * 64 + 64;
    int64_t mlp = o.moe ? 5 * 64 + 3 * 64 * 64 + 4 * 3 * 32 * 64 : 3 * 64 * 96;
    assert_int_equal(weights_count(&w->census), (o.tied ? 1 : 2) * 128 * 64 + 64 + layer0 + layer1 + 2 * mlp);
    if (o.mtp) assert_int_equal(weights_count(&w->mtp_census), 64 * 128 + 3 * 64 + layer1 + mlp);
    if (quantised && o.moe) assert_int_equal(w->census.n_by_bits[8], 2 * 5 * 64);
    tiny_unload(&l);
    tiny_free(t);
}

static void test_layouts(void **state) {
    (void)state;
    static const enum safetensors_type types[] = {SAFETENSORS_BF16, SAFETENSORS_F32, SAFETENSORS_F16};
    for (int layout = TINY_HF; layout <= TINY_MLX_PLAIN; layout++)
        for (int bits = 0; bits < 16; bits++)
            check_all((struct tiny_options){.layout = (enum tiny_layout)layout,
                                            .moe = bits & 1,
                                            .tied = bits & 2,
                                            .mtp = bits & 4,
                                            .mtp_shifted = (bits & 12) == 12,
                                            .one_by_one = bits & 8,
                                            .type = types[(layout + bits) % 3]},
                      1 + bits % 3);
}

#define P   "model.language_model."
#define Q   "language_model.model."
#define BF  SAFETENSORS_BF16
#define U32 SAFETENSORS_U32

static void test_not_finite(void **state) {
    (void)state;
    static const struct {
        const char *name;
        uint32_t bits;
        const char *sentence;
    } cases[] = {
        {P "norm.weight", 0x7fc00000, "norm.weight holds a value that is not finite, at 1"},
        {P "layers.0.linear_attn.dt_bias", 0x7f800000, "dt_bias holds a value that is not finite"},
        {P "layers.0.linear_attn.A_log", 0x42c80000, "A_log holds 100, too large an exponent"},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        struct tiny *t = tiny_create((struct tiny_options){.layout = TINY_HF, .type = SAFETENSORS_F32});
        memcpy(tiny_find(t, cases[i].name)->data + 4, &cases[i].bits, 4);
        struct tiny_loaded l;
        struct error e;
        assert_int_equal(tiny_load(t, 2, &l, &e), STATUS_INVALID);
        if (!strstr(e.text, cases[i].sentence)) fail_msg("\"%s\" lacks \"%s\"", e.text, cases[i].sentence);
        tiny_unload(&l);
        tiny_free(t);
    }
}

// C95: widths that differ from module to module, named under either prefix, or not at all.
static void test_mixed_widths(void **state) {
    (void)state;
    static const char *const spellings[] = {"model.language_model.", "language_model.model.", "model.", "", NULL};
    for (size_t s = 0; s < N_OF(spellings); s++)
        for (int bits = 2; bits <= 8; bits++) {
            if (bits == 7) continue;
            struct tiny *t = tiny_create((struct tiny_options){.layout = TINY_MLX});
            tiny_put(t, Q "layers.0.mlp.up_proj.weight", U32, 2, (int64_t[]){96, 64 * bits / 32});
            tiny_put(t, Q "layers.0.mlp.up_proj.scales", BF, 2, (int64_t[]){96, 1});
            tiny_put(t, Q "layers.0.mlp.up_proj.biases", BF, 2, (int64_t[]){96, 1});
            if (spellings[s]) {
                char path[100], text[60];
                snprintf(path, sizeof path, "/quantization/%slayers.0.mlp.up_proj", spellings[s]);
                snprintf(text, sizeof text, "{\"bits\":%d,\"group_size\":64}", bits);
                json_edit(t->config, path, text);
            }
            struct tiny_loaded l;
            struct error e;
            if (tiny_load(t, 1, &l, &e)) fail_msg("%s", e.text);
            assert_int_equal(l.weights->layers[0].mlp.up.bits, bits);
            assert_int_equal(l.weights->layers[0].mlp.up.group, 64);
            assert_int_equal(l.weights->layers[0].mlp.gate.bits, 4);
            tiny_unload(&l);
            tiny_free(t);
        }
}

// C97, the loader's part: an absent head is said so; one kept beside an MLX trunk is found under other prefixes and
// with norms in either form; a head of its own embedding is not used.
static void test_mtp(void **state) {
    (void)state;
    for (int shifted = 0; shifted < 2; shifted++) {
        struct tiny *t = tiny_create((struct tiny_options){.layout = TINY_MLX, .mtp = true, .mtp_shifted = shifted});
        for (size_t i = 0; i < t->n; i++)
            if (!strncmp(t->tensors[i].name, "mtp.", 4)) {
                char name[160];
                snprintf(name, sizeof name, "language_model.%.140s", t->tensors[i].name);
                strcpy(t->tensors[i].name, name);
            }
        json_edit(t->config, "/text_config/mtp_num_hidden_layers", "0"); // as an exporter that drops it writes
        struct tiny_loaded l;
        struct error e;
        if (tiny_load(t, 1, &l, &e)) fail_msg("%s", e.text);
        assert_true(l.weights->mtp.present);
        assert_int_equal(l.weights->mtp.fc.kind, WEIGHT_PLAIN);
        assert_int_equal(l.weights->mtp.file_norms_shifted, shifted);
        check_vector(l.weights->mtp.norm, 64, "mtp.norm", 1, shifted ? 8e-3 : 0);
        tiny_unload(&l);
        json_edit(t->config, "/text_config/mtp_use_dedicated_embeddings", "true");
        if (tiny_load(t, 1, &l, &e)) fail_msg("%s", e.text);
        assert_false(l.weights->mtp.present);
        assert_non_null(strstr(l.weights->mtp.absence, "embedding of its own"));
        tiny_unload(&l);
        tiny_free(t);
    }
}

// A matrix that does not lie at a multiple of its type's size is copied, and reads the same.
static void test_misaligned(void **state) {
    (void)state;
    struct tiny *t = tiny_create((struct tiny_options){.layout = TINY_MLX_PLAIN, .type = SAFETENSORS_F32});
    struct tiny_tensor first = t->tensors[0];
    tiny_put(t, "vision_tower.x", SAFETENSORS_U8, 1, (int64_t[]){3});
    t->tensors[0] = t->tensors[t->n - 1];
    t->tensors[t->n - 1] = first;
    struct tiny_loaded l;
    struct error e;
    if (tiny_load(t, 1, &l, &e)) fail_msg("%s", e.text);
    assert_true(l.weights->copied_bytes > 0);
    check_matrix(&l.weights->embedding, 128, 64, "embed_tokens", 0, 0);
    assert_int_equal((uintptr_t)l.weights->embedding.data % 4, 0);
    check_layer(&l.weights->layers[0], "layers.0.", false, false, false, 0, 1e-6);
    tiny_unload(&l);
    tiny_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layouts), cmocka_unit_test(test_not_finite), cmocka_unit_test(test_mixed_widths),
        cmocka_unit_test(test_mtp),     cmocka_unit_test(test_misaligned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
