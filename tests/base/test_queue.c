#include "base/queue.h"
#include "base/clock.h"
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#define MS 1000000

static struct queue *make_queue(size_t capacity, size_t item_bytes) {
    struct queue *q;
    assert_int_equal(queue_create(capacity, item_bytes, &q, NULL), STATUS_OK);
    return q;
}

static void test_order_and_bound(void **state) {
    (void)state;
    struct queue *q = make_queue(3, sizeof(int));
    int next_in = 0, next_out = 0, item;
    for (int turn = 0; turn < 10; turn++) {
        while (queue_push(q, &next_in)) next_in++;
        assert_int_equal(queue_count(q), 3);
        for (int i = 0; i < 1 + turn % 3; i++) {
            assert_true(queue_pop(q, &item, 0));
            assert_int_equal(item, next_out++);
        }
    }
    while (queue_pop(q, &item, 0)) assert_int_equal(item, next_out++);
    assert_int_equal(next_in, next_out);
    assert_int_equal(queue_count(q), 0);
    queue_free(q);
    queue_free(NULL);
}

static void test_too_large(void **state) {
    (void)state;
    struct queue *q = NULL;
    struct error e;
    assert_int_equal(queue_create(SIZE_MAX / 2, 64, &q, &e), STATUS_MEMORY);
    assert_null(q);
}

static void test_timeout(void **state) {
    (void)state;
    struct queue *q = make_queue(1, 1);
    char item;
    int64_t before = clock_ns();
    assert_false(queue_pop(q, &item, 30 * MS));
    assert_true(clock_ns() - before >= 30 * MS);
    queue_free(q);
}

static void test_close(void **state) {
    (void)state;
    struct queue *q = make_queue(4, 1);
    char item = 'a';
    assert_true(queue_push(q, &item));
    assert_false(queue_closed(q));
    queue_close(q);
    assert_true(queue_closed(q));
    assert_false(queue_push(q, &item));
    assert_true(queue_pop(q, &item, -1)); // what was pushed before is still handed out
    assert_false(queue_pop(q, &item, -1));
    queue_free(q);
}

static void *wake_soon(void *argument) {
    clock_sleep_ns(10 * MS);
    queue_wake(argument);
    return NULL;
}

static void test_wake(void **state) {
    (void)state;
    struct queue *q = make_queue(4, 1);
    char item = 'a';
    queue_wake(q); // before the wait
    assert_false(queue_pop(q, &item, -1));
    int64_t before = clock_ns();
    assert_false(queue_pop(q, &item, 10 * MS)); // one wake is good for one pop
    assert_true(clock_ns() - before >= 10 * MS);
    pthread_t id; // during the wait
    pthread_create(&id, NULL, wake_soon, q);
    assert_false(queue_pop(q, &item, -1));
    pthread_join(id, NULL);
    queue_wake(q);
    assert_true(queue_push(q, &item));
    assert_true(queue_pop(q, &item, -1)); // an item goes before a wake
    queue_free(q);
}

#define N_PRODUCERS 3
#define N_CONSUMERS 3
#define N_ITEMS     5000

struct item {
    int producer, number;
};
struct consumer {
    struct queue *q;
    long seen[N_PRODUCERS];
    int last[N_PRODUCERS], disordered;
};

static void *produce(void *argument) {
    static _Atomic int n_started;
    struct queue *q = argument;
    struct item item = {.producer = n_started++ % N_PRODUCERS};
    for (item.number = 1; item.number <= N_ITEMS; item.number++)
        while (!queue_push(q, &item)) clock_sleep_ns(1000);
    return NULL;
}

static void *consume(void *argument) {
    struct consumer *self = argument;
    struct item item;
    while (queue_pop(self->q, &item, -1)) {
        self->seen[item.producer] += item.number;
        if (item.number <= self->last[item.producer]) self->disordered++;
        self->last[item.producer] = item.number;
    }
    return NULL;
}

static void test_many_threads(void **state) {
    (void)state;
    struct queue *q = make_queue(7, sizeof(struct item));
    pthread_t producers[N_PRODUCERS], consumers[N_CONSUMERS];
    struct consumer results[N_CONSUMERS] = {{.q = q}, {.q = q}, {.q = q}};
    for (int i = 0; i < N_CONSUMERS; i++) pthread_create(&consumers[i], NULL, consume, &results[i]);
    for (int i = 0; i < N_PRODUCERS; i++) pthread_create(&producers[i], NULL, produce, q);
    for (int i = 0; i < N_PRODUCERS; i++) pthread_join(producers[i], NULL);
    queue_close(q);
    for (int i = 0; i < N_CONSUMERS; i++) pthread_join(consumers[i], NULL);
    for (int p = 0; p < N_PRODUCERS; p++) {
        long sum = 0;
        for (int c = 0; c < N_CONSUMERS; c++) sum += results[c].seen[p];
        assert_int_equal(sum, (long)N_ITEMS * (N_ITEMS + 1) / 2);
    }
    for (int c = 0; c < N_CONSUMERS; c++) assert_int_equal(results[c].disordered, 0);
    queue_free(q);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_and_bound), cmocka_unit_test(test_too_large), cmocka_unit_test(test_timeout),
        cmocka_unit_test(test_close),           cmocka_unit_test(test_wake),      cmocka_unit_test(test_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
