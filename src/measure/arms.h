// Owns how people write an arm: NAME:KEY=VALUE,KEY,... says what it has that the command line has not. A key in
// capitals is a setting of the environment; bin, url, model and key are of the harness itself; every other one is a
// flag. Refuses what cannot be read, names that are taken, and settings that no table knows. Main thread only.
#ifndef TF_MEASURE_ARMS_H
#define TF_MEASURE_ARMS_H

#include "base/status.h"
#include <stdbool.h>

#define ARMS_MAX          8 // the base and its double included
#define ARM_SETTINGS_MAX  16
#define ARM_NAME_MAX      32
#define ARM_SETTINGS_TEXT 512

enum arm_setting_kind { ARM_FLAG, ARM_ENVIRONMENT, ARM_OWN };

struct arm_setting {
    enum arm_setting_kind kind;
    const char *key, *value; // value NULL: a flag that takes none
};

struct arm {
    char name[ARM_NAME_MAX];
    struct arm_setting settings[ARM_SETTINGS_MAX];
    int n_settings;
    char text[ARM_SETTINGS_TEXT]; // what settings point into
};

// n texts of --arm into arms[2 ..): the first is the command line as it is, and the second its double, the A/A. Without
// texts there is one arm.
enum status arms_read(const char *const *texts, int n, struct arm *arms, int *n_arms, struct error *e);

const char *arm_get(const struct arm *a, const char *key); // NULL: not set

// "KEY=VALUE,...", as it was given, but for the value of `key`; "" for the base.
void arm_write(const struct arm *a, char text[ARM_SETTINGS_TEXT]);

#endif
