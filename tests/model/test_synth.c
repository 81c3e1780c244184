#include "model/synth.h"

#include "base/mapped_file.h"
#include "base/numeric.h"
#include "format/checkpoint.h"
#include "format/mlx.h"
#include "format/tokenizer.h"
#include "model/drafter.h"
#include "model/weights.h"
#include "tests/format/folder.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#define N_OF(a) (sizeof(a) / sizeof *(a))

struct loaded {
    struct checkpoint *checkpoint;
    struct model_config config;
    struct model_weights *weights;
};

static void load(const char *dir, struct loaded *l) {
    struct error e;
    memset(l, 0, sizeof *l);
    if (checkpoint_open(dir, &l->checkpoint, &e)) fail_msg("%s", e.text);
    if (config_load(l->checkpoint, &l->config, &e)) fail_msg("%s", e.text);
    if (weights_load(l->checkpoint, &l->config, &l->weights, &e)) fail_msg("%s", e.text);
}

static void unload(struct loaded *l) {
    weights_free(l->weights);
    config_free(&l->config);
    checkpoint_free(l->checkpoint);
}

// The published shapes have their published parameter counts: text model, then MTP head.
static void test_shapes(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t n_layers, n_hidden, n_text, n_mtp; // 0: whatever it is
        size_t n_files;
    } shapes[] = {
        {"tiny", 4, 256, 0, 0, 1},
        {"tiny-moe", 4, 256, 0, 0, 1},
        {"qwen3.5-0.8b", 24, 1024, 752393024, 0, 1},
        {"qwen3.5-2b", 24, 2048, 0, 0, 1},
        {"qwen3.5-4b", 32, 2560, 0, 0, 1},
        {"qwen3.5-9b", 32, 4096, 0, 0, 2},
        {"qwen3.8-27b", 64, 5120, 26895998464, 0, 4},
        // embedding, blocks, final norm and output: the counts by component that are published for this model
        {"qwen3.6-35b-a3b", 40, 2048, (int64_t)508559360 + 33643489920 + 508561408, 844640768, 5},
    };
    for (size_t i = 0; i < N_OF(shapes); i++) {
        assert_string_equal(synth_shape_name((int)i), shapes[i].name);
        struct folder f = folder_create();
        struct synth_options o = {.shape = shapes[i].name, .headers_only = true, .n_threads = 1};
        struct error e;
        if (synth_write(f.path, &o, &e)) fail_msg("%s", e.text);
        struct loaded l;
        load(f.path, &l);
        assert_int_equal(l.config.n_layers, shapes[i].n_layers);
        assert_int_equal(l.config.n_hidden, shapes[i].n_hidden);
        assert_int_equal(checkpoint_n_files(l.checkpoint), shapes[i].n_files);
        if (shapes[i].n_text) assert_int_equal(weights_count(&l.weights->census), shapes[i].n_text);
        if (shapes[i].n_mtp) assert_int_equal(weights_count(&l.weights->mtp_census), shapes[i].n_mtp);
        assert_true(l.weights->mtp.present);
        assert_int_equal(l.weights->layers[0].qkv.bits, 4);
        assert_int_equal(l.weights->layers[0].qkv.group, 64);
        if (l.config.n_experts) assert_int_equal(l.weights->layers[0].router.bits, 8);
        assert_int_equal(l.config.head_dim, 256);
        assert_int_equal(l.config.n_eos, 2);
        assert_string_equal(l.config.eos_text, "<|im_end|>");
        assert_true(l.config.sampling.temperature == 1 && l.config.sampling.top_k == 20);
        for (size_t k = 0; k < checkpoint_count(l.checkpoint); k++) // every matrix and vector lies aligned
            assert_int_equal((uintptr_t)checkpoint_tensor_at(l.checkpoint, k)->data % 4 % 2, 0);
        assert_int_equal(l.weights->copied_bytes, 0);
        struct stat info; // --headers-only leaves holes
        assert_int_equal(stat(checkpoint_tensor_at(l.checkpoint, 0)->file, &info), 0);
        assert_true(info.st_blocks * 512 < info.st_size / 2);
        unload(&l);
        folder_remove(&f);
    }
    assert_string_equal(synth_shape_name((int)N_OF(shapes)), "tiny-dflash2"); // drafters come last
    assert_null(synth_shape_name(-1));
}

