// Owns one fixed set of streams, and the many ways to compute them that must all give the same bits: passes cut
// anywhere, windows of any width with any number of rows taken back, any company, any pages.
#ifndef TF_TESTS_MODEL_PLAY_H
#define TF_TESTS_MODEL_PLAY_H

#include "tests/model/rig.h"

#define PLAY_REPLY 48 // reply rows of a stream

// What happens to the rows of a window: how many of them are right. The others hold wrong ids and are taken back.
enum acceptance { ACCEPT_ALL, ACCEPT_ONE, ACCEPT_ALTERNATING, ACCEPT_RANDOM };

struct play {
    int32_t pass_rows; // 0: 4096
    int32_t width;     // of windows: 0: single rows; 1..RIG_WINDOW: as wide as that; -1: any width
    enum acceptance accept;
    bool together; // all lanes in one round, joining and leaving; else one lane after another
    uint64_t seed; // of everything random: widths, acceptance, company, page order (0: pages in order)
};

// What a stream computed. Logits of the prompt's last row and of each reply row; the recurrent state after i reply
// rows, where it could be looked at; keys and values of all positions.
struct transcript {
    int32_t n_prompt;
    size_t n_vocab, state_bytes, kv_bytes;
    float *logits; // [1 + PLAY_REPLY, V]
    char *states;  // [1 + PLAY_REPLY][state_bytes]
    bool has_state[PLAY_REPLY + 1];
    char *kv;
};

struct transcripts {
    struct transcript lanes[RIG_LANES];
};

struct transcripts *play(struct rig *r, const struct play *how);
void transcripts_free(struct transcripts *t);

// Fails the test, saying what differs first. `what` names the way it was played.
void transcripts_must_equal(const struct transcripts *want, const struct transcripts *got, const char *what);

int32_t play_id(const struct rig *r, int32_t lane, int32_t position); // the id at a position of a lane's stream

#endif
