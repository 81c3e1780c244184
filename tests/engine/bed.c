#include "tests/engine/bed.h"
#include "base/clock.h"
#include "cpu/device_cpu.h"
#include <setjmp.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
// cmocka last: it needs the headers above
#include <cmocka.h>

static struct device *device;

bool bed_start(void) {
    struct error error;
    if (access(BED_MODEL "/config.json", R_OK) != 0) {
        puts("SKIP " BED_MODEL " is missing: run tools/unpack_golden.sh");
        return false;
    }
    if (cpu_device_create(COMPUTE_AUTO, true, 2, cpu_isa_detect(), &device, &error) == STATUS_OK) return true;
    puts(error.text);
    exit(1);
}

void bed_stop(void) { device_free(device); }

// ---- transfers that take a while ----

static struct {
    void (*transfer)(struct device *, bool, const struct transfer_range *, int); // the device's own
    bool (*transfer_done)(struct device *, bool);
    struct transfer_range ranges[DEVICE_TRANSFER_RANGES];
    int n, left;
    bool to_host, pending;
    atomic_int turns, n_brought;
    struct request *watched;
    int32_t *at_begin, *at_end;
} slow;

static void slow_transfer(struct device *d, bool to_host, const struct transfer_range *ranges, int n) {
    (void)d;
    assert_false(slow.pending);
    memcpy(slow.ranges, ranges, (size_t)n * sizeof *ranges);
    slow.n = n;
    slow.to_host = to_host;
    slow.pending = true;
    slow.left = atomic_load(&slow.turns);
    atomic_fetch_add(&slow.n_brought, !to_host);
    if (!to_host && slow.watched != NULL) *slow.at_begin = bed_view(slow.watched).n_tokens;
}

static bool slow_transfer_done(struct device *d, bool wait) {
    if (!slow.pending) return true;
    if (!wait && slow.left-- > 0) return false;
    if (!slow.to_host && slow.watched != NULL) *slow.at_end = bed_view(slow.watched).n_tokens;
    slow.pending = false;
    slow.transfer(d, slow.to_host, slow.ranges, slow.n);
    return slow.transfer_done(d, true);
}

void bed_copies_take(int turns) {
    if (slow.transfer == NULL) slow.transfer = device->transfer, slow.transfer_done = device->transfer_done;
    atomic_store(&slow.turns, turns);
    device->transfer = turns > 0 ? slow_transfer : slow.transfer;
    device->transfer_done = turns > 0 ? slow_transfer_done : slow.transfer_done;
}

int bed_count_brought(void) { return atomic_load(&slow.n_brought); }

void bed_watch(struct request *r, int32_t *at_begin, int32_t *at_end) {
    slow.watched = r;
    slow.at_begin = at_begin;
    slow.at_end = at_end;
}

struct device *bed_device(void) {
    return device;
}

struct engine *bed_open(struct engine_options o) {
    struct engine *e = NULL;
    struct error error;
    if (o.model_dir == NULL) o.model_dir = BED_MODEL;
    o.device = device;
    if (o.parallel == 0) o.parallel = 4;
    if (o.queue == 0) o.queue = 64;
    if (o.max_tokens == 0) o.max_tokens = 32;
    if (o.context == 0) o.context = 2048;
    if (o.decode_share == 0) o.decode_share = 0.25;
    if (engine_create(&o, &e, &error) != STATUS_OK) fail_msg("%s", error.text);
    return e;
}

int32_t *bed_prompt(int32_t n, uint32_t seed) {
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    for (int32_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        ids[i] = 3 + (int32_t)((seed >> 8) % (BED_VOCAB - 3));
    }
    return ids;
}

struct request_params bed_params(const int32_t *prompt, int32_t n, int64_t max_tokens) {
    return (struct request_params){
        .prompt = prompt,
        .n_prompt = n,
        .max_tokens = max_tokens,
        .ignore_eos = true,
        .draw = {.temperature = 0, .top_p = 1, .repetition = 1, .n_top = -1},
    };
}

struct request *bed_submit(struct engine *e, const struct request_params *p) {
    struct request *r = NULL;
    struct error error;
    if (engine_submit(e, p, &r, &error) != STATUS_OK) fail_msg("%s", error.text);
    return r;
}

struct request_view bed_view(struct request *r) {
    struct request_view v;
    request_wait(r, 0, REQUEST_WAITING, 0, &v);
    return v;
}

struct request_view bed_wait_done(struct request *r) {
    struct request_view v = {0};
    int64_t give_up = clock_ns() + 120 * BED_SECOND;
    while (v.state != REQUEST_DONE && clock_ns() < give_up) request_wait(r, v.n_tokens, v.state, BED_SECOND, &v);
    assert_int_equal(v.state, REQUEST_DONE);
    return v;
}

void bed_wait_tokens(struct request *r, int32_t n) {
    struct request_view v = {0};
    int64_t give_up = clock_ns() + 120 * BED_SECOND;
    while (v.n_tokens < n && v.state != REQUEST_DONE && clock_ns() < give_up)
        request_wait(r, v.n_tokens, v.state, BED_SECOND, &v);
    assert_true(v.n_tokens >= n);
}

struct request_view bed_run_view(struct engine *e, const struct request_params *p, int32_t *ids) {
    struct request *r = bed_submit(e, p);
    struct request_view v = bed_wait_done(r);
    for (int32_t i = 0; i < v.n_tokens; i++) ids[i] = request_tokens(r)[i].id;
    request_free(r);
    return v;
}

int32_t bed_run(struct engine *e, const struct request_params *p, int32_t *ids) {
    return bed_run_view(e, p, ids).n_tokens;
}

void bed_wait_idle(struct engine *e) {
    struct engine_counts c;
    int64_t give_up = clock_ns() + 10 * BED_SECOND;
    do {
        engine_get_counts(e, &c);
        if (c.pool.n_page_lane == 0 && c.ledger.n_leaked == 0 && c.ledger.n_seated == 0 && c.n_running == 0 &&
            c.n_waiting == 0 && engine_idle(e))
            return;
        clock_sleep_ns(1000000);
    } while (clock_ns() < give_up);
    fail_msg("%lld pages, %d lanes, %lld leaks, %d running, %d waiting are left", (long long)c.pool.n_page_lane,
             c.ledger.n_seated, (long long)c.ledger.n_leaked, c.n_running, c.n_waiting);
}
