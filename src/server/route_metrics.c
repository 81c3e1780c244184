// GET /metrics: the engine's counters in the Prometheus text format.
#include "server/internal.h"
#include <inttypes.h>
#include <string.h>

enum kind { GAUGE, COUNTER, SUMMARY };

static void write_head(struct buffer *b, const char *name, enum kind kind, const char *help) {
    static const char *const kinds[] = {"gauge", "counter", "summary"};
    buffer_printf(b, "# HELP tokenfold_%s %s\n# TYPE tokenfold_%s %s\n", name, help, name, kinds[kind]);
}

static void write_one(struct buffer *b, const char *name, enum kind kind, int64_t value, const char *help) {
    write_head(b, name, kind, help);
    buffer_printf(b, "tokenfold_%s %" PRId64 "\n", name, value);
}

// Values of one metric that differ in a label.
struct labelled {
    const char *label;
    int64_t value;
};

static void write_labelled(struct buffer *b, const char *name, enum kind kind, const char *key,
                           const struct labelled *values, int n, const char *help) {
    write_head(b, name, kind, help);
    for (int i = 0; i < n; i++)
        buffer_printf(b, "tokenfold_%s{%s=\"%s\"} %" PRId64 "\n", name, key, values[i].label, values[i].value);
}

#define WRITE_LABELLED(b, name, kind, key, values, help)                                                               \
    write_labelled(b, name, kind, key, values, (int)(sizeof(values) / sizeof *(values)), help)

static void write_streams(struct buffer *b, const struct engine_counts *c) {
    const struct labelled lanes[] = {{"seated", c->ledger.n_seated}, {"free", c->ledger.n_lane - c->ledger.n_seated}};
    WRITE_LABELLED(b, "lanes", GAUGE, "state", lanes, "Lanes for streams.");
    write_one(b, "requests_running", GAUGE, c->n_running, "Requests whose prompt or reply is being computed.");
    write_one(b, "requests_waiting", GAUGE, c->n_waiting, "Requests that wait for a lane or for memory.");
    struct labelled waiting[LEDGER_WAIT_N];
    static const char *const reasons[LEDGER_WAIT_N] = {
        [LEDGER_WAIT_NONE] = "admission",    [LEDGER_WAIT_LANES] = "lanes",   [LEDGER_WAIT_PAGES] = "pages",
        [LEDGER_WAIT_RUN] = "fragmentation", [LEDGER_WAIT_PREFIX] = "prefix", [LEDGER_WAIT_TURN] = "turn"};
    for (int i = 0; i < LEDGER_WAIT_N; i++) waiting[i] = (struct labelled){reasons[i], c->n_waiting_for[i]};
    WRITE_LABELLED(b, "waiting", GAUGE, "reason", waiting, "Of those that wait, what for.");
    write_one(b, "requests_passed_total", COUNTER, c->ledger.n_passed,
              "Requests that were seated before an earlier one.");
    write_head(b, "queue_wait_seconds", SUMMARY, "Time that seated requests had waited.");
    buffer_printf(b, "tokenfold_queue_wait_seconds_sum %.6f\ntokenfold_queue_wait_seconds_count %" PRId64 "\n",
                  (double)c->wait_ns / 1e9, c->n_seated);
}

static void write_memory(struct buffer *b, const struct engine_counts *c, const struct engine_info *i) {
    const struct pool_counts *p = &c->pool;
    const struct labelled pages[] = {{"free", p->n_page_free}, {"used", p->n_page_lane}, {"cached", p->n_page_cached}};
    WRITE_LABELLED(b, "pool_pages", GAUGE, "state", pages,
                   "Pages of keys and values: of nobody, of streams, of the prompt cache alone.");
    write_one(b, "pool_pages_shared", GAUGE, p->n_page_shared, "Pages that more than one stream reads.");
    write_one(b, "pool_pages_set_aside", GAUGE, c->ledger.n_set_aside, "Free pages of the window that is set aside.");
    const struct labelled runs[] = {{"used", p->n_run_lane}, {"cached", p->n_run_cached}};
    WRITE_LABELLED(b, "pool_runs", GAUGE, "state", runs, "Fixed parts of streams, and kept states.");
    write_one(b, "leaked", GAUGE, c->ledger.n_leaked, "References and runs that no stream accounts for: always 0.");
    write_one(b, "memory_planned_bytes", GAUGE, i->plan.used_bytes, "Memory that the plan gave to everything.");
    write_one(b, "memory_taken_bytes", GAUGE, i->taken_bytes, "Memory that was then really taken.");
}

