#include "format/checkpoint.h"

#include "format/json.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFETCH_BYTES (16u << 20) // between two calls of the progress function

static const char index_name[] = "model.safetensors.index.json";

struct checkpoint {
    char *folder;
    json_t *config, *generation_config, *tokenizer_config;
    struct safetensors **files;
    size_t n_files, capacity;
    const struct safetensors_tensor **tensors; // sorted by name
    size_t n_tensors;
};

// ---- paths ----

static bool plain_name(const char *name) {
    return name[0] && name[0] != '.' && !strchr(name, '/') && !strchr(name, '\\') && strlen(name) < 256;
}

// True when `path` is `folder` plus one more name, both without links.
static bool directly_inside(const char *path, const char *folder, size_t n_folder) {
    return !strncmp(path, folder, n_folder) && path[n_folder] == '/' && !strchr(path + n_folder + 1, '/');
}

// Where the links of `path` end must be the folder itself, or, when the folder is snapshots/<revision> in a cache of
// the Hugging Face hub, the blobs folder beside snapshots.
static bool stays_inside(const char *path, const char *folder) {
    char *real = realpath(path, NULL), *base = realpath(folder, NULL);
    bool inside = false;
    if (real && base) {
        inside = directly_inside(real, base, strlen(base));
        char *revision = strrchr(base, '/');
        if (!inside && revision) {
            *revision = '\0';
            char *snapshots = strrchr(base, '/');
            if (snapshots && !strcmp(snapshots, "/snapshots")) {
                size_t repo = (size_t)(snapshots - base);
                inside =
                    !strncmp(real, base, repo) && !strncmp(real + repo, "/blobs/", 7) && !strchr(real + repo + 7, '/');
            }
        }
    }
    free(real);
    free(base);
    return inside;
}

enum status checkpoint_locate(const char *folder, const char *name, char path[CHECKPOINT_PATH_BYTES], struct error *e) {
    if (!plain_name(name))
        return error_set(e, STATUS_INVALID, "%s: \"%.100s\" is not the plain name of a file in the folder", folder,
                         name);
    char joined[CHECKPOINT_PATH_BYTES];
    int n = snprintf(joined, sizeof joined, "%s/%s", folder, name);
    if (n < 0 || (size_t)n >= sizeof joined)
        return error_set(e, STATUS_LIMIT, "%.200s...: the path is too long", folder);
    struct stat info;
    if (stat(joined, &info)) {
        bool missing = errno == ENOENT || errno == ENOTDIR;
        return error_set(e, missing ? STATUS_NOT_FOUND : STATUS_IO, "%s: %s", joined,
                         missing ? "there is no such file" : strerror(errno));
    }
    if (!stays_inside(joined, folder))
        return error_set(e, STATUS_INVALID, "%s: is a link to a file outside the folder", joined);
    memcpy(path, joined, (size_t)n + 1);
    return STATUS_OK;
}

// ---- opening ----

static enum status read_object(const char *folder, const char *name, size_t limit, bool required, json_t **out,
                               struct error *e) {
    char path[CHECKPOINT_PATH_BYTES];
    enum status status = checkpoint_locate(folder, name, path, e);
    if (status == STATUS_NOT_FOUND && !required) return STATUS_OK;
    if (!status) status = json_parse_file(path, limit, JSON_PARSE_DEFAULT, out, e);
    if (!status && !json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        status = error_set(e, STATUS_INVALID, "%s: the file must hold a JSON object", path);
    }
    return status;
}

static enum status add_file(struct checkpoint *c, const char *name, struct error *e) {
    char path[CHECKPOINT_PATH_BYTES];
    enum status status = checkpoint_locate(c->folder, name, path, e);
    if (status) return status;
    if (c->n_files == c->capacity) {
        size_t capacity = c->capacity ? c->capacity * 2 : 8;
        void *grown = realloc(c->files, capacity * sizeof *c->files);
        if (!grown) return error_memory(e);
        c->files = grown;
        c->capacity = capacity;
    }
    status = safetensors_open(path, &c->files[c->n_files], e);
    if (!status) c->n_files++;
    return status;
}

