// Loading a drafter: matrices quantised on the way, and what is refused.
#include "base/numeric.h"
#include "format/mlx.h"
#include "format/safetensors.h"
#include "tests/model/drafter_rig.h"
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

// ---- quantising at load ----

static enum safetensors_type wide_type(const struct safetensors_tensor *t) {
    return t->type == SAFETENSORS_U32 ? SAFETENSORS_F32 : t->type;
}

static bool is_part_of_matrix(const char *name) {
    size_t n = strlen(name);
    return (n > 7 && !strcmp(name + n - 7, ".scales")) || (n > 7 && !strcmp(name + n - 7, ".biases"));
}

static const struct safetensors_tensor *part_of(const struct checkpoint *c, const char *name, const char *part) {
    char full[256];
    size_t i, n = strlen(name) - strlen("weight");
    snprintf(full, sizeof full, "%.*s%s", (int)n, name, part);
    assert_true(checkpoint_find(c, full, &i));
    return checkpoint_tensor_at(c, i);
}

// What a row is as codes of so many bits.
static void quantise_row(float *row, int bits, int64_t n) {
    unsigned char codes[4096];
    float scale[64], bias[64];
    assert_true(n <= 64 * 64 && n * bits / 8 <= (int64_t)sizeof codes);
    mlx_quantise_row(row, bits, 64, n, codes, scale, bias);
    for (int64_t g = 0; g < n / 64; g++) {
        scale[g] = round_bf16(scale[g]);
        bias[g] = round_bf16(bias[g]);
    }
    mlx_dequantise_row(codes, scale, bias, bits, 64, n, row);
}

// The values of a matrix's codes; again: of what these values are as codes.
static float *widen(const struct checkpoint *c, const struct safetensors_tensor *t, bool again, int64_t *n_in) {
    const struct safetensors_tensor *scales = part_of(c, t->name, "scales"), *biases = part_of(c, t->name, "biases");
    int64_t n_out = t->shape[0], n_group = scales->shape[1];
    int bits = (int)(t->shape[1] * 32 / (n_group * 64));
    float *values = malloc((size_t)(n_out * n_group * 64) * sizeof *values), scale[64], bias[64];
    assert_non_null(values);
    *n_in = n_group * 64;
    for (int64_t o = 0; o < n_out; o++) {
        for (int64_t g = 0; g < n_group; g++) {
            uint16_t half[2];
            memcpy(&half[0], scales->data + (o * n_group + g) * 2, 2);
            memcpy(&half[1], biases->data + (o * n_group + g) * 2, 2);
            scale[g] = bf16_to_float(half[0]);
            bias[g] = bf16_to_float(half[1]);
        }
        mlx_dequantise_row(t->data + o * t->shape[1] * 4, scale, bias, bits, 64, *n_in, values + o * *n_in);
        if (again) quantise_row(values + o * *n_in, bits, *n_in);
    }
    return values;
}

// The shipped drafter with its matrices as fp32.
static struct folder wide_drafter(bool again) {
    struct folder f = drafter_copy(100);
    struct checkpoint *c;
    struct error e;
    struct safetensors_entry entries[256];
    struct safetensors_writer *w;
    float *values[256] = {0};
    const struct safetensors_tensor *from[256];
    size_t n = 0;
    must_work(checkpoint_open(DRAFTER_SHIPPED, &c, &e), &e);
    for (size_t i = 0; i < checkpoint_count(c); i++) {
        const struct safetensors_tensor *t = checkpoint_tensor_at(c, i);
        if (is_part_of_matrix(t->name)) continue;
        entries[n] = (struct safetensors_entry){.name = t->name, .type = wide_type(t), .n_dims = t->n_dims};
        memcpy(entries[n].shape, t->shape, sizeof t->shape);
        if (t->type == SAFETENSORS_U32) values[n] = widen(c, t, again, &entries[n].shape[1]);
        from[n++] = t;
    }
    must_work(safetensors_writer_create(folder_file(&f, "model.safetensors"), entries, n, "mlx", &w, &e), &e);
    for (size_t i = 0; i < n; i++) {
        size_t bytes = values[i] == NULL ? from[i]->bytes : (size_t)(entries[i].shape[0] * entries[i].shape[1]) * 4;
        must_work(
            safetensors_writer_write(w, i, 0, values[i] == NULL ? (const void *)from[i]->data : values[i], bytes, &e),
            &e);
        free(values[i]);
    }
    must_work(safetensors_writer_finish(w, &e), &e);
    checkpoint_free(c);
    json_t *config = json_load_file(folder_file(&f, "config.json"), 0, NULL);
    json_object_del(config, "quantization");
    json_object_del(config, "quantization_config");
    char *text = json_dumps(config, 0);
    folder_write_text(&f, "config.json", text);
    free(text);
    json_decref(config);
    return f;
}

static void final_rows(struct folder f, int bits, float *rows, int64_t *weight_bytes) {
    struct drafter_rig r = drafter_rig_open(&f, COMPUTE_F32, cpu_isa_detect(), bits);
    struct drafter_stream s = {.rig = &r, .own = drafter_rig_lane(&r, 0)};
    struct drafter_answer unused;
    drafter_stream_prompt(&s, 320, NULL, 0, NULL);
    drafter_rig_propose(&(struct drafter_stream *){&s}, 1, 7, 0, &unused);
    memcpy(rows, r.drafter->scratch.drafts.data, (size_t)(7 * 256) * sizeof *rows);
    *weight_bytes = drafter_weight_bytes(r.drafter);
    drafter_rig_close(&r);
}

