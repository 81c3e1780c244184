// delta and delta_commit in FORM_ROWS: folding the log, running rows without writing the state, and taking rows back.
#include "check/delta.h"
#include <string.h>

#define MAX_LANES 3

struct rows_lane {
    int32_t position, n_pending, n_row;
};

struct rows_case {
    struct delta_shape shape;
    int n_lane;
    struct rows_lane lanes[MAX_LANES];
};

struct rows_data {
    const struct rows_case *c;
    struct delta_data lanes[MAX_LANES]; // n_pending + n_row rows each; the parameters are the first lane's
    struct delta_wanted wanted[MAX_LANES];
};

struct rows_result {
    float *out[MAX_LANES], *run[MAX_LANES];
};

static struct rows_data make_data(struct run *r, const struct rows_case *c) {
    struct rows_data data = {.c = c};
    for (int i = 0; i < c->n_lane; i++) {
        const struct rows_lane *lane = &c->lanes[i];
        bool with_state = lane->position > lane->n_pending;
        data.lanes[i] = delta_make(r, 200 + 20 * (uint64_t)i, &c->shape, lane->n_pending + lane->n_row, with_state);
        data.lanes[i].neg_a = data.lanes[0].neg_a;
        data.lanes[i].dt_bias = data.lanes[0].dt_bias;
        data.lanes[i].out_norm = data.lanes[0].out_norm;
        data.wanted[i] = delta_oracle(r, &data.lanes[i]);
    }
    return data;
}

// ---- lane runs ----

// The floats of a lane's log that belong to a position: three spans.
struct span {
    int64_t at, n;
};

static void log_spans(const struct delta_shape *s, int64_t position, struct span spans[3]) {
    spans[0] = (struct span){delta_log_k_at(s, position, 0), (int64_t)s->n_key_head * s->key_dim};
    spans[1] = (struct span){delta_log_d_at(s, position, 0), (int64_t)s->n_value_head * s->value_dim};
    spans[2] = (struct span){delta_log_g_at(s, position), s->n_value_head};
}

static void wanted_log(const struct delta_shape *s, const struct delta_wanted *w, int t, const double *from[3]) {
    from[0] = w->k + (int64_t)t * s->n_key_head * s->key_dim;
    from[1] = w->d + (int64_t)t * s->n_value_head * s->value_dim;
    from[2] = w->g + (int64_t)t * s->n_value_head;
}

// State, and the log of the pending rows; everything else is NaN. Before position 0 there is no state either.
static float *first_run(struct run *r, const struct rows_data *data, int lane) {
    const struct delta_shape *s = &data->c->shape;
    const struct rows_lane *l = &data->c->lanes[lane];
    float *run = delta_blank_run(r, &data->lanes[lane], l->position > l->n_pending);
    for (int t = 0; t < l->n_pending; t++) {
        struct span spans[3];
        const double *from[3];
        log_spans(s, l->position - l->n_pending + t, spans);
        wanted_log(s, &data->wanted[lane], t, from);
        for (int k = 0; k < 3; k++)
            for (int64_t i = 0; i < spans[k].n; i++) run[spans[k].at + i] = (float)from[k][i];
    }
    return run;
}

static unsigned char *writable(struct run *r, const struct rows_data *data, int lane) {
    const struct delta_shape *s = &data->c->shape;
    const struct rows_lane *l = &data->c->lanes[lane];
    unsigned char *may = arena_alloc_zero(r->arena, (size_t)delta_run_size(s), sizeof(float));
    must(may != NULL);
    if (l->n_pending > 0) memset(may + delta_state_at(s) * 4, 1, (size_t)delta_state_size(s) * 4);
    for (int t = 0; t < l->n_row; t++) {
        struct span spans[3];
        log_spans(s, l->position + t, spans);
        for (int k = 0; k < 3; k++) memset(may + spans[k].at * 4, 1, (size_t)spans[k].n * 4);
    }
    return may;
}

// ---- calls ----

// Calls delta on rows rows[0..n) of one lane's data, and appends the outputs.
struct call_lane {
    const struct delta_data *data;
    void *run;
    int32_t position, n_pending, n_row;
    const int *rows;
    float *out;
};

