// conv, in both forms: outputs, and the rings that carry rows from one batch to the next.
#include "check/check.h"
#include <math.h>
#include <string.h>

#define MAX_LANES 3
#define MAX_KEEPS 2
#define MAX_STEPS 8
#define N_TAP     4

struct conv_lane {
    int32_t position, n_row;
};

struct conv_case {
    enum form form;
    int n_channel, ring_rows;
    int n_lane;
    struct conv_lane lanes[MAX_LANES];
    int n_keep;
    int32_t keeps[MAX_KEEPS];
};

struct conv_data {
    const struct conv_case *c;
    float *weight;
    float *m[MAX_LANES];     // rows of positions [position - (K - 1), position + n_row), zeros before position 0
    double *want[MAX_LANES]; // [n_row][C]
};

// One batch: rows [first[i], first[i] + n_row[i]) of each of the first n_lane lanes; order says which lane comes first.
struct conv_step {
    int n_lane, lanes[MAX_LANES], first[MAX_LANES], n_row[MAX_LANES];
};

struct conv_result {
    float *out[MAX_LANES];
    unsigned char *ring[MAX_LANES], *keep[MAX_KEEPS];
};

static struct conv_data make_data(struct run *r, const struct conv_case *c) {
    struct conv_data data = {.c = c, .weight = values_normal(r, 101, (size_t)(c->n_channel * N_TAP), 0.5, DTYPE_F32)};
    for (int i = 0; i < c->n_lane; i++) {
        int64_t n = c->lanes[i].n_row;
        data.m[i] = values_normal(r, 102 + (uint64_t)i, (size_t)((n + N_TAP - 1) * c->n_channel), 1,
                                  r->subject->device->activation);
        for (int64_t k = 0; k < N_TAP - 1 - c->lanes[i].position; k++)
            memset(data.m[i] + k * c->n_channel, 0, (size_t)c->n_channel * sizeof(float));
        data.want[i] = arena_alloc(r->arena, (size_t)(n * c->n_channel) * sizeof(double));
        for (int64_t e = 0; e < n * c->n_channel; e++) {
            int64_t t = e / c->n_channel, channel = e % c->n_channel;
            double sum = 0;
            for (int j = 0; j < N_TAP; j++)
                sum += (double)data.weight[channel * N_TAP + j] * (double)data.m[i][(t + j) * c->n_channel + channel];
            data.want[i][e] = sum / (1 + exp(-sum));
        }
    }
    return data;
}

static const float *row_of(const struct conv_data *data, int lane, int64_t i) {
    return data->m[lane] + (i + N_TAP - 1) * data->c->n_channel;
}

// ---- lane runs: [header][ring][trailer], NaN but for the rows before the batch ----

#define RUN_OFFSET 256

static size_t ring_bytes(const struct conv_data *data, const struct device *d) {
    return (size_t)(data->c->ring_rows * data->c->n_channel) * dtype_bytes(d->activation);
}

static void put_ring_row(const struct conv_data *data, const struct device *d, unsigned char *ring, int lane,
                         int64_t i) {
    const struct conv_case *c = data->c;
    size_t size = dtype_bytes(d->activation);
    unsigned char *to = ring + (size_t)((c->lanes[lane].position + i) % c->ring_rows * c->n_channel) * size;
    for (int channel = 0; channel < c->n_channel; channel++) {
        uint32_t bits;
        memcpy(&bits, row_of(data, lane, i) + channel, sizeof bits);
        uint16_t high = (uint16_t)(bits >> 16); // exact: the values are rounded to bf16 already
        memcpy(to + (size_t)channel * size, size == 4 ? (void *)&bits : (void *)&high, size);
    }
}

static unsigned char *first_ring(struct run *r, const struct conv_data *data, const struct device *d, int lane,
                                 int first) {
    unsigned char *run = arena_alloc(r->arena, ring_bytes(data, d) + 2 * RUN_OFFSET);
    must(run != NULL);
    memset(run, 0xff, ring_bytes(data, d) + 2 * RUN_OFFSET);
    for (int64_t i = first - (N_TAP - 1); i < first; i++)
        if (data->c->lanes[lane].position + i >= 0) put_ring_row(data, d, run + RUN_OFFSET, lane, i);
    return run;
}

