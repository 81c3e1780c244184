// Owns the definition of a draw: which token a row of logits gives under a request's settings and key. A pure function:
// no generator state, so that a draft is right exactly when it equals the draw.
//
// Per row, in double precision from fp32 logits l:
//   1. l += bias for each listed (id, bias)
//   2. for each id seen in prompt or reply: l = l > 0 ? l / repetition : l * repetition
//   3. for each id seen n > 0 times in the reply: l -= frequency * n + presence
//   4. ids not allowed (allowed bit clear, or id >= n_vocab) are out
//   temperature 0: the largest l, ties to the lower id. Otherwise s = l / temperature (taken as within 1e-30 and 1e30)
//   and
//   5. top_k > 0: the top_k largest s remain, ties to the lower id
//   6. top_p < 1: of what remains in falling order (ties: lower id first), the shortest prefix whose probability mass
//      (softmax over what remains, summed in that order) is >= top_p; at least one
//   7. min_p > 0: those with s >= max s + ln(min_p)
//   8. the largest s + gumbel(seed, position, id), ties to the lower id
// A NaN logit counts as -inf; where every l is -inf, the lowest id that is in.
// gumbel = -ln(-ln(u)), u = random_unit(random_bits(seed, position, id)) of base/random.h.
// position is the absolute position of the drawn token: the row's position + 1.
#ifndef TF_OPS_DRAW_H
#define TF_OPS_DRAW_H

#include "ops/tensor.h"

#define DRAW_MAX_TOP 20 // alternatives reported per token, OpenAI's limit

struct draw_bias {
    int32_t id;
    float bias;
};
struct draw_top {
    int32_t id;
    float logprob;
};
struct draw_seen {
    int32_t id, n_reply;
}; // n_reply 0: seen in the prompt only

struct draw_params {
    double temperature, top_p, min_p;       // >= 0, (0, 1], [0, 1]
    double repetition, presence, frequency; // 1, 0, 0: off
    int32_t top_k;                          // 0: off
    uint64_t seed;
    int64_t position;
    const struct draw_bias *bias; // [n_bias], ids distinct
    const struct draw_seen *seen; // [n_seen], ids distinct; needed only when a penalty is on
    const uint32_t *allowed;      // bit i % 32 of word i / 32; at least one bit of [0, n_vocab) is set
    int32_t n_bias, n_seen;
    int32_t n_top; // 0..DRAW_MAX_TOP alternatives wanted; -1: not even the token's own log probability
};

// Log probabilities are of the model's own distribution: log softmax over the row's raw logits, before steps 1 to 8.
struct draw_result {
    int32_t id;
    float logprob;
    int32_t n_top;
    struct draw_top top[DRAW_MAX_TOP]; // falling, ties to the lower id; ids whose allowed bit is clear are skipped
};

struct draw_args {
    struct tensor logits;             // [n_row, V] f32; unchanged
    int32_t n_vocab;                  // ids drawn from are below this (<= V)
    const struct draw_params *params; // host memory: [n_row]
    struct draw_result *results;      // host memory: [n_row]; valid after device_sync
};

#endif