static void call_delta(struct run *r, struct device *d, struct stage *s, struct delta_args args,
                       struct call_lane *calls, int n) {
    const struct delta_shape *shape = &calls[0].data->shape;
    int64_t channels = delta_channels(shape), heads = shape->n_value_head, width = heads * shape->value_dim;
    struct lane lanes[MAX_LANES];
    struct batch batch = {.form = FORM_ROWS, .n_lane = n, .max_window = DELTA_WINDOW, .lanes = lanes};
    for (int i = 0; i < n; i++) {
        lanes[i] = (struct lane){.row0 = batch.n_row,
                                 .n_row = calls[i].n_row,
                                 .position = calls[i].position,
                                 .n_pending = calls[i].n_pending,
                                 .run = calls[i].run};
        batch.n_row += calls[i].n_row;
    }
    size_t n_row = (size_t)batch.n_row;
    struct delta_data rows = {.shape = *shape};
    rows.c = arena_alloc(r->arena, n_row * (size_t)channels * 4);
    rows.a = arena_alloc(r->arena, n_row * (size_t)heads * 4);
    rows.b = arena_alloc(r->arena, n_row * (size_t)heads * 4);
    rows.z = arena_alloc(r->arena, n_row * (size_t)width * 4);
    float *out = arena_alloc(r->arena, n_row * (size_t)width * 4);
    must(rows.c != NULL && rows.a != NULL && rows.b != NULL && rows.z != NULL && out != NULL);
    for (int i = 0, t = 0; i < n; i++) {
        for (int k = 0; k < calls[i].n_row; k++, t++) {
            int64_t from = calls[i].rows[k];
            memcpy(rows.c + t * channels, calls[i].data->c + from * channels, (size_t)channels * 4);
            memcpy(rows.a + t * heads, calls[i].data->a + from * heads, (size_t)heads * 4);
            memcpy(rows.b + t * heads, calls[i].data->b + from * heads, (size_t)heads * 4);
            memcpy(rows.z + t * width, calls[i].data->z + from * width, (size_t)width * 4);
        }
    }
    delta_call(r, d, s, args, &batch, &rows, out);
    for (int i = 0; i < n; i++)
        memcpy(calls[i].out, out + lanes[i].row0 * width, (size_t)(calls[i].n_row * width) * sizeof(float));
}

static struct rows_result run_lanes(struct run *r, struct device *d, const struct rows_data *data, const int *order,
                                    int n) {
    const struct rows_case *c = data->c;
    size_t run_bytes = (size_t)delta_run_size(&c->shape) * sizeof(float);
    int count[2 * DELTA_WINDOW];
    for (int i = 0; i < 2 * DELTA_WINDOW; i++) count[i] = i;
    struct rows_result result = {0};
    struct call_lane calls[MAX_LANES];
    struct stage s;
    stage_open(&s, r, d);
    struct delta_args args = delta_open(&s, &data->lanes[0]);
    for (int i = 0; i < n; i++) {
        int lane = order[i];
        const struct rows_lane *l = &c->lanes[lane];
        size_t width = (size_t)(c->shape.n_value_head * c->shape.value_dim);
        result.out[lane] = arena_alloc(r->arena, (size_t)l->n_row * width * sizeof(float));
        result.run[lane] = arena_alloc(r->arena, run_bytes);
        void *run = stage_inout(&s, first_run(r, data, lane), run_bytes, writable(r, data, lane));
        calls[i] = (struct call_lane){
            &data->lanes[lane], run, l->position, l->n_pending, l->n_row, count + l->n_pending, result.out[lane]};
    }
    call_delta(r, d, &s, args, calls, n);
    for (int i = 0; i < n; i++) stage_read_bytes(&s, calls[i].run, result.run[order[i]], run_bytes);
    stage_close(&s);
    return result;
}

static void compare(struct run *r, const char *what, struct device *d, const struct rows_data *data, const int *order,
                    int n, const struct rows_result *all) {
    struct rows_result got = run_lanes(r, d, data, order, n);
    const struct delta_shape *s = &data->c->shape;
    for (int i = 0; i < n; i++) {
        int lane = order[i];
        size_t n_out = (size_t)(data->c->lanes[lane].n_row * s->n_value_head * s->value_dim);
        expect_same_bits(r, what, got.out[lane], all->out[lane], n_out);
        expect_same_bits(r, what, got.run[lane], all->run[lane], (size_t)delta_run_size(s));
    }
}

// ---- a sequence of windows, some of whose rows are taken back ----

