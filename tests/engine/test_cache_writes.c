// What is written to host memory behind the replies, a part at a time, over a device that only notes what is copied: of
// states and pages of real sizes, each byte once, and never much more than a part between two steps.
#include "engine/internal.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
// cmocka last: it needs the headers above
#include <cmocka.h>

#define MIB      ((int64_t)1 << 20)
#define PART     (32 * MIB)
#define ROWS     256 // of a page
#define POSITION 1280
#define N_PAGE   (POSITION / ROWS)

// Host and device memory that is never touched: copies are noted by where they begin.
struct bed {
    struct device device; // first: its calls get it
    struct engine e;
    struct text *text;
    char *host, *pool;
    unsigned char *seen; // [host MiB]: how often each was written
    int64_t page_bytes, kept_bytes, host_bytes, pool_bytes, step_bytes;
};

static void note_copy(struct device *d, void *host, const void *device_memory, size_t bytes) {
    struct bed *b = (struct bed *)d;
    int64_t at = (char *)host - b->host, from = (const char *)device_memory - b->pool;
    assert_true(at >= 0 && at + (int64_t)bytes <= b->host_bytes && from >= 0 && from + (int64_t)bytes <= b->pool_bytes);
    assert_true(at % MIB == 0 && bytes % MIB == 0);
    for (int64_t i = at / MIB; i < (at + (int64_t)bytes) / MIB; i++) b->seen[i]++;
    b->step_bytes += (int64_t)bytes;
}

// One entry, kept by a lane that has ended: it waits to be written.
static void open_bed(struct bed *b, int64_t kept_mib, int64_t page_mib) {
    struct error error;
    int32_t ids[POSITION + 1] = {0}, pages[N_PAGE];
    *b = (struct bed){.page_bytes = page_mib * MIB, .kept_bytes = kept_mib * MIB};
    b->host_bytes = b->pool_bytes = b->kept_bytes + N_PAGE * b->page_bytes;
    b->device.copy_out = note_copy;
    b->host = malloc((size_t)b->host_bytes);
    b->pool = malloc((size_t)b->pool_bytes);
    b->seen = calloc((size_t)(b->host_bytes / MIB), 1);
    assert_true(b->host != NULL && b->pool != NULL && b->seen != NULL);
    b->e = (struct engine){.device = &b->device,
                           .memory = b->pool,
                           .host = b->host,
                           .host_bytes = b->host_bytes,
                           .page_bytes = b->page_bytes,
                           .run_bytes = b->kept_bytes,
                           .kept_bytes = b->kept_bytes};
    struct pool_shape shape = {
        .bytes = b->pool_bytes, .page_bytes = b->page_bytes, .run_bytes = b->kept_bytes, .n_run = 1};
    assert_int_equal(pool_create(&shape, &b->e.pool, &error), STATUS_OK);
    struct prefix_settings settings = {.pool = b->e.pool,
                                       .page_rows = ROWS,
                                       .page_bytes = b->page_bytes,
                                       .kept_bytes = b->kept_bytes,
                                       .host_bytes = b->host_bytes};
    assert_int_equal(prefix_create(&settings, &b->e.prefix, &error), STATUS_OK);
    assert_int_equal(text_create(0, ids, POSITION + 1, &b->text, &error), STATUS_OK);
    struct prefix_cut cut = {.position = POSITION, .kind = PREFIX_KEEP_TURN};
    struct prefix_keep keep;
    assert_true(pool_take_pages(b->e.pool, HOLDER_LANE, N_PAGE, pages));
    prefix_expect(b->e.prefix, 0, b->text, 0, &cut, 1);
    assert_int_equal(prefix_begin_keep(b->e.prefix, 0, 0, POSITION, &keep, 1), 1);
    prefix_end_keep(b->e.prefix, 0, pages);
    for (int i = 0; i < N_PAGE; i++) pool_drop_page(b->e.pool, HOLDER_LANE, pages[i]);
}

static void close_bed(struct bed *b) {
    cache_stop(&b->e);
    prefix_free(b->e.prefix);
    pool_free(b->e.pool);
    text_free(b->text);
    free(b->host);
    free(b->pool);
    free(b->seen);
}

// While there is other work: the entry is in host memory after some steps, none of which copied more than a part and
// the rest of a page.
static void write_in_parts(int64_t kept_mib, int64_t page_mib) {
    struct bed b;
    struct prefix_counts c;
    open_bed(&b, kept_mib, page_mib);
    int64_t n_step = 0, most_steps = b.host_bytes / PART + 2;
    for (prefix_get_counts(b.e.prefix, &c); c.n_in_host == 0; prefix_get_counts(b.e.prefix, &c)) {
        b.step_bytes = 0;
        cache_write_some(&b.e, false);
        assert_true(b.step_bytes > 0 && b.step_bytes < PART + b.page_bytes);
        assert_true(++n_step <= most_steps);
    }
    for (int64_t i = 0; i < b.host_bytes / MIB; i++) assert_int_equal(b.seen[i], 1);
    assert_false(cache_has_work(&b.e));
    close_bed(&b);
}

static void entries_are_written_in_parts_whatever_their_state_takes(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {{1, 1},  {31, 4}, {32, 16},  {33, 5},
                                       {64, 1}, {60, 5}, {144, 16}, {200, 33}}; // MiB of a state, and of a page
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) write_in_parts(sizes[i][0], sizes[i][1]);
}

static void an_idle_engine_writes_all_at_once(void **state) {
    (void)state;
    struct bed b;
    open_bed(&b, 144, 16);
    cache_write_some(&b.e, true);
    assert_int_equal(b.step_bytes, b.host_bytes);
    for (int64_t i = 0; i < b.host_bytes / MIB; i++) assert_int_equal(b.seen[i], 1);
    assert_false(cache_has_work(&b.e));
    close_bed(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_are_written_in_parts_whatever_their_state_takes),
        cmocka_unit_test(an_idle_engine_writes_all_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
