// Transfers between device and host memory beside the operations (ops/device.h): a thread and a stream of their own.
// Host memory that is not pinned can only be reached through some that is, and the driver, which would do that by
// itself, holds its locks meanwhile: so pieces go by turns through two pinned ones here, and while one is copied on
// the host the other is on its way.
#include "cuda/common.cuh"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define PIECE_BYTES ((size_t)4 << 20)

struct transfers {
    int device_index;
    pthread_t thread;
    bool has_thread;
    cudaStream_t stream;
    cudaEvent_t begin;     // what the operations before have to reach
    cudaEvent_t passed[2]; // a piece is where the device wants it
    char *pinned[2];
    pthread_mutex_t lock; // guards what follows
    pthread_cond_t changed;
    bool busy, stopping;
    cudaError_t failure;
    // Of the transfer that is under way: set before it is busy.
    bool to_host;
    int n;
    struct transfer_range ranges[DEVICE_TRANSFER_RANGES];
};

// ---- the thread ----

static bool worked(struct transfers *t, cudaError_t code) {
    if (code != cudaSuccess) t->failure = code;
    return code == cudaSuccess;
}

// Where a piece begins.
struct place {
    int range;
    size_t at;
};

// One stretch of a piece: `bytes` of a range from `at` on are `pinned`. False: stop.
typedef bool stretch_fn(struct transfers *t, char *pinned, const struct transfer_range *r, size_t at, size_t bytes);

static bool by_device(struct transfers *t, char *pinned, const struct transfer_range *r, size_t at, size_t bytes) {
    char *device = (char *)r->device + at;
    return worked(t, t->to_host ? cudaMemcpyAsync(pinned, device, bytes, cudaMemcpyDeviceToHost, t->stream)
                                : cudaMemcpyAsync(device, pinned, bytes, cudaMemcpyHostToDevice, t->stream));
}

static bool by_host(struct transfers *t, char *pinned, const struct transfer_range *r, size_t at, size_t bytes) {
    char *host = (char *)r->host + at;
    t->to_host ? memcpy(host, pinned, bytes) : memcpy(pinned, host, bytes);
    return true;
}

// Goes through a piece, and to the next one.
static bool go(struct transfers *t, char *pinned, struct place *p, stretch_fn *stretch) {
    for (size_t used = 0; p->range < t->n && used < PIECE_BYTES;) {
        const struct transfer_range *r = &t->ranges[p->range];
        size_t n = r->bytes - p->at < PIECE_BYTES - used ? r->bytes - p->at : PIECE_BYTES - used;
        if (n > 0 && !stretch(t, pinned + used, r, p->at, n)) return false;
        used += n;
        p->at += n;
        if (p->at < r->bytes) continue;
        p->range++;
        p->at = 0;
    }
    return true;
}

// Has the device take or bring a piece, when the last one in this place has been dealt with.
static bool ask(struct transfers *t, int piece, struct place *p) {
    return go(t, t->pinned[piece % 2], p, by_device) && worked(t, cudaEventRecord(t->passed[piece % 2], t->stream));
}

static bool passed(struct transfers *t, int piece) { return worked(t, cudaEventSynchronize(t->passed[piece % 2])); }

static bool bring_to_host(struct transfers *t) {
    struct place asked = {0, 0}, taken = {0, 0};
    for (int piece = 0; taken.range < t->n; piece++) {
        if (asked.range < t->n && !ask(t, piece, &asked)) return false;
        if (piece == 0) continue;
        if (!passed(t, piece - 1)) return false;
        go(t, t->pinned[(piece - 1) % 2], &taken, by_host);
    }
    return true;
}

static bool bring_to_device(struct transfers *t) {
    struct place filled = {0, 0}, asked = {0, 0};
    for (int piece = 0; filled.range < t->n; piece++) {
        if (piece >= 2 && !passed(t, piece - 2)) return false;
        go(t, t->pinned[piece % 2], &filled, by_host);
        if (!ask(t, piece, &asked)) return false;
    }
    return true;
}

static void *transfer_thread(void *context) {
    struct transfers *t = (struct transfers *)context;
    cudaSetDevice(t->device_index);
    pthread_mutex_lock(&t->lock);
    for (;;) {
        while (!t->busy && !t->stopping) pthread_cond_wait(&t->changed, &t->lock);
        if (!t->busy) break;
        pthread_mutex_unlock(&t->lock);
        if (worked(t, cudaStreamWaitEvent(t->stream, t->begin, 0))) t->to_host ? bring_to_host(t) : bring_to_device(t);
        worked(t, cudaStreamSynchronize(t->stream)); // also of what went before a failure
        pthread_mutex_lock(&t->lock);
        t->busy = false;
        pthread_cond_broadcast(&t->changed);
    }
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

// ---- the device's side ----

bool transfers_open(struct cuda_device *d) {
    struct transfers *t = d->transfers = (struct transfers *)calloc(1, sizeof *t);
    if (t == NULL) return false;
    t->device_index = d->index;
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->changed, NULL);
    bool ok = cudaStreamCreateWithFlags(&t->stream, cudaStreamNonBlocking) == cudaSuccess &&
              cudaEventCreateWithFlags(&t->begin, cudaEventDisableTiming) == cudaSuccess;
    for (int i = 0; i < 2 && ok; i++)
        ok = cudaEventCreateWithFlags(&t->passed[i], cudaEventDisableTiming | cudaEventBlockingSync) == cudaSuccess &&
             cudaMallocHost(&t->pinned[i], PIECE_BYTES) == cudaSuccess;
    t->has_thread = ok && pthread_create(&t->thread, NULL, transfer_thread, t) == 0;
    return t->has_thread;
}

void transfers_close(struct cuda_device *d) {
    struct transfers *t = d->transfers;
    if (t == NULL) return;
    pthread_mutex_lock(&t->lock);
    t->stopping = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
    if (t->has_thread) pthread_join(t->thread, NULL);
    for (int i = 0; i < 2; i++) {
        cudaFreeHost(t->pinned[i]);
        if (t->passed[i] != NULL) cudaEventDestroy(t->passed[i]);
    }
    if (t->begin != NULL) cudaEventDestroy(t->begin);
    if (t->stream != NULL) cudaStreamDestroy(t->stream);
    pthread_cond_destroy(&t->changed);
    pthread_mutex_destroy(&t->lock);
    free(t);
    d->transfers = NULL;
}

void cuda_transfer(struct device *base, bool to_host, const struct transfer_range *ranges, int n) {
    struct cuda_device *d = cuda_of(base);
    struct transfers *t = d->transfers;
    must(n <= DEVICE_TRANSFER_RANGES);
    if (d->failure != cudaSuccess || n == 0) return;
    cuda_note(d, cudaEventRecord(t->begin, d->stream), "mark where a transfer begins");
    pthread_mutex_lock(&t->lock);
    must(!t->busy);
    t->to_host = to_host;
    t->n = n;
    memcpy(t->ranges, ranges, (size_t)n * sizeof *ranges);
    t->busy = true;
    pthread_cond_broadcast(&t->changed);
    pthread_mutex_unlock(&t->lock);
}

bool cuda_transfer_done(struct device *base, bool wait) {
    struct cuda_device *d = (struct cuda_device *)base;
    struct transfers *t = d->transfers;
    pthread_mutex_lock(&t->lock);
    while (wait && t->busy) pthread_cond_wait(&t->changed, &t->lock);
    bool done = !t->busy;
    if (done) cuda_note(d, t->failure, "copy between its memory and the host's");
    pthread_mutex_unlock(&t->lock);
    return done;
}