static void test_plain_weights_are_quantised(void **state) {
    (void)state;
    float shipped[7 * 256], wide[7 * 256], again[7 * 256], narrow[7 * 256];
    int64_t bytes, wide_bytes, narrow_bytes;
    final_rows(drafter_copy(100), 4, shipped, &bytes);
    final_rows(wide_drafter(false), 0, wide, &wide_bytes);
    double error = rel_l2(wide, shipped, 7 * 256);
    if (!(error <= DRAFTER_EXACT_REL)) fail_msg("the same values as fp32: error %g", error);
    assert_true(wide_bytes > 5 * bytes);
    final_rows(wide_drafter(true), 0, again, &wide_bytes);
    final_rows(wide_drafter(false), 4, narrow, &narrow_bytes);
    assert_int_equal(narrow_bytes, bytes);
    error = rel_l2(narrow, again, 7 * 256);
    if (!(error <= DRAFTER_EXACT_REL)) fail_msg("quantised at load: error %g", error);
}

// ---- refusals ----

static void must_refuse(const char *pointer, const char *value, const char *sentence) {
    struct folder f = drafter_copy(0);
    struct model *m;
    struct drafter *d;
    struct error e = {0};
    must_work(model_open(DRAFTER_TARGET, &m, &e), &e);
    json_t *config = json_load_file(folder_file(&f, "config.json"), 0, NULL), *at = config;
    const char *name = pointer;
    if (!strncmp(pointer, "dflash_config/", 14)) {
        at = json_object_get(config, "dflash_config");
        name = pointer + 14;
    }
    if (value == NULL)
        json_object_del(at, name);
    else
        json_object_set_new(at, name, json_loads(value, JSON_DECODE_ANY, NULL));
    char *text = json_dumps(config, 0);
    folder_write_text(&f, "config.json", text);
    enum status s = drafter_open(f.path, m, 4, &d, &e);
    if (s == STATUS_OK) fail_msg("%s = %s is not refused", pointer, value == NULL ? "nothing" : value);
    if (strstr(e.text, sentence) == NULL) fail_msg("%s = %s is refused with: %s", pointer, value, e.text);
    assert_non_null(strstr(e.text, f.path));
    free(text);
    json_decref(config);
    model_free(m);
    folder_remove(&f);
}

static void test_what_does_not_fit_is_refused(void **state) {
    (void)state;
    must_refuse("hidden_size", "512",
                "/hidden_size is 512, but the model has 256: the drafter was made for another model");
    must_refuse("vocab_size", "248320", "made for another model");
    must_refuse("num_target_layers", "64", "made for another model");
    must_refuse("architectures", "[\"LlamaForCausalLM\"]", "\"LlamaForCausalLM\"; drafters are");
    must_refuse("architectures", "[]", "\"\"; drafters are");
    must_refuse("architectures", "[\"DFlashDraftModel\"]", "has no place in the drafter");
    must_refuse("hidden_act", "\"gelu\"", "supported is silu");
    must_refuse("attention_bias", "true", "not supported");
    must_refuse("rope_scaling", "{}", "scaled rotary positions");
    must_refuse("num_attention_heads", "3", "must be a multiple");
    must_refuse("num_attention_heads", "8", "is no affine form of a matrix of 1024 rows");
    must_refuse("intermediate_size", "1024", "is no affine form of a matrix of 1024 rows");
    must_refuse("num_hidden_layers", "2", "3 entries for 2 layers");
    must_refuse("layer_types", "[\"sliding_attention\", \"full_attention\", \"linear_attention\"]", "linear_attention");
    must_refuse("sliding_window", NULL, "/sliding_window is missing");
    must_refuse("dflash_config", NULL, "/dflash_config is missing");
    must_refuse("dflash_config/block_size", NULL, "block_size is missing");
    must_refuse("dflash_config/block_size", "1", "integer from 2 to 32");
    must_refuse("dflash_config/mask_token_id", "4096", "integer from 0 to 4095");
    must_refuse("dflash_config/target_layer_ids", "[1, 4, 7, 12]", "integer from 0 to 11");
    must_refuse("dflash_config/target_layer_ids", "[1, 4, 4, 10]", "must rise");
    must_refuse("dflash_config/target_layer_ids", "[]", "not 1 to 16");
    must_refuse("dflash_config/target_layer_ids", "[1, 4, 7]", "256 rows and 768 columns");
    must_refuse("dflash_config/conv_group_size", "24", "not a multiple");
    must_refuse("dflash_config/conv_kernel_size", "3", "by config.json it must be [2, 3, 256]");
    must_refuse("dflash_config/selector_rank", "8", "by config.json it must be [4096, 8]");
    must_refuse("dflash_config/selector_top_k", "64", "integer from 1 to 20");
    must_refuse("dflash_config/final_logit_softcapping", "30.0", "not supported");
}

// What a stream takes with the drafter of the 27B models, which the memory design counts on.
static void test_a_large_drafters_lane(void **state) {
    (void)state;
    struct drafter d = {.config = {.n_layers = 5, .n_hidden = 5120, .n_kv_heads = 8, .head_dim = 128, .n_tap = 5}};
    d.ring_rows = 2112; // window 2,048, blocks of 8
    int64_t bytes = drafter_lane_bytes(&d, DTYPE_BF16, DTYPE_BF16);
    assert_int_equal(bytes, 2112 * 5 * 2 * 8 * 128 * 2 + 64 * 5 * 5120 * 2);
    assert_true(bytes < (45 << 20));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain_weights_are_quantised),
        cmocka_unit_test(test_a_large_drafters_lane),
        cmocka_unit_test(test_what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
