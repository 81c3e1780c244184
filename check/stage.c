// Device memory of one call: every buffer lies between guard bands of NaN bytes and is compared with what it was.
#include "check/check.h"
#include "base/numeric.h"
#include <stdlib.h>
#include <string.h>

#define GUARD  256
#define POISON 0xff // as fp32, bf16, f16: a NaN
#define PAD    32   // elements between the rows of a tensor

void stage_open(struct stage *s, struct run *r, struct device *d) {
    s->run = r;
    s->device = d;
    s->n = 0;
    d->poison(d);
}

static void *add_buffer(struct stage *s, const void *data, size_t bytes, const unsigned char *may_write,
                        bool all_writable) {
    must(s->n < STAGE_MAX);
    struct stage_buffer *b = &s->buffers[s->n++];
    *b = (struct stage_buffer){.bytes = bytes, .may_write = may_write, .all_writable = all_writable};
    b->before = malloc(bytes + 2 * GUARD);
    char *device = s->device->alloc(s->device, bytes + 2 * GUARD);
    must(b->before != NULL && device != NULL);
    memset(b->before, POISON, bytes + 2 * GUARD);
    if (data != NULL) memcpy(b->before + GUARD, data, bytes);
    s->device->copy_in(s->device, device, b->before, bytes + 2 * GUARD);
    b->device = device + GUARD;
    return b->device;
}

void *stage_input(struct stage *s, const void *data, size_t bytes) { return add_buffer(s, data, bytes, NULL, false); }

void *stage_output(struct stage *s, size_t bytes) { return add_buffer(s, NULL, bytes, NULL, true); }

void *stage_inout(struct stage *s, const void *data, size_t bytes, const unsigned char *may_write) {
    return add_buffer(s, data, bytes, may_write, false);
}

// The bytes of a padded tensor, and which of them belong to elements.
static unsigned char *padded_bytes(struct run *r, const float *values, struct tensor t, unsigned char **is_element) {
    size_t size = dtype_bytes(t.dtype), bytes = (size_t)(t.n_row * t.stride) * size;
    unsigned char *data = arena_alloc(r->arena, bytes + 1);
    *is_element = arena_alloc_zero(r->arena, bytes + 1, 1);
    memset(data, POISON, bytes);
    for (int64_t row = 0; row < t.n_row; row++) {
        memset(*is_element + (size_t)(row * t.stride) * size, 1, (size_t)t.n_col * size);
        for (int64_t col = 0; values != NULL && col < t.n_col; col++) {
            float x = values[row * t.n_col + col];
            uint16_t half = t.dtype == DTYPE_BF16 ? float_to_bf16(x) : float_to_f16(x);
            memcpy(data + (size_t)(row * t.stride + col) * size, size == 4 ? (void *)&x : (void *)&half, size);
        }
    }
    return data;
}

static struct tensor add_tensor(struct stage *s, const float *values, int64_t n_row, int64_t n_col, enum dtype type,
                                bool writable) {
    struct tensor t = {.dtype = type, .n_row = n_row, .n_col = n_col, .stride = n_col + PAD};
    unsigned char *is_element;
    unsigned char *data = padded_bytes(s->run, values, t, &is_element);
    // The padding after the last row is left to the guard band.
    size_t bytes = n_row > 0 ? (size_t)((n_row - 1) * t.stride + n_col) * dtype_bytes(type) : 0;
    t.data = add_buffer(s, data, bytes, writable ? is_element : NULL, false);
    return t;
}

struct tensor stage_tensor(struct stage *s, const float *values, int64_t n_row, int64_t n_col, enum dtype t) {
    return add_tensor(s, values, n_row, n_col, t, false);
}

struct tensor stage_tensor_out(struct stage *s, int64_t n_row, int64_t n_col, enum dtype t) {
    return add_tensor(s, NULL, n_row, n_col, t, true);
}

struct tensor stage_tensor_inout(struct stage *s, const float *values, int64_t n_row, int64_t n_col, enum dtype t) {
    return add_tensor(s, values, n_row, n_col, t, true);
}

