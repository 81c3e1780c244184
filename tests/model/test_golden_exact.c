// The law of docs/architecture.md on real fixtures: whatever the cuts of a prompt, the windows of a reply, the company
// of other lanes, the pages, the threads, or what memory held before, every row gets the same bits. --full runs every
// checkpoint, precision and instruction set, and every prompt length; the default takes a sample that covers each kind.
#include "base/random.h"
#include "tests/model/golden.h"
#include "tests/model/play.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool full;

struct setting {
    const char *folder;
    enum compute compute;
    enum cpu_isa isa;
    bool fp8; // keys and values
    char dir[512], name[128];
};

static const char *compute_name(enum compute c) {
    return c == COMPUTE_F32 ? "fp32" : c == COMPUTE_BF16 ? "bf16" : "auto";
}

static bool is_large(const char *folder) { return strstr(folder, "realdims") != NULL; }

// A sample: portable C on small models; the best instruction set on all; those between on one dense and one MoE model.
// 8-bit keys and values, whose operations are the same for all precisions: by default on some small and one of real
// size.
static bool sampled(const char *folder, enum compute compute, enum cpu_isa isa, bool fp8) {
    if (full) return true;
    if (fp8)
        return (compute == COMPUTE_AUTO && isa == cpu_isa_detect() &&
                (strcmp(folder, "dense-hf-tied-text") == 0 || strcmp(folder, "moe-mlx4-g64") == 0 ||
                 strcmp(folder, "dense-realdims-mlx4") == 0)) ||
               (compute == COMPUTE_F32 && isa == ISA_C && strcmp(folder, "dense-hf-tied-text") == 0);
    if (isa == cpu_isa_detect()) return !is_large(folder) || compute == COMPUTE_AUTO;
    if (isa == ISA_C)
        return strcmp(folder, "moe-mlx4-g64") == 0 ||
               (compute == COMPUTE_F32 && strcmp(folder, "dense-hf-tied-text") == 0);
    return compute != COMPUTE_F32 && (strcmp(folder, "dense-mlx-mixed") == 0 || strcmp(folder, "dense-hf") == 0);
}

// One dense and one MoE model are tried in every way in every run; the others in the ways that differ most.
static bool thorough(const struct setting *s) {
    return full || (s->isa == cpu_isa_detect() && s->compute == COMPUTE_AUTO &&
                    (strcmp(s->folder, "dense-hf-tied-text") == 0 || strcmp(s->folder, "moe-mlx4-g64") == 0));
}

static void for_each(void (*check)(const struct setting *)) {
    static const enum compute computes[] = {COMPUTE_F32, COMPUTE_BF16, COMPUTE_AUTO};
    for (int i = 0; golden_folders[i] != NULL; i++)
        for (int j = 0; j < 3; j++)
            for (int k = 0; k < 2 * ((int)cpu_isa_detect() + 1); k++) {
                enum cpu_isa isa = (enum cpu_isa)(k / 2);
                struct setting s = {.folder = golden_folders[i], .compute = computes[j], .isa = isa, .fp8 = k % 2 == 1};
                if (!sampled(s.folder, s.compute, isa, s.fp8)) continue;
                snprintf(s.dir, sizeof s.dir, "%s/%s", golden_root(), s.folder);
                snprintf(s.name, sizeof s.name, "%s, %s%s, %s", s.folder, compute_name(s.compute),
                         s.fp8 ? " with fp8 keys and values" : "", cpu_isa_name(isa));
                check(&s);
            }
}

static struct rig *open_rig(const struct setting *s, struct rig_options o) {
    o.compute = s->compute;
    o.isa = s->isa;
    o.fp8 = s->fp8;
    return rig_open(s->dir, &o);
}

// ---- every way to compute the same streams ----

static void must_equal(const struct setting *s, struct rig *r, const struct transcripts *want, const struct play *how,
                       const char *what) {
    char text[256];
    struct transcripts *got = play(r, how);
    snprintf(text, sizeof text, "%s: %s", s->name, what);
    transcripts_must_equal(want, got, text);
    transcripts_free(got);
}

static struct transcripts *play_plainly(const struct setting *s, struct rig **r) {
    *r = open_rig(s, (struct rig_options){0});
    return play(*r, &(struct play){0});
}

static void check_windows(const struct setting *s) {
    static const struct {
        struct play how;
        const char *what;
    } ways[] = {
        {{.width = 16, .accept = ACCEPT_ALL}, "windows of 16, all kept"},
        {{.width = 5, .accept = ACCEPT_ALTERNATING}, "windows of 5, all or one kept"},
        {{.width = 2, .accept = ACCEPT_ALTERNATING}, "windows of 2, all or one kept"},
        {{.width = 8, .accept = ACCEPT_RANDOM, .seed = 1}, "windows of 8, any number kept"},
        {{.width = 16, .accept = ACCEPT_ONE}, "windows of 16, one row kept"},
        {{.width = -1, .accept = ACCEPT_RANDOM, .seed = 3, .pass_rows = 64}, "passes of 64, windows of any width"},
    };
    struct rig *r;
    struct transcripts *want = play_plainly(s, &r);
    for (size_t i = thorough(s) ? 0 : 4; i < sizeof ways / sizeof *ways; i++)
        must_equal(s, r, want, &ways[i].how, ways[i].what);
    transcripts_free(want);
    rig_close(r);
}

