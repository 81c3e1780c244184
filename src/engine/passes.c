// What gates see of a prompt pass: which rows it had, and a digest of the logits that it ended with.
#include "engine/internal.h"
#include <errno.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>

bool passes_are_watched(const struct engine *e) { return e->last_logits != NULL; }

enum status passes_open(struct engine *e, struct error *error) {
    const struct engine_options *o = &e->options;
    if (o->on_pass == NULL && o->gate_logits == NULL) return STATUS_OK;
    e->last_logits = malloc((size_t)e->info.config->n_vocab * sizeof *e->last_logits);
    if (e->last_logits == NULL) return error_memory(error);
    if (o->gate_logits == NULL) return STATUS_OK;
    e->gate_file = fopen(o->gate_logits, "a");
    if (e->gate_file == NULL)
        return error_set(error, STATUS_IO, "TF_GATE_LOGITS: %s cannot be written: %s", o->gate_logits, strerror(errno));
    return STATUS_OK;
}

void passes_close(struct engine *e) {
    if (e->gate_file != NULL) fclose(e->gate_file);
    free(e->last_logits);
    e->gate_file = NULL;
    e->last_logits = NULL;
}

void passes_report(struct engine *e, const struct request *r, int32_t n_row, struct tensor logits) {
    size_t n_bytes = (size_t)e->info.config->n_vocab * sizeof *e->last_logits;
    struct pass_report report = {.request = r->number, .start = r->n_rows_done, .n_row = n_row};
    e->device->copy_out(e->device, e->last_logits, logits.data, n_bytes);
    SHA256((const unsigned char *)e->last_logits, n_bytes, report.sha256);
    if (e->options.on_pass != NULL) e->options.on_pass(e->options.on_pass_context, &report);
    if (e->gate_file == NULL) return;
    fprintf(e->gate_file, "%lld %d %d ", (long long)report.request, report.start, report.n_row);
    for (int i = 0; i < SHA256_DIGEST_LENGTH; i++) fprintf(e->gate_file, "%02x", report.sha256[i]);
    fputc('\n', e->gate_file);
    fflush(e->gate_file);
}
