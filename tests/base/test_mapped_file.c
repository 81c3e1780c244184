#include "base/mapped_file.h"
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static char folder[] = "/tmp/test_mapped_file.XXXXXX";
static char path[64];

static int make_folder(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/file", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static void write_file(const void *data, size_t n) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    fclose(f);
}

static void test_map(void **state) {
    (void)state;
    char data[10000];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (char)(i * 7);
    write_file(data, sizeof data);
    struct mapped_file file;
    struct error e;
    assert_int_equal(mapped_file_open(path, &file, &e), STATUS_OK);
    assert_int_equal(file.size, sizeof data);
    assert_memory_equal(file.data, data, sizeof data);
    assert_int_equal(mapped_file_check(&file, path, &e), STATUS_OK);
    assert_int_equal(truncate(path, 9999), 0);
    assert_int_equal(mapped_file_check(&file, path, &e), STATUS_IO);
    assert_non_null(strstr(e.text, path));
    mapped_file_close(&file);
    assert_null(file.data);
    mapped_file_close(&file); // twice is fine, and so is a zeroed one
    assert_int_not_equal(fcntl(STDIN_FILENO, F_GETFD), -1);
}

static void test_empty(void **state) {
    (void)state;
    write_file("", 0);
    struct mapped_file file;
    struct error e;
    assert_int_equal(mapped_file_open(path, &file, &e), STATUS_OK);
    assert_null(file.data);
    assert_int_equal(file.size, 0);
    assert_int_equal(mapped_file_check(&file, path, &e), STATUS_OK);
    mapped_file_close(&file);
    char *data;
    size_t n;
    assert_int_equal(file_read(path, 10, &data, &n, &e), STATUS_OK);
    assert_int_equal(n, 0);
    assert_string_equal(data, "");
    free(data);
}

static void test_refusals(void **state) {
    (void)state;
    struct mapped_file file = {.size = 77};
    struct error e;
    unlink(path);
    assert_int_equal(mapped_file_open(path, &file, &e), STATUS_NOT_FOUND);
    assert_non_null(strstr(e.text, path));
    assert_int_equal(mapped_file_open(folder, &file, &e), STATUS_INVALID);
    assert_non_null(strstr(e.text, "folder"));
    assert_int_equal(mapped_file_open("/dev/null", &file, &e), STATUS_INVALID);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(mapped_file_open(path, &file, &e), STATUS_INVALID); // and does not wait for a writer
    unlink(path);
    assert_int_equal(file.size, 77); // outputs are set only on success
    char *data = NULL;
    size_t n;
    assert_int_equal(file_read(path, 10, &data, &n, &e), STATUS_NOT_FOUND);
    assert_int_equal(file_read(folder, 10, &data, &n, &e), STATUS_INVALID);
    assert_null(data);
}

static void test_read(void **state) {
    (void)state;
    char *text = malloc(50001);
    memset(text, 'q', 50000);
    text[50000] = '\0';
    write_file(text, 50000);
    struct error e;
    char *data = NULL;
    size_t n = 0;
    assert_int_equal(file_read(path, 49999, &data, &n, &e), STATUS_LIMIT);
    assert_non_null(strstr(e.text, path));
    assert_null(data);
    assert_int_equal(file_read(path, 50000, &data, &n, &e), STATUS_OK);
    assert_int_equal(n, 50000);
    assert_string_equal(data, text);
    free(data);
    free(text);
    // A file whose size the system gives as 0 is read to its end all the same.
    assert_int_equal(file_read("/proc/self/status", 1 << 20, &data, &n, &e), STATUS_OK);
    assert_non_null(strstr(data, "Name:"));
    free(data);
}

static void test_stdin_closed(void **state) {
    (void)state;
    write_file("abc", 3);
    int saved = dup(STDIN_FILENO);
    close(STDIN_FILENO);
    struct mapped_file file;
    struct error e;
    assert_int_equal(mapped_file_open(path, &file, &e), STATUS_OK);
    assert_true(file.fd > 0);
    mapped_file_close(&file);
    dup2(saved, STDIN_FILENO);
    close(saved);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_map),  cmocka_unit_test(test_empty),        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_read), cmocka_unit_test(test_stdin_closed),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