static void check_company(const struct setting *s) {
    struct rig *r;
    struct transcripts *want = play_plainly(s, &r);
    must_equal(s, r, want, &(struct play){.together = true, .seed = 4}, "four lanes together, single rows");
    must_equal(s, r, want,
               &(struct play){.together = true, .seed = 5, .width = -1, .accept = ACCEPT_RANDOM, .pass_rows = 128},
               "four lanes together, windows of any width");
    rig_close(r);
    static const int32_t page_rows[] = {1, 64, 4096, 96};
    for (int i = thorough(s) ? 0 : 3; i < 4; i++) {
        char what[64];
        snprintf(what, sizeof what, "pages of %d positions, shuffled", page_rows[i]);
        r = open_rig(s, (struct rig_options){.page_rows = page_rows[i]});
        must_equal(s, r, want,
                   &(struct play){.together = true, .seed = 6 + (uint64_t)i, .width = -1, .accept = ACCEPT_RANDOM},
                   what);
        rig_close(r);
    }
    for (int n = 1; n <= 3; n += 2) { // the others have two
        r = open_rig(s, (struct rig_options){.n_threads = n});
        must_equal(s, r, want, &(struct play){.together = true, .seed = 20, .width = 3}, "one thread, or three");
        rig_close(r);
    }
    r = open_rig(s, (struct rig_options){.fill = -1});
    must_equal(s, r, want, &(struct play){.together = true, .seed = 21, .width = 4, .accept = ACCEPT_ONE},
               "memory that held zeros");
    rig_close(r);
    transcripts_free(want);
}

// ---- cuts ----

struct outcome {
    float *logits; // of the rows computed
    char *state, *kv;
};

static void outcome_free(struct outcome *o) {
    free(o->logits);
    free(o->state);
    free(o->kv);
}

static struct outcome compute(struct stream *s, const int32_t *ids, int32_t n, int32_t pass_rows) {
    struct rig *r = s->rig;
    struct outcome o = {
        .logits = malloc((size_t)((n - s->position) * r->config->n_vocab) * sizeof *o.logits),
        .state = malloc((size_t)stream_state_bytes(r)),
        .kv = malloc((size_t)stream_kv_bytes(r, n)),
    };
    assert_true(o.logits != NULL && o.state != NULL && o.kv != NULL);
    stream_prompt(s, ids, n, pass_rows, LOGITS_ALL, o.logits);
    stream_read_state(s, o.state);
    stream_read_kv(s, n, o.kv);
    return o;
}

static void compare(const struct setting *s, const struct rig *r, const struct outcome *want, const struct outcome *got,
                    int32_t first, int32_t n, int32_t pass_rows) {
    size_t n_logits = (size_t)((n - first) * r->config->n_vocab);
    if (memcmp(want->logits, got->logits, n_logits * sizeof(float)) != 0)
        fail_msg("%s: prompt of %d in passes of %d: logits differ", s->name, n, pass_rows);
    if (memcmp(want->state, got->state, (size_t)stream_state_bytes(r)) != 0)
        fail_msg("%s: prompt of %d in passes of %d: the state differs", s->name, n, pass_rows);
    if (memcmp(want->kv, got->kv, (size_t)stream_kv_bytes(r, n)) != 0)
        fail_msg("%s: prompt of %d in passes of %d: keys or values differ", s->name, n, pass_rows);
}

static void check_length(const struct setting *s, struct rig *r, const int32_t *ids, int32_t n, const int32_t *cuts,
                         int n_cut) {
    struct stream stream;
    rig_fill(r);
    stream_open(&stream, r, 0, 1);
    struct outcome want = compute(&stream, ids, n, PROMPT_MAX_ROWS);
    for (int i = 0; i < n_cut && cuts[i] < n; i++) {
        rig_fill(r);
        stream_open(&stream, r, 1, 2);
        struct outcome got = compute(&stream, ids, n, cuts[i]);
        compare(s, r, &want, &got, 0, n, cuts[i]);
        outcome_free(&got);
    }
    outcome_free(&want);
}

static void make_ids(const struct rig *r, int32_t *ids, int32_t n) {
    for (int32_t i = 0; i < n; i++) ids[i] = play_id(r, 9, i);
}

// Around 64 and 256: every remainder of the length modulo 64.
static void check_short_cuts(const struct setting *s) {
    static const int32_t cuts[] = {64, 128, 192, 256};
    struct rig *r = open_rig(s, (struct rig_options){0});
    int32_t ids[512], step = thorough(s) ? 1 : 21;
    make_ids(r, ids, 512);
    for (int32_t n = 65; n <= 128; n += step) check_length(s, r, ids, n, cuts, 1);
    for (int32_t n = 257; n <= 320; n += step) check_length(s, r, ids, n, cuts, 4);
    rig_close(r);
}

