// Owns a checkpoint folder: config.json and its neighbours, and the tensors of all its safetensors files under one
// table of names. Refuses an index or a link that leads out of the folder, names that two files claim, and an index
// that disagrees with its shards. Any thread may read an open checkpoint; opening and freeing are one thread's.
#ifndef TF_FORMAT_CHECKPOINT_H
#define TF_FORMAT_CHECKPOINT_H

#include "base/status.h"
#include "format/safetensors.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CHECKPOINT_PATH_BYTES 4096
#define CHECKPOINT_CONFIG_MAX (16 << 20) // config.json, generation_config.json, tokenizer_config.json
#define CHECKPOINT_INDEX_MAX  (64 << 20) // model.safetensors.index.json

struct checkpoint;

// Opens the folder's config.json (required), generation_config.json and tokenizer_config.json (optional), and its
// weights: the shards that model.safetensors.index.json names, else model.safetensors; then the file that config.json
// names as /mlx_lm_extra_tensors/mtp_file, if any. Reads headers only. Sentences name the path, and tensor or JSON
// pointer.
enum status checkpoint_open(const char *folder, struct checkpoint **out, struct error *e);
void checkpoint_free(struct checkpoint *c); // NULL is fine

const char *checkpoint_folder(const struct checkpoint *c);
const char *checkpoint_format(const struct checkpoint *c);   // metadata "format" of the first file; "" when absent
const json_t *checkpoint_config(const struct checkpoint *c); // an object
const json_t *checkpoint_generation_config(const struct checkpoint *c); // an object, or NULL
const json_t *checkpoint_tokenizer_config(const struct checkpoint *c);  // an object, or NULL

size_t checkpoint_count(const struct checkpoint *c);                                         // tensors
const struct safetensors_tensor *checkpoint_tensor_at(const struct checkpoint *c, size_t i); // sorted by name
bool checkpoint_find(const struct checkpoint *c, const char *name, size_t *i);
size_t checkpoint_n_files(const struct checkpoint *c);
uint64_t checkpoint_bytes(const struct checkpoint *c); // of all weight files

// The path of a file beside the weights ("tokenizer.json"). NOT_FOUND when there is none; INVALID when `name` is not a
// plain name, or is a link to outside the folder (Hugging Face's cache keeps files in ../../blobs: that is allowed).
enum status checkpoint_locate(const char *folder, const char *name, char path[CHECKPOINT_PATH_BYTES], struct error *e);

// Reads all weight files through, so that the first pass over them does not wait for the disk. `progress` (may be NULL)
// is called on this thread now and then, and at the end; false from it stops with CANCELLED. A shrunken file is an
// error.
typedef bool checkpoint_progress_fn(void *context, uint64_t bytes_done, uint64_t bytes_total);
enum status checkpoint_prefetch(const struct checkpoint *c, checkpoint_progress_fn *progress, void *context,
                                struct error *e);

// Every weight file is still as long as when it was opened.
enum status checkpoint_check(const struct checkpoint *c, struct error *e);

#endif
