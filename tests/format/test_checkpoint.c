#include "format/checkpoint.h"

#include "tests/format/folder.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#define N_OF(a)      (sizeof(a) / sizeof *(a))
#define HEADER(name) "{\"" name "\":{\"dtype\":\"U8\",\"shape\":[100],\"data_offsets\":[0,100]}}"
#define HEADER_MLX(name)                                                                                               \
    "{\"__metadata__\":{\"format\":\"mlx\"},\"" name "\":{\"dtype\":\"U8\",\"shape\":[100],\"data_offsets\":[0,100]}}"
#define INDEX "model.safetensors.index.json"

static void write_sharded(const struct folder *f) {
    folder_write_text(f, "config.json", "{\"model_type\":\"x\"}");
    folder_write_text(f, INDEX,
                      "{\"metadata\":{},\"weight_map\":{\"b\":\"model-1.safetensors\",\"a\":\"model-2.safetensors\"}}");
    folder_write_safetensors(f, "model-1.safetensors", HEADER_MLX("b"), 100);
    folder_write_safetensors(f, "model-2.safetensors", HEADER("a"), 100);
}

static void test_single(void **state) {
    (void)state;
    struct folder f = folder_create();
    folder_write_text(&f, "config.json", "{\"model_type\":\"x\"}");
    folder_write_text(&f, "generation_config.json", "{\"top_k\":5}");
    folder_write_safetensors(&f, "model.safetensors", HEADER("w"), 100);
    struct checkpoint *c = NULL;
    struct error e;
    char with_slash[80];
    snprintf(with_slash, sizeof with_slash, "%s//", f.path);
    assert_int_equal(checkpoint_open(with_slash, &c, &e), STATUS_OK);
    assert_string_equal(checkpoint_folder(c), f.path);
    assert_int_equal(checkpoint_count(c), 1);
    assert_int_equal(checkpoint_n_files(c), 1);
    assert_string_equal(checkpoint_format(c), "");
    assert_string_equal(json_string_value(json_object_get(checkpoint_config(c), "model_type")), "x");
    assert_non_null(checkpoint_generation_config(c));
    assert_null(checkpoint_tokenizer_config(c));
    size_t i = 9;
    assert_true(checkpoint_find(c, "w", &i));
    assert_int_equal(i, 0);
    assert_false(checkpoint_find(c, "v", &i));
    assert_false(checkpoint_find(c, "", &i));
    checkpoint_free(c);
    folder_remove(&f);
}

struct seen {
    int calls, stop_at;
    uint64_t last, total;
};

static bool on_progress(void *context, uint64_t done, uint64_t total) {
    struct seen *seen = context;
    seen->calls++;
    assert_true(done > seen->last && done <= total);
    seen->last = done;
    seen->total = total;
    return seen->calls != seen->stop_at;
}

static void test_sharded(void **state) {
    (void)state;
    struct folder f = folder_create();
    write_sharded(&f);
    struct checkpoint *c = NULL;
    struct error e;
    assert_int_equal(checkpoint_open(f.path, &c, &e), STATUS_OK);
    assert_int_equal(checkpoint_count(c), 2);
    assert_int_equal(checkpoint_n_files(c), 2);
    assert_string_equal(checkpoint_format(c), "mlx");
    assert_string_equal(checkpoint_tensor_at(c, 0)->name, "a");
    assert_string_equal(checkpoint_tensor_at(c, 1)->file, folder_file(&f, "model-1.safetensors"));
    struct seen seen = {0};
    assert_int_equal(checkpoint_prefetch(c, on_progress, &seen, &e), STATUS_OK);
    assert_int_equal(seen.calls, 2);
    assert_int_equal(seen.last, checkpoint_bytes(c));
    seen = (struct seen){.stop_at = 1};
    assert_int_equal(checkpoint_prefetch(c, on_progress, &seen, &e), STATUS_CANCELLED);
    assert_int_equal(checkpoint_prefetch(c, NULL, NULL, &e), STATUS_OK);
    assert_int_equal(checkpoint_check(c, &e), STATUS_OK);
    // C93: a shard that shrinks after it was opened
    assert_int_equal(truncate(folder_file(&f, "model-2.safetensors"), 10), 0);
    assert_int_equal(checkpoint_check(c, &e), STATUS_IO);
    assert_non_null(strstr(e.text, "model-2.safetensors"));
    assert_int_equal(checkpoint_prefetch(c, NULL, NULL, &e), STATUS_IO);
    checkpoint_free(c);
    folder_remove(&f);
}

