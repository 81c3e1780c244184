// Reading tokenizer.json: every member that is understood, and one sentence for everything that is not.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "format/json.h"
#include "format/tokenizer.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SMALL         "tests/fixtures/tokenizer/small/tokenizer.json"
#define TEXT(literal) literal, sizeof literal - 1

static json_t *read_small(void) {
    json_t *json = NULL;
    assert_int_equal(json_parse_file(SMALL, SIZE_MAX, JSON_PARSE_DEFAULT, &json, NULL), STATUS_OK);
    return json;
}

// Puts value, a JSON text, where the pointer says; NULL removes what is there; at the end of an array it is appended.
static void put(json_t *json, const char *pointer, const char *value) {
    char key[64];
    for (;;) {
        size_t n = strcspn(++pointer, "/");
        assert_true(n < sizeof key);
        memcpy(key, pointer, n);
        key[n] = '\0';
        pointer += n;
        if (!*pointer) break;
        json = json_is_array(json) ? json_array_get(json, (size_t)atoi(key)) : json_object_get(json, key);
        assert_non_null(json);
    }
    json_t *parsed = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    assert_true(!value || parsed);
    size_t index = (size_t)atoi(key);
    if (!value)
        assert_int_equal(json_is_array(json) ? json_array_remove(json, index) : json_object_del(json, key), 0);
    else if (!json_is_array(json))
        json_object_set_new(json, key, parsed);
    else if (index < json_array_size(json))
        json_array_set_new(json, index, parsed);
    else
        json_array_append_new(json, parsed);
}

static enum status load(const json_t *json, const char *config, struct tokenizer **out, struct error *e) {
    char *text = json_dumps(json, JSON_COMPACT);
    enum status status =
        tokenizer_load_memory("T", text, strlen(text), "C", config, config ? strlen(config) : 0, out, e);
    free(text);
    return status;
}

struct change {
    const char *pointer, *value; // put into the small tokenizer
    const char *sentence;        // how the error must begin, after "T: "; NULL: it must load
    enum status status;
};

static void check_change(const struct change *c) {
    json_t *json = read_small();
    struct tokenizer *t = NULL;
    struct error e = {0};
    put(json, c->pointer, c->value);
    enum status status = load(json, NULL, &t, &e);
    if (status != (c->sentence ? c->status : STATUS_OK))
        fail_msg("%s: %s: %d, %s", c->pointer, c->value, status, e.text);
    if (c->sentence) {
        assert_null(t);
        if (strncmp(e.text, "T: ", 3) || strncmp(e.text + 3, c->sentence, strlen(c->sentence)))
            fail_msg("%s: %s gives \"%s\", not \"%s\"", c->pointer, c->value, e.text, c->sentence);
    }
    tokenizer_free(t);
    json_decref(json);
}

static void test_accepted(void **state) {
    (void)state;
    static const struct change changes[] = {
        {"/truncation", "{\"max_length\": 5}", NULL, 0},
        {"/padding", "{\"pad_id\": 0}", NULL, 0},
        {"/normalizer", "null", NULL, 0},
        {"/normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}]}", NULL, 0},
        {"/post_processor", "null", NULL, 0},
        {"/post_processor", NULL, NULL, 0},
        {"/post_processor", "{\"type\": \"Sequence\", \"processors\": [{\"type\": \"ByteLevel\"}]}", NULL, 0},
        {"/decoder", "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"ByteLevel\"}]}", NULL, 0},
        {"/pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}", NULL, 0},
        {"/pre_tokenizer/pretokenizers/0/pattern", "{\"String\": \" \"}", NULL, 0},
        {"/pre_tokenizer/pretokenizers/1",
         "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"ByteLevel\", \"use_regex\": false}]}", NULL, 0},
        {"/model/type", NULL, NULL, 0},
        {"/model/dropout", "0.0", NULL, 0},
        {"/model/unk_token", "\"\"", NULL, 0},
        {"/model/continuing_subword_prefix", "\"\"", NULL, 0},
        {"/model/fuse_unk", "true", NULL, 0},
        {"/model/ignore_merges", "true", NULL, 0},
        {"/model/merges", "[\"a t\", \"t e\"]", "/model/merges/1 gives a piece that is not in", STATUS_INVALID},
        {"/model/merges", "[]", NULL, 0},
        {"/added_tokens", NULL, NULL, 0},
        {"/added_tokens/0/normalized", "true", NULL, 0},
        {"/added_tokens/0/id", "16777215", NULL, 0}, // holes are allowed
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) check_change(&changes[i]);
}

