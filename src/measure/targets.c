#include "measure/targets.h"
#include <stdio.h>
#include <string.h>

// ---- a server that is there ----

static enum status start_nothing(void *context, const struct cell *cells, int n, struct error *e) {
    (void)context;
    (void)cells;
    (void)n;
    (void)e;
    return STATUS_OK;
}

static void stop_nothing(void *context) { (void)context; }

static enum status measure_url(void *context, const struct cell *c, uint64_t key, struct sample *out, struct error *e) {
    return client_measure(context, c, key, out, e);
}

struct target target_of_url(struct client *c) {
    return (struct target){c, start_nothing, measure_url, stop_nothing, .keeps = true};
}

// ---- a server of its own ----

#define ARGV_MAX (16 + SERVED_FLAGS_MAX + 2 * ARM_SETTINGS_MAX)

static enum status start_server(void *context, const struct cell *cells, int n, struct error *e) {
    struct served *s = context;
    char parallel[16], longest[16], names[ARM_SETTINGS_MAX][ARM_SETTINGS_TEXT + 2];
    const char *argv[ARGV_MAX];
    struct child_setting settings[ARM_SETTINGS_MAX];
    int n_argv = 0, n_settings = 0;
    snprintf(parallel, sizeof parallel, "%d", cells_streams(cells, n));
    snprintf(longest, sizeof longest, "%d", cells_longest(cells, n));
    const char *const fixed[] = {s->program,      "serve",      s->model_dir, "--port",    "0",
                                 "--no-progress", "--parallel", parallel,     "--context", longest};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) argv[n_argv++] = fixed[i];
    for (int i = 0; i < s->n_flags; i++) argv[n_argv++] = s->flags[i];
    for (int i = 0; i < s->arm->n_settings; i++) {
        const struct arm_setting *a = &s->arm->settings[i];
        if (a->kind == ARM_ENVIRONMENT) settings[n_settings++] = (struct child_setting){a->key, a->value};
        if (a->kind != ARM_FLAG) continue;
        snprintf(names[i], sizeof names[i], "--%s", a->key);
        argv[n_argv++] = names[i];
        if (a->value != NULL) argv[n_argv++] = a->value;
    }
    argv[n_argv] = NULL;
    s->child = (struct child){0};
    enum status st = child_start(&s->child, argv, settings, n_settings, e);
    if (st != STATUS_OK) return error_prefix(e, "arm %s", s->arm->name);
    snprintf(s->client.at.host, sizeof s->client.at.host, "127.0.0.1");
    snprintf(s->client.at.path, sizeof s->client.at.path, "/v1");
    snprintf(s->client.at.port, sizeof s->client.at.port, "%d", s->child.port);
    return STATUS_OK;
}

static enum status measure_server(void *context, const struct cell *c, uint64_t key, struct sample *out,
                                  struct error *e) {
    return client_measure(&((struct served *)context)->client, c, key, out, e);
}

static void stop_server(void *context) { child_stop(&((struct served *)context)->child); }

struct target target_of_server(struct served *s) {
    return (struct target){s, start_server, measure_server, stop_server, .keeps = false};
}
