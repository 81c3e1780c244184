// A test mode: nothing that was not written may be read.
#include "engine/internal.h"

static void fill(struct engine *e, void *memory, int64_t bytes) {
    enum { BLOCK = 4096 };
    uint16_t garbage[BLOCK];
    for (int i = 0; i < BLOCK; i++) garbage[i] = 0x7fff; // NaN as bf16, f16 and, in pairs, f32
    for (int64_t at = 0; at < bytes; at += (int64_t)sizeof garbage) {
        int64_t n = bytes - at < (int64_t)sizeof garbage ? bytes - at : (int64_t)sizeof garbage;
        e->device->copy_in(e->device, (char *)memory + at, garbage, (size_t)n);
    }
}

void engine_fill_garbage(struct engine *e, const struct seat *seat) {
    if (!e->options.garbage) return;
    fill(e, engine_run(e, seat), e->run_bytes);
    for (int32_t i = 0; i < seat->n_page; i++)
        fill(e, (char *)e->pages + (int64_t)seat->pages[i] * e->page_bytes, e->page_bytes);
}
