// delta in FORM_PROMPT: chunks, states kept in mid-pass, passes cut anywhere.
#include "check/delta.h"
#include <string.h>

#define MAX_KEEPS 3

struct prompt_case {
    struct delta_shape shape;
    int32_t position, n_row;
};

// Rows [first, first + n_row) in one pass.
struct pass {
    int first, n_row;
};

struct prompt_result {
    float *out, *state;
    float *keep[MAX_KEEPS]; // of the last pass, at its multiples of 64
    int n_keep;
};

static void run_pass(struct run *r, struct device *d, struct stage *s, struct delta_args args,
                     const struct delta_data *data, int32_t position, struct pass p, const struct keep *keeps,
                     int n_keep, void *run, float *out) {
    const struct delta_shape *shape = &data->shape;
    int64_t channels = delta_channels(shape), heads = shape->n_value_head, width = heads * shape->value_dim;
    struct lane lane = {.n_row = p.n_row, .position = position + p.first, .run = run};
    struct batch batch = {.form = FORM_PROMPT,
                          .n_row = p.n_row,
                          .n_lane = 1,
                          .n_keep = n_keep,
                          .max_window = DELTA_WINDOW,
                          .lanes = &lane,
                          .keeps = keeps};
    struct delta_data rows = *data;
    rows.c += p.first * channels;
    rows.a += p.first * heads;
    rows.b += p.first * heads;
    rows.z += p.first * width;
    delta_call(r, d, s, args, &batch, &rows, out + p.first * width);
}

// A lane run that only its state may be written of.
static void *stage_run(struct run *r, struct stage *s, const struct delta_data *data, bool with_state) {
    const struct delta_shape *shape = &data->shape;
    size_t n = (size_t)delta_run_size(shape), state = (size_t)delta_state_size(shape) * 4;
    unsigned char *may = arena_alloc_zero(r->arena, n, 4);
    must(may != NULL);
    memset(may + delta_state_at(shape) * 4, 1, state);
    return stage_inout(s, delta_blank_run(r, data, with_state), n * 4, may);
}

static float *read_state(struct run *r, struct stage *s, const struct delta_shape *shape, void *run) {
    float *state = arena_alloc(r->arena, (size_t)delta_state_size(shape) * sizeof(float));
    must(state != NULL);
    stage_read_bytes(s, (float *)run + delta_state_at(shape), state, (size_t)delta_state_size(shape) * sizeof(float));
    return state;
}

static struct prompt_result run_passes(struct run *r, struct device *d, const struct delta_data *data, int32_t position,
                                       const struct pass *passes, int n_pass, bool with_keeps) {
    const struct delta_shape *shape = &data->shape;
    struct prompt_result result = {0};
    struct keep keeps[MAX_KEEPS];
    struct stage s;
    stage_open(&s, r, d);
    size_t width = (size_t)(shape->n_value_head * shape->value_dim);
    result.out = arena_alloc(r->arena, (size_t)data->n_row * width * sizeof(float));
    struct delta_args args = delta_open(&s, data);
    void *run = stage_run(r, &s, data, position > 0);
    struct pass last = passes[n_pass - 1];
    for (int at = last.first + 64; with_keeps && at <= last.first + last.n_row && result.n_keep < MAX_KEEPS; at += 64)
        keeps[result.n_keep++] = (struct keep){position + at, stage_run(r, &s, data, false)};
    for (int i = 0; i < n_pass; i++)
        run_pass(r, d, &s, args, data, position, passes[i], keeps, i == n_pass - 1 ? result.n_keep : 0, run,
                 result.out);
    result.state = read_state(r, &s, shape, run);
    for (int i = 0; i < result.n_keep; i++) result.keep[i] = read_state(r, &s, shape, keeps[i].run);
    stage_close(&s);
    return result;
}

static void check_cuts(struct run *r, const struct prompt_case *c, const struct delta_data *data,
                       const struct prompt_result *all) {
    static const int ends[] = {1, 2, 3, 5, 31, 63, 64, 65, 127, 128, 129};
    struct device *d = r->subject->device;
    size_t width = (size_t)(c->shape.n_value_head * c->shape.value_dim), n_state = (size_t)delta_state_size(&c->shape);
    for (int cut = 64; cut < c->n_row; cut += 64) {
        struct pass passes[2] = {{0, cut}, {cut, c->n_row - cut}};
        struct prompt_result got = run_passes(r, d, data, c->position, passes, 2, true);
        expect_same_bits(r, "outputs of a pass cut in two", got.out, all->out, (size_t)c->n_row * width);
        expect_same_bits(r, "state of a pass cut in two", got.state, all->state, n_state);
        for (int i = 0; i < got.n_keep && cut / 64 + i < all->n_keep; i++)
            expect_same_bits(r, "a kept state after a cut", got.keep[i], all->keep[cut / 64 + i], n_state);
    }
    for (int i = 0; i < 11 && ends[i] < c->n_row; i++) {
        struct prompt_result got = run_passes(r, d, data, c->position, &(struct pass){0, ends[i]}, 1, false);
        expect_same_bits(r, "rows of a shorter pass", got.out, all->out, (size_t)ends[i] * width);
        if (ends[i] % 64 == 0 && ends[i] / 64 <= all->n_keep)
            expect_same_bits(r, "a kept state against a pass that ends there", all->keep[ends[i] / 64 - 1], got.state,
                             n_state);
    }
}