// A drafter fits its model, has the published sizes where it is a published one, and is refused beside another model.
static void test_drafters(void **state) {
    (void)state;
    static const struct {
        const char *name, *target, *other;
        int64_t n_bytes; // of weights; 0: whatever it is
        int n_taps;
    } shapes[] = {
        {"tiny-dflash2", "tiny", "qwen3.5-0.8b", 0, 3},
        // 5 layers of 319.8 M values and fc's 131 M at 4.5 bits, 66.8 M of kernels and edges at 8.5, two codebooks in
        // bf16: 1.92 thousand million values in all, as the published one has.
        {"qwen3.8-27b-dflash2", "qwen3.8-27b", "tiny",
         (int64_t)(5 * 319815680 + 131072000) * 9 / 16 + (int64_t)(10 * 1280 + 256) * 5120 * 17 / 16 +
             (int64_t)4 * 248320 * 256,
         5},
    };
    struct error e;
    for (size_t i = 0; i < N_OF(shapes); i++) {
        struct folder own = folder_create(), fits = folder_create(), other = folder_create();
        const char *names[] = {shapes[i].name, shapes[i].target, shapes[i].other};
        const struct folder *folders[] = {&own, &fits, &other};
        struct model *models[3] = {NULL};
        struct drafter *d = NULL, *none = NULL;
        for (int k = 0; k < 3; k++) {
            struct synth_options o = {.shape = names[k], .headers_only = true, .n_threads = 1};
            if (synth_write(folders[k]->path, &o, &e)) fail_msg("%s", e.text);
            if (k > 0 && model_open(folders[k]->path, &models[k], &e)) fail_msg("%s", e.text);
        }
        if (drafter_open(own.path, models[1], 4, &d, &e)) fail_msg("%s", e.text);
        int32_t n_taps;
        drafter_tap_layers(d, &n_taps);
        assert_int_equal(n_taps, shapes[i].n_taps);
        assert_int_equal(drafter_block(d), 8);
        assert_string_equal(drafter_kind(d), "DFlash2");
        if (shapes[i].n_bytes) assert_int_equal(drafter_weight_bytes(d), shapes[i].n_bytes);
        assert_int_equal(drafter_open(own.path, models[2], 4, &none, &e), STATUS_INVALID);
        drafter_free(d);
        for (int k = 0; k < 3; k++) {
            model_free(models[k]);
            struct folder f = *folders[k];
            folder_remove(&f);
        }
    }
    assert_null(synth_shape_name(10));
}

static void check_spread(const struct weight *w, double spread) {
    double sum = 0, squares = 0;
    int64_t n = 0;
    for (int64_t r = 0; r < w->n_out && r < 200; r++) {
        struct weight row = weight_rows(*w, r, 1);
        float scales[64], biases[64], values[4096];
        for (int64_t g = 0; g < w->n_in / w->group; g++) {
            scales[g] = bf16_to_float(((const uint16_t *)row.scales)[g]);
            biases[g] = bf16_to_float(((const uint16_t *)row.biases)[g]);
        }
        mlx_dequantise_row(row.data, scales, biases, w->bits, w->group, w->n_in, values);
        for (int64_t i = 0; i < w->n_in; i++, n++) sum += values[i], squares += (double)values[i] * values[i];
    }
    assert_true(fabs(sum / (double)n) < 0.05 * spread);
    assert_true(fabs(sqrt(squares / (double)n) / spread - 1) < 0.1);
}

