#include "format/safetensors.h"

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

#define N_OF(a) (sizeof(a) / sizeof *(a))

// A file in memory of exactly its size: length field, header, n_data bytes.
static unsigned char *make(const char *header, size_t n_data, size_t *n) {
    size_t length = strlen(header);
    *n = 8 + length + n_data;
    unsigned char *bytes = calloc(*n, 1);
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)((uint64_t)length >> (8 * i));
    memcpy(bytes + 8, header, length);
    for (size_t i = 0; i < n_data; i++) bytes[8 + length + i] = (unsigned char)i;
    return bytes;
}

#define ENTRY(name, dtype, shape, first, last)                                                                         \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":[" shape "],\"data_offsets\":[" #first "," #last "]}"

static const struct {
    const char *header;
    size_t n_data;
    enum status status;
    const char *sentence;
} refusals[] = {
    {"", 0, STATUS_INVALID, "not a JSON object"},
    {"[]", 0, STATUS_INVALID, "not a JSON object"},
    {"{", 0, STATUS_INVALID, "malformed"},
    {"{}x", 0, STATUS_INVALID, "text after"},
    {"{} {}", 0, STATUS_INVALID, "text after"},
    {"{\"a\"", 0, STATUS_INVALID, "malformed"},
    {"{\"a\":", 0, STATUS_INVALID, "entry of a"},
    {"{\"a\":5}", 0, STATUS_INVALID, "entry of a is not an object"},
    {"{\"a\":{}}", 0, STATUS_INVALID, "entry of a is malformed"},
    {"{\"a\":{\"dtype\":\"U8\"}}", 0, STATUS_INVALID, "a lacks dtype, shape or data_offsets"},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, STATUS_INVALID, "a lacks"},
    {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,1]}}", 1, STATUS_INVALID, "bad \"dtype\""},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":1,\"data_offsets\":[0,1]}}", 1, STATUS_INVALID, "bad \"shape\""},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[-1],\"data_offsets\":[0,1]}}", 1, STATUS_INVALID, "bad \"shape\""},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1.0],\"data_offsets\":[0,1]}}", 1, STATUS_INVALID, "bad \"shape\""},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[01],\"data_offsets\":[0,1]}}", 1, STATUS_INVALID, "bad \"shape\""},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[9223372036854775808],\"data_offsets\":[0,1]}}", 1, STATUS_INVALID,
     "bad \"shape\""},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,1]}}", 1, STATUS_INVALID,
     "bad \"shape\""},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1,],\"data_offsets\":[0,1]}}", 1, STATUS_INVALID, "bad \"shape\""},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0]}}", 1, STATUS_INVALID, "bad \"data_offsets\""},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, STATUS_INVALID, "bad \"data_offsets\""},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,0]}}", 1, STATUS_INVALID, "bad \"data_offsets\""},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,99999999999999999999]}}", 1, STATUS_INVALID,
     "bad \"data_offsets\""},
    {"{\"a\":{\"dtype\":\"U8\",\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, STATUS_INVALID,
     "bad \"dtype\""},
    {"{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1],\"more\":1}}", 1, STATUS_INVALID, "bad \"more\""},
    {"{" ENTRY("a", "Q4", "1", 0, 1) "}", 1, STATUS_UNSUPPORTED, "tensor a has an unknown dtype"},
    {"{" ENTRY("a", "U8", "2", 0, 1) "}", 1, STATUS_INVALID,
     "tensor a of shape U8 [2] needs 2 bytes, but its data_offsets give it 1"},
    {"{" ENTRY("a", "F32", "2,3", 0, 23) "}", 23, STATUS_INVALID, "needs 24 bytes"},
    {"{" ENTRY("a", "F32", "4611686018427387904", 0, 0) "}", 0, STATUS_INVALID, "impossible shape"},
    {"{" ENTRY("a", "U8", "4294967296,4294967296", 0, 0) "}", 0, STATUS_INVALID, "impossible shape"},
    {"{" ENTRY("a", "U8", "1", 1, 2) "}", 2, STATUS_INVALID,
     "a begins at data byte 1, but the bytes before it end at 0"},
    {"{" ENTRY("a", "U8", "2", 0, 2) "," ENTRY("b", "U8", "2", 1, 3) "}", 3, STATUS_INVALID, "b begins at data byte 1"},
    {"{" ENTRY("a", "U8", "2", 0, 2) "," ENTRY("b", "U8", "2", 0, 2) "}", 2, STATUS_INVALID, "b begins at data byte 0"},
    {"{" ENTRY("a", "U8", "1", 0, 1) "," ENTRY("b", "U8", "1", 2, 3) "}", 3, STATUS_INVALID, "b begins at data byte 2"},
    {"{" ENTRY("a", "U8", "1", 0, 1) "," ENTRY("a", "U8", "1", 1, 2) "}", 2, STATUS_INVALID, "a is described twice"},
    {"{" ENTRY("a", "U8", "4", 0, 4) "}", 3, STATUS_INVALID, "has 64 bytes but its header describes 65"},
    {"{" ENTRY("a", "U8", "4", 0, 4) "}", 5, STATUS_INVALID, "has 66 bytes but its header describes 65"},
    {"{\"a\\u0062\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, STATUS_INVALID, "escapes"},
    {"{\"__metadata__\":5}", 0, STATUS_INVALID, "__metadata__"},
    {"{\"__metadata__\":{\"a\":5}}", 0, STATUS_INVALID, "__metadata__"},
    {"{\"__metadata__\":{\"a\":\"b\",}}", 0, STATUS_INVALID, "__metadata__"},
    {"{\"__metadata__\":{\"a\":\"b", 0, STATUS_INVALID, "__metadata__"},
    {"{\"__metadata__\":{\"a\":\"b\\", 0, STATUS_INVALID, "__metadata__"},
};