// The slots that a run of steps may write: those of all its rows in FORM_ROWS, of each pass's last ones in FORM_PROMPT.
static unsigned char *writable_slots(struct run *r, const struct conv_data *data, const struct device *d, int lane,
                                     int64_t first, int64_t end) {
    const struct conv_case *c = data->c;
    size_t row_bytes = (size_t)c->n_channel * dtype_bytes(d->activation);
    unsigned char *may = arena_alloc_zero(r->arena, ring_bytes(data, d) + 2 * RUN_OFFSET, 1);
    must(may != NULL);
    for (int64_t i = first < 0 ? 0 : first; i < end; i++)
        memset(may + RUN_OFFSET + (size_t)((c->lanes[lane].position + i) % c->ring_rows) * row_bytes, 1, row_bytes);
    return may;
}

// ---- running steps ----

struct conv_runs {
    void *lane[MAX_LANES], *keep[MAX_KEEPS];
};

static void run_step(struct run *r, struct device *d, struct stage *s, const struct conv_data *data,
                     const struct conv_step *step, const float *weight, const struct conv_runs *runs, bool with_keeps,
                     struct conv_result *result) {
    const struct conv_case *c = data->c;
    struct lane lanes[MAX_LANES];
    struct keep keeps[MAX_KEEPS];
    struct batch batch = {.form = c->form,
                          .n_lane = step->n_lane,
                          .max_window = CHECK_WINDOW,
                          .lanes = lanes,
                          .keeps = keeps,
                          .n_keep = with_keeps ? c->n_keep : 0};
    for (int i = 0; i < batch.n_keep; i++) keeps[i] = (struct keep){c->keeps[i], runs->keep[i]};
    int64_t n_row = 0;
    for (int i = 0; i < step->n_lane; i++) n_row += step->n_row[i];
    float *m = arena_alloc(r->arena, (size_t)(n_row * c->n_channel) * sizeof(float));
    for (int i = 0; i < step->n_lane; i++) {
        int lane = step->lanes[i];
        lanes[i] = (struct lane){.row0 = batch.n_row,
                                 .n_row = step->n_row[i],
                                 .run = runs->lane[lane],
                                 .position = c->lanes[lane].position + step->first[i]};
        memcpy(m + (int64_t)batch.n_row * c->n_channel, row_of(data, lane, step->first[i]),
               (size_t)(step->n_row[i] * c->n_channel) * sizeof(float));
        batch.n_row += step->n_row[i];
    }
    struct conv_args args = {
        .batch = &batch,
        .weight = weight,
        .n_tap = N_TAP,
        .ring_rows = c->ring_rows,
        .ring_offset = RUN_OFFSET,
        .m = stage_tensor(s, m, n_row, c->n_channel, d->activation),
        .out = stage_tensor_out(s, n_row, c->n_channel, d->activation),
    };
    ops_of(r, d)->begin(d, &batch);
    ops_of(r, d)->conv(d, &args);
    float *out = stage_read(s, args.out);
    for (int i = 0; i < step->n_lane; i++)
        memcpy(result->out[step->lanes[i]] + step->first[i] * c->n_channel, out + (int64_t)lanes[i].row0 * c->n_channel,
               (size_t)(step->n_row[i] * c->n_channel) * sizeof(float));
}

static struct conv_result run_steps(struct run *r, struct device *d, const struct conv_data *data,
                                    const struct conv_step *steps, int n_step, bool with_keeps) {
    const struct conv_case *c = data->c;
    struct stage s;
    struct conv_runs runs = {0};
    struct conv_result result = {0};
    size_t bytes = ring_bytes(data, d);
    stage_open(&s, r, d);
    const float *weight = stage_input(&s, data->weight, (size_t)(c->n_channel * N_TAP) * sizeof(float));
    for (int i = 0; i < c->n_lane; i++) {
        int64_t n = c->lanes[i].n_row, written = c->form == FORM_ROWS || n_step > 1 ? 0 : n - (N_TAP - 1);
        result.out[i] = arena_alloc_zero(r->arena, (size_t)(n * c->n_channel), sizeof(float));
        result.ring[i] = arena_alloc(r->arena, bytes);
        runs.lane[i] = stage_inout(&s, first_ring(r, data, d, i, 0), bytes + 2 * RUN_OFFSET,
                                   writable_slots(r, data, d, i, written, n));
    }
    for (int i = 0; i < c->n_keep && with_keeps; i++) {
        int64_t end = c->keeps[i] - c->lanes[0].position;
        result.keep[i] = arena_alloc(r->arena, bytes);
        unsigned char *run = arena_alloc(r->arena, bytes + 2 * RUN_OFFSET);
        memset(run, 0xff, bytes + 2 * RUN_OFFSET);
        runs.keep[i] =
            stage_inout(&s, run, bytes + 2 * RUN_OFFSET, writable_slots(r, data, d, 0, end - (N_TAP - 1), end));
    }
    for (int i = 0; i < n_step; i++) run_step(r, d, &s, data, &steps[i], weight, &runs, with_keeps, &result);
    for (int i = 0; i < c->n_lane; i++) stage_read_bytes(&s, (char *)runs.lane[i] + RUN_OFFSET, result.ring[i], bytes);
    for (int i = 0; i < c->n_keep && with_keeps; i++)
        stage_read_bytes(&s, (char *)runs.keep[i] + RUN_OFFSET, result.keep[i], bytes);
    stage_close(&s);
    return result;
}