static void test_refused_structure(void **state) {
    (void)state;
    static const struct change changes[] = {
        {"/extra", "1", "the top level has the member \"extra\", which is not known", STATUS_UNSUPPORTED},
        {"/normalizer", "{\"type\": \"NFKC\"}", "/normalizer/type is \"NFKC\", which is not supported",
         STATUS_UNSUPPORTED},
        {"/normalizer", "{\"type\": \"NFC\", \"x\": 1}", "/normalizer has the member \"x\"", STATUS_UNSUPPORTED},
        {"/normalizer", "[]", "/normalizer must be an object", STATUS_INVALID},
        {"/normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, {\"type\": \"Strip\"}]}",
         "/normalizer/normalizers/1/type is \"Strip\"", STATUS_UNSUPPORTED},
        {"/normalizer", "{\"type\": \"Sequence\", \"normalizers\": [null]}",
         "/normalizer/normalizers/0 must be an object", STATUS_INVALID},
        {"/pre_tokenizer", "null", "/pre_tokenizer does not end in ByteLevel", STATUS_UNSUPPORTED},
        {"/pre_tokenizer", "{\"type\": \"Metaspace\"}", "/pre_tokenizer does not end in ByteLevel", STATUS_UNSUPPORTED},
        {"/pre_tokenizer", "{\"type\": \"ByteLevel\", \"add_prefix_space\": true}",
         "/pre_tokenizer/add_prefix_space is true, which is not supported", STATUS_UNSUPPORTED},
        {"/pre_tokenizer/pretokenizers/0", "{\"type\": \"Digits\"}",
         "/pre_tokenizer/pretokenizers/0/type is \"Digits\"", STATUS_UNSUPPORTED},
        {"/pre_tokenizer/pretokenizers/0", "{\"type\": \"ByteLevel\"}",
         "/pre_tokenizer/pretokenizers/0/type is \"ByteLevel\"", STATUS_UNSUPPORTED},
        {"/pre_tokenizer/pretokenizers/0/behavior", "\"Removed\"",
         "/pre_tokenizer/pretokenizers/0/behavior is \"Removed\"; only", STATUS_UNSUPPORTED},
        {"/pre_tokenizer/pretokenizers/0/invert", "true", "/pre_tokenizer/pretokenizers/0/invert is true",
         STATUS_UNSUPPORTED},
        {"/pre_tokenizer/pretokenizers/0/pattern", "{\"Regex\": \"\\\\w\"}",
         "/pre_tokenizer/pretokenizers/0/pattern/Regex: the pattern has \"\\w\" at byte 0", STATUS_UNSUPPORTED},
        {"/pre_tokenizer/pretokenizers/0/pattern", "{}", "/pre_tokenizer/pretokenizers/0/pattern must have one member",
         STATUS_UNSUPPORTED},
        {"/post_processor", "{\"type\": \"TemplateProcessing\"}", "/post_processor/type is \"TemplateProcessing\"",
         STATUS_UNSUPPORTED},
        {"/decoder", "{\"type\": \"WordPiece\"}", "/decoder/type is \"WordPiece\"", STATUS_UNSUPPORTED},
        {"/model", NULL, "/model is missing", STATUS_INVALID},
        {"/model/type", "\"Unigram\"", "/model/type is \"Unigram\"; only \"BPE\" is supported", STATUS_UNSUPPORTED},
        {"/model/dropout", "0.1", "/model/dropout is not null", STATUS_UNSUPPORTED},
        {"/model/dropout", "true", "/model/dropout is not null", STATUS_UNSUPPORTED},
        {"/model/unk_token", "\"<unk>\"", "/model/unk_token is given, which is not supported", STATUS_UNSUPPORTED},
        {"/model/continuing_subword_prefix", "\"##\"", "/model/continuing_subword_prefix is given", STATUS_UNSUPPORTED},
        {"/model/end_of_word_suffix", "\"</w>\"", "/model/end_of_word_suffix is given", STATUS_UNSUPPORTED},
        {"/model/byte_fallback", "true", "/model/byte_fallback is true", STATUS_UNSUPPORTED},
        {"/model/more", "1", "/model has the member \"more\"", STATUS_UNSUPPORTED},
        {"/model/ignore_merges", "1", "/model/ignore_merges must be", STATUS_INVALID},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) check_change(&changes[i]);
}

