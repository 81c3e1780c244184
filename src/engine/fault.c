// Planted faults. Each is a mistake that a gate exists to find.
#include "engine/internal.h"
#include <stdlib.h>
#include <string.h>

static bool has(const struct engine *e, enum engine_fault fault) { return e->options.fault == fault; }

static int32_t table_rows(const struct engine *e) {
    return (int32_t)e->info.plan.window_pages + 1; // the page that FAULT_ADMIT_COUNT did not claim
}

enum status fault_open(struct engine *e, struct error *error) {
    if (!has(e, FAULT_WRONG_PAGE) && !has(e, FAULT_ADMIT_COUNT)) return STATUS_OK;
    e->fault_pages = calloc((size_t)e->options.parallel * (size_t)table_rows(e), sizeof *e->fault_pages);
    return e->fault_pages != NULL ? STATUS_OK : error_memory(error);
}

void fault_close(struct engine *e) {
    free(e->fault_pages);
    e->fault_pages = NULL;
}

int64_t fault_claim(const struct engine *e, int64_t reply) {
    if (!has(e, FAULT_ADMIT_COUNT)) return reply;
    return reply > e->info.plan.page_rows ? reply - e->info.plan.page_rows : 1;
}

uint64_t fault_seed(const struct request *r, int32_t row) {
    uint64_t seed = r->draw.seed;
    if (has(r->engine, FAULT_DRAFT_NOISE)) seed ^= (uint64_t)row;
    if (has(r->engine, FAULT_LANE_NOISE)) seed ^= (uint64_t)r->claim.lane;
    if (has(r->engine, FAULT_LIMIT_NOISE)) seed ^= (uint64_t)r->max_tokens;
    return seed;
}

void fault_change_lane(struct engine *e, const struct request *r, struct lane *lane) {
    bool in_round = r->n_rows_done >= r->n_prompt;
    if (e->fault_pages == NULL || (has(e, FAULT_WRONG_PAGE) && !in_round)) return;
    int32_t *table = e->fault_pages + (size_t)r->claim.lane * (size_t)table_rows(e);
    memcpy(table, lane->pages, (size_t)lane->n_page * sizeof *table);
    lane->pages = table;
    struct pool_counts c;
    pool_get_counts(e->pool, &c);
    if (has(e, FAULT_WRONG_PAGE)) {
        table[0] = (int32_t)((table[0] + 1) % c.n_page);
    } else {
        int64_t rows = (int64_t)r->n_prompt + r->max_tokens;
        int32_t n = (int32_t)ledger_pages_for(rows, e->info.plan.max_window, e->info.plan.page_rows);
        for (; lane->n_page < n; lane->n_page++)
            table[lane->n_page] = (int32_t)((table[lane->n_page - 1] + 1) % c.n_page);
    }
}

void fault_change_keeps(const struct engine *e, int32_t start, struct keep *keeps, int32_t n) {
    for (int32_t i = 0; i < n && has(e, FAULT_EARLY_STATE); i++) {
        int32_t before = i == 0 ? start : keeps[i - 1].position;
        if (keeps[i].position - PROMPT_CHUNK > before) keeps[i].position -= PROMPT_CHUNK;
    }
}

void fault_after_restore(struct engine *e, struct request *r) {
    if (has(e, FAULT_SKIPPED_ROWS) && r->n_rows_done + PROMPT_CHUNK < r->n_prompt) r->n_rows_done += PROMPT_CHUNK;
    static const char zeros[4096];
    char *run = engine_run(e, r->claim.run);
    for (int64_t at = 0; at < e->kept_bytes && has(e, FAULT_STALE_STATE); at += (int64_t)sizeof zeros) {
        int64_t n = e->kept_bytes - at < (int64_t)sizeof zeros ? e->kept_bytes - at : (int64_t)sizeof zeros;
        e->device->copy_in(e->device, run + at, zeros, (size_t)n);
    }
}

void fault_before_round(struct request *r) {
    if (has(r->engine, FAULT_UNWRITTEN_ROW) && r->n_rows_done == r->n_prompt) r->n_rows_done++;
}

bool fault_keeps_draft(const struct request *r, int32_t row) {
    return has(r->engine, FAULT_DRAFT_TRUSTED) && row + 1 == r->drafting.n_row;
}

void fault_after_window(struct engine *e, struct request *r, int32_t n_kept) {
    if (n_kept == r->drafting.n_row) return;
    if (has(e, FAULT_DRAFT_AHEAD)) {
        struct lane lane = schedule_lane(e, r, 0, 1);
        lane.position++;
        lane.n_pending++;
        model_commit(e->model, &lane);
        r->n_pending = 0;
    }
    if (has(e, FAULT_DRAFT_STALE) && r->n_rows_done == r->n_prompt + r->view.n_tokens - 1) {
        r->n_rows_done++;
        r->n_pending++;
    }
}

void fault_before_absorb(const struct engine *e, struct lane *lane) {
    if (has(e, FAULT_DRAFT_POSITION)) lane->position++;
}

int32_t fault_kept_taps(const struct engine *e, int32_t n_kept) {
    return has(e, FAULT_DRAFT_RING) && n_kept > 1 ? n_kept - 1 : n_kept;
}

void fault_on_cancel(struct engine *e, const struct request *r) {
    if (has(e, FAULT_CANCEL_LEAK)) pool_hold_page(e->pool, HOLDER_LANE, r->claim.pages[0]);
    for (int32_t i = 0; i < e->n_running && has(e, FAULT_CANCEL_TOUCH); i++) e->running[i]->n_pending = 0;
}