static struct conv_step whole_step(const struct conv_case *c) {
    struct conv_step step = {.n_lane = c->n_lane};
    for (int i = 0; i < c->n_lane; i++) {
        step.lanes[i] = i;
        step.n_row[i] = c->lanes[i].n_row;
    }
    return step;
}

// The ring that a pass must leave: what was there, and the pass's rows.
static void expect_ring(struct run *r, const struct conv_data *data, int lane, const unsigned char *ring, int64_t first,
                        int64_t end, unsigned char *want) {
    for (int64_t i = first < 0 ? 0 : first; i < end; i++) put_ring_row(data, r->subject->device, want, lane, i);
    expect(r, memcmp(ring, want, ring_bytes(data, r->subject->device)) == 0, "ring of lane %d", lane);
}

static void expect_outputs(struct run *r, const char *what, const struct conv_data *data, const struct conv_result *got,
                           const struct conv_result *all) {
    for (int i = 0; i < data->c->n_lane; i++) {
        expect_same_bits(r, what, got->out[i], all->out[i], (size_t)(data->c->lanes[i].n_row * data->c->n_channel));
    }
}

static void check_rows(struct run *r, const struct conv_data *data, const struct conv_result *all) {
    const struct conv_case *c = data->c;
    struct conv_step steps[MAX_STEPS], reverse = whole_step(c);
    for (int i = 0; i < c->n_lane; i++) {
        reverse.lanes[i] = c->n_lane - 1 - i;
        reverse.n_row[i] = c->lanes[c->n_lane - 1 - i].n_row;
    }
    struct conv_result got = run_steps(r, r->subject->device, data, &reverse, 1, false);
    expect_outputs(r, "lanes in reverse", data, &got, all);
    int n_step = 0;
    for (int i = 0; i < c->n_lane; i++)
        for (int t = 0; t < c->lanes[i].n_row && n_step < MAX_STEPS; t++)
            steps[n_step++] = (struct conv_step){1, {i}, {t}, {1}};
    got = run_steps(r, r->subject->device, data, steps, n_step, false);
    expect_outputs(r, "one row after another", data, &got, all);
    for (int i = 0; i < c->n_lane; i++)
        expect(r, memcmp(got.ring[i], all->ring[i], ring_bytes(data, r->subject->device)) == 0,
               "ring after single rows");
}

static void check_prompt(struct run *r, const struct conv_data *data, const struct conv_result *all) {
    int n_row = data->c->lanes[0].n_row;
    for (int cut = 64; cut < n_row; cut += 64) {
        struct conv_step steps[2] = {{1, {0}, {0}, {cut}}, {1, {0}, {cut}, {n_row - cut}}};
        struct conv_result got = run_steps(r, r->subject->device, data, steps, 2, false);
        expect_outputs(r, "a pass cut in two", data, &got, all);
    }
}

static void conv_case(struct run *r, const struct conv_case *c) {
    if (case_done(r)) return;
    case_begin(r, "%s %d channels, ring of %d, %d lanes, %d at %d", c->form == FORM_ROWS ? "rows" : "prompt",
               c->n_channel, c->ring_rows, c->n_lane, c->lanes[0].n_row, c->lanes[0].position);
    struct conv_data data = make_data(r, c);
    struct device *d = r->subject->device;
    struct conv_step whole = whole_step(c);
    struct conv_result all = run_steps(r, d, &data, &whole, 1, true);
    for (int i = 0; i < c->n_lane; i++) {
        int64_t n = c->lanes[i].n_row;
        expect_close(r, "outputs", all.out[i], data.want[i], (size_t)(n * c->n_channel), tolerance_element(r));
        expect_ring(r, &data, i, all.ring[i], c->form == FORM_ROWS ? 0 : n - (N_TAP - 1), n,
                    first_ring(r, &data, d, i, 0) + RUN_OFFSET);
    }
    for (int i = 0; i < c->n_keep; i++) {
        unsigned char *empty = arena_alloc(r->arena, ring_bytes(&data, d));
        int64_t end = c->keeps[i] - c->lanes[0].position;
        memset(empty, 0xff, ring_bytes(&data, d));
        expect_ring(r, &data, 0, all.keep[i], end - (N_TAP - 1), end, empty);
    }
    for (int i = 0; i < 2; i++) {
        if (r->subject->others[i] == NULL) continue;
        struct conv_result got = run_steps(r, r->subject->others[i], &data, &whole, 1, true);
        expect_outputs(r, "other threads", &data, &got, &all);
    }
    if (case_done(r)) return;
    if (c->form == FORM_ROWS)
        check_rows(r, &data, &all);
    else
        check_prompt(r, &data, &all);
}

