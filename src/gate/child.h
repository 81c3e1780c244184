// Owns a server that runs as a process of its own, for as long as its starter wants: `program serve` on a free port of
// this machine. Main thread only.
#ifndef TF_GATE_CHILD_H
#define TF_GATE_CHILD_H

#include "base/status.h"
#include <sys/types.h>

#define CHILD_PATH_SIZE 512

struct child {
    pid_t pid; // 0: none runs
    int port;
    char log[CHILD_PATH_SIZE]; // what it prints; removed when it ends
};

struct child_setting { // of its environment
    const char *name, *value;
};

// Starts argv[0], whose flags make it listen on 127.0.0.1, and waits until it does. *c holds zeros.
enum status child_start(struct child *c, const char *const *argv, const struct child_setting *settings, int n_settings,
                        struct error *e);
void child_stop(struct child *c); // ends it; nothing if none runs

// A new empty file where TMPDIR says.
enum status child_make_file(char path[CHILD_PATH_SIZE], struct error *e);

#endif