// Runs n_row rows of lane 0 in windows; of a window of w rows, w - spoiled are right and the rest are other rows, taken
// back afterwards. Returns the outputs of the right rows; run receives the lane run after a commit.
static float *run_windows(struct run *r, struct device *d, const struct rows_data *data, int window, int spoiled,
                          float *run) {
    const struct rows_case *c = data->c;
    const struct rows_lane *l = &c->lanes[0];
    size_t width = (size_t)(c->shape.n_value_head * c->shape.value_dim), bytes = (size_t)delta_run_size(&c->shape) * 4;
    float *out = arena_alloc(r->arena, (size_t)(l->n_row + DELTA_WINDOW) * width * sizeof(float));
    unsigned char *all = arena_alloc(r->arena, bytes);
    struct stage s;
    stage_open(&s, r, d);
    memset(all, 1, bytes);
    void *device_run = stage_inout(&s, first_run(r, data, 0), bytes, all);
    struct delta_args args = delta_open(&s, &data->lanes[0]);
    int n_pending = l->n_pending;
    for (int done = 0; done < l->n_row;) {
        int good = window - spoiled < l->n_row - done ? window - spoiled : l->n_row - done, rows[DELTA_WINDOW];
        for (int i = 0; i < good + spoiled; i++)
            rows[i] = l->n_pending + (i < good ? done + i : (done + i * 7) % l->n_row);
        struct call_lane call = {&data->lanes[0], device_run, l->position + done,        n_pending,
                                 good + spoiled,  rows,       out + (size_t)done * width};
        call_delta(r, d, &s, args, &call, 1);
        done += good;
        n_pending = good;
    }
    struct lane lane = {.position = l->position + l->n_row, .n_pending = n_pending, .run = device_run};
    struct delta_commit_args commit = {&lane,        DELTA_WINDOW,   args.n_key_head,   args.n_value_head,
                                       args.key_dim, args.value_dim, args.state_offset, args.log_offset};
    ops_of(r, d)->delta_commit(d, &commit);
    stage_read_bytes(&s, device_run, run, bytes);
    stage_close(&s);
    return out;
}

static void check_windows(struct run *r, const struct rows_data *data) {
    static const int windows[][2] = {{2, 0}, {3, 1}, {8, 0}, {8, 5}, {4, 2}, {16, 9}}; // rows, taken back
    const struct delta_shape *s = &data->c->shape;
    size_t size = (size_t)delta_run_size(s), n_out = (size_t)(data->c->lanes[0].n_row * s->n_value_head * s->value_dim);
    float *want_run = arena_alloc(r->arena, size * 4), *run = arena_alloc(r->arena, size * 4);
    const float *want = run_windows(r, r->subject->device, data, 1, 0, want_run);
    expect_close(r, "state after a commit", want_run + delta_state_at(s), data->wanted[0].state,
                 (size_t)delta_state_size(s), delta_state_tolerance(r));
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
        const float *got = run_windows(r, r->subject->device, data, windows[i][0], windows[i][1], run);
        expect_same_bits(r, "a window's rows against single rows", got, want, n_out);
        expect_same_bits(r, "the state after windows", run + delta_state_at(s), want_run + delta_state_at(s),
                         (size_t)delta_state_size(s));
    }
}

// ---- cases ----

static void check_lane(struct run *r, const struct rows_data *data, int lane, const struct rows_result *all) {
    const struct delta_shape *s = &data->c->shape;
    const struct rows_lane *l = &data->c->lanes[lane];
    int64_t width = (int64_t)s->n_value_head * s->value_dim;
    expect_close(r, "outputs", all->out[lane], data->wanted[lane].out + l->n_pending * width,
                 (size_t)(l->n_row * width), delta_tolerance(r));
    static const char *const names[] = {"logged k", "logged d", "logged g"};
    for (int t = 0; t < l->n_row; t++) {
        struct span spans[3];
        const double *want[3];
        log_spans(s, l->position + t, spans);
        wanted_log(s, &data->wanted[lane], l->n_pending + t, want);
        for (int k = 0; k < 3; k++)
            expect_close(r, names[k], all->run[lane] + spans[k].at, want[k], (size_t)spans[k].n,
                         delta_state_tolerance(r));
    }
    if (l->n_pending == 0) return; // the containment gate holds the state to being untouched
    struct delta_data pending = data->lanes[lane];
    pending.n_row = l->n_pending;
    expect_close(r, "state", all->run[lane] + delta_state_at(s), delta_oracle(r, &pending).state,
                 (size_t)delta_state_size(s), delta_state_tolerance(r));
}

static void rows_case(struct run *r, const struct rows_case *c) {
    if (case_done(r)) return;
    case_begin(r, "rows, heads %d/%d of %d/%d, %d lanes, %d at %d", c->shape.n_key_head, c->shape.n_value_head,
               c->shape.key_dim, c->shape.value_dim, c->n_lane, c->lanes[0].n_row, c->lanes[0].position);
    struct rows_data data = make_data(r, c);
    int order[MAX_LANES], reverse[MAX_LANES];
    for (int i = 0; i < c->n_lane; i++) {
        order[i] = i;
        reverse[i] = c->n_lane - 1 - i;
    }
    struct rows_result all = run_lanes(r, r->subject->device, &data, order, c->n_lane);
    for (int i = 0; i < c->n_lane; i++) check_lane(r, &data, i, &all);
    if (case_done(r)) return;
    compare(r, "lanes in reverse", r->subject->device, &data, reverse, c->n_lane, &all);
    for (int i = 0; i < c->n_lane && c->n_lane > 1; i++)
        compare(r, "a lane alone", r->subject->device, &data, &i, 1, &all);
    for (int i = 0; i < 2; i++)
        if (r->subject->others[i] != NULL)
            compare(r, "other threads", r->subject->others[i], &data, order, c->n_lane, &all);
    check_windows(r, &data);
}