static void test_sidecar(void **state) {
    (void)state;
    struct folder f = folder_create();
    folder_write_safetensors(&f, "model.safetensors", HEADER("w"), 100);
    folder_write_safetensors(&f, "mtp.safetensors", HEADER("mtp.w"), 100);
    struct checkpoint *c = NULL;
    struct error e;
    static const struct {
        const char *config;
        enum status status;
        size_t n;
        const char *sentence;
    } cases[] = {
        {"{}", STATUS_OK, 1, ""},
        {"{\"mlx_lm_extra_tensors\":{\"mtp_file\":\"mtp.safetensors\"}}", STATUS_OK, 2, ""},
        {"{\"mlx_lm_extra_tensors\":{\"mtp_file\":\"model.safetensors\"}}", STATUS_OK, 1, ""},
        {"{\"mlx_lm_extra_tensors\":{\"mtp_file\":null}}", STATUS_OK, 1, ""},
        {"{\"mlx_lm_extra_tensors\":{}}", STATUS_OK, 1, ""},
        {"{\"mlx_lm_extra_tensors\":{\"mtp_file\":\"../mtp.safetensors\"}}", STATUS_INVALID, 0, "not the plain name"},
        {"{\"mlx_lm_extra_tensors\":{\"mtp_file\":5}}", STATUS_INVALID, 0,
         "config.json: /mlx_lm_extra_tensors/mtp_file must be a string"},
        {"{\"mlx_lm_extra_tensors\":5}", STATUS_INVALID, 0, "/mlx_lm_extra_tensors must be an object"},
        {"{\"mlx_lm_extra_tensors\":{\"mtp_file\":\"none.safetensors\"}}", STATUS_NOT_FOUND, 0, "none.safetensors"},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        folder_write_text(&f, "config.json", cases[i].config);
        c = NULL;
        e.text[0] = 0;
        assert_int_equal(checkpoint_open(f.path, &c, &e), cases[i].status);
        if (!strstr(e.text, cases[i].sentence)) fail_msg("\"%s\" lacks \"%s\"", e.text, cases[i].sentence);
        if (c) assert_int_equal(checkpoint_count(c), cases[i].n);
        checkpoint_free(c);
    }
    folder_remove(&f);
}

// Each row changes one file of a good sharded checkpoint.
static const struct {
    const char *file, *text; // text NULL: the file is removed
    enum status status;
    const char *sentence;
} refusals[] = {
    {"config.json", NULL, STATUS_NOT_FOUND, "/config.json: there is no such file"},
    {"config.json", "[]", STATUS_INVALID, "/config.json: the file must hold a JSON object"},
    {"config.json", "{\"a\":", STATUS_INVALID, "/config.json: the JSON text ends too early"},
    {"generation_config.json", "{", STATUS_INVALID, "/generation_config.json: "},
    {"generation_config.json", "3", STATUS_INVALID, "/generation_config.json: "},
    {"tokenizer_config.json", "[]", STATUS_INVALID, "/tokenizer_config.json: "},
    {INDEX, "{", STATUS_INVALID, "/" INDEX ": "},
    {INDEX, "{}", STATUS_INVALID, INDEX ": /weight_map is missing"},
    {INDEX, "{\"weight_map\":[]}", STATUS_INVALID, INDEX ": /weight_map must be an object, not an array"},
    {INDEX, "{\"weight_map\":{}}", STATUS_INVALID, INDEX ": /weight_map names no file"},
    {INDEX, "{\"weight_map\":{\"a\":5}}", STATUS_INVALID, INDEX ": /weight_map/a must be a string"},
    {INDEX, "{\"weight_map\":{\"a\":null}}", STATUS_INVALID, INDEX ": /weight_map/a must be a string"},
    {INDEX, "{\"weight_map\":{\"a\":\"../model-2.safetensors\"}}", STATUS_INVALID, "not the plain name"},
    {INDEX, "{\"weight_map\":{\"a\":\"/etc/passwd\"}}", STATUS_INVALID, "\"/etc/passwd\" is not the plain name"},
    {INDEX, "{\"weight_map\":{\"a\":\"..\"}}", STATUS_INVALID, "not the plain name"},
    {INDEX, "{\"weight_map\":{\"a\":\"\"}}", STATUS_INVALID, "not the plain name"},
    {INDEX, "{\"weight_map\":{\"a\":\"sub/model-2.safetensors\"}}", STATUS_INVALID, "not the plain name"},
    {INDEX, "{\"weight_map\":{\"a\":\"x\\\\y\"}}", STATUS_INVALID, "not the plain name"},
    {INDEX, "{\"weight_map\":{\"a\":\"model-3.safetensors\"}}", STATUS_NOT_FOUND,
     "/model-3.safetensors: there is no such file"},
    {INDEX, "{\"weight_map\":{\"a\":\"config.json\"}}", STATUS_LIMIT, "config.json: the header says"},
    {INDEX, "{\"weight_map\":{\"a\":\"folder\"}}", STATUS_INVALID, "folder"},
    {INDEX, "{\"weight_map\":{\"a\":\"model-1.safetensors\",\"b\":\"model-1.safetensors\"}}", STATUS_INVALID,
     "/model-1.safetensors: model.safetensors.index.json says that it holds tensor a, and it does not"},
    {INDEX,
     "{\"weight_map\":{\"a\":\"model-2.safetensors\",\"b\":\"model-1.safetensors\",\"c\":\"model-1.safetensors\"}}",
     STATUS_INVALID, "holds tensor c"},
    {INDEX, "{\"weight_map\":{\"a\":\"model-1.safetensors\",\"b\":\"model-2.safetensors\"}}", STATUS_INVALID,
     "holds tensor a"},
    {INDEX, "{\"weight_map\":{\"a\":\"inside\",\"b\":\"model-1.safetensors\"}}", STATUS_OK, ""},
    {INDEX, "{\"weight_map\":{\"a\":\"outside\",\"b\":\"model-1.safetensors\"}}", STATUS_INVALID,
     "/outside: is a link to a file outside"},
    {INDEX, "{\"weight_map\":{\"a\":\"dangling\"}}", STATUS_NOT_FOUND, "/dangling: there is no such file"},
    {INDEX, NULL, STATUS_NOT_FOUND, "has neither model.safetensors nor model.safetensors.index.json"},
    {"model-2.safetensors", NULL, STATUS_NOT_FOUND, "/model-2.safetensors: there is no such file"},
    {"model-2.safetensors", "", STATUS_INVALID, "/model-2.safetensors: the file has 0 bytes"},
};

