// The command line: what flags mean, and that every mistake ends with status 2 and one line.
#include "cli/commands.h"
#include "cli/options.h"
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define MAX_ARGS 32

// Parses a line of words; stderr goes to `said`.
static bool parse(enum verb verb, const char *line, struct options *o, int *exit_code, char *said, size_t n_said) {
    static char words[1024];
    static char *argv[MAX_ARGS + 1];
    int argc = 0, saved = dup(STDERR_FILENO), out[2];
    snprintf(words, sizeof words, "%s", line);
    for (char *w = strtok(words, " "); w != NULL && argc < MAX_ARGS; w = strtok(NULL, " ")) argv[argc++] = w;
    argv[argc] = NULL;
    assert_int_equal(pipe2(out, O_NONBLOCK), 0);
    dup2(out[1], STDERR_FILENO);
    bool ok = options_parse(verb, argc, argv, o, exit_code);
    fflush(stderr);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(out[1]);
    ssize_t n = read(out[0], said, n_said - 1);
    said[n > 0 ? n : 0] = 0;
    close(out[0]);
    return ok;
}

static void must_parse(enum verb verb, const char *line, struct options *o) {
    char said[1024];
    int code = -1;
    if (!parse(verb, line, o, &code, said, sizeof said)) fail_msg("\"%s\" was refused: %s", line, said);
    assert_string_equal(said, "");
}

static void must_refuse(enum verb verb, const char *line, const char *word) {
    struct options o;
    char said[1024];
    int code = -1;
    if (parse(verb, line, &o, &code, said, sizeof said)) fail_msg("\"%s\" was taken", line);
    assert_int_equal(code, EXIT_USAGE);
    if (strstr(said, word) == NULL) fail_msg("\"%s\": \"%s\" does not say \"%s\"", line, said, word);
    assert_ptr_equal(strchr(said, '\n'), said + strlen(said) - 1); // one line
}

static void test_defaults(void **state) {
    (void)state;
    struct options o;
    must_parse(VERB_SERVE, "serve", &o);
    assert_string_equal(o.host, "127.0.0.1");
    assert_int_equal(o.port, 8080);
    assert_int_equal(o.context, 0);
    assert_int_equal(o.parallel, 4);
    assert_int_equal(o.queue, 256);
    assert_true(o.decode_share == 0.25 && isnan(o.temperature) && isnan(o.top_p));
    struct engine_options e = options_for_engine(&o);
    assert_int_equal(e.parallel, 4);
    assert_int_equal(e.max_tokens, 8192);
    assert_int_equal(e.queue, 256);
    assert_int_equal(o.n_args, 0);
}

static void test_values(void **state) {
    (void)state;
    struct options o;
    must_parse(VERB_SERVE,
               "serve DIR --port 0 --memory 8GiB --kv-memory 500MB --alias a --alias b --temperature 0.5 --parallel=2 "
               "--api-key k",
               &o);
    assert_int_equal(o.n_args, 1);
    assert_string_equal(o.args[0], "DIR");
    assert_int_equal(o.port, 0);
    assert_int_equal(o.memory_bytes, (int64_t)8 << 30);
    assert_int_equal(o.kv_memory_bytes, 500000000);
    assert_int_equal(o.aliases.n, 2);
    assert_string_equal(o.aliases.values[1], "b");
    assert_int_equal(o.api_keys.n, 1);
    assert_true(o.temperature == 0.5);
    assert_int_equal(o.parallel, 2);
    must_parse(VERB_SYNTH, "synth tiny DIR --no-progress", &o);
    assert_true(o.no_progress);
    must_parse(VERB_GATE, "gate streams M --budget 30 --from 12", &o);
    assert_true(o.from == 12 && o.budget_s == 30);
    must_parse(VERB_RUN, "run M --tokens 5,6 --pass-rows 128 --ignore-eos --json -- --not-a-flag", &o);
    assert_int_equal(o.n_args, 2);
    assert_string_equal(o.args[1], "--not-a-flag");
    assert_true(o.json && o.ignore_eos && o.pass_rows == 128);
    assert_int_equal(options_for_engine(&o).parallel, 1);
}

