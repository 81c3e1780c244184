// The cells of a suite in an order in which every pair of values of two dimensions comes early: each next cell is the
// one with the most pairs that no cell before it had. So a run that must stop early has seen most of what can go wrong
// together.
#include "gate/suites.h"
#include <stdlib.h>
#include <string.h>

#define VALUES_MAX 24

struct pairs { // seen[dimension][value][dimension][value]
    bool seen[DIMS_MAX][VALUES_MAX][DIMS_MAX][VALUES_MAX];
};

static int32_t count_new(const struct suite *s, const struct pairs *p, const int32_t *cell) {
    int32_t n = 0;
    for (int32_t a = 0; a < s->n_dims; a++)
        for (int32_t b = a; b < s->n_dims; b++) n += !p->seen[a][cell[a]][b][cell[b]]; // a == b: the value itself
    return n;
}

static void mark(const struct suite *s, struct pairs *p, const int32_t *cell) {
    for (int32_t a = 0; a < s->n_dims; a++)
        for (int32_t b = a; b < s->n_dims; b++) p->seen[a][cell[a]][b][cell[b]] = true;
}

enum status matrix_make(const struct suite *s, struct matrix *out, struct error *e) {
    int32_t n = 1;
    for (int32_t d = 0; d < s->n_dims; d++) {
        must(s->dims[d].n <= VALUES_MAX);
        n *= s->dims[d].n;
    }
    struct pairs *p = calloc(1, sizeof *p);
    out->cells = calloc((size_t)n, sizeof *out->cells);
    if (p == NULL || out->cells == NULL) {
        free(p);
        free(out->cells);
        return error_memory(e);
    }
    out->n = n;
    for (int32_t i = 0; i < n; i++)
        for (int32_t d = 0, rest = i; d < s->n_dims; rest /= s->dims[d++].n) out->cells[i][d] = rest % s->dims[d].n;
    for (int32_t i = 0; i < n; i++) {
        int32_t best = i, most = -1, cell[DIMS_MAX];
        for (int32_t k = i; k < n; k++) {
            int32_t found = count_new(s, p, out->cells[k]);
            if (found > most) best = k, most = found;
        }
        memcpy(cell, out->cells[best], sizeof cell);
        memmove(out->cells[i + 1], out->cells[i], (size_t)(best - i) * sizeof cell); // the others keep their order
        memcpy(out->cells[i], cell, sizeof cell);
        mark(s, p, cell);
    }
    free(p);
    return STATUS_OK;
}
