// Who has what at this moment, as JSON for GET /state. The engine thread writes it between rounds when somebody has
// asked, and when it goes idle, so that it costs nothing where nobody looks.
#include "base/clock.h"
#include "engine/internal.h"
#include <inttypes.h>
#include <stdlib.h>

// More waiting requests than this are counted and not listed.
#define LISTED_MAX 64
// Where the pool has more pages, one entry of the map stands for several.
#define CELLS_MAX 4096

// What a page is, beside the lanes' own: those are 2 * lane, and 2 * lane + 1 where no row has been stored yet.
enum cell { CELL_FREE = -4, CELL_STATE, CELL_CACHED, CELL_SHARED };

static void write_lane(struct buffer *b, const struct request *r, int64_t now, bool first) {
    const struct claim *c = &r->claim;
    int32_t done = r->n_rows_done < r->n_prompt ? r->n_rows_done : r->n_prompt;
    buffer_printf(b,
                  "%s{\"lane\":%d,\"request\":%" PRId64
                  ",\"state\":\"%s\",\"prompt\":%d,\"prompt_done\":%d,\"resumed\":%d,"
                  "\"reply\":%d,\"longest\":%d,\"pages\":%d,\"ms\":%" PRId64 "}",
                  first ? "" : ",", c->lane, r->number, done < r->n_prompt ? "prompt" : "reply", r->n_prompt, done,
                  c->resume, r->n_rows_done - done, r->max_tokens, c->n_page, (now - r->seated_ns) / 1000000);
}

static void write_waiting(struct buffer *b, const struct engine *e, int64_t now) {
    int32_t n = 0;
    for (struct claim *c = ledger_first(e->ledger); c != NULL; c = c->next) {
        const struct request *r = admission_request(c);
        if (n++ >= LISTED_MAX) continue;
        buffer_printf(b,
                      "%s{\"request\":%" PRId64 ",\"reason\":\"%s\",\"prompt\":%d,\"longest\":%d,\"ms\":%" PRId64 "}",
                      n > 1 ? "," : "", r->number, ledger_wait_text(c->wait), r->n_prompt, r->max_tokens,
                      (now - r->submitted_ns) / 1000000);
    }
    buffer_printf(b, "],\"n_waiting\":%d", n);
}

static void mark_lane(const struct engine *e, const struct request *r, int32_t *cells) {
    const struct claim *c = &r->claim;
    int64_t page_rows = e->info.plan.page_rows;
    for (int32_t i = 0; i < c->n_page; i++) {
        bool stored = i * page_rows < r->n_rows_done;
        cells[c->pages[i]] = 2 * c->lane + !stored;
    }
}

// Fills cells [n] with what each page is.
static void mark_pages(const struct engine *e, int32_t *cells, int32_t n) {
    struct pool_counts counts;
    pool_get_counts(e->pool, &counts);
    for (int32_t i = 0; i < n; i++) cells[i] = CELL_FREE;
    for (int32_t run = 0; run < counts.n_run; run++) {
        int32_t first, n_in;
        if (!pool_run_is_held(e->pool, run)) continue; // a page that lies over it is not its state
        pool_pages_of_run(e->pool, run, &first, &n_in);
        for (int32_t i = first; i < first + n_in; i++) cells[i] = CELL_STATE;
    }
    for (int32_t i = 0; i < e->n_running; i++) mark_lane(e, e->running[i], cells);
    for (struct request *r = e->cache.line; r != NULL; r = r->next) mark_lane(e, r, cells);
    for (struct request *r = e->prompting; r != NULL; r = r->next) mark_lane(e, r, cells);
    for (int32_t i = 0; i < n; i++) {
        int32_t lanes = pool_page_refs(e->pool, HOLDER_LANE, i), cache = pool_page_refs(e->pool, HOLDER_CACHE, i);
        if (lanes > 1) cells[i] = CELL_SHARED;
        if (lanes == 0 && cache > 0) cells[i] = CELL_CACHED;
        if (lanes + cache == 0 && cells[i] >= 0) cells[i] = CELL_FREE;
    }
}

// Equal neighbours as [how many, what]: "free", "state", "cached", "shared", or a lane's number, with "+" behind it
// where the lane has stored nothing yet.
static void write_pages(struct buffer *b, const struct engine *e) {
    static const char *const names[] = {"free", "state", "cached", "shared"};
    int32_t n = pool_count_pages(e->pool), each = (n + CELLS_MAX - 1) / CELLS_MAX;
    int32_t *cells = malloc(((size_t)n + 1) * sizeof *cells);
    buffer_printf(b, ",\"pages\":{\"n\":%d,\"rows\":%d,\"each\":%d,\"map\":[", n, e->info.plan.page_rows,
                  each > 0 ? each : 1);
    if (cells != NULL) mark_pages(e, cells, n);
    for (int32_t i = 0, next; cells != NULL && i < n; i = next) {
        int32_t count = 0;
        for (next = i; next < n && cells[next] == cells[i]; next += each) count++;
        buffer_printf(b, i > 0 ? ",[%d," : "[%d,", count);
        if (cells[i] < 0) {
            buffer_printf(b, "\"%s\"]", names[cells[i] - CELL_FREE]);
        } else {
            buffer_printf(b, cells[i] % 2 ? "\"%d+\"]" : "\"%d\"]", cells[i] / 2);
        }
    }
    free(cells);
    buffer_append_text(b, "]}}");
}

void state_publish(struct engine *e) {
    if (!atomic_exchange(&e->state_is_wanted, false) && !admission_is_idle(e)) return;
    struct buffer b;
    buffer_init(&b, 0);
    int64_t now = clock_ns();
    buffer_append_text(&b, "{\"lanes\":[");
    for (int32_t i = 0; i < e->n_running; i++) write_lane(&b, e->running[i], now, i == 0);
    bool first = e->n_running == 0;
    for (struct request *r = e->cache.line; r != NULL; r = r->next, first = false) write_lane(&b, r, now, first);
    for (struct request *r = e->prompting; r != NULL; r = r->next, first = false) write_lane(&b, r, now, first);
    buffer_printf(&b, "],\"n_lane\":%d,\"waiting\":[", e->info.plan.parallel);
    write_waiting(&b, e, now);
    write_pages(&b, e);
    pthread_mutex_lock(&e->lock);
    if (!b.failed) {
        struct buffer old = e->state;
        e->state = b;
        b = old;
    }
    pthread_mutex_unlock(&e->lock);
    buffer_free(&b);
}

void engine_write_state(struct engine *e, struct buffer *json) {
    atomic_store(&e->state_is_wanted, true);
    pthread_mutex_lock(&e->lock);
    if (e->state.n > 0) {
        buffer_append(json, e->state.data, e->state.n);
    } else {
        buffer_append_text(json, "{\"lanes\":[],\"n_lane\":0,\"waiting\":[],\"n_waiting\":0,\"pages\":null}");
    }
    pthread_mutex_unlock(&e->lock);
}