static void test_refused_tables(void **state) {
    (void)state;
    static const struct change changes[] = {
        {"/model/vocab", NULL, "/model/vocab is missing", STATUS_INVALID},
        {"/model/vocab", "[]", "/model/vocab must be an object", STATUS_INVALID},
        {"/model/vocab", "{}", "/model/vocab has no piece for the byte 0x00", STATUS_INVALID},
        {"/model/vocab/a", NULL, "/model/vocab has no piece for the byte 0x61", STATUS_INVALID},
        {"/model/vocab/new", "-1", "/model/vocab: the id of \"new\" must be an integer from 0 to 16777215",
         STATUS_INVALID},
        {"/model/vocab/new", "16777216", "/model/vocab: the id of \"new\" must be an integer", STATUS_INVALID},
        {"/model/vocab/new", "1.5", "/model/vocab: the id of \"new\" must be an integer", STATUS_INVALID},
        {"/model/vocab/new", "0", "/model/vocab: the piece \"new\" has the id of another piece", STATUS_INVALID},
        {"/model/vocab/new", "1000", "/model/vocab: the piece \"new\" has the id of an added token", STATUS_INVALID},
        {"/model/vocab/", "2000", "/model/vocab: the piece \"\" is not of the byte-level alphabet", STATUS_INVALID},
        {"/model/vocab/a b", "2000", "/model/vocab: the piece \"a b\" is not of the byte-level", STATUS_INVALID},
        {"/model/vocab/\xc5\x84", "2000", "/model/vocab: the piece \"\xc5\x84\" is not of the", STATUS_INVALID},
        {"/model/vocab/\xe4\xb8\xad", "2000", "/model/vocab: the piece \"\xe4\xb8\xad\" is not of", STATUS_INVALID},
        {"/model/vocab/<|im_end|>", "5000", "/model/vocab: the piece \"<|im_end|>\" is also an added", STATUS_INVALID},
        {"/model/merges", NULL, "/model/merges is missing", STATUS_INVALID},
        {"/model/merges/0", "\"a\"", "/model/merges/0 must be two pieces", STATUS_INVALID},
        {"/model/merges/0", "\"a b c\"", "/model/merges/0 must be two pieces", STATUS_INVALID},
        {"/model/merges/0", "[\"a\"]", "/model/merges/0 must be two pieces", STATUS_INVALID},
        {"/model/merges/0", "[\"a\", 1]", "/model/merges/0 must be two pieces", STATUS_INVALID},
        {"/model/merges/0", "7", "/model/merges/0 must be two pieces", STATUS_INVALID},
        {"/model/merges/3", "[\"a\", \"\"]", "/model/merges/3: the piece \"\" is not in /model/vocab", STATUS_INVALID},
        {"/model/merges/3", "\" a\"", "/model/merges/3: the piece \" a\" is not in /model/vocab", STATUS_INVALID},
        {"/model/merges/3", "[\"a\", \"zqzq\"]", "/model/merges/3: the piece \"zqzq\" is not in", STATUS_INVALID},
        {"/model/merges/3", "[\"a\", \"\xe4\xb8\xad\"]", "/model/merges/3: the piece", STATUS_INVALID},
        {"/model/merges/3", "[\"!\", \"Q\"]", "/model/merges/3 gives a piece that is not in", STATUS_INVALID},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) check_change(&changes[i]);
}

static void test_refused_added_tokens(void **state) {
    (void)state;
    static const struct change changes[] = {
        {"/added_tokens", "{}", "/added_tokens must be an array", STATUS_INVALID},
        {"/added_tokens/2", "null", "/added_tokens/2 must be an object", STATUS_INVALID},
        {"/added_tokens/2/id", NULL, "/added_tokens/2/id is missing", STATUS_INVALID},
        {"/added_tokens/2/id", "-1", "/added_tokens/2/id must be an integer", STATUS_INVALID},
        {"/added_tokens/2/id", "16777216", "/added_tokens/2/id must be an integer", STATUS_INVALID},
        {"/added_tokens/2/id", "1001", "two added tokens have the id 1001", STATUS_INVALID},
        {"/added_tokens/2/id", "5", "/model/vocab: the piece ", STATUS_INVALID},
        {"/added_tokens/2/content", NULL, "/added_tokens/2/content is missing", STATUS_INVALID},
        {"/added_tokens/2/content", "\"\"", "/added_tokens/2: the added token with id 1002 has no text",
         STATUS_INVALID},
        {"/added_tokens/2/content", "\"<|im_start|>\"", "the added tokens with ids 1001 and 1002", STATUS_INVALID},
        {"/added_tokens/2/content", "\"a\"", "/model/vocab: the piece \"a\" is also an added token", STATUS_INVALID},
        {"/added_tokens/2/lstrip", "true", "/added_tokens/2/lstrip is true, which is not supported",
         STATUS_UNSUPPORTED},
        {"/added_tokens/2/rstrip", "true", "/added_tokens/2/rstrip is true", STATUS_UNSUPPORTED},
        {"/added_tokens/2/single_word", "true", "/added_tokens/2/single_word is true", STATUS_UNSUPPORTED},
        {"/added_tokens/2/special", "\"yes\"", "/added_tokens/2/special must be", STATUS_INVALID},
        {"/added_tokens/2/other", "1", "/added_tokens/2 has the member \"other\"", STATUS_UNSUPPORTED},
    };
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) check_change(&changes[i]);
}

