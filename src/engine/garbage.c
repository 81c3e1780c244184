// A test mode: nothing that was not written may be read.
#include "engine/internal.h"

static void fill(struct engine *e, char *memory, int64_t bytes) {
    enum { BLOCK = 4096 };
    uint16_t garbage[BLOCK];
    for (int i = 0; i < BLOCK; i++) garbage[i] = 0x7fff; // NaN as bf16, f16 and, in pairs, f32; as e4m3 it is one too
    for (int64_t at = 0; at < bytes; at += (int64_t)sizeof garbage) {
        int64_t n = bytes - at < (int64_t)sizeof garbage ? bytes - at : (int64_t)sizeof garbage;
        e->device->copy_in(e->device, memory + at, garbage, (size_t)n);
    }
}

void garbage_fill(struct engine *e, const struct request *r) {
    const struct claim *c = &r->claim;
    if (!e->options.garbage) return;
    model_poison(e->model);
    if (e->has_block) drafter_poison(e->drafter);
    if (!c->run_is_kept) fill(e, engine_run(e, c->run), e->run_bytes);
    for (int32_t i = c->n_own_from; i < c->n_page; i++) fill(e, engine_page(e, c->pages[i]), e->page_bytes);
}
