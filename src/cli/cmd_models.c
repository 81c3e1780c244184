// models: the checkpoints that are here, and whether they can be served.
#include "cli/commands.h"
#include "cli/options.h"
#include "format/json.h"
#include "hub/cache.h"
#include "model/model.h"
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct models {
    json_t *list;
    bool failed; // out of memory
};

#define CONFIG_BYTES ((size_t)1 << 20)

static bool is_drafter(const char *config) {
    struct error e;
    json_t *root = NULL;
    if (json_parse_file(config, CONFIG_BYTES, JSON_PARSE_DEFAULT, &root, &e) != STATUS_OK) return false;
    bool found = json_object_get(root, "dflash_config") != NULL;
    json_decref(root);
    return found;
}

// A snapshot without a config.json is somebody else's: a data set's, or a model's of another kind.
static void add(struct models *m, const char *name, const char *commit, const char *path) {
    char config[HUB_PATH_BYTES + 16];
    struct model *model;
    struct error e;
    snprintf(config, sizeof config, "%s/config.json", path);
    if (access(config, R_OK) != 0) return;
    enum status st = model_open(path, &model, &e);
    json_t *entry =
        json_pack("{s:s,s:s?,s:s,s:b}", "name", name, "commit", commit, "path", path, "usable", st == STATUS_OK);
    if (st == STATUS_OK) {
        const struct model_config *c = model_get_config(model);
        json_object_set_new(entry, "family", json_string(config_family_name(c->family)));
        json_object_set_new(entry, "weight_bytes", json_integer(model_weight_bytes(model)));
        json_object_set_new(entry, "context", json_integer(c->n_context));
        model_free(model);
    } else {
        json_object_set_new(
            entry, "problem",
            json_string(is_drafter(config) ? "a block drafter: for --drafter, beside its model" : e.text));
    }
    if (json_array_append_new(m->list, entry) != 0) m->failed = true;
}

static void take_snapshot(void *context, const char *repo, const char *commit, const char *path) {
    add(context, repo, commit, path);
}

static void add_own(struct models *m) {
    struct dirent **entries;
    const char *folder = options_models_folder();
    int n = folder != NULL ? scandir(folder, &entries, NULL, alphasort) : 0;
    for (int i = 0; i < n; i++) {
        char path[HUB_PATH_BYTES];
        int length = snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        if (entries[i]->d_name[0] != '.' && length < (int)sizeof path) add(m, entries[i]->d_name, NULL, path);
        free(entries[i]);
    }
    if (n > 0) free(entries);
}

static void print_text(const json_t *list) {
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *m = json_array_get(list, i);
        const char *commit = json_string_value(json_object_get(m, "commit"));
        char name[HUB_REPO_BYTES + 16], short_commit[16] = "";
        if (commit != NULL) snprintf(short_commit, sizeof short_commit, "@%.7s", commit);
        snprintf(name, sizeof name, "%s%s", json_string_value(json_object_get(m, "name")), short_commit);
        if (json_is_true(json_object_get(m, "usable"))) {
            double mib = (double)json_integer_value(json_object_get(m, "weight_bytes")) / (1 << 20);
            printf("%-48s %-12s %8.1f %s, context %lld\n", name, json_string_value(json_object_get(m, "family")),
                   mib < 1024 ? mib : mib / 1024, mib < 1024 ? "MiB" : "GiB",
                   (long long)json_integer_value(json_object_get(m, "context")));
        } else {
            printf("%-48s %s\n", name, json_string_value(json_object_get(m, "problem")));
        }
    }
}

static enum status print_json(const json_t *list, struct error *e) {
    struct buffer b;
    buffer_init(&b, 0);
    bool ok = json_write(&b, list, JSON_STYLE_INDENT);
    if (ok) printf("%s\n", b.data);
    buffer_free(&b);
    return ok ? STATUS_OK : error_memory(e);
}

int cmd_models(int argc, char **argv) {
    struct options o;
    struct error e;
    int exit_code;
    char cache[HUB_PATH_BYTES];
    if (!options_parse(VERB_MODELS, argc, argv, &o, &exit_code)) return exit_code;
    if (o.n_args > 0) {
        fprintf(stderr, "tokenfold: models takes no arguments\n");
        return EXIT_USAGE;
    }
    struct models m = {.list = json_array()};
    add_own(&m);
    enum status st =
        hub_cache_folder(cache, &e) == STATUS_OK ? hub_cache_list(cache, take_snapshot, &m, &e) : STATUS_OK;
    if (st == STATUS_OK && m.failed) st = error_memory(&e);
    if (st == STATUS_OK && o.json) {
        st = print_json(m.list, &e);
    } else if (st == STATUS_OK) {
        print_text(m.list);
    }
    json_decref(m.list);
    if (st == STATUS_OK) return 0;
    fprintf(stderr, "tokenfold: %s\n", e.text);
    return EXIT_FAILED;
}
