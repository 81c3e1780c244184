#include "tests/engine/requests.h"
#include "base/clock.h"
#include "cpu/device_cpu.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
// cmocka last: it needs the headers above
#include <cmocka.h>

static struct device *device;

bool requests_open_device(void) {
    struct error error;
    if (access(REQUESTS_MODEL "/config.json", R_OK) != 0) {
        puts("SKIP " REQUESTS_MODEL " is missing: run tools/unpack_golden.sh");
        return false;
    }
    if (cpu_device_create(COMPUTE_AUTO, true, 2, cpu_isa_detect(), &device, &error) == STATUS_OK) return true;
    puts(error.text);
    return false;
}

struct device *requests_device(void) {
    return device;
}

void requests_close_device(void) { device_free(device); }

struct engine *open_engine(struct engine_options o) {
    struct engine *e = NULL;
    struct error error;
    o.model_dir = REQUESTS_MODEL;
    o.device = device;
    if (o.parallel == 0) o.parallel = 4;
    if (o.queue == 0) o.queue = 64;
    if (o.max_tokens == 0) o.max_tokens = 32;
    if (o.context == 0) o.context = 2048;
    if (o.decode_share == 0) o.decode_share = 0.25;
    if (engine_create(&o, &e, &error) != STATUS_OK) fail_msg("%s", error.text);
    return e;
}

int32_t *make_prompt(int32_t n, uint32_t seed) {
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    for (int32_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        ids[i] = 3 + (int32_t)((seed >> 8) % (REQUESTS_VOCAB - 3));
    }
    return ids;
}

struct request_params params_of(const int32_t *prompt, int32_t n, int64_t max_tokens) {
    return (struct request_params){
        .prompt = prompt,
        .n_prompt = n,
        .max_tokens = max_tokens,
        .ignore_eos = true,
        .draw = {.temperature = 0, .top_p = 1, .repetition = 1, .n_top = -1},
    };
}

struct request *submit(struct engine *e, const struct request_params *p) {
    struct request *r = NULL;
    struct error error;
    if (engine_submit(e, p, &r, &error) != STATUS_OK) fail_msg("%s", error.text);
    return r;
}

struct request_view view_of(struct request *r) {
    struct request_view v;
    request_wait(r, 0, REQUEST_WAITING, 0, &v);
    return v;
}

struct request_view wait_done(struct request *r) {
    struct request_view v = {0};
    int64_t give_up = clock_ns() + 60 * SECOND;
    while (v.state != REQUEST_DONE && clock_ns() < give_up) request_wait(r, v.n_tokens, v.state, SECOND, &v);
    assert_int_equal(v.state, REQUEST_DONE);
    return v;
}

void wait_tokens(struct request *r, int32_t n) {
    struct request_view v = {0};
    int64_t give_up = clock_ns() + 60 * SECOND;
    while (v.n_tokens < n && v.state != REQUEST_DONE && clock_ns() < give_up)
        request_wait(r, v.n_tokens, v.state, SECOND, &v);
    assert_true(v.n_tokens >= n);
}

int32_t run_alone(struct engine *e, const struct request_params *p, int32_t *ids) {
    struct request *r = submit(e, p);
    struct request_view v = wait_done(r);
    for (int32_t i = 0; i < v.n_tokens; i++) ids[i] = request_tokens(r)[i].id;
    request_free(r);
    return v.n_tokens;
}

void wait_counts_idle(struct engine *e) {
    struct engine_counts c;
    int64_t give_up = clock_ns() + 10 * SECOND;
    do {
        engine_get_counts(e, &c);
        if (c.pool.n_page_lane == 0 && c.ledger.n_leaked == 0 && c.n_running == 0 && c.n_waiting == 0 && engine_idle(e))
            return;
        clock_sleep_ns(1000000);
    } while (clock_ns() < give_up);
    fail_msg("%lld pages, %d running, %d waiting are left", (long long)c.pool.n_page_lane, c.n_running, c.n_waiting);
}
