#include "tests/model/play.h"
#include "base/random.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const int32_t prompt_lengths[RIG_LANES] = {2, 65, 190, 300};

int32_t play_id(const struct rig *r, int32_t lane, int32_t position) {
    return (int32_t)(random_bits(11, (uint64_t)lane, (uint64_t)position) % (uint64_t)r->config->n_vocab);
}

struct player {
    struct rig *rig;
    const struct play *how;
    struct stream streams[RIG_LANES];
    int32_t n_reply[RIG_LANES]; // rows taken so far
    struct transcripts *out;
    uint64_t step; // of the random choices
};

static uint64_t choose(struct player *p, uint64_t n) { return random_bits(p->how->seed + 1, 3, p->step++) % n; }

static void *need_memory(size_t bytes) {
    void *memory = malloc(bytes);
    assert_non_null(memory);
    return memory;
}

static void record_state(struct player *p, int32_t lane) {
    struct transcript *t = &p->out->lanes[lane];
    int32_t i = p->n_reply[lane];
    stream_read_state(&p->streams[lane], t->states + (size_t)i * t->state_bytes);
    t->has_state[i] = true;
}

static void play_prompt(struct player *p, int32_t lane) {
    struct transcript *t = &p->out->lanes[lane];
    struct rig *r = p->rig;
    int32_t n = prompt_lengths[lane], ids[512];
    *t = (struct transcript){
        .n_prompt = n,
        .n_vocab = (size_t)r->config->n_vocab,
        .state_bytes = (size_t)stream_state_bytes(r),
        .kv_bytes = (size_t)stream_kv_bytes(r, n + PLAY_REPLY),
    };
    t->logits = need_memory((1 + PLAY_REPLY) * t->n_vocab * sizeof *t->logits);
    t->states = need_memory((1 + PLAY_REPLY) * t->state_bytes);
    t->kv = need_memory(t->kv_bytes);
    for (int32_t i = 0; i < n; i++) ids[i] = play_id(r, lane, i);
    stream_open(&p->streams[lane], r, lane, p->how->seed);
    stream_prompt(&p->streams[lane], ids, n, p->how->pass_rows != 0 ? p->how->pass_rows : PROMPT_MAX_ROWS, LOGITS_LAST,
                  t->logits);
    record_state(p, lane);
}

// A lane's part of a round: how many rows, how many of them right.
static void choose_window(struct player *p, int32_t lane, int32_t *n_row, int32_t *n_right) {
    const struct play *how = p->how;
    int32_t left = PLAY_REPLY - p->n_reply[lane];
    *n_row = how->width < 0 ? 1 + (int32_t)choose(p, RIG_WINDOW) : how->width == 0 ? 1 : how->width;
    switch (how->accept) {
    case ACCEPT_ALL: *n_right = *n_row; break;
    case ACCEPT_ONE: *n_right = 1; break;
    case ACCEPT_ALTERNATING: *n_right = p->step++ % 2 ? *n_row : 1; break;
    case ACCEPT_RANDOM: *n_right = 1 + (int32_t)choose(p, (uint64_t)*n_row); break;
    }
    if (*n_right > left) *n_right = left;
}

static void play_round(struct player *p, const int32_t *lanes, int32_t n_lane) {
    struct rig *r = p->rig;
    struct stream *streams[RIG_LANES];
    int32_t n_rows[RIG_LANES], n_right[RIG_LANES], ids[RIG_LANES * RIG_WINDOW], n = 0;
    int64_t n_vocab = r->config->n_vocab;
    for (int32_t i = 0; i < n_lane; i++) {
        struct stream *s = streams[i] = &p->streams[lanes[i]];
        choose_window(p, lanes[i], &n_rows[i], &n_right[i]);
        for (int32_t j = 0; j < n_rows[i]; j++) {
            int32_t id = play_id(r, lanes[i], s->position + j);
            ids[n++] = j < n_right[i] ? id : (id + 1 + j) % (int32_t)n_vocab;
        }
    }
    float *logits = need_memory((size_t)(n * n_vocab) * sizeof *logits), *at = logits;
    streams_round(streams, n_lane, n_rows, ids, logits);
    for (int32_t i = 0; i < n_lane; i++) {
        struct transcript *t = &p->out->lanes[lanes[i]];
        memcpy(t->logits + (1 + p->n_reply[lanes[i]]) * n_vocab, at, (size_t)(n_right[i] * n_vocab) * sizeof *at);
        at += n_rows[i] * n_vocab;
        stream_accept(streams[i], n_right[i]);
        p->n_reply[lanes[i]] += n_right[i];
        record_state(p, lanes[i]);
    }
    free(logits);
}