static struct safetensors *file_named(const struct checkpoint *c, const char *name) {
    for (size_t i = 0; i < c->n_files; i++) {
        const char *path = safetensors_path(c->files[i]), *slash = strrchr(path, '/');
        if (!strcmp(slash ? slash + 1 : path, name)) return c->files[i];
    }
    return NULL;
}

// Opens each shard that the index names, once. The sentence is about the index itself where *in_index says so.
static enum status open_shards(struct checkpoint *c, const json_t *index, bool *in_index, struct error *e) {
    struct json_view root = json_root(index), map;
    *in_index = true;
    enum status status = json_get_view(&root, "weight_map", JSON_REQUIRED, JSON_OBJECT, &map, e);
    if (status) return status;
    const char *key, *last = NULL; // most entries name the same shard as the one before
    json_t *value;
    json_object_foreach((json_t *)map.value, key, value) {
        struct json_view entry;
        const char *name;
        if (!json_find(&map, key, &entry))
            return error_set(e, STATUS_INVALID, "/weight_map/%.100s must be a string, not null", key);
        status = json_as_string(&entry, &name, NULL, e);
        if (status) return status;
        if ((last && !strcmp(name, last)) || file_named(c, name)) continue;
        status = add_file(c, name, e);
        *in_index = !status;
        if (status) return status;
        last = name;
    }
    return c->n_files ? STATUS_OK : error_set(e, STATUS_INVALID, "/weight_map names no file");
}

// Every tensor that the index lists must be in the shard that it says.
static enum status check_index(const struct checkpoint *c, const json_t *index, struct error *e) {
    const char *key;
    json_t *value;
    json_object_foreach(json_object_get(index, "weight_map"), key, value) {
        size_t i;
        const struct safetensors_tensor *t = checkpoint_find(c, key, &i) ? c->tensors[i] : NULL;
        const char *shard = json_string_value(value), *slash = t ? strrchr(t->file, '/') : NULL;
        if (!t || strcmp(slash ? slash + 1 : t->file, shard))
            return error_set(e, STATUS_INVALID, "%s/%s: %s says that it holds tensor %s, and it does not", c->folder,
                             shard, index_name, key);
    }
    return STATUS_OK;
}

static int by_name(const void *x, const void *y) {
    const struct safetensors_tensor *const *a = x, *const *b = y;
    return strcmp((*a)->name, (*b)->name);
}

static enum status build_table(struct checkpoint *c, struct error *e) {
    size_t n = 0;
    for (size_t f = 0; f < c->n_files; f++) n += safetensors_count(c->files[f]);
    c->tensors = malloc((n + 1) * sizeof *c->tensors);
    if (!c->tensors) return error_memory(e);
    for (size_t f = 0; f < c->n_files; f++)
        for (size_t i = 0; i < safetensors_count(c->files[f]); i++)
            c->tensors[c->n_tensors++] = safetensors_tensor_at(c->files[f], i);
    qsort(c->tensors, n, sizeof *c->tensors, by_name);
    for (size_t i = 1; i < n; i++)
        if (!strcmp(c->tensors[i - 1]->name, c->tensors[i]->name))
            return error_set(e, STATUS_INVALID, "%s: tensor %s is also in %s", c->tensors[i]->file, c->tensors[i]->name,
                             c->tensors[i - 1]->file);
    return STATUS_OK;
}

static enum status open_weights(struct checkpoint *c, struct error *e) {
    json_t *index = NULL;
    enum status status = read_object(c->folder, index_name, CHECKPOINT_INDEX_MAX, false, &index, e);
    if (status) return status;
    if (index) {
        bool in_index;
        status = open_shards(c, index, &in_index, e);
        if (status && in_index) error_prefix(e, "%s/%s", c->folder, index_name);
    } else {
        status = add_file(c, "model.safetensors", e);
        if (status == STATUS_NOT_FOUND)
            error_set(e, status, "%s: the folder has neither model.safetensors nor %s", c->folder, index_name);
    }
    struct json_view root = json_root(c->config), extra;
    const char *sidecar = NULL;
    if (!status && json_find(&root, "mlx_lm_extra_tensors", &extra)) {
        status = json_must_be(&extra, JSON_OBJECT, e);
        if (!status) status = json_get_string(&extra, "mtp_file", JSON_OPTIONAL, &sidecar, NULL, e);
        if (status) error_prefix(e, "%s/config.json", c->folder);
    }
    if (!status && sidecar && !file_named(c, sidecar)) status = add_file(c, sidecar, e);
    if (!status) status = build_table(c, e);
    if (!status && index) status = check_index(c, index, e);
    json_decref(index);
    return status;
}

