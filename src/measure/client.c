#include "measure/client.h"
#include "base/clock.h"
#include "format/json.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define EVENT_MAX ((size_t)32 << 20)

// One reply as it streams in.
struct reply {
    const struct client *client;
    struct buffer body;
    pthread_t thread;
    bool started;
    int64_t start_ns;
    int64_t *times_ns; // [n] of events with text or ids
    int32_t *tokens;   // [n] until then
    int n, capacity;
    int32_t *ids; // [n_ids]
    int n_ids, ids_capacity;
    uint64_t text; // digest
    int64_t n_tokens;
    int n_cached;
    bool done;
    enum status status;
    struct error error;
};

static bool grow(void **list, int n, int *capacity, size_t size) {
    if (n < *capacity) return true;
    int more = *capacity > 0 ? 2 * *capacity : 64;
    void *p = realloc(*list, (size_t)more * size);
    if (p == NULL) return false;
    *list = p;
    *capacity = more;
    return true;
}

static enum status add_event(struct reply *r, int64_t time_ns) {
    int capacity = r->capacity;
    if (!grow((void **)&r->times_ns, r->n, &capacity, sizeof *r->times_ns)) return error_memory(&r->error);
    capacity = r->capacity;
    if (!grow((void **)&r->tokens, r->n, &capacity, sizeof *r->tokens)) return error_memory(&r->error);
    r->capacity = capacity;
    r->times_ns[r->n] = time_ns;
    r->tokens[r->n++] = r->n_ids;
    return STATUS_OK;
}

static enum status read_choice(struct reply *r, const json_t *choice, int64_t time_ns) {
    const json_t *ids = json_object_get(choice, "token_ids");
    const char *text = json_string_value(json_object_get(choice, "text"));
    size_t n_new = json_array_size(ids);
    for (size_t i = 0; i < n_new; i++) {
        if (!grow((void **)&r->ids, r->n_ids, &r->ids_capacity, sizeof *r->ids)) return error_memory(&r->error);
        r->ids[r->n_ids++] = (int32_t)json_integer_value(json_array_get(ids, i));
    }
    if (text != NULL && text[0] != 0) r->text = cell_digest(r->text, text, strlen(text));
    return n_new > 0 || (text != NULL && text[0] != 0) ? add_event(r, time_ns) : STATUS_OK;
}