static void write_work(struct buffer *b, const struct engine_counts *c) {
    const struct labelled tokens[] = {{"prompt", c->n_prompt_tokens}, {"reply", c->n_reply_tokens}};
    WRITE_LABELLED(b, "tokens_total", COUNTER, "kind", tokens,
                   "Prompt rows that were computed, and tokens of replies.");
    write_one(b, "rounds_total", COUNTER, c->n_rounds, "Rounds over all running streams.");
    const struct labelled drafts[] = {{"kept", c->n_accepted}, {"rejected", c->n_drafted - c->n_accepted}};
    WRITE_LABELLED(b, "drafts_total", COUNTER, "result", drafts, "Drafted tokens, by whether they became the reply's.");
    write_one(b, "prompt_passes_total", COUNTER, c->n_passes, "Prompt passes.");
    write_one(b, "prompt_rows_resumed_total", COUNTER, c->ledger.n_resumed_rows,
              "Prompt rows that the prompt cache saved.");
    const struct labelled found[] = {{"hit", c->ledger.n_resumed}, {"miss", c->ledger.n_missed}};
    WRITE_LABELLED(b, "prompt_cache_requests_total", COUNTER, "result", found, "Seated prompts by what the cache had.");
}

static void write_cache(struct buffer *b, const struct engine_counts *c) {
    const struct prefix_counts *p = &c->prefix;
    const struct labelled entries[] = {{"pool", p->n_in_pool}, {"host", p->n_in_host}};
    WRITE_LABELLED(b, "prompt_cache_entries", GAUGE, "tier", entries, "Kept positions; one may be in both tiers.");
    write_one(b, "prompt_cache_host_bytes", GAUGE, p->host_bytes_used, "Host memory that entries take.");
    const struct labelled events[] = {{"kept", p->n_kept},
                                      {"evicted", p->n_evicted},
                                      {"too_large", p->n_refused},
                                      {"no_room", p->n_no_run},
                                      {"restore_failed", c->n_restore_failures}};
    WRITE_LABELLED(b, "prompt_cache_events_total", COUNTER, "event", events, "What became of positions to keep.");
}

static void write_requests(struct buffer *b, const struct engine_counts *c) {
    struct labelled refused[REFUSED_N];
    for (int i = 0; i < REFUSED_N; i++) refused[i] = (struct labelled){refusal_name((enum refusal)i), c->n_refused[i]};
    write_one(b, "requests_total", COUNTER, c->n_requests, "Requests that were accepted.");
    const struct labelled ends[] = {
        {"finished", c->n_finished}, {"cancelled", c->n_cancelled}, {"failed", c->n_failed}};
    WRITE_LABELLED(b, "requests_ended_total", COUNTER, "how", ends, "Accepted requests by how they ended.");
    WRITE_LABELLED(b, "requests_refused_total", COUNTER, "reason", refused, "Requests that were not accepted.");
    write_one(b, "engine_failed", GAUGE, c->failed, "1 when the device has failed and no progress is possible.");
}

void route_metrics(struct exchange *x) {
    const struct service *s = &x->server->service;
    struct engine_counts counts;
    struct buffer text;
    engine_get_counts(s->options->engine, &counts);
    buffer_init(&text, 0);
    write_streams(&text, &counts);
    write_memory(&text, &counts, s->info);
    write_work(&text, &counts);
    write_cache(&text, &counts);
    write_requests(&text, &counts);
    exchange_send_text(x, &text, "text/plain; version=0.0.4; charset=utf-8");
}
