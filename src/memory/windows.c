#include "memory/windows.h"
#include <stdbool.h>
#include <stdlib.h>

struct memory {
    struct memory_shape shape;
    int32_t n_page; // of one window
    int32_t n_used;
    bool *used;     // [n_lane]
    int32_t *pages; // [n_lane][n_page]
};

int64_t memory_pages_per_window(const struct memory_shape *s) {
    return ((int64_t)s->context + s->max_window + s->page_rows - 1) / s->page_rows;
}

int64_t memory_pages_total(const struct memory_shape *s) { return memory_pages_per_window(s) * s->n_lane; }

enum status memory_create(const struct memory_shape *s, struct memory **out, struct error *e) {
    must(s->n_lane > 0 && s->context > 0 && s->max_window > 0 && s->page_rows > 0);
    if (memory_pages_total(s) > INT32_MAX)
        return error_set(e, STATUS_LIMIT, "%d windows of %d positions need more than %d pages of %d rows", s->n_lane,
                         s->context, INT32_MAX, s->page_rows);
    struct memory *m = calloc(1, sizeof *m);
    if (m == NULL) return error_memory(e);
    m->shape = *s;
    m->n_page = (int32_t)memory_pages_per_window(s);
    m->used = calloc((size_t)s->n_lane, sizeof *m->used);
    m->pages = malloc((size_t)memory_pages_total(s) * sizeof *m->pages);
    if (m->used == NULL || m->pages == NULL) {
        memory_free(m);
        return error_memory(e);
    }
    for (int64_t i = 0; i < memory_pages_total(s); i++) m->pages[i] = (int32_t)i;
    *out = m;
    return STATUS_OK;
}

void memory_free(struct memory *m) {
    if (m == NULL) return;
    free(m->used);
    free(m->pages);
    free(m);
}

enum claim memory_claim(struct memory *m, int64_t prompt, int64_t reply, struct seat *seat, const char **reason) {
    int64_t context = m->shape.context;
    if (prompt < 0 || reply < 0 || prompt > context || reply > context - prompt) return CLAIM_NEVER;
    for (int32_t i = 0; i < m->shape.n_lane; i++) {
        if (m->used[i]) continue;
        m->used[i] = true;
        m->n_used++;
        *seat = (struct seat){.lane = i, .pages = m->pages + (int64_t)i * m->n_page, .n_page = m->n_page};
        return CLAIM_SEATED;
    }
    *reason = "lanes busy";
    return CLAIM_NOT_NOW;
}

void memory_release(struct memory *m, const struct seat *seat) {
    must(seat->lane >= 0 && seat->lane < m->shape.n_lane && m->used[seat->lane]);
    m->used[seat->lane] = false;
    m->n_used--;
}

void memory_get_counts(const struct memory *m, struct memory_counts *out) {
    *out = (struct memory_counts){.n_pages = memory_pages_total(&m->shape),
                                  .n_pages_used = (int64_t)m->n_used * m->n_page,
                                  .n_lane = m->shape.n_lane,
                                  .n_lane_used = m->n_used};
}
