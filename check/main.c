// tf-cpu-test or tf-cuda-test [SUITE|all] [--list] [--part I/N]: see check.h. Ends with "N passed, N failed"; the exit
// status says whether all passed. --part: the I-th of N parts of a suite whose cases can be cut (series), for tools
// that take hundreds of times as long and can work on parts side by side; faults are planted in the first.
#include "check/check.h"
#include "base/clock.h"
#include <limits.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SUBJECTS 32
#define EXIT_SKIPPED 77

static const struct suite *const suites[] = {
    &suite_embed,
    &suite_norm,
    &suite_swiglu,
    &suite_linear,
    &suite_linear_wide,
    &suite_arranged,
    &suite_linear_prompt,
    &suite_linear_prompt_terms,
    &suite_activated,
    &suite_gated,
    &suite_series,
    &suite_qk_store,
    &suite_attention,
    &suite_attention_prompt,
    &suite_qk_store_e4m3,
    &suite_attention_e4m3,
    &suite_attention_prompt_e4m3,
    &suite_conv,
    &suite_delta,
    &suite_delta_prompt,
    &suite_conv_delta,
    &suite_router,
    &suite_experts,
    &suite_moe,
    &suite_draw,
    &suite_block_conv,
    &suite_block_attention,
    &suite_copy,
};
#define N_SUITES ((int)(sizeof suites / sizeof suites[0]))

// Each fault is planted alone; the operation's small cases must notice it.
static void hunt_faults(const struct suite *s, struct subject *subject, struct run *total) {
    for (int i = 0; i < s->n_faults; i++) {
        struct run r = {.subject = subject, .arena = total->arena, .op = s->op, .hunting = true};
        s->faults[i].plant(&subject->ops);
        s->run(&r);
        subject->ops = *subject->device->ops;
        total->passed += r.caught;
        total->failed += !r.caught;
        if (!r.caught)
            printf("FAIL %s, %s: the planted fault \"%s\" was not noticed\n", s->op, subject->name, s->faults[i].name);
    }
}

// Faults do not depend on the instruction set: they are planted in the fastest kernels of each compute mode.
static bool is_fastest(const struct subject *subjects, int n, int i) {
    for (int j = i + 1; j < n; j++)
        if (subjects[j].device->compute == subjects[i].device->compute) return false;
    return true;
}

static void reserve(struct device *d, const struct device_limits *limits) {
    struct error e;
    if (d == NULL || d->reserve(d, limits, &e) == STATUS_OK) return;
    fprintf(stderr, "%s\n", e.text);
    exit(2);
}

// A backend may leave out the operations of block drafters, those that stand for several, and an order of its own for
// weights.
static bool is_there(const struct suite *s, const struct ops *o, bool arranges) {
    return (s != &suite_arranged || arranges) && (s != &suite_moe || o->moe != NULL) &&
           (s != &suite_conv_delta || o->conv_delta != NULL) && (s != &suite_gated || o->linear_swiglu != NULL) &&
           (s != &suite_block_conv || o->block_conv != NULL) &&
           (s != &suite_block_attention || o->block_attention != NULL);
}

struct part {
    int at, of; // counted from 0
};

static void run_suite(const struct suite *s, struct subject *subjects, int n, struct part part, struct run *total) {
    int64_t start = clock_ns();
    long passed = total->passed, failed = total->failed;
    if (!is_there(s, subjects[0].device->ops, subjects[0].device->arrange != NULL)) {
        printf("%-10s %-21s not built for this device\n", s->suite, s->op);
        return;
    }
    for (int i = 0; i < n; i++) {
        reserve(subjects[i].device, &s->limits);
        for (int j = 0; j < 2; j++) reserve(subjects[i].others[j], &s->limits);
    }
    for (int i = 0; i < n; i++)
        if (part.at == 0 && is_fastest(subjects, n, i)) hunt_faults(s, &subjects[i], total);
    for (int i = 0; i < n; i++) {
        struct run r = {
            .subject = &subjects[i], .arena = total->arena, .op = s->op, .part = part.at, .n_part = part.of};
        s->run(&r);
        if (part.of > 1) expect(&r, r.n_step > part.at, "only %d parts can be made of it", r.n_step);
        total->passed += r.passed;
        total->failed += r.failed;
    }
    printf("%-10s %-21s %6ld passed, %ld failed, %d faults planted, %.1f s\n", s->suite, s->op, total->passed - passed,
           total->failed - failed, part.at == 0 ? s->n_faults : 0, (double)(clock_ns() - start) * 1e-9);
    fflush(stdout);
}

static bool is_wanted(const struct suite *s, const char *name) {
    return strcmp(name, "all") == 0 || strcmp(name, s->suite) == 0 || strcmp(name, s->op) == 0;
}

static int list_suites(void) {
    for (int i = 0; i < N_SUITES; i++)
        printf("%-10s %s, %d faults\n", suites[i]->suite, suites[i]->op, suites[i]->n_faults);
    return 0;
}

// argv[1] names the suite, if anything does. False: what is asked for is nothing that can be done, and it says so.
static bool read_arguments(int argc, char **argv, const char **name, struct part *part) {
    int at = 1, end = 0;
    *part = (struct part){0, 1};
    if (at < argc && strcmp(argv[at], "--part") != 0) *name = argv[at++];
    if (at == argc) return true;
    bool ok = at + 2 == argc && strcmp(argv[at], "--part") == 0 &&
              sscanf(argv[at + 1], "%d/%d%n", &part->at, &part->of, &end) == 2 && argv[at + 1][end] == '\0';
    if (ok && part->at >= 1 && part->at <= part->of) {
        part->at--;
        return true;
    }
    fprintf(stderr, "usage: %s --list, or [SUITE|all], or SUITE --part I/N with I from 1 to N\n", argv[0]);
    return false;
}

int main(int argc, char **argv) {
    const char *name = "all";
    struct part part;
    if (!read_arguments(argc, argv, &name, &part)) return 2;
    if (strcmp(name, "--list") == 0) return list_suites();
    int n_wanted = 0;
    for (int i = 0; i < N_SUITES; i++) n_wanted += is_wanted(suites[i], name);
    if (n_wanted == 0) {
        fprintf(stderr, "there is no suite \"%s\": --list prints them\n", name);
        return 2;
    }
    // Buffers come and go with every call: mapping them anew each time would take longer than the kernels.
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, INT_MAX);
    static struct subject subjects[MAX_SUBJECTS];
    int n = check_registry.open(subjects, MAX_SUBJECTS);
    if (n == 0) return EXIT_SKIPPED; // the registry has said why
    for (int i = 0; i < n; i++) printf("%s: %s\n", check_registry.title, subjects[i].name);
    struct run total = {.arena = arena_create(0)};
    must(total.arena != NULL);
    for (int i = 0; i < N_SUITES; i++)
        if (is_wanted(suites[i], name)) run_suite(suites[i], subjects, n, part, &total);
    arena_free(total.arena);
    check_registry.close(subjects, n);
    printf("gates: correct, independent, contained; recorded resources are a gate of GPU kernels\n");
    printf("%ld passed, %ld failed\n", total.passed, total.failed);
    return total.failed == 0 ? 0 : 1;
}
