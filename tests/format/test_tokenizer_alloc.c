// Every allocation of loading, encoding and decoding fails once: no leak, nothing half done, and the sentence says why.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "base/mapped_file.h"
#include "format/detokenizer.h"
#include "format/tokenizer.h"
#include "tests/alloc_fail.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

// The smallest vocabulary there is, all bytes, two merges, and one added token of each kind.
static char *make_json(void) {
    json_t *vocab = json_object();
    int next = 0x100;
    for (int byte = 0; byte < 256; byte++) {
        bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
        int cp = printable ? byte : next++;
        char key[3] = {(char)cp};
        if (cp >= 0x80) {
            key[0] = (char)(0xc0 | cp >> 6);
            key[1] = (char)(0x80 | (cp & 0x3f));
        }
        json_object_set_new(vocab, key, json_integer(byte));
    }
    json_object_set_new(vocab, "ab", json_integer(256));
    json_object_set_new(vocab, "abc", json_integer(257));
    json_t *json = json_pack("{s:[{s:i,s:s,s:b},{s:i,s:s,s:b}], s:{s:s}, s:{s:s,s:[{s:s,s:{s:s},s:s},{s:s,s:b,s:b}]}, "
                             "s:{s:s,s:o,s:[s,[s,s]]}}",
                             "added_tokens", "id", 258, "content", "<x>", "special", 1, "id", 259, "content",
                             "e\xcc\x81>", "normalized", 1, "normalizer", "type", "NFC", "pre_tokenizer", "type",
                             "Sequence", "pretokenizers", "type", "Split", "pattern", "Regex", "\\s+|[^\\s]+",
                             "behavior", "Isolated", "type", "ByteLevel", "add_prefix_space", 0, "use_regex", 0,
                             "model", "type", "BPE", "vocab", vocab, "merges", "a b", "ab", "c");
    char *text = json ? json_dumps(json, 0) : NULL;
    json_decref(json);
    return text;
}

static const char config[] =
    "{\"added_tokens_decoder\": {\"260\": {\"content\": \"<y>\"}, \"258\": {\"content\": \"<x>\"}}}";

static void test_load(void **state) {
    (void)state;
    char *json = make_json();
    assert_non_null(json);
    for (long n = 1;; n++) {
        struct tokenizer *t = NULL;
        struct error e;
        alloc_fail_at(n);
        enum status status = tokenizer_load_memory("T", json, strlen(json), "C", config, sizeof config - 1, &t, &e);
        bool failed = alloc_failed();
        alloc_fail_off();
        if (status != (failed ? STATUS_MEMORY : STATUS_OK)) fail_msg("allocation %ld: %s", n, e.text);
        assert_true(failed == (t == NULL));
        tokenizer_free(t);
        if (!failed) break;
        assert_non_null(strstr(e.text, "memory"));
    }
    free(json);
}

static void test_encode_and_decode(void **state) {
    (void)state;
    char *json = make_json();
    struct tokenizer *t = NULL;
    assert_int_equal(tokenizer_load_memory("T", json, strlen(json), "C", config, sizeof config - 1, &t, NULL),
                     STATUS_OK);
    free(json);
    char typed[700] = "na\xc3\xafve ", *decoded = NULL;
    memset(typed + 7, 'q', sizeof typed - 7);
    struct text_span spans[] = {
        {"<x>e\xcc\x81>abc ", 11, true}, {typed, sizeof typed, false}, {"e\xcc\x81<y>", 6, true}};
    for (long n = 1;; n++) {
        int32_t *ids = NULL;
        size_t n_ids = 0, n_decoded = 0;
        alloc_fail_at(n);
        enum status status = tokenizer_encode_spans(t, spans, 3, &ids, &n_ids, NULL);
        bool failed = alloc_failed();
        if (!failed) {
            status = detokenizer_decode(t, ids, n_ids, false, &decoded, &n_decoded, NULL);
            failed = alloc_failed();
            alloc_fail_off();
            assert_int_equal(status, failed ? STATUS_MEMORY : STATUS_OK);
            assert_true(failed == (decoded == NULL));
            free(ids);
        } else {
            alloc_fail_off();
            assert_int_equal(status, STATUS_MEMORY);
            assert_null(ids);
        }
        if (!failed) break;
    }
    assert_memory_equal(decoded, "<x>e\xcc\x81>abc na\xc3\xafve qq", 20);
    free(decoded);
    tokenizer_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_encode_and_decode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
