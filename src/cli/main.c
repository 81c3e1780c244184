// tokenfold VERB ...: finds the verb.
#include "cli/commands.h"
#include "cli/options.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>

static const struct verb_entry {
    const char *name;
    command_fn *run;
    int verb; // enum verb, for its flags; 0: it has none
    const char *arguments, *help;
} verbs[] = {
    {"serve", cmd_serve, VERB_SERVE, "[MODEL]", "an OpenAI-compatible server"},
    {"chat", cmd_chat, VERB_CHAT, "[MODEL]", "a conversation in the terminal"},
    {"run", cmd_run, VERB_RUN, "[MODEL] PROMPT", "one prompt to stdout"},
    {"info", cmd_info, VERB_INFO, "[MODEL]", "what a checkpoint is: format, layers, quantisation"},
    {"bench", cmd_bench, VERB_BENCH, "[MODEL]", "speed, and its share of the memory's"},
    {"plan", cmd_plan, VERB_PLAN, "[MODEL]", "what it would take of a device's memory, from its headers"},
    {"gate", cmd_gate, VERB_GATE, "[SUITE] [MODEL]", "proves that settings and company change no token"},
    {"synth", cmd_synth, VERB_SYNTH, "SHAPE DIR", "a checkpoint of a real shape with random weights"},
    {"profiles", cmd_profiles, 0, "", "the settings that come from the environment"},
    {"models", cmd_models, VERB_MODELS, "", "the checkpoints that are here, in models/ and Hugging Face's cache"},
    {"pull", cmd_pull, VERB_PULL, "REPO[@REV]...", "a verified download from the Hugging Face hub or a mirror"},
    {"version", cmd_version, 0, "", "version, compiler, backends"},
};

#define N_VERBS ((int)(sizeof verbs / sizeof *verbs))

static const struct verb_entry *find(const char *name) {
    for (int i = 0; i < N_VERBS; i++)
        if (strcmp(verbs[i].name, name) == 0) return &verbs[i];
    return NULL;
}

static int unknown(const char *name) {
    fprintf(stderr, "tokenfold: there is no verb %s; see tokenfold help\n", name);
    return EXIT_USAGE;
}

static int help(const char *name) {
    if (name != NULL) {
        const struct verb_entry *v = find(name);
        if (v == NULL) return unknown(name);
        printf("tokenfold %s %s\n%s\n\n", v->name, v->arguments, v->help);
        if (v->verb != 0) options_print_flags((enum verb)v->verb);
        return 0;
    }
    printf("tokenfold %s: serves Qwen 3.5, 3.6 and 3.8 checkpoints\n\n", TF_VERSION);
    for (int i = 0; i < N_VERBS; i++) {
        char left[64];
        snprintf(left, sizeof left, "%s %s", verbs[i].name, verbs[i].arguments);
        printf("  tokenfold %-20s %s\n", left, verbs[i].help);
    }
    printf("\ntokenfold help VERB lists a verb's flags.\n");
    return 0;
}

// What was printed and could not be written is a failure of the command, whatever else it did.
static int end(int code) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    fprintf(stderr, "tokenfold: the output cannot be written: %s\n", strerror(errno));
    return code != 0 ? code : EXIT_FAILED;
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fprintf(stderr, "tokenfold: a verb is missing; see tokenfold help\n");
        return EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "help") == 0 || strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        return end(help(argc > 2 ? argv[2] : NULL));
    if (strcmp(name, "--version") == 0) name = "version";
    const struct verb_entry *v = find(name);
    if (v == NULL) return unknown(name);
    bool asks_help = argc == 3 && (strcmp(argv[2], "--help") == 0 || strcmp(argv[2], "-h") == 0);
    return end(asks_help ? help(name) : v->run(argc - 1, argv + 1));
}