static void finish(struct player *p, int32_t lane) {
    stream_read_kv(&p->streams[lane], prompt_lengths[lane] + PLAY_REPLY, p->out->lanes[lane].kv);
}

static void play_alone(struct player *p) {
    for (int32_t lane = 0; lane < RIG_LANES; lane++) {
        rig_fill(p->rig); // nothing of the lane before, nor of one that used the memory earlier
        play_prompt(p, lane);
        while (p->n_reply[lane] < PLAY_REPLY) play_round(p, &lane, 1);
        finish(p, lane);
    }
}

// Lanes come in one by one, each round holds any of those that are there, and the last goes out alone.
static void play_together(struct player *p) {
    int32_t n_open = 0, n_done = 0;
    rig_fill(p->rig);
    while (n_done < RIG_LANES) {
        if (n_open < RIG_LANES && (n_open == 0 || choose(p, 3) == 0)) play_prompt(p, n_open++);
        int32_t lanes[RIG_LANES], n_lane = 0;
        for (int32_t lane = 0; lane < n_open; lane++)
            if (p->n_reply[lane] < PLAY_REPLY && choose(p, 4) != 0) lanes[n_lane++] = lane;
        if (n_lane > 0) play_round(p, lanes, n_lane);
        n_done = 0;
        for (int32_t lane = 0; lane < n_open; lane++) n_done += p->n_reply[lane] == PLAY_REPLY;
    }
    for (int32_t lane = 0; lane < RIG_LANES; lane++) finish(p, lane);
}

struct transcripts *play(struct rig *r, const struct play *how) {
    struct player p = {.rig = r, .how = how, .out = calloc(1, sizeof *p.out)};
    assert_non_null(p.out);
    if (how->together)
        play_together(&p);
    else
        play_alone(&p);
    return p.out;
}

void transcripts_free(struct transcripts *t) {
    for (int32_t lane = 0; lane < RIG_LANES; lane++) {
        free(t->lanes[lane].logits);
        free(t->lanes[lane].states);
        free(t->lanes[lane].kv);
    }
    free(t);
}

static void compare_lane(const struct transcript *want, const struct transcript *got, int32_t lane, const char *what) {
    size_t row = want->n_vocab, n = want->state_bytes;
    for (size_t i = 0; i <= PLAY_REPLY; i++) {
        if (memcmp(want->logits + i * row, got->logits + i * row, row * sizeof *want->logits) != 0)
            fail_msg("%s: lane %d (prompt of %d): the logits of reply row %zu differ", what, lane, want->n_prompt, i);
        if (want->has_state[i] && got->has_state[i] && memcmp(want->states + i * n, got->states + i * n, n) != 0)
            fail_msg("%s: lane %d (prompt of %d): the state after %zu reply rows differs", what, lane, want->n_prompt,
                     i);
    }
    if (memcmp(want->kv, got->kv, want->kv_bytes) != 0)
        fail_msg("%s: lane %d (prompt of %d): keys or values differ", what, lane, want->n_prompt);
}

void transcripts_must_equal(const struct transcripts *want, const struct transcripts *got, const char *what) {
    for (int32_t lane = 0; lane < RIG_LANES; lane++) compare_lane(&want->lanes[lane], &got->lanes[lane], lane, what);
}
