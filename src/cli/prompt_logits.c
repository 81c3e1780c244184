#include "cli/prompt_logits.h"
#include "format/safetensors.h"
#include "model/model.h"
#include <stdlib.h>

#define PAGE_ROWS  256
#define PASS_ROWS  256 // bounds the logits that lie in memory at once, at 1 MB a row for this family's vocabulary
#define MAX_WINDOW 16  // no round is run, but as many rows are multiplied by the output matrix at a time

struct job {
    struct model *model;
    struct device *device;
    void *pages, *run; // device
    int32_t *page_table;
    float *rows; // [pass_rows, V]
    struct safetensors_writer *writer;
    struct model_limits limits;
    int64_t n_vocab;
};

static void close_job(struct job *j) {
    safetensors_writer_abandon(j->writer);
    if (j->pages != NULL) j->device->release(j->device, j->pages);
    if (j->run != NULL) j->device->release(j->device, j->run);
    free(j->page_table);
    free(j->rows);
    model_free(j->model);
}

static enum status check_ids(const struct job *j, const int32_t *ids, int32_t n_ids, struct error *e) {
    for (int32_t i = 0; i < n_ids; i++)
        if (ids[i] < 0 || ids[i] >= j->n_vocab)
            return error_set(e, STATUS_INVALID, "token %d of the prompt is %d, and the model has ids from 0 to %lld", i,
                             ids[i], (long long)j->n_vocab - 1);
    return STATUS_OK;
}

static enum status open_job(struct job *j, int32_t n_ids, const char *path, struct error *e) {
    enum status st = model_load(j->model, j->device, &j->limits, NULL, NULL, e);
    if (st != STATUS_OK) return st;
    int32_t n_page = (n_ids + PAGE_ROWS - 1) / PAGE_ROWS;
    int64_t page_bytes = model_page_bytes(j->model, PAGE_ROWS, j->limits.kv);
    j->pages = j->device->alloc(j->device, (size_t)(n_page * page_bytes));
    j->run = j->device->alloc(j->device, (size_t)model_run_bytes(j->model, MAX_WINDOW, j->device->activation));
    j->page_table = malloc((size_t)n_page * sizeof *j->page_table);
    j->rows = malloc((size_t)(j->limits.pass_rows * j->n_vocab) * sizeof *j->rows);
    if (j->pages == NULL || j->run == NULL || j->page_table == NULL || j->rows == NULL) return error_memory(e);
    for (int32_t i = 0; i < n_page; i++) j->page_table[i] = i;
    struct safetensors_entry entry = {"logits", SAFETENSORS_F32, 2, {n_ids, j->n_vocab}};
    return safetensors_writer_create(path, &entry, 1, "pt", &j->writer, e);
}

static enum status run_pass(struct job *j, const int32_t *ids, int32_t position, int32_t n_row, struct error *e) {
    struct lane lane = {
        .n_row = n_row,
        .position = position,
        .pages = j->page_table,
        .n_page = (position + n_row + PAGE_ROWS - 1) / PAGE_ROWS,
        .run = j->run,
    };
    struct prompt_pass pass = {
        .lane = &lane, .ids = ids + position, .pages = j->pages, .want = LOGITS_ALL, .all = j->rows};
    enum status st = model_prompt(j->model, &pass, NULL, e);
    if (st != STATUS_OK) return st;
    size_t row_bytes = (size_t)j->n_vocab * sizeof *j->rows;
    return safetensors_writer_write(j->writer, 0, (uint64_t)position * row_bytes, j->rows, (size_t)n_row * row_bytes,
                                    e);
}

static enum status write_logits(struct job *j, const int32_t *ids, int32_t n_ids, const char *path, struct error *e) {
    j->n_vocab = model_get_config(j->model)->n_vocab;
    enum status st = check_ids(j, ids, n_ids, e);
    if (st == STATUS_OK) st = open_job(j, n_ids, path, e);
    for (int32_t position = 0; st == STATUS_OK && position < n_ids;) {
        int32_t n = model_pass_rows(position, n_ids - position, j->limits.pass_rows);
        st = run_pass(j, ids, position, n, e);
        position += n;
    }
    if (st != STATUS_OK) return st;
    struct safetensors_writer *w = j->writer;
    j->writer = NULL;
    return safetensors_writer_finish(w, e);
}

enum status prompt_logits_write(const char *dir, struct device *device, enum dtype kv, const int32_t *ids,
                                int32_t n_ids, int32_t pass_rows, const char *path, struct error *e) {
    must(n_ids > 0);
    struct job j = {.device = device};
    j.limits = (struct model_limits){
        .max_lanes = 1,
        .max_window = MAX_WINDOW,
        .max_context = n_ids,
        .page_rows = PAGE_ROWS,
        .pass_rows = pass_rows > 0 ? pass_rows : PASS_ROWS,
        .kv = kv,
    };
    enum status st = model_open(dir, &j.model, e);
    if (st == STATUS_OK) st = write_logits(&j, ids, n_ids, path, e);
    close_job(&j);
    return st;
}
