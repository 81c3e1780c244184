// A batch's tables on the device: one block of pinned memory is filled and sent with one copy that nobody waits for.
#include "cuda/common.cuh"
#include <string.h>

#define LEAST_LANES 8 // also where the limits name none: single operations may be called on small batches
#define LEAST_ROWS  1024
#define LEAST_PAGES 65536

#define REACH_PLACES ((int32_t)(sizeof(struct lane_reach) / sizeof(int32_t))) // in the table of pages
#define LINE_PLACES  16                                                       // 64 bytes, which come together

bool upload_ring_open(struct upload_ring *r, size_t slot_bytes) {
    upload_ring_close(r);
    slot_bytes = (slot_bytes + CUDA_ALIGN - 1) / CUDA_ALIGN * CUDA_ALIGN;
    r->slot_bytes = slot_bytes;
    if (cudaMallocHost(&r->pinned, slot_bytes * CUDA_TABLE_SLOTS) != cudaSuccess) return false;
    if (cudaMalloc(&r->device, slot_bytes * CUDA_TABLE_SLOTS) != cudaSuccess) return false;
    for (int i = 0; i < CUDA_TABLE_SLOTS; i++)
        if (cudaEventCreateWithFlags(&r->done[i], cudaEventDisableTiming) != cudaSuccess) return false;
    return true;
}

void upload_ring_close(struct upload_ring *r) {
    for (int i = 0; i < CUDA_TABLE_SLOTS; i++)
        if (r->done[i] != NULL) cudaEventDestroy(r->done[i]);
    cudaFreeHost(r->pinned);
    cudaFree(r->device);
    memset(r, 0, sizeof *r);
}

char *upload_take(struct cuda_device *d, struct upload_ring *r) {
    cuda_note(d, cudaEventSynchronize(r->done[r->next]), "wait for an upload");
    return r->pinned + (size_t)r->next * r->slot_bytes;
}

char *upload_send(struct cuda_device *d, struct upload_ring *r, size_t bytes) {
    must(bytes <= r->slot_bytes);
    size_t at = (size_t)r->next * r->slot_bytes;
    cuda_note(d, cudaMemcpyAsync(r->device + at, r->pinned + at, bytes, cudaMemcpyHostToDevice, d->stream),
              "upload tables");
    cuda_note(d, cudaEventRecord(r->done[r->next], d->stream), "mark an upload");
    r->next = (r->next + 1) % CUDA_TABLE_SLOTS;
    return r->device + at;
}

// Where each table lies in a slot.
struct table_layout {
    size_t lanes, keeps, lane_of_row, ids, pages, bytes;
};

static struct table_layout lay_out_tables(int64_t n_lane, int64_t n_keep, int64_t n_row, int64_t n_page) {
    struct carver c = {NULL, 0};
    struct table_layout l;
    l.lanes = c.used;
    carve(&c, (size_t)n_lane * sizeof(struct lane_entry));
    l.keeps = c.used;
    carve(&c, (size_t)n_keep * sizeof(struct keep_entry));
    l.lane_of_row = c.used;
    carve(&c, (size_t)n_row * sizeof(int32_t));
    l.ids = c.used;
    carve(&c, (size_t)n_row * sizeof(int32_t));
    l.pages = c.used;
    carve(&c, ((size_t)n_page + REACH_PLACES) * sizeof(int32_t));
    l.bytes = c.used;
    return l;
}

// In the table of pages, for a lane of n_page of them: what a kernel asks for first, its reach and first pages, lies in
// one line.
static int32_t places_of_lane(int32_t n_page) {
    return (int32_t)ceil_div((int64_t)n_page + REACH_PLACES, LINE_PLACES) * LINE_PLACES;
}

// Pages may be as small as one position, so a lane can have as many as its context has, and a window's more.
size_t batch_table_bytes(const struct device_limits *l) {
    int64_t n_lane = larger(l->max_lanes, LEAST_LANES), n_row = larger(l->max_rows, l->max_round_rows);
    int64_t n_page = n_lane * places_of_lane((int32_t)(l->max_context + 2 * l->max_window));
    return lay_out_tables(n_lane, l->max_rows / CUDA_DELTA_ROWS + LEAST_LANES, larger(n_row, LEAST_ROWS),
                          larger(n_page, LEAST_PAGES))
        .bytes;
}

// A lane's pages begin at a multiple of `widest`, so that a kernel can ask for one before it knows its lane.
static void fill_lanes(const struct batch *b, int32_t widest, struct lane_entry *lanes, int32_t *lane_of_row,
                       int32_t *pages) {
    int64_t part_base = 0;
    for (int32_t i = 0; i < b->n_lane; i++) {
        const struct lane *l = &b->lanes[i];
        int64_t page_at = (int64_t)i * widest;
        lanes[i] =
            (struct lane_entry){l->row0, l->n_row, l->position, l->n_pending, page_at, part_base, (char *)l->run};
        for (int32_t t = 0; t < l->n_row; t++) lane_of_row[l->row0 + t] = i;
        *reach_of(pages + page_at) = (struct lane_reach){l->position, l->n_row};
        if (l->n_page > 0) memcpy(pages + page_at, l->pages, (size_t)l->n_page * sizeof *pages);
        part_base += ceil_div((int64_t)l->position + l->n_row, CUDA_CHUNK_KEYS) * l->n_row;
    }
}

void cuda_begin(struct device *base, const struct batch *b) {
    struct cuda_device *d = cuda_of(base);
    if (d->failure != cudaSuccess) return;
    int32_t widest = 1;
    for (int32_t i = 0; i < b->n_lane; i++) widest = b->lanes[i].n_page > widest ? b->lanes[i].n_page : widest;
    widest = places_of_lane(widest);
    struct table_layout l = lay_out_tables(b->n_lane, b->n_keep, b->n_row, (int64_t)b->n_lane * widest);
    must(l.bytes <= d->tables.slot_bytes);
    char *host = upload_take(d, &d->tables);
    fill_lanes(b, widest, (struct lane_entry *)(host + l.lanes), (int32_t *)(host + l.lane_of_row),
               (int32_t *)(host + l.pages) + REACH_PLACES);
    struct keep_entry *keeps = (struct keep_entry *)(host + l.keeps);
    for (int32_t i = 0; i < b->n_keep; i++)
        keeps[i] = (struct keep_entry){b->keeps[i].position, (char *)b->keeps[i].run};
    if (b->ids != NULL) memcpy(host + l.ids, b->ids, (size_t)b->n_row * sizeof(int32_t));
    char *device = upload_send(d, &d->tables, l.bytes);
    d->view = (struct batch_view){(struct lane_entry *)(device + l.lanes),
                                  (int32_t *)(device + l.lane_of_row),
                                  (int32_t *)(device + l.ids),
                                  (int32_t *)(device + l.pages) + REACH_PLACES,
                                  (struct keep_entry *)(device + l.keeps),
                                  b->n_row,
                                  b->n_lane,
                                  b->n_keep,
                                  b->max_window,
                                  widest};
    d->batch = b;
    d->form = b->form;
}

const struct batch_view *cuda_batch(struct cuda_device *d, const struct batch *batch) {
    if (batch != d->batch) cuda_begin(&d->base, batch);
    return &d->view;
}