static void test_refusals(void **state) {
    (void)state;
    for (size_t i = 0; i < N_OF(refusals); i++) {
        size_t n;
        unsigned char *bytes = make(refusals[i].header, refusals[i].n_data, &n);
        struct safetensors *out = NULL;
        struct error e;
        enum status status = safetensors_parse("dir/model.safetensors", bytes, n, &out, &e);
        if (status != refusals[i].status || !strstr(e.text, refusals[i].sentence))
            fail_msg("%s: %s, \"%s\" lacks \"%s\"", refusals[i].header, status_name(status), e.text,
                     refusals[i].sentence);
        assert_ptr_equal(strstr(e.text, "dir/model.safetensors: "), e.text);
        assert_null(out);
        free(bytes);
    }
}

static void test_lengths(void **state) {
    (void)state;
    static const struct {
        unsigned char bytes[16];
        size_t n;
        enum status status;
        const char *sentence;
    } cases[] = {
        {{0}, 0, STATUS_INVALID, "has 0 bytes but a header needs at least 8"},
        {{2}, 7, STATUS_INVALID, "has 7 bytes"},
        {{3, 0, 0, 0, 0, 0, 0, 0, '{', '}'}, 10, STATUS_INVALID, "has 10 bytes but its header alone needs 11"},
        {{0, 0xe1, 0xf5, 0x05, 0, 0, 0, 0, '{', '}'}, 10, STATUS_INVALID, "header alone needs 100000008"},
        {{1, 0xe1, 0xf5, 0x05, 0, 0, 0, 0, '{', '}'}, 10, STATUS_LIMIT, "100000001 bytes"},
        {{255, 255, 255, 255, 255, 255, 255, 255, '{', '}'}, 10, STATUS_LIMIT, "18446744073709551615 bytes"},
    };
    struct error e;
    struct safetensors *out = NULL;
    for (size_t i = 0; i < N_OF(cases); i++) {
        unsigned char *exact = malloc(cases[i].n ? cases[i].n : 1);
        memcpy(exact, cases[i].bytes, cases[i].n);
        assert_int_equal(safetensors_parse("f", exact, cases[i].n, &out, &e), cases[i].status);
        if (!strstr(e.text, cases[i].sentence)) fail_msg("\"%s\" lacks \"%s\"", e.text, cases[i].sentence);
        free(exact);
    }
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
    assert_int_equal(safetensors_parse("f", (const unsigned char *)pointer, sizeof pointer - 1, &out, &e),
                     STATUS_INVALID);
    assert_non_null(strstr(e.text, "git lfs pull"));
}

