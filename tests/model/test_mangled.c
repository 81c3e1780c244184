// Checkpoints spoiled at random: each load either succeeds or gives one sentence that starts with the folder, and
// nothing crashes or leaks. What to spoil is drawn from a fixed key, so that a failing round can be run again.
#include "base/mapped_file.h"
#include "base/random.h"
#include "format/checkpoint.h"
#include "model/weights.h"
#include "tests/model/tiny.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { ROUNDS = 600, HEADER = 6000 };

static uint64_t draw(uint64_t round, uint64_t *n, uint64_t limit) { return random_bits(11, round, (*n)++) % limit; }

// Overwrites, repeats, removes or cuts off bytes of data[0..n); the result has at most 2 n bytes.
static size_t spoil(char *data, size_t n, size_t limit, uint64_t round, uint64_t *k) {
    static const char *const pieces[] = {"-1",    "0",       "99999999999999999999",
                                         "[",     "]",       "{",
                                         "}",     "\"",      ",",
                                         "null",  "F32",     "U32",
                                         "BF16",  "U8",      "[64,128]",
                                         "1e9",   "\xff",    "4294967296",
                                         "false", "\\ud800", "9223372036854775807"};
    if (n < 2) return n;
    size_t reach = n < limit ? n : limit, at = draw(round, k, reach), m = 1 + draw(round, k, 40);
    if (m > n - at) m = n - at;
    switch (draw(round, k, 6)) {
    case 0: data[at] = (char)draw(round, k, 256); break;
    case 1: data[at] ^= (char)(1 << draw(round, k, 8)); break;
    case 2: memmove(data + at, data + at + m, n - at - m); return n - m;
    case 3: memmove(data + at + m, data + at, n - at); return n + m;
    case 4: {
        const char *piece = pieces[draw(round, k, sizeof pieces / sizeof *pieces)];
        size_t length = strlen(piece);
        if (length > n - at) length = n - at;
        memcpy(data + at, piece, length);
        break;
    }
    default: return draw(round, k, 2) ? at : n - m;
    }
    return n;
}

static void test_mangled(void **state) {
    (void)state;
    int accepted = 0, refused = 0;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t k = 0;
        struct tiny_options o = {.layout = (enum tiny_layout)draw(round, &k, 4),
                                 .moe = draw(round, &k, 2),
                                 .tied = draw(round, &k, 2),
                                 .mtp = draw(round, &k, 2),
                                 .one_by_one = draw(round, &k, 2)};
        struct folder f = folder_create();
        struct tiny *t = tiny_create(o);
        int n_shards = 1 + (int)draw(round, &k, 2);
        tiny_write(t, &f, n_shards);
        const char *names[] = {"config.json", n_shards == 1 ? "model.safetensors" : "model-2.safetensors",
                               n_shards == 1 ? "config.json" : "model.safetensors.index.json"};
        const char *name = names[draw(round, &k, 3)];
        char *data;
        size_t n;
        assert_int_equal(file_read(folder_file(&f, name), (size_t)1 << 24, &data, &n, NULL), STATUS_OK);
        char *wide = malloc(2 * n + 4096);
        memcpy(wide, data, n);
        for (uint64_t i = 1 + draw(round, &k, 3); i > 0; i--) n = spoil(wide, n, HEADER, round, &k);
        folder_write(&f, name, wide, n);
        free(wide);
        free(data);

        struct checkpoint *c = NULL;
        struct model_config config = {0};
        struct model_weights *w = NULL;
        struct error e = {0};
        enum status status = checkpoint_open(f.path, &c, &e);
        if (!status) status = config_load(c, &config, &e);
        if (!status) status = weights_load(c, &config, &w, &e);
        if (status && (e.code != status || strncmp(e.text, f.path, strlen(f.path))))
            fail_msg("round %d: %s, \"%s\"", (int)round, status_name(status), e.text);
        *(status ? &refused : &accepted) += 1;
        weights_free(w);
        config_free(&config);
        checkpoint_free(c);
        tiny_free(t);
        folder_remove(&f);
    }
    assert_true(refused > ROUNDS / 4);
    assert_true(accepted > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_mangled)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
