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
    bool is_slow, is_busy; // a transfer is done only when it is waited for; one is under way
    int n_wait;            // how often one was waited for
};

static void note_transfer(struct device *d, bool to_host, const struct transfer_range *ranges, int n) {
    struct bed *b = (struct bed *)d;
    assert_true(to_host && !b->is_busy && n > 0 && n <= DEVICE_TRANSFER_RANGES);
    for (int k = 0; k < n; k++) {
        int64_t at = (char *)ranges[k].host - b->host, from = (char *)ranges[k].device - b->pool;
        int64_t bytes = (int64_t)ranges[k].bytes;
        assert_true(at >= 0 && at + bytes <= b->host_bytes && from >= 0 && from + bytes <= b->pool_bytes);
        assert_true(at % MIB == 0 && bytes % MIB == 0);
        for (int64_t i = at / MIB; i < (at + bytes) / MIB; i++) b->seen[i]++;
        b->step_bytes += bytes;
    }
    b->is_busy = true;
}

static bool note_done(struct device *d, bool wait) {
    struct bed *b = (struct bed *)d;
    b->n_wait += wait && b->is_busy;
    if (b->is_slow && !wait) return !b->is_busy;
    b->is_busy = false;
    return true;
}

// One entry, kept by a lane that has ended: it waits to be written.
static void open_bed(struct bed *b, int64_t kept_mib, int64_t page_mib) {
    struct error error;
    int32_t ids[POSITION + 1] = {0}, pages[N_PAGE];
    *b = (struct bed){.page_bytes = page_mib * MIB, .kept_bytes = kept_mib * MIB};
    b->host_bytes = b->pool_bytes = b->kept_bytes + N_PAGE * b->page_bytes;
    b->device.transfer = note_transfer;
    b->device.transfer_done = note_done;
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
        cache_write_some(&b.e);
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

static int32_t count_in_host(const struct bed *b) {
    struct prefix_counts c;
    prefix_get_counts(b->e.prefix, &c);
    return c.n_in_host;
}

// Other work goes on between: nothing more is begun before a part is there, and the entry is not before all are.
static void nothing_waits_for_a_part_while_there_is_other_work(void **state) {
    (void)state;
    struct bed b;
    open_bed(&b, 144, 16);
    b.is_slow = true;
    for (int64_t done = 0; done < b.host_bytes; done += b.step_bytes) {
        b.step_bytes = 0;
        for (int i = 0; i < 3; i++) cache_write_some(&b.e);
        assert_true(b.is_busy && b.step_bytes > 0 && b.step_bytes < PART + b.page_bytes);
        assert_int_equal(count_in_host(&b), 0);
        b.is_busy = false; // the device is done with it
    }
    cache_write_some(&b.e);
    assert_int_equal(count_in_host(&b), 1);
    assert_int_equal(b.n_wait, 0);
    close_bed(&b);
}

static void who_has_nothing_else_to_do_waits_for_a_part(void **state) {
    (void)state;
    struct bed b;
    open_bed(&b, 144, 16);
    b.is_slow = true;
    int n_part = 0;
    for (; count_in_host(&b) == 0; n_part++) {
        b.step_bytes = 0;
        cache_write_some(&b.e);
        assert_true(b.is_busy && b.step_bytes < PART + b.page_bytes && n_part < 100);
        cache_wait(&b.e);
        assert_false(b.is_busy);
    }
    assert_int_equal(b.n_wait, n_part);
    for (int64_t i = 0; i < b.host_bytes / MIB; i++) assert_int_equal(b.seen[i], 1);
    cache_wait(&b.e); // for nothing
    assert_int_equal(b.n_wait, n_part);
    close_bed(&b);
}

static void an_engine_that_stops_waits_for_a_part_and_gives_the_entry_up(void **state) {
    (void)state;
    struct bed b;
    open_bed(&b, 144, 16);
    b.is_slow = true;
    cache_write_some(&b.e);
    cache_stop(&b.e);
    assert_false(b.is_busy);
    assert_int_equal(b.n_wait, 1);
    assert_int_equal(count_in_host(&b), 0);
    close_bed(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_are_written_in_parts_whatever_their_state_takes),
        cmocka_unit_test(nothing_waits_for_a_part_while_there_is_other_work),
        cmocka_unit_test(who_has_nothing_else_to_do_waits_for_a_part),
        cmocka_unit_test(an_engine_that_stops_waits_for_a_part_and_gives_the_entry_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