static void test_values(void **state) {
    (void)state;
    struct folder f = folder_create();
    struct synth_options o = {.shape = "tiny-moe", .n_threads = 2};
    struct error e;
    if (synth_write(f.path, &o, &e)) fail_msg("%s", e.text);
    struct loaded l;
    load(f.path, &l);
    const struct layer_weights *layer = &l.weights->layers[0];
    check_spread(&l.weights->embedding, 1);
    check_spread(&l.weights->output, 2 / sqrt(256));
    check_spread(&layer->qkv, 1 / sqrt(256));
    check_spread(&layer->out, 1 / sqrt(512));
    check_spread(&layer->router, 1 / sqrt(256));
    check_spread(&layer->mlp.down, 1 / sqrt(128));
    check_spread(&layer->expert_gate[3], 1 / sqrt(256));
    check_spread(&layer->expert_down[15], 1 / sqrt(128));
    check_spread(&l.weights->mtp.fc, 1 / sqrt(512));
    assert_memory_not_equal(layer->expert_gate[3].data, layer->expert_gate[4].data, 1000);
    assert_false(l.weights->mtp.file_norms_shifted);
    for (int i = 0; i < 256; i++) {
        assert_true(fabsf(layer->input_norm[i] - 1) < 0.6f);
        assert_true(fabsf(l.weights->mtp.norm[i] - 1) < 0.6f);
    }
    for (int i = 0; i < 4; i++) assert_true(layer->neg_a[i] < -0.009f && layer->neg_a[i] > -4.01f);
    unload(&l);
    folder_remove(&f);
}

static char *read_all(const struct folder *f, const char *name, size_t *n) {
    char *data;
    struct error e;
    if (file_read(folder_file(f, name), (size_t)1 << 30, &data, n, &e)) fail_msg("%s", e.text);
    return data;
}

static bool same_file(const struct folder *a, const struct folder *b, const char *name) {
    size_t n, m;
    char *x = read_all(a, name, &n), *y = read_all(b, name, &m);
    bool same = n == m && !memcmp(x, y, n);
    free(x);
    free(y);
    return same;
}

struct seen {
    int calls;
    int64_t last, total;
};

static void on_progress(void *context, int64_t done, int64_t total) {
    struct seen *seen = context;
    assert_true(done > seen->last && done <= total);
    *seen = (struct seen){seen->calls + 1, done, total};
}

// The same shape and seed give the same bytes on any number of threads; another seed gives other weights.
static void test_deterministic(void **state) {
    (void)state;
    static const char *const names[] = {"config.json",        "model.safetensors",     "model.safetensors.index.json",
                                        "tokenizer.json",     "tokenizer_config.json", "generation_config.json",
                                        "chat_template.jinja"};
    struct folder folders[3];
    for (int i = 0; i < 3; i++) {
        folders[i] = folder_create();
        struct seen seen = {0};
        struct synth_options o = {
            .shape = "tiny", .n_threads = 1 + 2 * i, .seed = i == 2 ? 8 : 7, .progress = on_progress, .context = &seen};
        struct error e;
        if (synth_write(folders[i].path, &o, &e)) fail_msg("%s", e.text);
        assert_true(seen.calls >= 1 && seen.last == seen.total);
    }
    for (size_t k = 0; k < N_OF(names); k++) {
        assert_true(same_file(&folders[0], &folders[1], names[k]));
        assert_int_equal(same_file(&folders[0], &folders[2], names[k]), strcmp(names[k], "model.safetensors") != 0);
    }
    for (int i = 0; i < 3; i++) folder_remove(&folders[i]);
}

