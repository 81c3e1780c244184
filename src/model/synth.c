#include "model/synth_internal.h"

#include "base/workers.h"
#include "format/json.h"
#include "model/synth_template.h"
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define SHARD_BYTES  5000000000 // as published checkpoints are cut
#define CHUNK_BYTES  (4 << 20)  // that one thread makes and writes at a time
#define BATCH_CHUNKS 16         // of each thread, between two calls of the progress function
#define SPARE_BYTES  (64 << 20) // for the small files, and not to fill the disk to the last block

static const char marker[] =
    ".tokenfold-synth"; // in every folder that synth made, so that it may replace what is there

struct synth_job {
    const char *dir;
    const struct synth_options *options;
    const struct synth_drafter *drafter; // NULL: a model is written
    struct synth_shape shape;            // the model's, or that of the drafter's; with the vocabulary's size filled in
    int64_t first_added;
    struct synth_vocabulary *vocabulary;
    struct synth_plan plan;
    int *shard_of; // each tensor's shard
    int n_shards;
    int64_t bytes_done, bytes_total;
};

// ---- folder ----

static enum status io_error(struct error *e, const char *path, const char *what) {
    return error_set(e, STATUS_IO, "%s: %s: %s", path, what, strerror(errno));
}

static enum status path_in(const char *dir, const char *name, char *path, size_t n, struct error *e) {
    if ((size_t)snprintf(path, n, "%s/%s", dir, name) < n) return STATUS_OK;
    return error_set(e, STATUS_LIMIT, "%.200s...: the path is too long", dir);
}

static enum status write_file(const char *dir, const char *name, const struct buffer *b, struct error *e) {
    char path[4096];
    if (b->failed) return error_memory(e);
    enum status status = path_in(dir, name, path, sizeof path, e);
    if (status) return status;
    FILE *file = fopen(path, "wb");
    if (!file) return io_error(e, path, "cannot be created");
    bool written = fwrite(b->data ? b->data : "", 1, b->n, file) == b->n;
    if (fclose(file) || !written) return io_error(e, path, "cannot be written");
    return STATUS_OK;
}

static bool is_weights(const char *name) {
    size_t n = strlen(name);
    return !strncmp(name, "model", 5) &&
           ((n > 12 && !strcmp(name + n - 12, ".safetensors")) || !strcmp(name, "model.safetensors.index.json"));
}

// Removes what an earlier call wrote and this one might not overwrite; config.json first, since a folder without it is
// no checkpoint.
static enum status clear_folder(const char *dir, struct error *e) {
    char path[4096];
    enum status status = path_in(dir, "config.json", path, sizeof path, e);
    if (status) return status;
    if (unlink(path) && errno != ENOENT) return io_error(e, path, "cannot be removed");
    DIR *d = opendir(dir);
    if (!d) return io_error(e, dir, "cannot be listed");
    for (struct dirent *entry; !status && (entry = readdir(d));) {
        if (!is_weights(entry->d_name)) continue;
        status = path_in(dir, entry->d_name, path, sizeof path, e);
        if (!status && unlink(path)) status = io_error(e, path, "cannot be removed");
    }
    closedir(d);
    return status;
}

static enum status prepare_folder(const char *dir, struct error *e) {
    if (mkdir(dir, 0755) && errno != EEXIST) return io_error(e, dir, "cannot be created");
    DIR *d = opendir(dir);
    if (!d) return io_error(e, dir, "cannot be listed");
    bool empty = true, ours = false;
    for (struct dirent *entry; (entry = readdir(d));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        empty = false;
        ours |= !strcmp(entry->d_name, marker);
    }
    closedir(d);
    if (!empty && !ours)
        return error_set(e, STATUS_INVALID,
                         "%s: the folder holds something that synth did not make; name an empty or a new one", dir);
    struct buffer b;
    buffer_init(&b, 0);
    buffer_append_text(&b, "tokenfold synth may replace the files of this folder.\n");
    enum status status = write_file(dir, marker, &b, e);
    buffer_free(&b);
    return status ? status : clear_folder(dir, e);
}

// ---- shards ----

static int64_t tensor_bytes(const struct synth_tensor *t) {
    int64_t bytes = (int64_t)safetensors_type_bytes(t->type);
    for (int i = 0; i < t->n_dims; i++) bytes *= t->shape[i];
    return bytes;
}

// Cuts the plan into shards; a module's codes, scales and biases stay together.
static enum status assign_shards(struct synth_job *job, struct error *e) {
    const struct synth_plan *p = &job->plan;
    job->shard_of = calloc(p->n + 1, sizeof *job->shard_of);
    if (!job->shard_of) return error_memory(e);
    int64_t filled = 0;
    for (size_t i = 0, next; i < p->n; i = next) {
        int64_t module = tensor_bytes(&p->tensors[i]);
        for (next = i + 1;
             next < p->n && (p->tensors[next].fill == FILL_SCALES || p->tensors[next].fill == FILL_BIASES); next++)
            module += tensor_bytes(&p->tensors[next]);
        if (filled && filled + module > SHARD_BYTES) {
            job->n_shards++;
            filled = 0;
        }
        for (size_t k = i; k < next; k++) job->shard_of[k] = job->n_shards;
        filled += module;
        job->bytes_total += module;
    }
    job->n_shards++;
    return STATUS_OK;
}

