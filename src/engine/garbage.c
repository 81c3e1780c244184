// A test mode: nothing that was not written may be read.
#include "engine/internal.h"

#define GARBAGE 0x7fff // NaN as bf16, f16 and, in pairs, f32; as e4m3 it is one too

static void fill(struct engine *e, void *memory, int64_t bytes) {
    device_fill(e->device, memory, GARBAGE, (size_t)bytes);
}

void garbage_fill(struct engine *e, const struct request *r) {
    const struct claim *c = &r->claim;
    if (!e->options.garbage) return;
    model_poison(e->model);
    if (e->has_block) drafter_poison(e->drafter);
    if (!c->run_is_kept) fill(e, engine_run(e, c->run), e->run_bytes);
    for (int32_t i = c->n_own_from; i < c->n_page; i++) fill(e, engine_page(e, c->pages[i]), e->page_bytes);
}
