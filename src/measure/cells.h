// Owns what is measured: cells, as people write them, and what one measurement of a cell gives. Refuses what is not a
// cell. Any thread.
#ifndef TF_MEASURE_CELLS_H
#define TF_MEASURE_CELLS_H

#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

#define CELLS_MAX        32
#define CELL_STREAMS_MAX 256
#define CELL_TEXT        48
#define CELL_PAUSE_NS    ((int64_t)100000000) // between the turns of a warm turn; people read longer
#define CELL_VOCABULARY  1000 // prompts are of ids below it, which every vocabulary has as ordinary tokens

enum cell_kind {
    CELL_PROMPT, // prompt:N, tokens a second until the first token of the reply
    CELL_DECODE, // decode:N+MxS, replies of M tokens behind prompts of N, S at once
    CELL_WARM,   // warm:N+M, a second turn of M tokens behind a prompt of N and its reply, until its first token
};

struct cell {
    enum cell_kind kind;
    int n_prompt, n_decode, n_streams; // n_decode: M
};

// Of all streams: rounds, the drafts in their windows, and those that stayed. All 0: not known.
struct drafted {
    int64_t n_rounds, n_drafted, n_kept;
    int64_t round_bytes; // of weights, that a round reads if all its windows are the widest; 0: they are not
};

struct sample {
    double tokens_per_s;
    struct drafted drafted;
    uint64_t ids, text; // digests of all replies; 0: not known
    int n_cached;       // tokens that the last prompt went on from; -1: not known
};

// "prompt:512,decode:128+64x4": into cells, of which there is room for CELLS_MAX.
enum status cells_read(const char *text, struct cell *cells, int *n, struct error *e);
void cell_write(const struct cell *c, char text[CELL_TEXT]); // as it is read
void cell_name(const struct cell *c, char name[CELL_TEXT]);  // for people

int cells_longest(const struct cell *cells, int n); // most positions of a stream, prompt and reply
// Most streams that there must be room for; a warm turn's state wants that of some more.
int cells_streams(const struct cell *cells, int n);

// Token i of a prompt; prompts of different keys part at their first tokens.
int32_t cell_token(uint64_t key, int i, int64_t n_vocab);

// How far all streams are at a time, to measure them together: from when the last one has its first token to when the
// first one has its last. Times ascend and tokens are how many there are then; [n] of each stream.
struct stream_record {
    const int64_t *times_ns;
    const int32_t *tokens;
    int n;
};
double cell_decode_rate(const struct stream_record *streams, int n_streams);

uint64_t cell_digest(uint64_t before, const void *data, size_t n); // 0 to begin with; never 0

#endif