static void run_conv(struct run *r) {
    static const int n_rows[] = {1, 2, 3, 4, 5, 63, 64, 65, 127, 128, 129, 200};
    conv_case(r, &(struct conv_case){FORM_ROWS, 40, 11, 3, {{70, 3}, {1, 1}, {0, 2}}, 0, {0}});
    conv_case(r, &(struct conv_case){FORM_PROMPT, 24, 11, 1, {{64, 130}}, 2, {128, 192}});
    if (r->hunting) return;
    conv_case(r, &(struct conv_case){FORM_ROWS, 1000, 19, 2, {{2, 4}, {5000, 1}}, 0, {0}});
    conv_case(r, &(struct conv_case){FORM_ROWS, 33, 3, 2, {{2, 3}, {65, 1}}, 0, {0}});
    for (int i = 0; i < 12; i++)
        conv_case(r, &(struct conv_case){FORM_PROMPT, 300, 11, 1, {{i % 2 * 64, n_rows[i]}}, 0, {0}});
    conv_case(r, &(struct conv_case){FORM_PROMPT, 70, 3, 1, {{0, 200}}, 2, {64, 192}});
}

// ---- faults ----

static void with_lane(struct device *d, const struct conv_args *a, struct lane lane) {
    struct lane lanes[MAX_LANES];
    memcpy(lanes, a->batch->lanes, (size_t)a->batch->n_lane * sizeof *lanes);
    lanes[0] = lane;
    struct batch batch = *a->batch;
    batch.lanes = lanes;
    struct conv_args b = *a;
    b.batch = &batch;
    d->ops->conv(d, &b);
}

static void stale_ring(struct device *d, const struct conv_args *a) {
    struct lane lane = a->batch->lanes[0];
    lane.position += 1;
    with_lane(d, a, lane);
}

static void ring_not_read(struct device *d, const struct conv_args *a) {
    struct lane lane = a->batch->lanes[0];
    lane.position = 0;
    with_lane(d, a, lane);
}

static void no_keeps(struct device *d, const struct conv_args *a) {
    struct batch batch = *a->batch;
    batch.n_keep = 0;
    struct conv_args b = *a;
    b.batch = &batch;
    d->ops->conv(d, &b);
}

static void shifted_taps(struct device *d, const struct conv_args *a) {
    struct conv_args b = *a;
    b.weight = a->weight + 1;
    b.m.n_col = b.out.n_col = a->m.n_col - 1;
    d->ops->conv(d, &b);
}

static void scaled(struct device *d, const struct conv_args *a) {
    d->ops->conv(d, a);
    for (int64_t col = 0; col < 16; col++) corrupt_scale(d, a->out, a->out.n_row - 1, col, 1.02);
}

static void past_end(struct device *d, const struct conv_args *a) {
    d->ops->conv(d, a);
    corrupt_past_end(d, a->out);
}

static void plant_stale(struct ops *o) { o->conv = stale_ring; }
static void plant_unread(struct ops *o) { o->conv = ring_not_read; }
static void plant_keeps(struct ops *o) { o->conv = no_keeps; }
static void plant_taps(struct ops *o) { o->conv = shifted_taps; }
static void plant_scaled(struct ops *o) { o->conv = scaled; }
static void plant_end(struct ops *o) { o->conv = past_end; }

static const struct fault faults[] = {
    {"the ring read one position late", plant_stale},
    {"the ring not read", plant_unread},
    {"keeps not written", plant_keeps},
    {"taps off by one", plant_taps},
    {"elements times 1.02", plant_scaled},
    {"one past the end", plant_end},
};

const struct suite suite_conv = {"delta", "conv", run_conv, faults, 6, {.max_rows = 200, .max_round_rows = 8}};
