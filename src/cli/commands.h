// Owns the list of verbs. Each takes argv from its own name on, and returns the process's exit status: 0, 1 when the
// work failed, 2 when it was asked for wrongly. What went wrong is one line on stderr.
#ifndef TF_CLI_COMMANDS_H
#define TF_CLI_COMMANDS_H

#define EXIT_FAILED 1
#define EXIT_USAGE  2

typedef int command_fn(int argc, char **argv);

command_fn cmd_serve, cmd_chat, cmd_run, cmd_info, cmd_synth, cmd_bench, cmd_plan, cmd_gate, cmd_models, cmd_pull,
    cmd_profiles, cmd_version;

#endif