static void run_rows(struct run *r) {
    rows_case(r, &(struct rows_case){{2, 4, 16, 8, false}, 3, {{70, 2, 6}, {0, 0, 2}, {3, 3, 2}}});
    if (r->hunting) return;
    rows_case(r, &(struct rows_case){{1, 3, 32, 16, true}, 2, {{1000, 8, 8}, {8, 0, 3}}});
    rows_case(r, &(struct rows_case){{2, 2, 128, 128, false}, 2, {{64, 0, 5}, {130, 1, 1}}});
    rows_case(r, &(struct rows_case){{1, 2, 128, 128, true}, 1, {{4095, 3, 4}}});
    rows_case(r, &(struct rows_case){{2, 6, 128, 128, false}, 1, {{63, 1, 3}}});
    rows_case(r, &(struct rows_case){{1, 2, 128, 128, false}, 2, {{300, 16, 16}, {20, 9, 11}}});
}

// ---- faults ----

static void with_lane(struct device *d, const struct delta_args *a, struct lane lane, int32_t max_window) {
    struct lane lanes[MAX_LANES];
    memcpy(lanes, a->batch->lanes, (size_t)a->batch->n_lane * sizeof *lanes);
    lanes[0] = lane;
    struct batch batch = *a->batch;
    batch.lanes = lanes;
    batch.max_window = max_window;
    struct delta_args b = *a;
    b.batch = &batch;
    d->ops->delta(d, &b);
}

static void forgets_pending(struct device *d, const struct delta_args *a) {
    struct lane lane = a->batch->lanes[0];
    lane.n_pending = 0;
    with_lane(d, a, lane, a->batch->max_window);
}

static void stale_pending(struct device *d, const struct delta_args *a) {
    struct lane lane = a->batch->lanes[0];
    if (lane.n_pending > 0) lane.n_pending--;
    with_lane(d, a, lane, a->batch->max_window);
}

static void short_log(struct device *d, const struct delta_args *a) {
    with_lane(d, a, a->batch->lanes[0], a->batch->max_window - 1);
}

static void next_head(struct device *d, const struct delta_args *a) {
    struct delta_args b = *a;
    b.a.data = (char *)a->a.data + dtype_bytes(a->a.dtype);
    b.a.n_col--;
    d->ops->delta(d, &b);
}

static void other_gate(struct device *d, const struct delta_args *a) {
    struct delta_args b = *a;
    b.gate_sigmoid = !a->gate_sigmoid;
    d->ops->delta(d, &b);
}

static void swapped_gates(struct device *d, const struct delta_args *a) {
    struct delta_args b = *a;
    b.a = a->b;
    b.b = a->a;
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

static void short_commit(struct device *d, const struct delta_commit_args *a) {
    struct lane lane = *a->lane;
    lane.n_pending--;
    struct delta_commit_args b = *a;
    b.lane = &lane;
    d->ops->delta_commit(d, &b);
}

static void plant_forgets(struct ops *o) { o->delta = forgets_pending; }
static void plant_stale(struct ops *o) { o->delta = stale_pending; }
static void plant_log(struct ops *o) { o->delta = short_log; }
static void plant_head(struct ops *o) { o->delta = next_head; }
static void plant_gate(struct ops *o) { o->delta = other_gate; }
static void plant_swapped(struct ops *o) { o->delta = swapped_gates; }
static void plant_scaled(struct ops *o) { o->delta = scaled; }
static void plant_end(struct ops *o) { o->delta = past_end; }
static void plant_commit(struct ops *o) { o->delta_commit = short_commit; }

static const struct fault faults[] = {
    {"pending rows not folded in", plant_forgets},
    {"the oldest pending row lost", plant_stale},
    {"a log of 2 W - 2 rows", plant_log},
    {"decay of the next head", plant_head},
    {"silu for sigmoid", plant_gate},
    {"a and b swapped", plant_swapped},
    {"elements times 1.02", plant_scaled},
    {"one past the end", plant_end},
    {"a commit that loses a row", plant_commit},
};

const struct suite suite_delta = {"delta",
                                  "delta",
                                  run_rows,
                                  faults,
                                  9,
                                  {.max_round_rows = 16,
                                   .key_dim = 128,
                                   .value_dim = 128,
                                   .n_key_head = 2,
                                   .n_value_head = 6,
                                   .max_lanes = 3,
                                   .max_window = DELTA_WINDOW}};
