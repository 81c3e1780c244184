// Owns two ways to measure an arm from outside: a server that is there already, and one that is started for each visit.
// Main thread only.
#ifndef TF_MEASURE_TARGETS_H
#define TF_MEASURE_TARGETS_H

#include "gate/child.h"
#include "measure/client.h"
#include "measure/rounds.h"

#define SERVED_FLAGS_MAX 32

// A server by its URL. The client must outlive the target.
struct target target_of_url(struct client *c);

struct served {
    const char *program, *model_dir;
    const char *flags[SERVED_FLAGS_MAX]; // of all arms; those of the arm come behind and win
    int n_flags;
    const struct arm *arm;
    // Its own.
    struct child child;
    struct client client;
};
// `program serve` with the arm's settings, fresh for each visit. *s must outlive the target.
struct target target_of_server(struct served *s);

#endif