static void prompt_case(struct run *r, const struct prompt_case *c) {
    if (case_done(r)) return;
    case_begin(r, "prompt, heads %d/%d of %d/%d, %d at %d", c->shape.n_key_head, c->shape.n_value_head,
               c->shape.key_dim, c->shape.value_dim, c->n_row, c->position);
    struct delta_data data = delta_make(r, 300, &c->shape, c->n_row, c->position > 0);
    struct delta_wanted want = delta_oracle(r, &data);
    struct pass whole = {0, c->n_row};
    struct prompt_result all = run_passes(r, r->subject->device, &data, c->position, &whole, 1, true);
    size_t n_out = (size_t)(c->n_row * c->shape.n_value_head * c->shape.value_dim),
           n_state = (size_t)delta_state_size(&c->shape);
    expect_close(r, "outputs", all.out, want.out, n_out, delta_tolerance(r));
    expect_close(r, "state", all.state, want.state, n_state, delta_state_tolerance(r));
    for (int i = 0; i < all.n_keep; i++) {
        struct delta_data before = data;
        before.n_row = 64 * (i + 1);
        expect_close(r, "a kept state", all.keep[i], delta_oracle(r, &before).state, n_state, delta_state_tolerance(r));
    }
    if (case_done(r)) return;
    for (int i = 0; i < 2; i++) {
        if (r->subject->others[i] == NULL) continue;
        struct prompt_result got = run_passes(r, r->subject->others[i], &data, c->position, &whole, 1, true);
        expect_same_bits(r, "outputs with other threads", got.out, all.out, n_out);
        expect_same_bits(r, "state with other threads", got.state, all.state, n_state);
    }
    check_cuts(r, c, &data, &all);
}

static void run_prompt(struct run *r) {
    static const int n_rows[] = {1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 129, 200};
    prompt_case(r, &(struct prompt_case){{2, 4, 16, 8, false}, 64, 70});
    if (r->hunting) return;
    for (int i = 0; i < 12; i++)
        prompt_case(r, &(struct prompt_case){{1, 1 + i % 3, 32, 16 + 8 * (i % 2), i % 2 == 1}, i % 2 * 64, n_rows[i]});
    prompt_case(r, &(struct prompt_case){{1, 1, 128, 128, false}, 0, 130});
    prompt_case(r, &(struct prompt_case){{1, 2, 128, 128, true}, 4032, 64});
    prompt_case(r, &(struct prompt_case){{1, 3, 128, 128, false}, 128, 65});
    prompt_case(r, &(struct prompt_case){{2, 2, 16, 16, false}, 0, 400});
}

// ---- faults ----

static void with_batch(struct device *d, const struct delta_args *a, struct batch batch) {
    struct delta_args b = *a;
    b.batch = &batch;
    d->ops->delta(d, &b);
}

static void state_not_carried(struct device *d, const struct delta_args *a) {
    struct lane lane = a->batch->lanes[0];
    struct batch batch = *a->batch;
    lane.position = 0;
    batch.lanes = &lane;
    batch.n_keep = 0;
    with_batch(d, a, batch);
}

static void no_keeps(struct device *d, const struct delta_args *a) {
    struct batch batch = *a->batch;
    batch.n_keep = 0;
    with_batch(d, a, batch);
}

static void last_row_lost(struct device *d, const struct delta_args *a) {
    if (a->batch->n_row > 1) {
        struct lane lane = a->batch->lanes[0];
        struct batch batch = *a->batch;
        lane.n_row = --batch.n_row;
        batch.lanes = &lane;
        batch.n_keep = 0;
        with_batch(d, a, batch);
        return;
    }
    d->ops->delta(d, a);
}

static void next_head(struct device *d, const struct delta_args *a) {
    struct delta_args b = *a;
    b.b.data = (char *)a->b.data + dtype_bytes(a->b.dtype);
    b.b.n_col--;
    d->ops->delta(d, &b);
}

static void other_eps(struct device *d, const struct delta_args *a) {
    struct delta_args b = *a;
    b.eps *= 1000;
    d->ops->delta(d, &b);
}

static void scaled(struct device *d, const struct delta_args *a) {
    d->ops->delta(d, a);
    for (int64_t col = 0; col < 16; col++) corrupt_scale(d, a->out, a->out.n_row - 1, col, 1.02);
}

static void past_end(struct device *d, const struct delta_args *a) {
    d->ops->delta(d, a);
    corrupt_past_end(d, a->out);
}

static void last_bit(struct device *d, const struct delta_args *a) {
    d->ops->delta(d, a);
    if (a->out.n_row % 64 != 0) corrupt_last_bit(d, a->out, 0, 0);
}

static void plant_state(struct ops *o) { o->delta = state_not_carried; }
static void plant_keeps(struct ops *o) { o->delta = no_keeps; }
static void plant_row(struct ops *o) { o->delta = last_row_lost; }
static void plant_head(struct ops *o) { o->delta = next_head; }
static void plant_eps(struct ops *o) { o->delta = other_eps; }
static void plant_scaled(struct ops *o) { o->delta = scaled; }
static void plant_end(struct ops *o) { o->delta = past_end; }
static void plant_bit(struct ops *o) { o->delta = last_bit; }

static const struct fault faults[] = {
    {"the state not carried into the pass", plant_state},
    {"keeps not written", plant_keeps},
    {"the last row lost", plant_row},
    {"beta of the next head", plant_head},
    {"eps a thousand times too large", plant_eps},
    {"elements times 1.02", plant_scaled},
    {"one past the end", plant_end},
    {"a last bit that depends on where the pass ends", plant_bit},
};

const struct suite suite_delta_prompt = {"delta",
                                         "delta-prompt",
                                         run_prompt,
                                         faults,
                                         8,
                                         {.max_rows = 400,
                                          .key_dim = 128,
                                          .value_dim = 128,
                                          .n_key_head = 2,
                                          .n_value_head = 4,
                                          .max_lanes = 1,
                                          .max_window = DELTA_WINDOW}};
