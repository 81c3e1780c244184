// Owns tiny checkpoints of both families in every layout, made in memory so that a test can spoil them before they are
// written. The same module has the same values in every layout. Failures end the test.
#ifndef TF_TESTS_MODEL_TINY_H
#define TF_TESTS_MODEL_TINY_H

#include "format/safetensors.h"
#include "model/weights.h"
#include "tests/format/folder.h"
#include <jansson.h>
#include <stdbool.h>

enum tiny_layout {
    TINY_HF,        // model.language_model.*, zero-centred norms
    TINY_TEXT,      // model.*, as a text-only model is saved
    TINY_MLX,       // language_model.model.*, 4 bits in groups of 32 (router and shared gate: 8), shifted norms
    TINY_MLX_PLAIN, // the same, not quantised
};

struct tiny_options {
    bool moe, tied, mtp, mtp_shifted, one_by_one;
    enum tiny_layout layout;
    enum safetensors_type type; // of all values except A_log (F32); 0: BF16
};

struct tiny_tensor {
    char name[160];
    struct safetensors_entry entry; // entry.name points to name
    unsigned char *data;
    size_t bytes;
};

struct tiny {
    struct tiny_options options;
    struct tiny_tensor *tensors;
    size_t n;
    json_t *config; // of config.json; the text config is also at `text`
    json_t *text;
};

struct tiny *tiny_create(struct tiny_options options);
void tiny_free(struct tiny *t);
struct tiny_tensor *tiny_find(struct tiny *t, const char *name); // fails the test when there is none
void tiny_remove(struct tiny *t, const char *name);
void tiny_rename(struct tiny *t, const char *from, const char *to);
// New type and shape, data of 0 bits; the name may be a new one.
void tiny_put(struct tiny *t, const char *name, enum safetensors_type type, int n_dims, const int64_t *shape);
// Sets the member that a pointer names ("/text_config/head_dim") to a JSON text; NULL removes it.
void json_edit(json_t *root, const char *path, const char *text);
// Writes config.json and the tensors, in n_shards files (1: model.safetensors).
void tiny_write(const struct tiny *t, const struct folder *f, int n_shards);

// Writes t into a new folder and loads it; *l is to be unloaded either way.
struct tiny_loaded {
    struct folder folder;
    struct checkpoint *checkpoint;
    struct model_config config;
    struct model_weights *weights;
};
enum status tiny_load(const struct tiny *t, int n_shards, struct tiny_loaded *l, struct error *e);
void tiny_unload(struct tiny_loaded *l);

// Value i of the module "layers.0.mlp.down_proj" and the like, before any quantisation; bf16 holds it exactly.
float tiny_value(const char *module, int64_t i);

#endif
