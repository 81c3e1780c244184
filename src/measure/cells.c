#include "measure/cells.h"
#include "base/random.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_MOST    262144
#define WARM_STREAMS 4 // as `serve` has when nothing is said: what a turn leaves lies where streams do

static bool read_count(const char **at, int most, int *out) {
    char *end;
    if (**at < '0' || **at > '9') return false;
    long n = strtol(*at, &end, 10);
    if (n < 1 || n > most) return false;
    *out = (int)n;
    *at = end;
    return true;
}

static bool read_cell(const char **at, struct cell *c) {
    static const char *const kinds[] = {"prompt:", "decode:", "warm:"};
    *c = (struct cell){.n_decode = 1, .n_streams = 1};
    for (int kind = 0; kind < 3; kind++) {
        size_t n = strlen(kinds[kind]);
        if (strncmp(*at, kinds[kind], n) != 0) continue;
        c->kind = (enum cell_kind)kind;
        *at += n;
        if (!read_count(at, ROWS_MOST, &c->n_prompt)) return false;
        if (kind == CELL_PROMPT) return true;
        if (*(*at)++ != '+' || !read_count(at, ROWS_MOST, &c->n_decode)) return false;
        if (kind == CELL_WARM || **at != 'x') return true;
        ++*at;
        return read_count(at, CELL_STREAMS_MAX, &c->n_streams);
    }
    return false;
}

enum status cells_read(const char *text, struct cell *cells, int *n, struct error *e) {
    *n = 0;
    for (const char *at = text; *n < CELLS_MAX; at++) {
        if (!read_cell(&at, &cells[(*n)++]) || (*at != ',' && *at != 0)) break;
        if (*at == 0) return STATUS_OK;
    }
    return error_set(e, STATUS_INVALID,
                     "--cells must be up to %d like prompt:512, decode:128+64, decode:128+64x4 and warm:2048+64, "
                     "with commas between, not \"%s\"",
                     CELLS_MAX, text);
}

void cell_write(const struct cell *c, char text[CELL_TEXT]) {
    if (c->kind == CELL_PROMPT)
        snprintf(text, CELL_TEXT, "prompt:%d", c->n_prompt);
    else if (c->kind == CELL_WARM)
        snprintf(text, CELL_TEXT, "warm:%d+%d", c->n_prompt, c->n_decode);
    else if (c->n_streams == 1)
        snprintf(text, CELL_TEXT, "decode:%d+%d", c->n_prompt, c->n_decode);
    else
        snprintf(text, CELL_TEXT, "decode:%d+%dx%d", c->n_prompt, c->n_decode, c->n_streams);
}

void cell_name(const struct cell *c, char name[CELL_TEXT]) {
    if (c->kind == CELL_PROMPT)
        snprintf(name, CELL_TEXT, "prompt %d", c->n_prompt);
    else if (c->kind == CELL_WARM)
        snprintf(name, CELL_TEXT, "warm turn, %d more at %d", c->n_decode, c->n_prompt);
    else
        snprintf(name, CELL_TEXT, "decode %d at %d, %d stream%s", c->n_decode, c->n_prompt, c->n_streams,
                 c->n_streams == 1 ? "" : "s");
}

static int cell_rows(const struct cell *c) { return c->n_prompt + c->n_decode + (c->kind == CELL_WARM ? 3 : 1); }

int cells_longest(const struct cell *cells, int n) {
    int most = 1;
    for (int i = 0; i < n; i++)
        if (cell_rows(&cells[i]) > most) most = cell_rows(&cells[i]);
    return most;
}

int cells_streams(const struct cell *cells, int n) {
    int most = 1;
    for (int i = 0; i < n; i++) {
        int streams = cells[i].kind == CELL_WARM ? WARM_STREAMS : cells[i].n_streams;
        if (streams > most) most = streams;
    }
    return most;
}

int32_t cell_token(uint64_t key, int i, int64_t n_vocab) {
    uint64_t n = (uint64_t)(n_vocab < CELL_VOCABULARY ? n_vocab : CELL_VOCABULARY);
    return (int32_t)(random_bits(key, (uint64_t)i, 0) % n);
}

// Of a stream at a time.
static int32_t tokens_at(const struct stream_record *s, int64_t time_ns) {
    int32_t tokens = 0;
    for (int i = 0; i < s->n && s->times_ns[i] <= time_ns; i++) tokens = s->tokens[i];
    return tokens;
}

double cell_decode_rate(const struct stream_record *streams, int n_streams) {
    int64_t start = 0, end = INT64_MAX, tokens = 0;
    for (int i = 0; i < n_streams; i++) {
        const struct stream_record *s = &streams[i];
        if (s->n == 0) return 0;
        if (s->times_ns[0] > start) start = s->times_ns[0];
        if (s->times_ns[s->n - 1] < end) end = s->times_ns[s->n - 1];
    }
    for (int i = 0; i < n_streams; i++) tokens += tokens_at(&streams[i], end) - tokens_at(&streams[i], start);
    return end > start ? (double)tokens * 1e9 / (double)(end - start) : 0;
}

// FNV-1a (Fowler, Noll, Vo), 64 bits.
uint64_t cell_digest(uint64_t before, const void *data, size_t n) {
    uint64_t h = before != 0 ? before : 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) h = (h ^ ((const unsigned char *)data)[i]) * 0x100000001b3u;
    return h != 0 ? h : 1;
}