static void shard_name(const struct synth_job *job, int shard, char *name, size_t n) {
    if (job->n_shards == 1)
        snprintf(name, n, "model.safetensors");
    else
        snprintf(name, n, "model-%05d-of-%05d.safetensors", shard + 1, job->n_shards);
}

static enum status check_room(const struct synth_job *job, struct error *e) {
    struct statvfs disk;
    if (job->options->headers_only || statvfs(job->dir, &disk)) return STATUS_OK;
    uint64_t room = (uint64_t)disk.f_bavail * disk.f_frsize, need = (uint64_t)job->bytes_total + SPARE_BYTES;
    if (room >= need) return STATUS_OK;
    return error_set(e, STATUS_LIMIT, "%s: %s needs %.1f GB and the disk has %.1f GB left", job->dir,
                     job->options->shape, (double)need / 1e9, (double)room / 1e9);
}

// ---- data ----

struct chunk {
    const struct synth_tensor *tensor;
    size_t entry; // in the shard's file
    int64_t first, n;
};

struct shard_writer {
    struct safetensors_writer *file;
    const struct chunk *chunks;
    unsigned char *scratch; // CHUNK_BYTES a thread
    struct error *errors;   // of each thread; code 0: none
};

static void write_chunks(void *context, long first, long last, int thread) {
    struct shard_writer *w = context;
    unsigned char *bytes = w->scratch + (size_t)thread * CHUNK_BYTES;
    for (long i = first; i < last && !w->errors[thread].code; i++) {
        const struct chunk *c = &w->chunks[i];
        synth_fill(c->tensor, c->first, c->n, bytes);
        safetensors_writer_write(w->file, c->entry, (uint64_t)c->first, bytes, (size_t)c->n, &w->errors[thread]);
    }
}

static enum status write_data(struct synth_job *job, struct workers *workers, struct shard_writer *w, long n_chunks,
                              struct error *e) {
    int n_threads = workers_count(workers);
    for (long at = 0, n; at < n_chunks; at += n) {
        struct shard_writer batch = *w;
        batch.chunks += at;
        n = n_chunks - at < BATCH_CHUNKS * n_threads ? n_chunks - at : BATCH_CHUNKS * n_threads;
        workers_run(workers, n, 1, write_chunks, &batch);
        for (int t = 0; t < n_threads; t++) {
            if (!w->errors[t].code) continue;
            if (e) *e = w->errors[t];
            return w->errors[t].code;
        }
        for (long i = at; i < at + n; i++) job->bytes_done += w->chunks[i].n;
        if (job->options->progress) job->options->progress(job->options->context, job->bytes_done, job->bytes_total);
    }
    return STATUS_OK;
}

// The shard's tensors as entries, and their data as chunks; 4-byte types first, so that every tensor is aligned.
static void list_shard(const struct synth_job *job, int shard, struct safetensors_entry *entries, size_t *n_entries,
                       struct chunk *chunks, long *n_chunks) {
    static const enum safetensors_type order[] = {SAFETENSORS_U32, SAFETENSORS_F32, SAFETENSORS_BF16};
    *n_entries = 0;
    *n_chunks = 0;
    for (int pass = 0; pass < 3; pass++)
        for (size_t i = 0; i < job->plan.n; i++) {
            const struct synth_tensor *t = &job->plan.tensors[i];
            if (job->shard_of[i] != shard || t->type != order[pass]) continue;
            int64_t bytes = tensor_bytes(t);
            for (int64_t at = 0; at < bytes; at += CHUNK_BYTES) {
                int64_t n = bytes - at < CHUNK_BYTES ? bytes - at : CHUNK_BYTES;
                if (chunks) chunks[*n_chunks] = (struct chunk){t, *n_entries, at, n};
                ++*n_chunks;
            }
            if (entries) {
                entries[*n_entries] = (struct safetensors_entry){.name = t->name, .type = t->type, .n_dims = t->n_dims};
                memcpy(entries[*n_entries].shape, t->shape, sizeof t->shape);
            }
            ++*n_entries;
        }
}

