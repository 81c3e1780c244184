// The law of docs/architecture.md on real fixtures: whatever the cuts of a prompt, the windows of a reply, the company
// of other lanes, the pages, the threads, or what memory held before, every row gets the same bits. --full runs every
// checkpoint, precision and instruction set, and every prompt length; the default takes a sample that covers each kind.
// Settings that come to the same arithmetic run once. --only TEXT and --except TEXT, as often as wanted, leave
// the settings whose names have every one or none of such texts ("moe-realdims", ", amx"), so that several processes
// can share the whole.
#include "base/random.h"
#include "cpu/kernel_table.h"
#include "tests/model/golden.h"
#include "tests/model/play.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool full;
static struct {
    const char *text;
    bool has;
} wanted[8];
static int n_wanted;

struct setting {
    const char *folder;
    enum compute compute;
    enum cpu_isa isa;
    bool fp8; // keys and values
    char dir[512], name[128];
};

static const char *compute_name(enum compute c) {
    return c == COMPUTE_F32 ? "fp32" : c == COMPUTE_INT8 ? "int8" : "auto";
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
    if (compute == COMPUTE_INT8) // where weights have codes
        return isa == cpu_isa_detect() &&
               (strcmp(folder, "dense-mlx-mixed") == 0 || strcmp(folder, "moe-mlx4-g64") == 0);
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

static bool is_wanted(const struct setting *s) {
    for (int i = 0; i < n_wanted; i++)
        if ((strstr(s->name, wanted[i].text) != NULL) != wanted[i].has) return false;
    return true;
}

// What a setting computes with: kernels, and the type that keys and values are stored in.
struct arithmetic {
    struct cpu_kernels kernels;
    enum dtype kv;
};

static struct arithmetic arithmetic_of(const struct setting *s) {
    struct rig *r = rig_open(s->dir, &(struct rig_options){.compute = s->compute, .isa = s->isa, .fp8 = s->fp8});
    struct arithmetic a = {.kv = r->limits.kv};
    cpu_kernels_fill(&a.kernels, r->device->compute);
#if defined(__x86_64__)
    if (s->isa != ISA_C) cpu_x86_overlay(&a.kernels, s->isa, r->device->compute);
#endif
    rig_close(r);
    return a;
}

// int8 is bf16 where weights have no codes, an instruction set may add nothing to the one before it, and so on.
static bool ran_before(const struct setting *s, struct arithmetic *ran, int *n_ran) {
    ran[*n_ran] = arithmetic_of(s);
    for (int i = 0; i < *n_ran; i++)
        if (ran[i].kv == ran[*n_ran].kv && memcmp(&ran[i].kernels, &ran[*n_ran].kernels, sizeof ran->kernels) == 0)
            return true;
    (*n_ran)++;
    return false;
}

static void for_each(void (*check)(const struct setting *)) {
    static const enum compute computes[] = {COMPUTE_AUTO, COMPUTE_F32, COMPUTE_INT8};
    enum { N_COMPUTE = sizeof computes / sizeof *computes };
    static struct arithmetic ran[N_COMPUTE * 2 * (ISA_AMX + 1)];
    for (int i = 0; golden_folders[i] != NULL; i++)
        for (int j = 0, n_ran = 0; j < N_COMPUTE; j++)
            for (int k = 0; k < 2 * ((int)cpu_isa_detect() + 1); k++) {
                enum cpu_isa isa = (enum cpu_isa)(k / 2);
                struct setting s = {.folder = golden_folders[i], .compute = computes[j], .isa = isa, .fp8 = k % 2 == 1};
                if (!sampled(s.folder, s.compute, isa, s.fp8)) continue;
                snprintf(s.dir, sizeof s.dir, "%s/%s", golden_root(), s.folder);
                snprintf(s.name, sizeof s.name, "%s, %s%s, %s", s.folder, compute_name(s.compute),
                         s.fp8 ? " with fp8 keys and values" : "", cpu_isa_name(isa));
                if (ran_before(&s, ran, &n_ran) || !is_wanted(&s)) continue;
                if (full) print_message("  %s\n", s.name);
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

// One way to cut prompts into passes. As lengths rise, the passes that end before a length's end stay the same, so they
// are computed once, and each length goes on from there.
struct path {
    struct rig *r;
    int32_t start, pass_rows;
    struct stream stream; // after the passes that are kept
    void *kept;           // its run there
    float *logits;        // of the rows from start on
    char *state, *kv;     // of the length reached last
};

enum { MAX_PATHS = 5 };

// A stream of its own for each path: a lane's pages hold two when there are more paths than lanes. Goes on from
// `from`, of which it takes a copy; NULL: from position 0.
static void path_open(struct path *p, struct rig *r, int index, int32_t pass_rows, int32_t last,
                      const struct stream *from) {
    *p = (struct path){.r = r, .pass_rows = pass_rows};
    stream_open(&p->stream, r, index % RIG_LANES, 2);
    p->stream.run = rig_run(r, index);
    if (index >= RIG_LANES) {
        p->stream.n_page /= 2;
        memmove(p->stream.table, p->stream.table + r->n_page - p->stream.n_page,
                (size_t)p->stream.n_page * sizeof *p->stream.table);
    }
    must(last <= p->stream.n_page * r->limits.page_rows);
    for (int32_t i = 0; from != NULL && i < from->n_page && from->run != p->stream.run; i++)
        memcpy(r->pages + p->stream.table[i] * r->page_bytes, r->pages + from->table[i] * r->page_bytes,
               (size_t)r->page_bytes);
    if (from != NULL) memmove(p->stream.run, from->run, (size_t)r->run_bytes);
    p->start = p->stream.position = from != NULL ? from->position : 0;
    p->kept = malloc((size_t)r->run_bytes);
    p->logits = malloc((size_t)((last - p->start) * r->config->n_vocab) * sizeof *p->logits);
    p->state = malloc((size_t)stream_state_bytes(r));
    p->kv = malloc((size_t)stream_kv_bytes(r, last));
    assert_true(p->kept != NULL && p->logits != NULL && p->state != NULL && p->kv != NULL);
    memcpy(p->kept, p->stream.run, (size_t)r->run_bytes);
}

static void path_close(struct path *p) {
    free(p->kept);
    free(p->logits);
    free(p->state);
    free(p->kv);
}

static void path_extend(const struct path *p, struct stream *s, const int32_t *ids, int32_t n) {
    float *logits = p->logits + (s->position - p->start) * p->r->config->n_vocab;
    model_poison(p->r->model);
    stream_prompt(s, ids, n, p->pass_rows, LOGITS_ALL, logits);
}

// Computes the prompt ids[0..n), n rising from call to call: rows behind n were never written.
static void path_reach(struct path *p, const int32_t *ids, int32_t n) {
    struct stream *s = &p->stream, tail;
    for (;;) {
        int32_t next = s->position + model_pass_rows(s->position, n - s->position, p->pass_rows);
        if (next >= n) break;
        path_extend(p, s, ids, next);
        memcpy(p->kept, s->run, (size_t)p->r->run_bytes);
    }
    tail = *s;
    path_extend(p, &tail, ids, n);
    stream_read_state(&tail, p->state);
    stream_read_kv(&tail, n, p->kv);
    memcpy(s->run, p->kept, (size_t)p->r->run_bytes);
}

static void paths_must_agree(const struct setting *s, const struct path *want, const struct path *got, int32_t n) {
    const struct rig *r = want->r;
    size_t n_logits = (size_t)((n - want->start) * r->config->n_vocab);
    if (memcmp(want->logits, got->logits, n_logits * sizeof(float)) != 0)
        fail_msg("%s: prompt of %d in passes of %d: logits differ", s->name, n, got->pass_rows);
    if (memcmp(want->state, got->state, (size_t)stream_state_bytes(r)) != 0)
        fail_msg("%s: prompt of %d in passes of %d: the state differs", s->name, n, got->pass_rows);
    if (memcmp(want->kv, got->kv, (size_t)stream_kv_bytes(r, n)) != 0)
        fail_msg("%s: prompt of %d in passes of %d: keys or values differ", s->name, n, got->pass_rows);
}

struct cuts {
    int n_path;
    int32_t pass_rows[MAX_PATHS]; // the first is that of the uncut prompt
    int32_t last[MAX_PATHS];      // a path is of no interest after this length
};

static void open_paths(struct path *paths, struct rig *r, const struct cuts *c, const struct stream *from) {
    for (int i = c->n_path - 1; i >= 0; i--) path_open(&paths[i], r, i, c->pass_rows[i], c->last[i], from);
}

static void check_length(const struct setting *s, struct path *paths, const struct cuts *c, const int32_t *ids,
                         int32_t n) {
    path_reach(&paths[0], ids, n);
    for (int i = 1; i < c->n_path; i++) {
        if (n > c->last[i] || paths[0].start + c->pass_rows[i] >= n) continue;
        path_reach(&paths[i], ids, n);
        paths_must_agree(s, &paths[0], &paths[i], n);
    }
}

static void close_paths(struct path *paths, const struct cuts *c) {
    for (int i = 0; i < c->n_path; i++) path_close(&paths[i]);
}

// Small models' passes are so short that threads would wait for one another most of the time.
static int few_threads(const struct setting *s) { return is_large(s->folder) ? 0 : 1; }

static void make_ids(const struct rig *r, int32_t *ids, int32_t n) {
    for (int32_t i = 0; i < n; i++) ids[i] = play_id(r, 9, i);
}

// Around 64 and 256: every remainder of the length modulo 64.
static void check_short_cuts(const struct setting *s) {
    static const struct cuts cuts = {5, {PROMPT_MAX_ROWS, 64, 128, 192, 256}, {320, 320, 320, 320, 320}};
    struct rig *r = open_rig(s, (struct rig_options){.context = 1024, .page_rows = 64, .n_threads = few_threads(s)});
    struct path paths[MAX_PATHS];
    int32_t ids[320], step = thorough(s) ? 1 : 21;
    make_ids(r, ids, 320);
    open_paths(paths, r, &cuts, NULL);
    for (int32_t n = 65; n <= 128; n += step) check_length(s, paths, &cuts, ids, n);
    for (int32_t n = 257; n <= 320; n += step) check_length(s, paths, &cuts, ids, n);
    close_paths(paths, &cuts);
    rig_close(r);
}

// Around 4096, where every pass ends: every remainder before it, between it and the next legal cut, and after that.
// The first rows are computed once.
static void check_long_cuts(const struct setting *s) {
    enum { START = 3904, END = 4224, WHOLE = 4096 + 37 };
    static const struct cuts near = {3, {PROMPT_MAX_ROWS, 64, 128}, {END, END, 4160}};
    static const struct cuts whole = {4, {PROMPT_MAX_ROWS, 192, 2048, 4032}, {WHOLE, WHOLE, WHOLE, WHOLE}};
    if (!thorough(s)) return;
    struct rig *r = open_rig(s, (struct rig_options){.context = END, .n_threads = few_threads(s)});
    int32_t *ids = malloc(END * sizeof *ids);
    struct path paths[MAX_PATHS];
    struct stream start;
    assert_true(ids != NULL);
    make_ids(r, ids, END);
    stream_open(&start, r, 0, 2);
    stream_prompt(&start, ids, START, PROMPT_MAX_ROWS, LOGITS_NONE, NULL);
    open_paths(paths, r, &near, &start);
    for (int32_t n = 4033; n <= END; n += full ? 1 : 5) check_length(s, paths, &near, ids, n);
    close_paths(paths, &near);
    rig_fill(r);
    open_paths(paths, r, &whole, NULL);
    check_length(s, paths, &whole, ids, WHOLE);
    close_paths(paths, &whole);
    free(ids);
    rig_close(r);
}

// ---- states kept in mid-pass ----

static void check_keeps(const struct setting *s) {
    struct rig *r = open_rig(s, (struct rig_options){.n_threads = few_threads(s)});
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

static bool is_filter(const char *flag) { return strcmp(flag, "--only") == 0 || strcmp(flag, "--except") == 0; }

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--full") == 0)
            full = true;
        else if (is_filter(argv[i]) && i + 1 < argc && n_wanted < (int)(sizeof wanted / sizeof *wanted)) {
            wanted[n_wanted].has = strcmp(argv[i], "--only") == 0;
            wanted[n_wanted++].text = argv[i + 1];
            i++;
        } else
            cmocka_set_test_filter(argv[i]); // "test_w*"
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows),   cmocka_unit_test(test_company), cmocka_unit_test(test_short_cuts),
        cmocka_unit_test(test_long_cuts), cmocka_unit_test(test_keeps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
