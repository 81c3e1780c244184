// Shared by the files of weights.h only: finding tensors by name, checking them, and turning them into weights.
#ifndef TF_MODEL_WEIGHTS_INTERNAL_H
#define TF_MODEL_WEIGHTS_INTERNAL_H

#include "base/arena.h"
#include "format/checkpoint.h"
#include "model/weights.h"

#define TENSOR_NAME_BYTES 256

struct weights_loader {
    const struct checkpoint *checkpoint;
    const struct model_config *config;
    struct model_weights *weights;
    bool *used;                   // of the checkpoint's tensors: it has found its place
    struct weight_census *census; // what is being counted into
    struct error *error;

    const char *text_prefix; // "language_model.model."
    const char *head_prefix; // "language_model.", before lm_head; NULL when there is no lm_head
    const char *mtp_prefix;  // "mtp."; NULL when there is none
    bool channels_last;      // conv weights are [C, K, 1] (MLX) rather than [C, 1, K]
};

// The tensor at path (printf), or NULL.
const struct safetensors_tensor *loader_find(struct weights_loader *l, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// A vector of n_rows values of type F32, BF16 or F16, as fp32 in the arena, `add` added to each; or, with n_taps > 0,
// the convolution's [n_rows, n_taps], which the file holds in three dimensions. Values must be finite.
enum status loader_take_vector(struct weights_loader *l, const char *prefix, const char *name, int64_t n_rows,
                               int64_t n_taps, float add, const float **out);

// The matrix [n_out, n_in] of the module prefix + name: its tensor "<module>.weight", or, when `bare`, "<module>".
// n_stack > 0: the tensor is [n_stack, n_out, n_in], and *out is seen as [n_stack * n_out, n_in].
struct matrix_shape {
    int64_t n_stack, n_out, n_in;
    bool bare;
};
enum status loader_take_matrix(struct weights_loader *l, const char *prefix, const char *name,
                               struct matrix_shape shape, struct weight *out);

// One layer of the text model or of the MTP head; prefix is "language_model.model.layers.3.". norm_add is 1 where the
// file's norms are zero-centred, else 0.
enum status loader_take_layer(struct weights_loader *l, const char *prefix, enum layer_kind kind, float norm_add,
                              struct layer_weights *out);
enum status loader_take_mtp(struct weights_loader *l, struct mtp_weights *out); // weights_mtp.c

void *loader_alloc(struct weights_loader *l, int64_t n, size_t size); // zeroed; NULL when memory is out

#endif