// Around 4096: the rows before are computed once, and each length goes on from there.
static void check_long_cuts(const struct setting *s) {
    enum { START = 3968, END = 4224 };
    static const int32_t cuts[] = {64, 128, 192};
    if (!thorough(s)) return;
    struct rig *r = open_rig(s, (struct rig_options){.context = END});
    int32_t *ids = malloc(END * sizeof *ids);
    struct stream start, stream;
    void *kept = malloc((size_t)r->run_bytes);
    assert_true(ids != NULL && kept != NULL);
    make_ids(r, ids, END);
    stream_open(&start, r, 0, 3);
    stream_prompt(&start, ids, START, PROMPT_MAX_ROWS, LOGITS_NONE, NULL);
    memcpy(kept, start.run, (size_t)r->run_bytes);
    for (int32_t n = START + 65; n <= END; n += full ? 1 : 5) {
        stream = start;
        memcpy(stream.run, kept, (size_t)r->run_bytes);
        struct outcome want = compute(&stream, ids, n, PROMPT_MAX_ROWS);
        int32_t cut = cuts[n % 3];
        stream = start;
        memcpy(stream.run, kept, (size_t)r->run_bytes);
        struct outcome got = compute(&stream, ids, n, cut);
        compare(s, r, &want, &got, START, n, cut);
        outcome_free(&want);
        outcome_free(&got);
    }
    static const int32_t whole[] = {192, 2048, 4032};
    check_length(s, r, ids, 4096 + 37, whole, 3);
    free(kept);
    free(ids);
    rig_close(r);
}

// ---- states kept in mid-pass ----

static void check_keeps(const struct setting *s) {
    struct rig *r = open_rig(s, (struct rig_options){0});
    int32_t ids[512];
    int64_t state_bytes = stream_state_bytes(r), n_vocab = r->config->n_vocab;
    char *want = malloc((size_t)state_bytes), *got = malloc((size_t)state_bytes);
    float *logits = malloc((size_t)n_vocab * sizeof *logits), *resumed = malloc((size_t)n_vocab * sizeof *resumed);
    assert_true(want != NULL && got != NULL && logits != NULL && resumed != NULL);
    make_ids(r, ids, 512);
    for (int32_t n = 320; n >= 257; n -= thorough(s) ? 21 : 42) {
        struct keep keeps[5];
        struct stream stream;
        struct error e;
        struct tensor row;
        int32_t n_keep = n / 64;
        rig_fill(r);
        stream_open(&stream, r, 0, 7);
        struct lane lane = stream_lane(&stream);
        lane.n_row = n;
        for (int32_t i = 0; i < n_keep; i++)
            keeps[i] = (struct keep){.position = 64 * (i + 1), .run = rig_run(r, RIG_LANES + i)};
        struct prompt_pass pass = {
            .lane = &lane, .ids = ids, .keeps = keeps, .n_keep = n_keep, .pages = r->pages, .want = LOGITS_LAST};
        assert_int_equal(model_prompt(r->model, &pass, &row, &e), STATUS_OK);
        memcpy(logits, row.data, (size_t)n_vocab * sizeof *logits);
        for (int32_t i = 0; i < n_keep; i++) {
            struct stream ends;
            stream_open(&ends, r, 1, 8);
            stream_prompt(&ends, ids, keeps[i].position, PROMPT_MAX_ROWS, LOGITS_NONE, NULL);
            stream_read_state(&ends, want);
            run_read_state(r, keeps[i].run, keeps[i].position, got);
            if (memcmp(want, got, (size_t)state_bytes) != 0)
                fail_msg("%s: prompt of %d: the state kept at %d is not that of a prompt that ends there", s->name, n,
                         keeps[i].position);
            if (keeps[i].position == n) continue;
            // Going on from what was kept needs its first bytes only.
            memset(stream.run, r->fill, (size_t)r->run_bytes);
            memcpy(stream.run, keeps[i].run, (size_t)r->run_layout.kept_bytes);
            stream.position = keeps[i].position;
            stream_prompt(&stream, ids, n, 128, LOGITS_LAST, resumed);
            if (memcmp(logits, resumed, (size_t)n_vocab * sizeof *logits) != 0)
                fail_msg("%s: prompt of %d: logits differ when it goes on from %d", s->name, n, keeps[i].position);
        }
    }
    free(want);
    free(got);
    free(logits);
    free(resumed);
    rig_close(r);
}

static void test_windows(void **state) {
    (void)state;
    for_each(check_windows);
}
static void test_company(void **state) {
    (void)state;
    for_each(check_company);
}
static void test_short_cuts(void **state) {
    (void)state;
    for_each(check_short_cuts);
}
static void test_long_cuts(void **state) {
    (void)state;
    for_each(check_long_cuts);
}
static void test_keeps(void **state) {
    (void)state;
    for_each(check_keeps);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--full") == 0)
            full = true;
        else
            cmocka_set_test_filter(argv[i]); // "test_w*"
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows),   cmocka_unit_test(test_company), cmocka_unit_test(test_short_cuts),
        cmocka_unit_test(test_long_cuts), cmocka_unit_test(test_keeps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