// A piece that is an added token too is that token only: merges cannot build it, and plain text never becomes it.
static void test_added_piece(void **state) {
    (void)state;
    json_t *json = read_small();
    put(json, "/model/vocab/<q", "1000");
    put(json, "/added_tokens/0/content", "\"<q\"");
    put(json, "/model/ignore_merges", "true");
    struct tokenizer *t = NULL;
    struct error e;
    assert_int_equal(load(json, NULL, &t, &e), STATUS_OK);
    int32_t *ids;
    size_t n;
    assert_int_equal(tokenizer_encode(t, TEXT("<q"), false, &ids, &n, NULL), STATUS_OK);
    assert_int_equal(n, 2);
    free(ids);
    assert_int_equal(tokenizer_encode(t, TEXT("<q"), true, &ids, &n, NULL), STATUS_OK);
    assert_true(n == 1 && ids[0] == 1000);
    free(ids);
    tokenizer_free(t);
    put(json, "/model/merges/0", "[\"<\", \"q\"]");
    assert_int_equal(load(json, NULL, &t, &e), STATUS_INVALID);
    assert_string_equal(e.text, "T: /model/merges/0 gives a piece that is not in /model/vocab");
    json_decref(json);
}

// Tokens with "normalized" are found in the normalised text, and with NFC of their own text.
static void test_normalized_tokens(void **state) {
    (void)state;
    json_t *json = read_small();
    put(json, "/added_tokens/0/content", "\"e\xcc\x81>\"");
    put(json, "/added_tokens/0/normalized", "true");
    struct tokenizer *t = NULL;
    assert_int_equal(load(json, NULL, &t, NULL), STATUS_OK);
    static const struct {
        const char *text;
        bool found;
    } cases[] = {
        {"e\xcc\x81>", true},          {"x\xc3\xa9>y", true},
        {"e\xcc\x81>\xcc\xb8", false}, // > and U+0338 compose
        {"\xc3\xa9 >", false},         {"<|im_start|>\xc3\xa9><|im_end|>", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int32_t *ids;
        size_t n, n_found = 0;
        assert_int_equal(tokenizer_encode(t, cases[i].text, strlen(cases[i].text), true, &ids, &n, NULL), STATUS_OK);
        for (size_t k = 0; k < n; k++) n_found += ids[k] == 1000;
        assert_int_equal(n_found, cases[i].found);
        free(ids);
        assert_int_equal(tokenizer_encode(t, cases[i].text, strlen(cases[i].text), false, &ids, &n, NULL), STATUS_OK);
        for (size_t k = 0; k < n; k++) assert_false(tokenizer_is_added(t, ids[k]));
        free(ids);
    }
    assert_int_equal(tokenizer_find(t, TEXT("e\xcc\x81>")), 1000);
    tokenizer_free(t);
    json_decref(json);
}

static void test_config(void **state) {
    (void)state;
    static const struct {
        const char *config, *sentence;
        enum status status;
    } cases[] = {
        {"{}", NULL, 0},
        {"{\"added_tokens_decoder\": {}, \"other\": [1]}", NULL, 0},
        {"{\"added_tokens_decoder\": {\"1000\": {\"content\": \"<|endoftext|>\", \"special\": false}}}", NULL, 0},
        {"{\"added_tokens_decoder\": {\"3000\": {\"content\": \"<new>\", \"__type\": \"AddedToken\"}}}", NULL, 0},
        {"[]", "C: ", STATUS_INVALID},
        {"{", "C: ", STATUS_INVALID},
        {"{\"added_tokens_decoder\": []}", "C: /added_tokens_decoder must be an object", STATUS_INVALID},
        {"{\"added_tokens_decoder\": {\"x\": {}}}", "C: /added_tokens_decoder/x is not named by a token id",
         STATUS_INVALID},
        {"{\"added_tokens_decoder\": {\"-1\": {}}}", "C: /added_tokens_decoder/-1 is not named by", STATUS_INVALID},
        {"{\"added_tokens_decoder\": {\"01\": {}}}", "C: /added_tokens_decoder/01 is not named by", STATUS_INVALID},
        {"{\"added_tokens_decoder\": {\"16777216\": {}}}", "C: /added_tokens_decoder/16777216 is not", STATUS_INVALID},
        {"{\"added_tokens_decoder\": {\"9\": null}}", "C: /added_tokens_decoder/9 must be an object", STATUS_INVALID},
        {"{\"added_tokens_decoder\": {\"9\": {}}}", "C: /added_tokens_decoder/9/content is missing", STATUS_INVALID},
        {"{\"added_tokens_decoder\": {\"3000\": {\"content\": \"<n>\", \"lstrip\": true}}}",
         "C: /added_tokens_decoder/3000/lstrip is true", STATUS_UNSUPPORTED},
        {"{\"added_tokens_decoder\": {\"1000\": {\"content\": \"<n>\"}}}", "T: two added tokens have the id 1000",
         STATUS_INVALID},
        {"{\"added_tokens_decoder\": {\"3000\": {\"content\": \"<|im_end|>\"}}}",
         "T: the added tokens with ids 1002 and 3000 have the same text", STATUS_INVALID},
        {"{\"added_tokens_decoder\": {\"5\": {\"content\": \"<n>\"}}}", "T: /model/vocab: the piece", STATUS_INVALID},
    };
    json_t *json = read_small();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tokenizer *t = NULL;
        struct error e = {0};
        enum status status = load(json, cases[i].config, &t, &e);
        if (status != cases[i].status) fail_msg("%s gives %d: %s", cases[i].config, status, e.text);
        if (cases[i].sentence && strncmp(e.text, cases[i].sentence, strlen(cases[i].sentence)))
            fail_msg("%s gives \"%s\"", cases[i].config, e.text);
        if (t) assert_true(tokenizer_is_special(t, 1000)); // as tokenizer.json has it
        if (t && strstr(cases[i].config, "<new>")) {
            assert_int_equal(tokenizer_find(t, TEXT("<new>")), 3000);
            assert_int_equal(tokenizer_count_ids(t), 3001);
            assert_false(tokenizer_has_id(t, 2999));
        }
        tokenizer_free(t);
    }
    json_decref(json);
}

