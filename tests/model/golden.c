#include "tests/model/golden.h"
#include "base/status.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const golden_folders[] = {"dense-hf", "dense-hf-tied-text", "dense-mlx4-g32",      "dense-mlx-mixed",
                                      "moe-hf",   "moe-mlx4-g64",       "dense-realdims-mlx4", "moe-realdims-mlx4",
                                      NULL};
const int32_t golden_lengths[8] = {1, 2, 5, 63, 64, 65, 130, 300};

const char *golden_root(void) {
    static bool unpacked;
    const char *root = getenv("TF_GOLDEN");
    if (root != NULL) return root;
    if (!unpacked && system("tools/unpack_golden.sh") != 0) fprintf(stderr, "tools/unpack_golden.sh failed\n");
    unpacked = true;
    return "build/golden";
}

static void give_up(const char *path, const char *why) {
    fprintf(stderr, "%s: %s\n", path, why);
    exit(1);
}

struct golden *golden_open(const char *folder) {
    struct golden *g = calloc(1, sizeof *g);
    char path[sizeof g->dir + 32];
    struct error e;
    json_error_t je;
    must(g != NULL);
    snprintf(g->dir, sizeof g->dir, "%s/%s", golden_root(), folder);
    snprintf(path, sizeof path, "%s/golden.safetensors", g->dir);
    if (safetensors_open(path, &g->file, &e) != STATUS_OK) give_up(path, e.text);
    snprintf(path, sizeof path, "%s/golden.json", g->dir);
    g->info = json_load_file(path, 0, &je);
    if (g->info == NULL) give_up(path, je.text);
    return g;
}

void golden_close(struct golden *g) {
    safetensors_free(g->file);
    json_decref(g->info);
    free(g);
}

static const struct safetensors_tensor *find(const struct golden *g, const char *name, int32_t number,
                                             const char *suffix) {
    char full[64];
    snprintf(full, sizeof full, "%s.%d%s", name, number, suffix);
    for (size_t i = 0; i < safetensors_count(g->file); i++) {
        const struct safetensors_tensor *t = safetensors_tensor_at(g->file, i);
        if (strcmp(t->name, full) == 0) return t;
    }
    give_up(full, "no such tensor");
    return NULL;
}

const int32_t *golden_ids(const struct golden *g, int32_t length) {
    const struct safetensors_tensor *t = find(g, "ids", length, "");
    must(t->type == SAFETENSORS_I32 && t->n_dims == 1 && t->shape[0] == length);
    return (const int32_t *)(const void *)t->data;
}

const float *golden_logits(const struct golden *g, int32_t length, int32_t *n_rows) {
    const struct safetensors_tensor *t = find(g, "logits", length, "");
    must(t->type == SAFETENSORS_F32 && t->n_dims == 2);
    *n_rows = (int32_t)t->shape[0];
    return (const float *)(const void *)t->data;
}

const float *golden_hidden(const struct golden *g, int32_t layer) {
    return (const float *)(const void *)find(g, "hidden", layer, ".65")->data;
}

double golden_greedy(const struct golden *g, int32_t length, int32_t ids[GOLDEN_GREEDY]) {
    char key[16];
    snprintf(key, sizeof key, "%d", length);
    json_t *one = json_object_get(json_object_get(g->info, "greedy"), key), *list = json_object_get(one, "ids");
    must(json_array_size(list) == GOLDEN_GREEDY);
    for (size_t i = 0; i < GOLDEN_GREEDY; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return json_number_value(json_object_get(one, "min_top2_gap"));
}
