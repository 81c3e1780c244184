// gate: the suites that hold the engine to its law, on one model.
#include "base/log.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "gate/gate.h"
#include <stdio.h>
#include <string.h>

// What the gates' servers are told of what this program was told.
struct passed_on {
    char threads[16], device[16];
    const char *flags[8];
    int n;
};

static void pass_on(const struct options *o, struct passed_on *p) {
    snprintf(p->threads, sizeof p->threads, "%d", (int)o->threads);
    snprintf(p->device, sizeof p->device, "%d", (int)o->device);
    const char *const flags[] = {"--backend", o->backend, "--compute", o->compute,
                                 "--threads", p->threads, "--device",  p->device};
    p->n = (int)(sizeof flags / sizeof *flags);
    memcpy(p->flags, flags, sizeof flags);
}

struct asked {
    const char *suite, *dir;
    int part, n_part; // part 0 of 1: all cells
};

static enum status run(const struct options *o, const struct asked *asked, bool *green, struct error *e) {
    struct device *device = NULL;
    const char *dir = asked->dir;
    enum status s = options_open_device(o, dir, &device, e);
    struct gate_options g = {.model_dir = dir,
                             .device = device,
                             .engine = options_for_engine(o),
                             .suite = asked->suite,
                             .controls = o->controls,
                             .budget_s = o->budget_s,
                             .from = o->from,
                             .part = asked->part,
                             .n_part = asked->n_part};
    if (s == STATUS_OK) options_choose_drafter(o, dir, device, &g.engine);
    g.engine.progress = o->no_progress ? NULL : progress_show;
    struct passed_on more;
    pass_on(o, &more);
    if (o->fresh) {
        g.program = "/proc/self/exe";
        g.flags = more.flags;
        g.n_flags = more.n;
    }
    if (s == STATUS_OK) s = gate_run(&g, green, e);
    device_free(device);
    return s;
}

// "I/N".
static enum status read_part(const char *text, struct asked *asked, struct error *e) {
    int part = 1, n_part = 1, end = 0;
    if (text != NULL &&
        (sscanf(text, "%4d/%4d%n", &part, &n_part, &end) != 2 || text[end] != '\0' || part < 1 || part > n_part))
        return error_set(e, STATUS_INVALID, "--part takes I/N with I from 1 to N, such as 2/4, and was given %s", text);
    asked->part = part - 1;
    asked->n_part = n_part;
    return STATUS_OK;
}

// gate [SUITE] [MODEL], with either left out.
static enum status read_arguments(const struct options *o, struct asked *asked, struct error *e) {
    int n = 0;
    asked->suite = "all";
    asked->dir = NULL;
    if (n < o->n_args && gate_has_suite(o->args[n])) asked->suite = o->args[n++];
    if (n < o->n_args) asked->dir = o->args[n++];
    if (n < o->n_args)
        return error_set(e, STATUS_INVALID, "gate takes [SUITE] [MODEL], with a suite of: %s", gate_suite_names());
    enum status s = read_part(o->part, asked, e);
    return s == STATUS_OK ? options_find_model(asked->dir, &asked->dir, e) : s;
}

int cmd_gate(int argc, char **argv) {
    struct options o;
    struct error e;
    struct asked asked;
    int exit_code = 0;
    if (!options_parse(VERB_GATE, argc, argv, &o, &exit_code)) return exit_code;
    bool green = false;
    enum status s = read_arguments(&o, &asked, &e);
    bool usage = s == STATUS_INVALID;
    if (s == STATUS_OK) s = run(&o, &asked, &green, &e);
    if (s == STATUS_OK) return green ? 0 : EXIT_FAILED;
    fprintf(stderr, "tokenfold: %s\n", e.text);
    return usage ? EXIT_USAGE : EXIT_FAILED;
}
