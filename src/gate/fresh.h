// Owns the gates' other way to run prompts: a server of its own for each arm, asked over HTTP as clients ask it. What
// comes back are ids, text, log probabilities and the lines of TF_GATE_LOGITS. Private to the gates; main thread only.
#ifndef TF_GATE_FRESH_H
#define TF_GATE_FRESH_H

#include "gate/internal.h"

struct fresh;

// Starts `program serve` with the arm's settings, and waits until it listens.
enum status fresh_start(struct gate *g, const struct arm *arm, struct error *e);
void fresh_stop(struct gate *g); // ends it; nothing if none runs
bool fresh_runs(const struct gate *g);

// As arms_run; g->passes then holds what the server has reported so far.
enum status fresh_run(struct gate *g, struct job *jobs, int32_t n, bool together, struct error *e);
// As arms_judge_idle, by what /metrics says.
void fresh_judge_idle(struct gate *g, struct verdict *v);

#endif