static void test_accepted(void **state) {
    (void)state;
    size_t n;
    unsigned char *bytes =
        make(" { \"__metadata__\" : {\"x\":\"a\\\"b\\\\\", \"format\":\"mlx\"} , \n" ENTRY(
                 "late", "BF16", "2, 3", 4, 16) ", " ENTRY("scalar", "F32", "", 0,
                                                           4) "," ENTRY("empty", "I64", "0,4294967296,4294967296", 16,
                                                                        16) "}   ",
             16, &n);
    struct safetensors *s = NULL;
    struct error e;
    assert_int_equal(safetensors_parse("f", bytes, n, &s, &e), STATUS_OK);
    assert_string_equal(safetensors_format(s), "mlx");
    assert_int_equal(safetensors_count(s), 3);
    assert_int_equal(safetensors_file_bytes(s), n);
    const struct safetensors_tensor *t = safetensors_tensor_at(s, 0);
    assert_string_equal(t->name, "scalar");
    assert_int_equal(t->n_dims, 0);
    assert_int_equal(t->bytes, 4);
    t = safetensors_tensor_at(s, 1);
    assert_string_equal(t->name, "late");
    assert_string_equal(t->file, "f");
    assert_int_equal(t->type, SAFETENSORS_BF16);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->shape[0], 2);
    assert_int_equal(t->shape[1], 3);
    assert_ptr_equal(t->data, bytes + n - 12);
    assert_int_equal(t->data[0], 4);
    char text[64];
    assert_string_equal(safetensors_shape_text(t, text, sizeof text), "[2, 3]");
    assert_string_equal(safetensors_shape_text(safetensors_tensor_at(s, 0), text, sizeof text), "[]");
    safetensors_free(s);
    free(bytes);
    bytes = make("{}", 0, &n);
    assert_int_equal(safetensors_parse("f", bytes, n, &s, &e), STATUS_OK);
    assert_int_equal(safetensors_count(s), 0);
    assert_string_equal(safetensors_format(s), "");
    safetensors_free(s);
    free(bytes);
}

// C93: a shard shorter or longer than its header says, and one that shrinks after it was opened.
static void test_truncated(void **state) {
    (void)state;
    struct folder f = folder_create();
    folder_write_safetensors(
        &f, "m", "{" ENTRY("a", "U8", "10000", 0, 10000) "," ENTRY("b", "U8", "100", 10000, 10100) "}", 10100);
    const char *path = folder_file(&f, "m");
    struct safetensors *s = NULL;
    struct error e;
    assert_int_equal(safetensors_open(path, &s, &e), STATUS_OK);
    off_t full = (off_t)safetensors_file_bytes(s);
    assert_int_equal(safetensors_check(s, &e), STATUS_OK);
    assert_int_equal(safetensors_prefetch(s, 0, SIZE_MAX, &e), STATUS_OK);
    assert_int_equal(safetensors_prefetch(s, (size_t)full, 1, &e), STATUS_OK);
    const off_t cuts[] = {full - 1, full - 4096, full - 100, full - 10100, 20, 8, 7, 0};
    for (size_t i = 0; i < N_OF(cuts); i++) {
        assert_int_equal(truncate(path, cuts[i]), 0);
        struct safetensors *cut = NULL;
        assert_int_equal(safetensors_open(path, &cut, &e), STATUS_INVALID);
        char actual[32], expected[32];
        snprintf(actual, sizeof actual, "%ld bytes", (long)cuts[i]);
        snprintf(expected, sizeof expected, "%ld", (long)full);
        assert_non_null(strstr(e.text, path));
        assert_non_null(strstr(e.text, actual));
        if (cuts[i] > 1000) assert_non_null(strstr(e.text, expected));
        assert_null(cut);
        assert_int_equal(safetensors_check(s, &e), STATUS_IO);
        assert_int_equal(safetensors_prefetch(s, 0, SIZE_MAX, &e), STATUS_IO);
    }
    safetensors_free(s);
    folder_remove(&f);
    assert_int_equal(safetensors_open(path, &s, &e), STATUS_NOT_FOUND);
    assert_int_equal(safetensors_open("/tmp", &s, &e), STATUS_INVALID);
}