static void test_tokenizer(void **state) {
    (void)state;
    static const char *const shapes[] = {"tiny", "qwen3.5-0.8b"};
    for (int s = 0; s < 2; s++) {
        struct folder f = folder_create();
        struct synth_options o = {.shape = shapes[s], .headers_only = true, .n_threads = 1};
        struct error e;
        if (synth_write(f.path, &o, &e)) fail_msg("%s", e.text);
        struct tokenizer *t = NULL;
        if (tokenizer_load(folder_file(&f, "tokenizer.json"), folder_file(&f, "tokenizer_config.json"), &t, &e))
            fail_msg("%s", e.text);
        int32_t first = tokenizer_find(t, "<|endoftext|>", 13);
        assert_int_equal(tokenizer_find(t, "<|im_start|>", 12), first + 1);
        assert_int_equal(tokenizer_find(t, "<|im_end|>", 10), first + 2);
        assert_int_equal(tokenizer_find(t, "<tool_call>", 11), first + 14);
        assert_int_equal(tokenizer_find(t, "</think>", 8), first + 25);
        assert_int_equal(tokenizer_count_ids(t), first + 33);
        if (s) assert_int_equal(first, 248044);
        if (s) assert_false(tokenizer_has_id(t, first - 1));
        if (!s) assert_true(tokenizer_has_id(t, first - 1));
        assert_true(tokenizer_is_special(t, first + 2));
        assert_false(tokenizer_is_special(t, first + 24));
        static const char text[] =
            "<|im_start|>user\nWould you please explain how a small model can answer questions about "
            "history, science and music?\n\nThank you \xf0\x9f\x99\x82\n    for (int i = 0; i < n; i++) {\n";
        int32_t *ids;
        size_t n;
        if (tokenizer_encode(t, text, sizeof text - 1, true, &ids, &n, &e)) fail_msg("%s", e.text);
        assert_int_equal(ids[0], first + 1);
        assert_true(n < sizeof text / 3);
        char again[sizeof text + 64] = "";
        for (size_t i = 0; i < n; i++) {
            size_t bytes;
            const char *piece = tokenizer_id_bytes(t, ids[i], &bytes);
            strncat(again, piece, bytes);
        }
        assert_string_equal(again, text);
        free(ids);
        tokenizer_free(t);
        folder_remove(&f);
    }
}

static void test_folders(void **state) {
    (void)state;
    struct folder f = folder_create();
    struct synth_options o = {.shape = "qwen3.5-9b", .headers_only = true, .n_threads = 1};
    struct error e;
    char dir[100];
    snprintf(dir, sizeof dir, "%s/new", f.path);
    if (synth_write(dir, &o, &e)) fail_msg("%s", e.text);
    assert_int_equal(access(folder_file(&f, "new/model-00002-of-00002.safetensors"), F_OK), 0);
    o.shape = "tiny"; // replaced, and nothing of the larger shape is left
    if (synth_write(dir, &o, &e)) fail_msg("%s", e.text);
    assert_int_equal(access(folder_file(&f, "new/model-00002-of-00002.safetensors"), F_OK), -1);
    struct loaded l;
    load(dir, &l);
    assert_int_equal(checkpoint_n_files(l.checkpoint), 1);
    unload(&l);
    o.shape = "huge";
    assert_int_equal(synth_write(dir, &o, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, "there is no shape huge; there are tiny, tiny-moe, qwen3.5-0.8b"));
    assert_int_equal(access(folder_file(&f, "new/config.json"), F_OK), 0);
    o.shape = "tiny";
    assert_int_equal(synth_write(f.path, &o, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, f.path));
    assert_non_null(strstr(e.text, "holds something that synth did not make"));
    assert_int_equal(access(folder_file(&f, "config.json"), F_OK), -1);
    snprintf(dir, sizeof dir, "%s/a/b", f.path);
    assert_int_equal(synth_write(dir, &o, &e), STATUS_IO);
    assert_non_null(strstr(e.text, dir));
    folder_write_text(&f, "file", "x");
    snprintf(dir, sizeof dir, "%s/file", f.path);
    assert_int_equal(synth_write(dir, &o, &e), STATUS_IO);
    folder_remove(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),        cmocka_unit_test(test_drafters),  cmocka_unit_test(test_values),
        cmocka_unit_test(test_deterministic), cmocka_unit_test(test_tokenizer), cmocka_unit_test(test_folders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