static void test_refusals(void **state) {
    (void)state;
    struct folder other = folder_create();
    folder_write_safetensors(&other, "x", HEADER("a"), 100);
    for (size_t i = 0; i < N_OF(refusals); i++) {
        struct folder f = folder_create();
        write_sharded(&f);
        assert_int_equal(mkdir(folder_file(&f, "folder"), 0755), 0);
        assert_int_equal(symlink("model-2.safetensors", folder_file(&f, "inside")), 0);
        assert_int_equal(symlink(folder_file(&other, "x"), folder_file(&f, "outside")), 0);
        assert_int_equal(symlink("nothing", folder_file(&f, "dangling")), 0);
        if (refusals[i].text)
            folder_write_text(&f, refusals[i].file, refusals[i].text);
        else
            assert_int_equal(remove(folder_file(&f, refusals[i].file)), 0);
        struct checkpoint *c = NULL;
        struct error e = {0};
        enum status status = checkpoint_open(f.path, &c, &e);
        if (status != refusals[i].status || !strstr(e.text, refusals[i].sentence))
            fail_msg("row %zu: %s, \"%s\" lacks \"%s\"", i, status_name(status), e.text, refusals[i].sentence);
        if (status) assert_ptr_equal(strstr(e.text, f.path), e.text);
        if (status) assert_null(c);
        checkpoint_free(c);
        folder_remove(&f);
    }
    folder_remove(&other);
}

static void test_duplicate_across_shards(void **state) {
    (void)state;
    struct folder f = folder_create();
    write_sharded(&f);
    folder_write_safetensors(&f, "model-2.safetensors",
                             "{\"a\":{\"dtype\":\"U8\",\"shape\":[50],\"data_offsets\":[0,50]},"
                             "\"b\":{\"dtype\":\"U8\",\"shape\":[50],\"data_offsets\":[50,100]}}",
                             100);
    struct checkpoint *c = NULL;
    struct error e;
    assert_int_equal(checkpoint_open(f.path, &c, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, "tensor b is also in "));
    folder_remove(&f);
    assert_int_equal(checkpoint_open(f.path, &c, &e), STATUS_NOT_FOUND);
    assert_int_equal(checkpoint_open("/etc/passwd", &c, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, "is not a folder"));
}

// In a hub cache, snapshots/<revision>/ holds links into ../../blobs/: these may be followed, others still not.
static void test_hub_cache(void **state) {
    (void)state;
    struct folder f = folder_create();
    mkdir(folder_file(&f, "blobs"), 0755);
    mkdir(folder_file(&f, "snapshots"), 0755);
    mkdir(folder_file(&f, "snapshots/main"), 0755);
    folder_write_text(&f, "blobs/1", "{}");
    folder_write_safetensors(&f, "blobs/2", HEADER("w"), 100);
    folder_write_safetensors(&f, "elsewhere", HEADER("w"), 100);
    assert_int_equal(symlink("../../blobs/1", folder_file(&f, "snapshots/main/config.json")), 0);
    assert_int_equal(symlink("../../blobs/2", folder_file(&f, "snapshots/main/model.safetensors")), 0);
    struct checkpoint *c = NULL;
    struct error e;
    assert_int_equal(checkpoint_open(folder_file(&f, "snapshots/main"), &c, &e), STATUS_OK);
    checkpoint_free(c);
    remove(folder_file(&f, "snapshots/main/model.safetensors"));
    assert_int_equal(symlink("../../elsewhere", folder_file(&f, "snapshots/main/model.safetensors")), 0);
    assert_int_equal(checkpoint_open(folder_file(&f, "snapshots/main"), &c, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, "outside the folder"));
    folder_remove(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_single),
        cmocka_unit_test(test_sharded),
        cmocka_unit_test(test_sidecar),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_duplicate_across_shards),
        cmocka_unit_test(test_hub_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