static void read_usage(struct reply *r, const json_t *usage) {
    const json_t *cached = json_object_get(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
    if (json_is_integer(cached)) r->n_cached = (int)json_integer_value(cached);
    if (json_is_integer(json_object_get(usage, "completion_tokens")))
        r->n_tokens = json_integer_value(json_object_get(usage, "completion_tokens"));
}

static bool on_line(void *context, char *text, size_t n, int64_t time_ns) {
    struct reply *r = context;
    json_t *event;
    if (n < 6 || strncmp(text, "data:", 5) != 0) return true;
    size_t skip = text[5] == ' ' ? 6 : 5;
    if (strcmp(text + skip, "[DONE]") == 0) {
        r->done = true;
        return false;
    }
    r->status = json_parse(text + skip, n - skip, EVENT_MAX, JSON_PARSE_DUPLICATES | JSON_PARSE_NUL, &event, &r->error);
    if (r->status != STATUS_OK) return false;
    const json_t *error = json_object_get(event, "error");
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    const char *said = json_string_value(json_object_get(error, "message"));
    if (json_is_object(error))
        r->status = error_set(&r->error, STATUS_IO, "the server broke off: %.300s", said != NULL ? said : "");
    else if (choice != NULL)
        r->status = read_choice(r, choice, time_ns);
    if (json_is_object(json_object_get(event, "usage"))) read_usage(r, json_object_get(event, "usage"));
    json_decref(event);
    return r->status == STATUS_OK;
}

static void *run_reply(void *context) {
    struct reply *r = context;
    struct error e;
    enum status s =
        stream_post(&r->client->at, "/completions", r->client->key, r->body.data, on_line, r, &r->start_ns, &e);
    if (r->status == STATUS_OK && s != STATUS_OK) {
        r->status = s;
        r->error = e;
    }
    if (r->status == STATUS_OK && r->n == 0)
        r->status = error_set(&r->error, STATUS_IO, "http://%s:%s gave a reply without a token", r->client->at.host,
                              r->client->at.port);
    return NULL;
}

// The first n tokens of a key's prompt, the first reply's where there is one, and then more of the key's.
static void write_body(struct reply *r, uint64_t key, int n, const struct reply *first, int n_more, int max_tokens) {
    struct buffer *b = &r->body;
    buffer_append_text(b, "{\"model\":");
    const char *model = r->client->model != NULL ? r->client->model : "default";
    json_write_string(b, model, strlen(model));
    buffer_append_text(b, ",\"prompt\":[");
    for (int i = 0; i < n; i++) buffer_printf(b, "%s%d", i > 0 ? "," : "", cell_token(key, i, CELL_VOCABULARY));
    for (int i = 0; first != NULL && i < first->n_ids; i++) buffer_printf(b, ",%d", first->ids[i]);
    for (int i = 0; i < n_more; i++) buffer_printf(b, ",%d", cell_token(key, n + i, CELL_VOCABULARY));
    buffer_printf(b,
                  "],\"max_tokens\":%d,\"temperature\":0,\"ignore_eos\":true,\"return_token_ids\":true,"
                  "\"stream\":true,\"stream_options\":{\"include_usage\":true}}",
                  max_tokens);
    if (b->failed) r->status = error_memory(&r->error);
}

static void init_reply(struct reply *r, const struct client *c) {
    *r = (struct reply){.client = c, .n_cached = -1};
    buffer_init(&r->body, 0);
}

static void free_reply(struct reply *r) {
    buffer_free(&r->body);
    free(r->times_ns);
    free(r->tokens);
    free(r->ids);
}

// Tokens of events, where the server did not say which they were.
static void spread_tokens(struct reply *r) {
    for (int i = 0; i < r->n && r->n_ids == 0; i++)
        r->tokens[i] = (int32_t)(r->n_tokens > 0 ? r->n_tokens * (i + 1) / r->n : i + 1);
}

static void add_digests(const struct reply *r, struct sample *s) {
    if (r->n_ids > 0) s->ids = cell_digest(s->ids, r->ids, (size_t)r->n_ids * sizeof *r->ids);
    if (r->text != 0) s->text = cell_digest(s->text, &r->text, sizeof r->text);
    s->n_cached = r->n_cached;
}

static enum status measure_first_token(const struct client *c, const struct cell *cell, uint64_t key,
                                       struct sample *out, struct error *e) {
    struct reply first, second, *r = &first;
    init_reply(&first, c);
    init_reply(&second, c);
    // One token is all that is asked for: text that cannot be shown yet would hold back the first.
    write_body(&first, key, cell->n_prompt, NULL, 0, 1);
    if (first.status == STATUS_OK) run_reply(&first);
    if (first.status == STATUS_OK && cell->kind == CELL_WARM) {
        r = &second;
        clock_sleep_ns(CELL_PAUSE_NS);
        write_body(r, key, cell->n_prompt, &first, cell->n_decode, 1);
        if (r->status == STATUS_OK) run_reply(r);
    }
    enum status s = r->status == STATUS_OK ? STATUS_OK : error_set(e, r->status, "%s", r->error.text);
    if (s == STATUS_OK) {
        double rows = cell->n_prompt + (cell->kind == CELL_WARM ? cell->n_decode + first.n_ids : 0);
        *out = (struct sample){.tokens_per_s = rows * 1e9 / (double)(r->times_ns[0] - r->start_ns)};
        add_digests(r, out);
    }
    free_reply(&first);
    free_reply(&second);
    return s;
}

static enum status measure_decode(const struct client *c, const struct cell *cell, uint64_t key, struct sample *out,
                                  struct error *e) {
    struct reply *r = calloc((size_t)cell->n_streams, sizeof *r);
    struct stream_record records[CELL_STREAMS_MAX];
    enum status s = r == NULL ? error_memory(e) : STATUS_OK;
    if (s != STATUS_OK) return s;
    for (int i = 0; i < cell->n_streams; i++) {
        init_reply(&r[i], c);
        write_body(&r[i], key * CELL_STREAMS_MAX + (uint64_t)i, cell->n_prompt, NULL, 0, cell->n_decode + 1);
    }
    for (int i = 0; i < cell->n_streams; i++) {
        r[i].started = r[i].status == STATUS_OK && pthread_create(&r[i].thread, NULL, run_reply, &r[i]) == 0;
        if (!r[i].started && r[i].status == STATUS_OK) r[i].status = error_memory(&r[i].error);
    }
    struct sample sum = {.n_cached = -1};
    for (int i = 0; i < cell->n_streams; i++) {
        if (r[i].started) pthread_join(r[i].thread, NULL);
        if (s == STATUS_OK && r[i].status != STATUS_OK) s = error_set(e, r[i].status, "%s", r[i].error.text);
        spread_tokens(&r[i]);
        records[i] = (struct stream_record){r[i].times_ns, r[i].tokens, r[i].n};
        add_digests(&r[i], &sum);
    }
    if (s == STATUS_OK) {
        sum.tokens_per_s = cell_decode_rate(records, cell->n_streams);
        *out = sum;
    }
    for (int i = 0; i < cell->n_streams; i++) free_reply(&r[i]);
    free(r);
    return s;
}

enum status client_measure(const struct client *c, const struct cell *cell, uint64_t key, struct sample *out,
                           struct error *e) {
    return cell->kind == CELL_DECODE ? measure_decode(c, cell, key, out, e) : measure_first_token(c, cell, key, out, e);
}
