// Owns what `plan` prints: a table for people and the same facts as JSON. Any thread.
#ifndef TF_CLI_PLAN_TEXT_H
#define TF_CLI_PLAN_TEXT_H

#include "base/buffer.h"
#include "engine/engine.h"

struct plan_report {
    const char *model_dir;
    struct engine_info info; // plan, reserve and start sentence; its pointers are not used
    char device[256];
    char overrides[512];
    int32_t parallel_asked;
    bool on_paper; // the device is not in this machine, so only the caps say how much there is
    double position_bytes, position_bytes_mtp; // of keys and values, of all layers; with a multi-token head's too
    bool checked;
    int64_t taken_bytes; // with checked: of all parts but the prompt cache, which has a size and no need
};

void plan_write_table(const struct plan_report *r, struct buffer *out);
void plan_write_json(const struct plan_report *r, struct buffer *out);
bool plan_check_passes(const struct plan_report *r); // what was taken is within a hundredth of what was planned

#endif