static void test_refusals(void **state) {
    (void)state;
    must_refuse(VERB_SERVE, "serve --nonsense", "--nonsense");
    must_refuse(VERB_SERVE, "serve -x", "flag -x;");
    must_refuse(VERB_SERVE, "serve --log-requests -ngl 99", "flag -n;"); // other programs' flags have several letters
    must_refuse(VERB_SERVE, "serve models -ngl 99", "flag -n;");
    must_refuse(VERB_SERVE, "serve --log-requests=1", "flag --log-requests=1;");
    must_refuse(VERB_SERVE, "serve --tokens 5", "--tokens"); // another verb's
    must_refuse(VERB_SERVE, "serve --port", "--port");
    must_refuse(VERB_SERVE, "serve --port 65536", "65535");
    must_refuse(VERB_SERVE, "serve --port 80x", "--port");
    must_refuse(VERB_SERVE, "serve --port 1e3", "--port");
    must_refuse(VERB_SERVE, "serve --context 0", "--context");
    must_refuse(VERB_SERVE, "serve --context 9223372036854775808", "--context");
    must_refuse(VERB_SERVE, "serve --parallel -1", "--parallel");
    must_refuse(VERB_SERVE, "serve --temperature nan", "--temperature");
    must_refuse(VERB_SERVE, "serve --temperature inf", "--temperature");
    must_refuse(VERB_SERVE, "serve --top-p 0", "--top-p");
    must_refuse(VERB_SERVE, "serve --top-p 1.5", "--top-p");
    must_refuse(VERB_SERVE, "serve --seed -1", "--seed");
    must_refuse(VERB_SERVE, "serve --memory 8XB", "--memory");
    must_refuse(VERB_SERVE, "serve --compute fp16", "auto|bf16|fp32|int8");
    must_refuse(VERB_SERVE, "serve --kv-dtype bf17", "bf16|fp8");
    must_refuse(VERB_SERVE, "serve --host=", "--host");
    must_refuse(VERB_SERVE, "serve --thinking --no-thinking", "--no-thinking");
    must_refuse(VERB_SERVE, "serve --max-tokens 0", "--max-tokens");
    must_refuse(VERB_GATE, "gate --from -1", "--from");
    must_refuse(VERB_BENCH, "bench --from 1", "--from");
    must_refuse(VERB_RUN, "run --pass-rows 100 x", "multiple of 64");
    must_refuse(VERB_RUN, "run --pass-rows 8192 x", "4096");
    must_refuse(VERB_RUN, "run --raw --tokens 1", "--raw");
    must_refuse(VERB_RUN, "run --tokens", "--tokens");
}

static void test_parts_that_are_not_built(void **state) {
    (void)state;
    struct options o;
    must_refuse(VERB_SERVE, "serve --slide", "not built");
    setenv("TF_QWEN_KV_PAGES", "256", 1);
    must_refuse(VERB_SERVE, "serve --slide", "QwenPagesNoLearner");
    must_refuse(VERB_RUN, "run --slide x", "QwenPagesNoLearner");
    setenv("TF_QWEN_KV_PAGES", "0", 1);
    must_refuse(VERB_SERVE, "serve --slide", "not built");
    unsetenv("TF_QWEN_KV_PAGES");
    must_refuse(VERB_SERVE, "serve --prompt-cache-gib -1", "prompt-cache-gib");
    must_refuse(VERB_SERVE, "serve --share-prefixes some", "all|per-key");
    must_refuse(VERB_SERVE, "serve --drafter-bits 8", "must be one of 4|0");
    must_refuse(VERB_SERVE, "serve --mtp-drafts 16", "whole number from 0 to 15");
    must_refuse(VERB_SYNTH, "synth tiny DIR --drafter-dir X", "a shape of its own");
    must_refuse(VERB_SERVE, "serve --force-accept 2", "does not know the flag --force-accept");
    must_refuse(VERB_RUN, "run --force-accept 2", "does not know the flag --force-accept");
    must_refuse(VERB_BENCH, "bench --force-accept 16", "number from 0.01 to 15");
    must_parse(VERB_SERVE, "serve --no-drafts --drafter none --prompt-cache-gib 0 --mtp-drafts 0", &o);
    must_parse(VERB_RUN, "run --drafter auto x", &o);
    must_parse(VERB_RUN, "run --drafter a/folder --drafter-bits 0 x", &o);
    assert_string_equal(o.drafter, "a/folder");
}

// Whether there is a GPU or not: what it does not compute is refused before it is looked for.
static void test_backend(void **state) {
    (void)state;
    struct options o;
    struct error e;
    struct device *d = NULL;
    must_parse(VERB_RUN, "run --device 3 x", &o);
    assert_int_equal(o.device, 3);
    must_refuse(VERB_RUN, "run --device -1 x", "device");
    must_parse(VERB_RUN, "run --backend cuda --compute fp32 x", &o);
    assert_int_equal(options_open_device(&o, "nowhere", &d, &e), STATUS_UNSUPPORTED);
    assert_non_null(strstr(e.text, "--backend cuda is refused"));
    assert_null(d);
    must_parse(VERB_RUN, "run --backend cuda --device 200 x", &o);
    assert_int_not_equal(options_open_device(&o, "nowhere", &d, &e), STATUS_OK);
    assert_non_null(strstr(e.text, "--backend cuda is refused"));
    assert_null(d);
}

