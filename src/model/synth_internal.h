// Shared by the files of synth.h only.
#ifndef TF_MODEL_SYNTH_INTERNAL_H
#define TF_MODEL_SYNTH_INTERNAL_H

#include "base/buffer.h"
#include "format/safetensors.h"
#include "model/config.h"
#include "model/synth.h"

struct synth_shape {
    const char *name;
    bool real_ids; // added tokens at the ids that the published models have, rather than right after the vocabulary
    int64_t n_layers, n_hidden, n_intermediate, n_heads, n_kv_heads, n_key_heads, n_value_heads, n_vocab, n_context;
    bool tied;
    int64_t n_experts, n_experts_used, expert_width, shared_width;
};

const struct synth_shape *synth_find_shape(const char *name); // NULL when unknown

// ---- tensors ----

enum synth_fill {
    FILL_CODES,  // of `bits` bits, uniform
    FILL_SCALES, // of such codes: the matrix's values have mean 0 and standard deviation `spread`
    FILL_BIASES, // that belong to the scales of the same key
    FILL_NORMAL, // bf16, mean `centre`, standard deviation `spread`
    FILL_A_LOG,  // fp32, logarithms of decay rates from 0.01 to 4
};

struct synth_tensor {
    char name[112];
    enum safetensors_type type;
    int n_dims;
    int64_t shape[3];
    enum synth_fill fill;
    int bits;
    float centre, spread;
    uint64_t key; // of its random numbers
};

struct synth_plan {
    struct synth_tensor *tensors; // a module's codes, scales and biases one after another
    size_t n, capacity;
    bool failed; // memory ran out
};

struct synth_lister {
    struct synth_plan *plan;
    uint64_t seed;
    const char *prefix; // of the names that are added
};
// Values of a matrix have variance 1 / n_in, so that what goes in with variance 1 comes out with variance 1; `gain`
// times as much where the matrix is not a layer's.
void synth_add_matrix(struct synth_lister *l, const char *name, int64_t n_stack, int64_t n_out, int64_t n_in, int bits,
                      double gain);
void synth_add_vector(struct synth_lister *l, const char *name, int64_t n, double centre, double spread);

void synth_list_tensors(const struct synth_shape *shape, uint64_t seed, struct synth_plan *plan);

// Bytes [first, first + n) of the tensor's data; both are multiples of 8 or reach its end.
void synth_fill(const struct synth_tensor *t, int64_t first, int64_t n, unsigned char *out);

// ---- block drafters: checkpoints of their own, beside a model's ----

struct synth_drafter;
const char *synth_drafter_name(int i);                            // NULL past the last
const struct synth_drafter *synth_find_drafter(const char *name); // NULL when unknown
const char *synth_drafter_target(const struct synth_drafter *d);  // the shape that it is for
void synth_list_drafter(const struct synth_drafter *d, const struct synth_shape *target, uint64_t seed,
                        struct synth_plan *plan);
void synth_write_drafter_config(const struct synth_drafter *d, const struct synth_shape *target, int64_t first_added,
                                struct buffer *b);

// ---- the files beside the weights; each appends to b ----

// The vocabulary that all shapes share: every byte, and pieces of common words.
struct synth_vocabulary;
struct synth_vocabulary *synth_vocabulary_create(void); // NULL when memory is out
void synth_vocabulary_free(struct synth_vocabulary *v); // NULL is fine
int64_t synth_vocabulary_count(const struct synth_vocabulary *v);

void synth_write_tokenizer(const struct synth_vocabulary *v, int64_t first_added, struct buffer *b);
void synth_write_tokenizer_config(int64_t first_added, int64_t n_context, struct buffer *b);
void synth_write_config(const struct synth_shape *shape, int64_t first_added, struct buffer *b);
void synth_write_generation_config(int64_t first_added, struct buffer *b);

#define SYNTH_N_ADDED 33 // added tokens

#endif
