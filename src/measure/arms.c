#include "measure/arms.h"
#include "memory/profile.h"
#include <stdio.h>
#include <string.h>

static bool is_known_setting(const char *name) {
    for (int i = 0; i < PROFILE_N_SETTING; i++)
        if (strcmp(profile_setting((enum profile_id)i)->name, name) == 0) return true;
    return false;
}

static enum status classify(struct arm *a, struct arm_setting *s, struct error *e) {
    static const char *const own[] = {"bin", "url", "model", "key"};
    s->kind = s->key[0] >= 'A' && s->key[0] <= 'Z' ? ARM_ENVIRONMENT : ARM_FLAG;
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (strcmp(own[i], s->key) == 0) s->kind = ARM_OWN;
    if (s->kind != ARM_FLAG && (s->value == NULL || s->value[0] == 0))
        return error_set(e, STATUS_INVALID, "--arm %s: %s needs a value", a->name, s->key);
    if (s->kind == ARM_ENVIRONMENT && !is_known_setting(s->key))
        return error_set(e, STATUS_INVALID, "--arm %s: there is no setting %s; see tokenfold profiles", a->name,
                         s->key);
    for (int i = 0; i < a->n_settings; i++)
        if (strcmp(a->settings[i].key, s->key) == 0)
            return error_set(e, STATUS_INVALID, "--arm %s has %s twice", a->name, s->key);
    return STATUS_OK;
}

static enum status read_settings(struct arm *a, struct error *e) {
    for (char *at = a->text; at != NULL;) {
        char *key = at, *end = strchr(at, ',');
        if (end != NULL) *end = 0;
        at = end != NULL ? end + 1 : NULL;
        char *equals = strchr(key, '=');
        if (equals != NULL) *equals = 0;
        if (key[0] == 0)
            return error_set(e, STATUS_INVALID, "--arm %s must be NAME:KEY=VALUE,... with at least one key", a->name);
        if (a->n_settings == ARM_SETTINGS_MAX)
            return error_set(e, STATUS_INVALID, "--arm %s has more than %d settings", a->name, ARM_SETTINGS_MAX);
        struct arm_setting *s = &a->settings[a->n_settings];
        *s = (struct arm_setting){.key = key, .value = equals != NULL ? equals + 1 : NULL};
        enum status st = classify(a, s, e);
        if (st != STATUS_OK) return st;
        a->n_settings++;
    }
    return STATUS_OK;
}

static enum status read_arm(const char *text, struct arm *a, struct error *e) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t n = strspn(text, letters);
    *a = (struct arm){0};
    if (n == 0 || n >= ARM_NAME_MAX || text[n] != ':')
        return error_set(e, STATUS_INVALID,
                         "--arm must be NAME:KEY=VALUE,... with a name of up to %d letters, digits, dots and dashes, "
                         "not \"%s\"",
                         ARM_NAME_MAX - 1, text);
    if (strlen(text + n + 1) >= ARM_SETTINGS_TEXT)
        return error_set(e, STATUS_INVALID, "--arm is longer than %d bytes", ARM_SETTINGS_TEXT);
    memcpy(a->name, text, n);
    strcpy(a->text, text + n + 1);
    return read_settings(a, e);
}

enum status arms_read(const char *const *texts, int n, struct arm *arms, int *n_arms, struct error *e) {
    int count = n == 0 ? 1 : 2;
    arms[0] = (struct arm){.name = "base"};
    arms[1] = (struct arm){.name = "base-again"};
    if (n > ARMS_MAX - 2) return error_set(e, STATUS_INVALID, "--arm may be given %d times", ARMS_MAX - 2);
    for (int i = 0; i < n; i++) {
        enum status s = read_arm(texts[i], &arms[count], e);
        if (s != STATUS_OK) return s;
        for (int k = 0; k < count; k++)
            if (strcmp(arms[k].name, arms[count].name) == 0)
                return error_set(e, STATUS_INVALID, "two arms are called %s", arms[k].name);
        count++;
    }
    *n_arms = count;
    return STATUS_OK;
}

const char *arm_get(const struct arm *a, const char *key) {
    for (int i = 0; i < a->n_settings; i++)
        if (strcmp(a->settings[i].key, key) == 0) return a->settings[i].value;
    return NULL;
}

void arm_write(const struct arm *a, char text[ARM_SETTINGS_TEXT]) {
    int n = 0;
    text[0] = 0;
    for (int i = 0; i < a->n_settings && n < ARM_SETTINGS_TEXT; i++) {
        const struct arm_setting *s = &a->settings[i];
        bool secret = strcmp(s->key, "key") == 0;
        n += snprintf(text + n, (size_t)(ARM_SETTINGS_TEXT - n), "%s%s%s%s", i > 0 ? "," : "", s->key,
                      s->value != NULL ? "=" : "",
                      s->value == NULL ? ""
                      : secret         ? "***"
                                       : s->value);
    }
}
