// synth SHAPE DIR: a checkpoint of a real shape with random weights.
#include "base/machine.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "model/synth.h"
#include <stdio.h>

int cmd_synth(int argc, char **argv) {
    struct options o;
    int exit_code;
    if (!options_parse(VERB_SYNTH, argc, argv, &o, &exit_code)) return exit_code;
    if (o.n_args != 2) {
        fprintf(stderr, "tokenfold: synth takes a shape and a folder; the shapes are");
        for (int i = 0; synth_shape_name(i); i++) fprintf(stderr, "%s %s", i ? "," : "", synth_shape_name(i));
        fprintf(stderr, "\n");
        return EXIT_USAGE;
    }
    static char doing[] = "writing";
    const struct synth_options options = {
        .shape = o.args[0],
        .seed = o.seed < 0 ? 0 : (uint64_t)o.seed,
        .headers_only = o.headers_only,
        .n_threads = machine_cores(),
        .progress = o.no_progress ? NULL : progress_show,
        .context = doing,
    };
    struct error e;
    if (synth_write(o.args[1], &options, &e) != STATUS_OK) {
        fprintf(stderr, "tokenfold: %s\n", e.text);
        return EXIT_FAILED;
    }
    return 0;
}