static enum status write_shard(struct synth_job *job, struct workers *workers, int shard, struct error *e) {
    char name[64], path[4096];
    shard_name(job, shard, name, sizeof name);
    enum status status = path_in(job->dir, name, path, sizeof path, e);
    if (status) return status;
    size_t n_entries;
    long n_chunks;
    list_shard(job, shard, NULL, &n_entries, NULL, &n_chunks);
    size_t n_threads = (size_t)workers_count(workers);
    struct safetensors_entry *entries = calloc(n_entries + 1, sizeof *entries);
    struct chunk *chunks = calloc((size_t)n_chunks + 1, sizeof *chunks);
    struct shard_writer w = {
        .chunks = chunks, .scratch = malloc(n_threads * CHUNK_BYTES), .errors = calloc(n_threads, sizeof *w.errors)};
    if (!entries || !chunks || !w.scratch || !w.errors) status = error_memory(e);
    if (!status) {
        list_shard(job, shard, entries, &n_entries, chunks, &n_chunks);
        status = safetensors_writer_create(path, entries, n_entries, "mlx", &w.file, e);
    }
    if (!status && !job->options->headers_only) status = write_data(job, workers, &w, n_chunks, e);
    if (status)
        safetensors_writer_abandon(w.file);
    else
        status = safetensors_writer_finish(w.file, e);
    free(entries);
    free(chunks);
    free(w.scratch);
    free(w.errors);
    return status;
}

// ---- the whole ----

static void write_index(const struct synth_job *job, struct buffer *b) {
    buffer_printf(b, "{\n  \"metadata\": {\"total_size\": %" PRId64 "},\n  \"weight_map\": {\n", job->bytes_total);
    for (size_t i = 0; i < job->plan.n; i++) {
        char name[64];
        shard_name(job, job->shard_of[i], name, sizeof name);
        buffer_printf(b, "    \"%s\": \"%s\"%s\n", job->plan.tensors[i].name, name, i + 1 < job->plan.n ? "," : "");
    }
    buffer_append_text(b, "  }\n}\n");
}

// config.json comes last: until it is there, the folder is no checkpoint.
static enum status write_small_files(const struct synth_job *job, struct error *e) {
    static const char *const names[] = {"model.safetensors.index.json", "tokenizer.json",      "tokenizer_config.json",
                                        "generation_config.json",       "chat_template.jinja", "config.json"};
    enum status status = STATUS_OK;
    for (int i = 0; i < 6 && !status; i++) {
        struct buffer b;
        if (job->drafter && i > 0 && i < 5) continue; // it has no text of its own
        buffer_init(&b, 0);
        if (i == 0) write_index(job, &b);
        if (i == 1) synth_write_tokenizer(job->vocabulary, job->first_added, &b);
        if (i == 2) synth_write_tokenizer_config(job->first_added, job->shape.n_context, &b);
        if (i == 3) synth_write_generation_config(job->first_added, &b);
        if (i == 4) buffer_append_text(&b, synth_template);
        if (i == 5 && !job->drafter) synth_write_config(&job->shape, job->first_added, &b);
        if (i == 5 && job->drafter) synth_write_drafter_config(job->drafter, &job->shape, job->first_added, &b);
        status = write_file(job->dir, names[i], &b, e);
        buffer_free(&b);
    }
    return status;
}

static enum status plan_job(struct synth_job *job, struct error *e) {
    enum { REAL_FIRST_ADDED = 248044, VOCAB_MULTIPLE = 64 };
    job->drafter = synth_find_drafter(job->options->shape);
    const char *name = job->drafter ? synth_drafter_target(job->drafter) : job->options->shape;
    const struct synth_shape *shape = synth_find_shape(name);
    if (!shape) {
        struct buffer names;
        buffer_init(&names, 300);
        for (int i = 0; synth_shape_name(i); i++) buffer_printf(&names, "%s%s", i ? ", " : "", synth_shape_name(i));
        enum status status = error_set(e, STATUS_INVALID, "there is no shape %.60s; there are %s", job->options->shape,
                                       names.data ? names.data : "");
        buffer_free(&names);
        return status;
    }
    job->shape = *shape;
    job->vocabulary = synth_vocabulary_create();
    if (!job->vocabulary) return error_memory(e);
    int64_t n = synth_vocabulary_count(job->vocabulary);
    job->first_added = shape->real_ids ? REAL_FIRST_ADDED : n;
    if (!job->shape.n_vocab)
        job->shape.n_vocab = (n + SYNTH_N_ADDED + VOCAB_MULTIPLE - 1) / VOCAB_MULTIPLE * VOCAB_MULTIPLE;
    if (job->drafter)
        synth_list_drafter(job->drafter, &job->shape, job->options->seed, &job->plan);
    else
        synth_list_tensors(&job->shape, job->options->seed, &job->plan);
    return job->plan.failed ? error_memory(e) : assign_shards(job, e);
}

enum status synth_write(const char *dir, const struct synth_options *options, struct error *e) {
    struct synth_job job = {.dir = dir, .options = options};
    struct workers *workers = NULL;
    enum status status = plan_job(&job, e);
    if (!status) status = prepare_folder(dir, e);
    if (!status) status = check_room(&job, e);
    if (!status) status = workers_create(options->n_threads, &workers, e);
    for (int i = 0; i < job.n_shards && !status; i++) status = write_shard(&job, workers, i, e);
    if (!status) status = write_small_files(&job, e);
    workers_free(workers);
    synth_vocabulary_free(job.vocabulary);
    free(job.plan.tensors);
    free(job.shard_of);
    return status;
}