static void test_writer(void **state) {
    (void)state;
    static const struct safetensors_entry entries[] = {
        {"first", SAFETENSORS_F32, 2, {3, 2}},
        {"second", SAFETENSORS_BF16, 1, {5}},
        {"third", SAFETENSORS_U32, 3, {1, 2, 2}},
    };
    struct folder f = folder_create();
    const char *path = folder_file(&f, "w.safetensors");
    struct safetensors_writer *w = NULL;
    struct error e;
    assert_int_equal(safetensors_writer_create(path, entries, 1, "pt", &w, &e), STATUS_OK);
    safetensors_writer_abandon(w);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(access(folder_file(&f, "w.safetensors.part"), F_OK), -1);
    for (int sparse = 0; sparse < 2; sparse++) {
        assert_int_equal(safetensors_writer_create(path, entries, 3, sparse ? NULL : "pt", &w, &e), STATUS_OK);
        const float numbers[] = {1, 2, 3, 4, 5, 6};
        const uint32_t words[] = {7, 8, 9, 10};
        if (!sparse) {
            assert_int_equal(safetensors_writer_write(w, 2, 8, words + 2, 8, &e), STATUS_OK);
            assert_int_equal(safetensors_writer_write(w, 2, 0, words, 8, &e), STATUS_OK);
            assert_int_equal(safetensors_writer_write(w, 0, 0, numbers, sizeof numbers, &e), STATUS_OK);
        }
        assert_int_equal(safetensors_writer_finish(w, &e), STATUS_OK);
        struct safetensors *s = NULL;
        assert_int_equal(safetensors_open(path, &s, &e), STATUS_OK);
        assert_string_equal(safetensors_format(s), sparse ? "" : "pt");
        assert_int_equal(safetensors_count(s), 3);
        uint64_t bytes;
        assert_int_equal(safetensors_size(entries, 3, sparse ? NULL : "pt", &bytes, &e), STATUS_OK);
        assert_int_equal(bytes, safetensors_file_bytes(s));
        static const unsigned char zeros[32];
        assert_memory_equal(safetensors_tensor_at(s, 0)->data, sparse ? (const void *)zeros : numbers, sizeof numbers);
        assert_memory_equal(safetensors_tensor_at(s, 1)->data, zeros, 10);
        assert_memory_equal(safetensors_tensor_at(s, 2)->data, sparse ? (const void *)zeros : words, sizeof words);
        assert_int_equal((uintptr_t)safetensors_tensor_at(s, 0)->data % 64, 0);
        for (size_t i = 0; i < 3; i++) {
            const struct safetensors_tensor *t = safetensors_tensor_at(s, i);
            assert_string_equal(t->name, entries[i].name);
            assert_int_equal(t->n_dims, entries[i].n_dims);
            assert_memory_equal(t->shape, entries[i].shape, sizeof t->shape);
        }
        safetensors_free(s);
    }
    struct safetensors_entry huge = {"h", SAFETENSORS_F64, 2, {(int64_t)1 << 40, (int64_t)1 << 40}};
    assert_int_equal(safetensors_writer_create(path, &huge, 1, NULL, &w, &e), STATUS_LIMIT);
    remove(path);
    huge.shape[0] = (int64_t)1 << 19;
    assert_int_equal(safetensors_writer_create(path, &huge, 1, NULL, &w, &e), STATUS_LIMIT);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(safetensors_writer_create("/nowhere/x", entries, 3, NULL, &w, &e), STATUS_IO);
    folder_remove(&f);
}

// What is at the path stays until the new file is whole, and what is no file stays in any case.
static void test_writer_spares(void **state) {
    (void)state;
    static const struct safetensors_entry entry = {"x", SAFETENSORS_F32, 1, {2}};
    struct folder f = folder_create();
    const char *path = folder_file(&f, "old");
    struct safetensors_writer *w = NULL;
    struct error e;
    FILE *old = fopen(path, "w");
    assert_non_null(old);
    fputs("precious", old);
    fclose(old);
    assert_int_equal(safetensors_writer_create(path, &entry, 1, "pt", &w, &e), STATUS_OK);
    safetensors_writer_abandon(w);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_size, 8);
    assert_int_equal(mkfifo(folder_file(&f, "pipe"), 0600), 0);
    assert_int_equal(safetensors_writer_create(folder_file(&f, "pipe"), &entry, 1, "pt", &w, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, "no regular file"));
    assert_int_equal(stat(folder_file(&f, "pipe"), &st), 0);
    assert_true(S_ISFIFO(st.st_mode));
    folder_remove(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),  cmocka_unit_test(test_lengths), cmocka_unit_test(test_accepted),
        cmocka_unit_test(test_truncated), cmocka_unit_test(test_writer),  cmocka_unit_test(test_writer_spares),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
