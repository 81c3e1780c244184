// What a hub says about a repository.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "hub/listing.h"
#include <stdio.h>
#include <string.h>

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define SHA256 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define CONFIG "{\"rfilename\":\"config.json\",\"size\":5,\"blobId\":\"" COMMIT "\"}"
#define BIG                                                                                                            \
    "{\"rfilename\":\"a.safetensors\",\"size\":9,\"blobId\":\"x\",\"lfs\":{\"sha256\":\"" SHA256 "\",\"size\":9}}"

static enum status read_files(const char *files, struct hub_listing *l, struct error *e) {
    static char text[8192];
    snprintf(text, sizeof text, "{\"sha\":\"" COMMIT "\",\"siblings\":[%s]}", files);
    return hub_listing_read(text, strlen(text), l, e);
}

static void test_good(void **state) {
    (void)state;
    struct hub_listing l;
    struct error e;
    assert_int_equal(read_files(BIG "," CONFIG ",{\"rfilename\":\"x.bin\"},{\"rfilename\":\"d/config.json\"}", &l, &e),
                     STATUS_OK);
    assert_string_equal(l.commit, COMMIT);
    assert_int_equal(l.n_files, 2);
    assert_int_equal(l.total_bytes, 14);
    assert_string_equal(l.files[0].name, "config.json"); // the smaller one first
    assert_false(l.files[0].sha256);
    assert_true(l.files[1].sha256);
    assert_string_equal(l.files[1].digest, SHA256);
    hub_listing_free(&l);
    hub_listing_free(&l); // twice is fine
}

static void test_bad(void **state) {
    (void)state;
    static const char *const files[] = {
        "",
        CONFIG,
        BIG,
        "null",
        "7",
        CONFIG "," CONFIG "," BIG,
        CONFIG "," BIG ",{\"rfilename\":\"../x.json\",\"size\":1,\"blobId\":\"" COMMIT "\"}",
        CONFIG "," BIG ",{\"rfilename\":\"/x\"}",
        CONFIG "," BIG ",{}",
        CONFIG "," BIG ",{\"rfilename\":\"x.json\",\"size\":-1,\"blobId\":\"" COMMIT "\"}",
        CONFIG "," BIG ",{\"rfilename\":\"x.json\",\"size\":1}",
        CONFIG "," BIG ",{\"rfilename\":\"x.json\",\"blobId\":\"" COMMIT "\"}",
        CONFIG "," BIG ",{\"rfilename\":\"x.json\",\"size\":1,\"blobId\":\"" SHA256 "\"}",
        CONFIG "," BIG ",{\"rfilename\":\"x.json\",\"size\":1,\"lfs\":{}}",
        CONFIG "," BIG ",{\"rfilename\":\"x.json\",\"size\":1,\"lfs\":{\"sha256\":\"" COMMIT "\"}}",
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct hub_listing l;
        struct error e = {0};
        if (read_files(files[i], &l, &e) == STATUS_OK) fail_msg("accepted: %s", files[i]);
        assert_true(strlen(e.text) > 10);
    }
    static const char *const texts[] = {"", "[]", "{}", "{\"sha\":\"main\",\"siblings\":[]}",
                                        "{\"sha\":\"" COMMIT "\"}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct hub_listing l;
        struct error e;
        assert_int_not_equal(hub_listing_read(texts[i], strlen(texts[i]), &l, &e), STATUS_OK);
    }
}

static void test_wants(void **state) {
    (void)state;
    assert_true(hub_listing_wants("model-00001-of-00002.safetensors"));
    assert_true(hub_listing_wants("tokenizer.json"));
    assert_true(hub_listing_wants("chat_template.jinja"));
    assert_true(hub_listing_wants("merges.txt"));
    assert_false(hub_listing_wants("README.md"));
    assert_false(hub_listing_wants("pytorch_model.bin"));
    assert_false(hub_listing_wants("original/params.json"));
    assert_false(hub_listing_wants(".json"));
    assert_false(hub_listing_wants("model.gguf"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_wants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