enum status checkpoint_open(const char *folder, struct checkpoint **out, struct error *e) {
    struct stat info;
    if (stat(folder, &info)) return error_set(e, STATUS_NOT_FOUND, "%s: %s", folder, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return error_set(e, STATUS_INVALID,
                         "%s: is not a folder; a model is a folder with config.json and safetensors files", folder);
    struct checkpoint *c = calloc(1, sizeof *c);
    if (!c || !(c->folder = strdup(folder))) {
        free(c);
        return error_memory(e);
    }
    for (size_t n = strlen(c->folder); n > 1 && c->folder[n - 1] == '/'; n--) c->folder[n - 1] = '\0';
    enum status status = read_object(c->folder, "config.json", CHECKPOINT_CONFIG_MAX, true, &c->config, e);
    if (!status)
        status =
            read_object(c->folder, "generation_config.json", CHECKPOINT_CONFIG_MAX, false, &c->generation_config, e);
    if (!status)
        status = read_object(c->folder, "tokenizer_config.json", CHECKPOINT_CONFIG_MAX, false, &c->tokenizer_config, e);
    if (!status) status = open_weights(c, e);
    if (status)
        checkpoint_free(c);
    else
        *out = c;
    return status;
}

void checkpoint_free(struct checkpoint *c) {
    if (!c) return;
    json_decref(c->config);
    json_decref(c->generation_config);
    json_decref(c->tokenizer_config);
    for (size_t i = 0; i < c->n_files; i++) safetensors_free(c->files[i]);
    free(c->files);
    free(c->tensors);
    free(c->folder);
    free(c);
}

// ---- reading ----

const char *checkpoint_folder(const struct checkpoint *c) { return c->folder; }
const char *checkpoint_format(const struct checkpoint *c) { return safetensors_format(c->files[0]); }
const json_t *checkpoint_config(const struct checkpoint *c) { return c->config; }
const json_t *checkpoint_generation_config(const struct checkpoint *c) { return c->generation_config; }
const json_t *checkpoint_tokenizer_config(const struct checkpoint *c) { return c->tokenizer_config; }
size_t checkpoint_count(const struct checkpoint *c) { return c->n_tensors; }
size_t checkpoint_n_files(const struct checkpoint *c) { return c->n_files; }

const struct safetensors_tensor *checkpoint_tensor_at(const struct checkpoint *c, size_t i) { return c->tensors[i]; }

bool checkpoint_find(const struct checkpoint *c, const char *name, size_t *i) {
    const struct safetensors_tensor wanted = {.name = name}, *key = &wanted;
    const struct safetensors_tensor **found = bsearch(&key, c->tensors, c->n_tensors, sizeof *c->tensors, by_name);
    if (found) *i = (size_t)(found - c->tensors);
    return found != NULL;
}

uint64_t checkpoint_bytes(const struct checkpoint *c) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < c->n_files; i++) bytes += safetensors_file_bytes(c->files[i]);
    return bytes;
}

enum status checkpoint_prefetch(const struct checkpoint *c, checkpoint_progress_fn *progress, void *context,
                                struct error *e) {
    uint64_t done = 0, total = checkpoint_bytes(c);
    for (size_t i = 0; i < c->n_files; i++) {
        size_t size = safetensors_file_bytes(c->files[i]);
        for (size_t at = 0; at < size; at += PREFETCH_BYTES) {
            size_t n = size - at < PREFETCH_BYTES ? size - at : PREFETCH_BYTES;
            enum status status = safetensors_prefetch(c->files[i], at, n, e);
            if (status) return status;
            done += n;
            if (progress && !progress(context, done, total))
                return error_set(e, STATUS_CANCELLED, "%s: loading was stopped", c->folder);
        }
    }
    return STATUS_OK;
}

enum status checkpoint_check(const struct checkpoint *c, struct error *e) {
    for (size_t i = 0; i < c->n_files; i++) {
        enum status status = safetensors_check(c->files[i], e);
        if (status) return status;
    }
    return STATUS_OK;
}