static void test_kv_dtype(void **state) {
    (void)state;
    static const enum verb verbs[] = {VERB_SERVE, VERB_CHAT, VERB_RUN, VERB_BENCH};
    static const struct {
        const char *line;
        enum kv_dtype want;
        enum dtype with_f32, with_bf16;
    } cases[] = {
        {"x", KV_OF_DEVICE, DTYPE_F32, DTYPE_BF16},
        {"x --kv-dtype bf16", KV_OF_DEVICE, DTYPE_F32, DTYPE_BF16},
        {"x --kv-dtype fp8", KV_FP8, DTYPE_E4M3, DTYPE_E4M3},
    };
    struct device f32 = {.kv = DTYPE_F32}, bf16 = {.kv = DTYPE_BF16};
    for (size_t v = 0; v < 4; v++) {
        for (size_t i = 0; i < 3; i++) {
            struct options o;
            must_parse(verbs[v], cases[i].line, &o);
            assert_int_equal(options_for_engine(&o).kv_dtype, cases[i].want);
            assert_int_equal(options_kv(&o, &f32), cases[i].with_f32);
            assert_int_equal(options_kv(&o, &bf16), cases[i].with_bf16);
        }
    }
}

static void test_sizes(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int64_t want;
    } good[] = {
        {"0", 0},
        {"1", 1},
        {"1000000", 1000000},
        {"1K", 1024},
        {"1KiB", 1024},
        {"1KB", 1000},
        {"1.5G", 3LL << 29},
        {"88GiB", 88LL << 30},
        {"2T", 2LL << 40},
        {"2TB", 2000000000000},
    };
    static const char *const bad[] = {"",   " ",  "x",   "-1",  "1 GiB x", "1GB2",     "1Gi",
                                      "1g", "1P", "nan", "inf", "1e300",   "99999999T"};
    int64_t bytes = -1;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(options_parse_size(good[i].text, &bytes));
        assert_int_equal(bytes, good[i].want);
    }
    bytes = -1;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_false(options_parse_size(bad[i], &bytes));
    assert_int_equal(bytes, -1);
}

static void test_sampling(void **state) {
    (void)state;
    struct options o;
    struct draw_params p;
    struct sampling_defaults none = {NAN, NAN, NAN, NAN, NAN, -1}, some = {0.7, 0.8, 0.1, 1.1, 1.5, 20};
    must_parse(VERB_RUN, "run x", &o);
    options_get_sampling(&o, &none, &p);
    assert_true(p.temperature == 1 && p.top_p == 1 && p.min_p == 0 && p.repetition == 1 && p.presence == 0 &&
                p.top_k == 0);
    options_get_sampling(&o, &some, &p);
    assert_true(p.temperature == 0.7 && p.top_p == 0.8 && p.min_p == 0.1 && p.repetition == 1.1 && p.presence == 1.5 &&
                p.top_k == 20);
    struct sampling_defaults narrow = {1, 0, NAN, NAN, NAN, -1}; // taken for one token, as requests are
    options_get_sampling(&o, &narrow, &p);
    assert_true(p.top_p > 0 && p.top_p < 1e-9);
    must_parse(VERB_RUN, "run x --temperature 0 --top-k 0 --seed 7", &o);
    options_get_sampling(&o, &some, &p);
    assert_true(p.temperature == 0 && p.top_p == 0.8 && p.top_k == 0 && p.seed == 7);
}

// What an arm of bench adds to a command line.
static void test_set(void **state) {
    (void)state;
    struct options o;
    struct error e;
    must_parse(VERB_BENCH, "bench --arm a:kv-dtype=fp8 --arm b:context=64 --budget 60 models/x", &o);
    assert_int_equal(o.arms.n, 2);
    assert_string_equal(o.arms.values[1], "b:context=64");
    assert_int_equal(o.parallel, 0);
    assert_int_equal(options_set(&o, "context", "4096", &e), STATUS_OK);
    assert_int_equal(o.context, 4096);
    assert_int_equal(options_set(&o, "kv-dtype", "fp8", &e), STATUS_OK);
    assert_string_equal(o.kv_dtype, "fp8");
    assert_int_equal(options_set(&o, "no-progress", NULL, &e), STATUS_OK);
    assert_true(o.no_progress);
    static const char *const wrong[][2] = {{"context", "x"},     {"context", NULL},   {"no-progress", "1"},
                                           {"kv-dtype", "int4"}, {"pass-rows", "65"}, {"host", "h"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        if (options_set(&o, wrong[i][0], wrong[i][1], &e) != STATUS_INVALID) fail_msg("%s was taken", wrong[i][0]);
        assert_non_null(strstr(e.text, wrong[i][0]));
    }
    must_refuse(VERB_BENCH, "bench --fresh --in-process", "exclude");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_parts_that_are_not_built),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_sampling),
        cmocka_unit_test(test_backend),
        cmocka_unit_test(test_kv_dtype),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