// From now on the buffers' contents are what they are; the bands around them are still what they were.
static void take_contents(struct stage *s, int first) {
    for (int i = first; i < s->n; i++) {
        struct stage_buffer *b = &s->buffers[i];
        stage_read_bytes(s, b->device, b->before + GUARD, b->bytes);
    }
}

// Every device that has an order of its own has it for this kind.
bool is_arranged(const struct device *d, const struct weight *w) {
    return d->arrange != NULL && w->kind == WEIGHT_AFFINE && w->dtype == DTYPE_BF16 && w->bits == 4 && w->group == 64 &&
           w->n_out % 8 == 0 && w->n_in % 256 == 0;
}

struct weight stage_weight(struct stage *s, const struct weight *host) {
    struct weight w = *host;
    int first = s->n;
    w.data = stage_input(s, host->data, (size_t)w.n_out * weight_row_bytes(&w));
    if (w.kind == WEIGHT_AFFINE) {
        size_t bytes = (size_t)(w.n_out * (w.n_in / w.group)) * dtype_bytes(w.dtype);
        w.scales = stage_input(s, host->scales, bytes);
        w.biases = stage_input(s, host->biases, bytes);
    }
    if (s->run->arranged && s->device->arrange != NULL) {
        s->device->arrange(s->device, &w);
        expect(s->run, w.arranged == is_arranged(s->device, host), "arranged or not, against what is expected");
        take_contents(s, first);
    }
    return w;
}

void stage_read_bytes(struct stage *s, const void *device, void *host, size_t bytes) {
    struct error e;
    must(s->device->sync(s->device, &e) == STATUS_OK);
    s->device->copy_out(s->device, host, device, bytes);
}

float *stage_read(struct stage *s, struct tensor t) {
    size_t size = dtype_bytes(t.dtype), row_bytes = (size_t)t.n_col * size;
    float *values = arena_alloc(s->run->arena, (size_t)(t.n_row * t.n_col) * sizeof(float) + 1);
    unsigned char *row = arena_alloc(s->run->arena, row_bytes + 1);
    must(values != NULL && row != NULL);
    for (int64_t i = 0; i < t.n_row; i++) {
        stage_read_bytes(s, (char *)t.data + (size_t)(i * t.stride) * size, row, row_bytes);
        for (int64_t j = 0; j < t.n_col; j++) {
            uint16_t half = 0;
            float x = 0;
            memcpy(size == 4 ? (void *)&x : (void *)&half, row + (size_t)j * size, size);
            values[i * t.n_col + j] = size == 4 ? x : t.dtype == DTYPE_BF16 ? bf16_to_float(half) : f16_to_float(half);
        }
    }
    return values;
}

static bool may_write(const struct stage_buffer *b, size_t i) {
    if (i < GUARD || i >= GUARD + b->bytes) return false;
    return b->all_writable || (b->may_write != NULL && b->may_write[i - GUARD]);
}

static void check_buffer(struct stage *s, int index) {
    struct stage_buffer *b = &s->buffers[index];
    size_t bytes = b->bytes + 2 * GUARD, first = 0, n_wrong = 0;
    unsigned char *after = malloc(bytes);
    must(after != NULL);
    stage_read_bytes(s, b->device - GUARD, after, bytes);
    for (size_t block = 0; block < bytes; block += GUARD) {
        size_t end = block + GUARD < bytes ? block + GUARD : bytes;
        if (memcmp(after + block, b->before + block, end - block) == 0) continue;
        for (size_t i = block; i < end; i++)
            if (after[i] != b->before[i] && !may_write(b, i) && n_wrong++ == 0) first = i;
    }
    expect(s->run, n_wrong == 0, "wrote where it may not: %zu bytes of buffer %d (%zu bytes long), the first at %ld",
           n_wrong, index, b->bytes, (long)first - GUARD);
    free(after);
}

void stage_close(struct stage *s) {
    for (int i = 0; i < s->n; i++) {
        check_buffer(s, i);
        free(s->buffers[i].before);
        s->device->release(s->device, s->buffers[i].device - GUARD);
    }
    s->n = 0;
}