static void test_files(void **state) {
    (void)state;
    struct tokenizer *t = NULL;
    struct error e;
    assert_int_equal(tokenizer_load("tests/fixtures/tokenizer/none.json", NULL, &t, &e), STATUS_NOT_FOUND);
    assert_non_null(strstr(e.text, "tests/fixtures/tokenizer/none.json"));
    assert_int_equal(tokenizer_load(SMALL, "tests/fixtures/tokenizer/none.json", &t, &e), STATUS_NOT_FOUND);
    assert_int_equal(tokenizer_load(SMALL, SMALL, &t, &e), STATUS_OK); // it has no added_tokens_decoder
    tokenizer_free(t);
    t = NULL;
    static const char *const texts[] = {"",    "[]", "null", "{\"a\": 1, \"a\": 2}", "{\"model\": {\"type\": \"BPE\"",
                                        "\xff"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(tokenizer_load_memory("T", texts[i], strlen(texts[i]), NULL, NULL, 0, &t, &e), STATUS_INVALID);
        assert_int_equal(strncmp(e.text, "T: ", 3), 0);
        assert_int_equal(tokenizer_load_memory("T", texts[i], strlen(texts[i]), NULL, NULL, 0, &t, NULL),
                         STATUS_INVALID);
        assert_null(t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_accepted),       cmocka_unit_test(test_refused_structure),
        cmocka_unit_test(test_refused_tables), cmocka_unit_test(test_refused_added_tokens),
        cmocka_unit_test(test_added_piece),    cmocka_unit_test(test_normalized_tokens),
        cmocka_unit_test(test_config),         cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
