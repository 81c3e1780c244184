#include "gate/gate.h"
#include "base/clock.h"
#include "gate/suites.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONTEXT 9216 // of the arms: the longest prompt of the gates and a reply

static const struct suite *const suites[] = {&suite_pages,   &suite_streams_any, &suite_resume, &suite_overcommit,
                                             &suite_garbage, &suite_cancel,      &suite_drafts};

#define N_SUITES ((int)(sizeof suites / sizeof *suites))

const char *gate_suite_names(void) { return "pages streams drafts resume overcommit garbage cancel all"; }

bool gate_has_suite(const char *name) {
    for (int i = 0; i < N_SUITES; i++)
        if (strcmp(suites[i]->name, name) == 0) return true;
    return strcmp(name, "all") == 0;
}

static bool is_asked(const struct gate *g, const struct suite *s) {
    return strcmp(g->options->suite, "all") == 0 || strcmp(g->options->suite, s->name) == 0;
}

static void print_cell(const struct suite *s, const int32_t *at) {
    printf("%-10s ", s->name);
    for (int32_t d = 0; d < s->n_dims; d++)
        printf("%s%s %s", d > 0 ? "; " : "", s->dims[d].name, s->dims[d].values[at[d]]);
}

// ---- gates ----

struct tally {
    int32_t n_green, n_red, n_empty, n_before, n_left;
    int32_t next; // the first cell that the time did not reach
};

static void print_green(const struct verdict *v, double seconds) {
    printf(": green: %d replies and %d passes equal%s", v->n_replies, v->n_passes, v->n_resumed > 0 ? ", resumed" : "");
    if (v->n_drafted > 0) printf(", %d states too, %d of %d drafts kept", v->n_states, v->n_accepted, v->n_drafted);
    printf(" (%.1f s)\n", seconds);
}

static enum status run_cell(struct gate *g, const struct suite *s, const int32_t *at, struct tally *t,
                            struct error *e) {
    struct verdict v = {0};
    int64_t start = clock_ns();
    enum status status = s->run(g, at, FAULT_NONE, &v, e);
    if (status != STATUS_OK) return status;
    if (!v.red && v.n_replies == 0) { // nothing of it is for this model
        t->n_empty++;
        return STATUS_OK;
    }
    t->n_green += !v.red;
    t->n_red += v.red;
    print_cell(s, at);
    if (v.red)
        printf(": RED: %s\n", v.text);
    else
        print_green(&v, (double)(clock_ns() - start) / 1e9);
    fflush(stdout);
    return STATUS_OK;
}

static void leave_out(struct tally *t, const struct suite *s, const int32_t *cell, int32_t at) {
    if (t->n_left++ == 0) t->next = at;
    printf("not run: ");
    print_cell(s, cell);
    putchar('\n');
}

// One cell of each suite in turn, so that a budget is spread over all of them.
static enum status run_gates(struct gate *g, struct matrix *matrices, struct tally *t, struct error *e) {
    int64_t start = clock_ns(), budget_ns = (int64_t)(g->options->budget_s * 1e9);
    bool more = true;
    int32_t n = 0;
    for (int32_t i = 0; more; i++) {
        more = false;
        for (int k = 0; k < N_SUITES; k++) {
            if (i >= matrices[k].n) continue;
            more = true;
            int32_t at = n++;
            if (at % g->options->n_part != g->options->part) continue;
            if (at < g->options->from) {
                t->n_before++;
                continue;
            }
            if (budget_ns > 0 && clock_ns() - start > budget_ns) {
                leave_out(t, suites[k], matrices[k].cells[i], at);
                continue;
            }
            enum status s = run_cell(g, suites[k], matrices[k].cells[i], t, e);
            if (s != STATUS_OK) return s;
        }
    }
    return STATUS_OK;
}

// ---- controls ----

static enum status run_controls(struct gate *g, struct tally *t, struct error *e) {
    for (int k = 0; k < N_SUITES; k++) {
        const struct suite *s = suites[k];
        for (int32_t i = 0; i < s->n_controls && is_asked(g, s); i++) {
            struct verdict v = {0};
            enum status status = s->run(g, s->controls[i].at, s->controls[i].fault, &v, e);
            if (status != STATUS_OK) return status;
            bool is_empty = !v.red && v.n_replies == 0;
            t->n_red += v.red;
            t->n_green += !v.red && !is_empty;
            printf("%-10s planted: %s: %s%s\n", s->name, s->controls[i].what,
                   v.red      ? "found: "
                   : is_empty ? "not for this model"
                              : "NOT FOUND",
                   v.red ? v.text : "");
            fflush(stdout);
        }
    }
    return STATUS_OK;
}

// ---- all of it ----

static enum status run_all(struct gate *g, bool *green, struct error *e) {
    struct matrix matrices[N_SUITES] = {0};
    struct tally t = {0};
    enum status s = STATUS_OK;
    if (g->options->controls) {
        s = run_controls(g, &t, e);
        *green = t.n_green == 0;
        if (s == STATUS_OK) printf("%d of %d planted faults were found\n", t.n_red, t.n_red + t.n_green);
        return s;
    }
    for (int k = 0; k < N_SUITES && s == STATUS_OK; k++)
        if (is_asked(g, suites[k])) s = matrix_make(suites[k], &matrices[k], e);
    if (s == STATUS_OK) s = run_gates(g, matrices, &t, e);
    for (int k = 0; k < N_SUITES; k++) free(matrices[k].cells);
    *green = t.n_red == 0 && t.n_green > 0;
    if (s != STATUS_OK) return s;
    printf("%d cells green, %d red; %d are not for this model; %d not run for want of time\n", t.n_green, t.n_red,
           t.n_empty, t.n_left);
    if (t.n_before > 0) printf("the %d cells before these were left out (--from)\n", t.n_before);
    if (t.n_left > 0) printf("--from %d goes on there\n", t.next);
    return s;
}

enum status gate_run(const struct gate_options *options, bool *green, struct error *e) {
    struct gate *g = calloc(1, sizeof *g);
    if (g == NULL) return error_memory(e);
    g->options = options;
    g->references = calloc(2 * CASES_MAX, sizeof *g->references);
    enum status s = g->references == NULL ? error_memory(e) : arms_open(g, e);
    if (s == STATUS_OK) {
        const struct engine_info *info = engine_get_info(g->engine);
        g->context = info->config->n_context < CONTEXT ? (int32_t)info->config->n_context : CONTEXT;
        s = cases_make(options, info, g->context, &g->cases, e);
    }
    if (s == STATUS_OK) s = run_all(g, green, e);
    cases_free(&g->cases);
    references_free(g);
    arms_close(g);
    free(g);
    return s;
}
