#include "gate/fresh.h"
#include "base/clock.h"
#include "format/detokenizer.h"
#include "format/json.h"
#include "gate/child.h"
#include "gate/http.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_NS   ((int64_t)20000000)
#define FLAGS_MAX 64

struct fresh {
    struct child child;
    char logits[CHILD_PATH_SIZE]; // of this process, removed when the server ends
};

bool fresh_runs(const struct gate *g) { return g->fresh != NULL && g->fresh->child.pid != 0; }

// ---- start and end ----

enum status fresh_start(struct gate *g, const struct arm *arm, struct error *e) {
    fresh_stop(g);
    if (g->fresh == NULL) g->fresh = calloc(1, sizeof *g->fresh);
    if (g->fresh == NULL) return error_memory(e);
    struct fresh *f = g->fresh;
    const char *argv[FLAGS_MAX];
    char parallel[16], context[16], cache[32], memory[32], pages[16];
    int n = 0;
    snprintf(parallel, sizeof parallel, "%d", arm->parallel);
    snprintf(context, sizeof context, "%d", arm->context > 0 ? arm->context : g->context);
    snprintf(cache, sizeof cache, "%.9f", (double)arm->cache_bytes / (1 << 30));
    snprintf(memory, sizeof memory, "%lld", (long long)arm->kv_memory_bytes);
    snprintf(pages, sizeof pages, "%d", arm->page_rows);
    const char *const fixed[] = {g->options->program,
                                 "serve",
                                 g->options->model_dir,
                                 "--port",
                                 "0",
                                 "--no-progress",
                                 "--parallel",
                                 parallel,
                                 "--context",
                                 context,
                                 "--prompt-cache-gib",
                                 cache,
                                 "--kv-dtype",
                                 arm->fp8 ? "fp8" : "bf16",
                                 "--queue",
                                 "256"};
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++) argv[n++] = fixed[i];
    if (arm->kv_memory_bytes > 0) argv[n++] = "--kv-memory", argv[n++] = memory;
    if (arm->drafts.block) argv[n++] = "--drafter", argv[n++] = g->options->engine.drafter_dir;
    for (int i = 0; i < g->options->n_flags && n < FLAGS_MAX - 1; i++) argv[n++] = g->options->flags[i];
    argv[n] = NULL;
    enum status s = child_make_file(f->logits, e);
    const struct child_setting settings[] = {{"TF_QWEN_KV_PAGES", pages},
                                             {"TF_QWEN_KV_PAGES_ALL", arm->pages_all ? "1" : "0"},
                                             {"TF_QWEN_KV_SHARE", arm->share ? "1" : "0"},
                                             {"TF_GATE_LOGITS", f->logits}};
    g->n_passes = 0;
    return s == STATUS_OK ? child_start(&f->child, argv, settings, sizeof settings / sizeof *settings, e) : s;
}

void fresh_stop(struct gate *g) {
    if (!fresh_runs(g)) return;
    child_stop(&g->fresh->child);
    unlink(g->fresh->logits);
}

// ---- jobs ----

struct post {
    struct gate *gate;
    struct job *job;
    pthread_t thread;
    bool started;
    atomic_bool done;
    enum status status;
    struct error error;
};

static char *write_body(const struct gate_case *c, const struct job *j) {
    struct buffer b;
    buffer_init(&b, 0);
    buffer_append_text(&b, "{\"prompt\":[");
    for (int32_t i = 0; i < c->n; i++) buffer_printf(&b, "%s%d", i > 0 ? "," : "", c->ids[i]);
    buffer_printf(&b,
                  "],\"max_tokens\":%d,\"temperature\":%.3f,\"top_p\":0.95,\"top_k\":0,\"min_p\":0,"
                  "\"ignore_eos\":true,\"return_token_ids\":true,\"logprobs\":0,\"repetition_penalty\":%.3f,"
                  "\"presence_penalty\":%.3f,\"frequency_penalty\":%.3f,\"stream\":%s}",
                  j->reply, c->temperature, c->penalties ? CASE_REPETITION : 1, c->penalties ? CASE_PRESENCE : 0,
                  c->penalties ? CASE_FREQUENCY : 0, j->cancel_at >= 0 ? "true" : "false");
    return buffer_take(&b, &(size_t){0});
}

static enum status judge_text(const struct gate *g, const struct gate_case *c, const struct job *j, const char *text,
                              struct error *e) {
    const struct tokenizer *t = engine_get_info(g->engine)->tokenizer;
    int32_t ids[REPLY_MOST];
    char *own;
    size_t n;
    if (t == NULL || text == NULL) return STATUS_OK;
    for (int32_t i = 0; i < j->n; i++) ids[i] = j->tokens[i].id;
    enum status s = detokenizer_decode(t, ids, (size_t)j->n, true, &own, &n, e);
    if (s != STATUS_OK) return s;
    if (strcmp(own, text) != 0) s = error_set(e, STATUS_INVALID, "%s: the text is not that of the ids", c->name);
    free(own);
    return s;
}

static enum status read_answer(struct post *p, const struct gate_case *c, const struct buffer *body) {
    struct job *j = p->job;
    json_t *root = NULL;
    enum status s = json_parse(body->data, body->n, body->n, JSON_PARSE_DEFAULT, &root, &p->error);
    if (s != STATUS_OK) return s;
    const json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
    const json_t *ids = json_object_get(choice, "token_ids"), *ours = json_object_get(root, "tokenfold");
    const json_t *chances = json_object_get(json_object_get(choice, "logprobs"), "token_logprobs");
    const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
    j->n = (int32_t)json_array_size(ids);
    j->number = json_integer_value(json_object_get(ours, "request"));
    j->n_cached = (int32_t)json_integer_value(json_object_get(ours, "resumed_position"));
    j->finish = finish != NULL && strcmp(finish, "length") == 0 ? FINISH_LENGTH : FINISH_STOP;
    j->tokens = calloc((size_t)j->n + 1, sizeof *j->tokens);
    if (j->tokens == NULL || j->n > REPLY_MOST || json_array_size(chances) != (size_t)j->n)
        s = error_set(&p->error, STATUS_INVALID, "%s: the answer is not that of a gate's request", c->name);
    for (int32_t i = 0; i < j->n && s == STATUS_OK; i++)
        j->tokens[i] = (struct request_token){.id = (int32_t)json_integer_value(json_array_get(ids, (size_t)i)),
                                              .logprob = (float)json_number_value(json_array_get(chances, (size_t)i))};
    if (s == STATUS_OK) s = judge_text(p->gate, c, j, json_string_value(json_object_get(choice, "text")), &p->error);
    json_decref(root);
    return s;
}

static void *run_post(void *context) {
    static const char path[] = "/v1/completions";
    struct post *p = context;
    struct job *j = p->job;
    const struct gate_case *c = &p->gate->cases.list[j->which];
    char *body = write_body(c, j);
    struct buffer answer;
    int status = 0, port = p->gate->fresh->child.port;
    buffer_init(&answer, 0);
    if (body == NULL) {
        p->status = error_memory(&p->error);
    } else if (j->cancel_at >= 0) {
        j->finish = FINISH_CANCELLED;
        p->status = http_leave(port, path, body, j->cancel_at, &p->error);
    } else {
        p->status = http_ask(port, path, body, &status, &answer, &p->error);
        if (p->status == STATUS_OK && status != 200)
            p->status = error_set(&p->error, STATUS_INVALID, "%s: the server answered %d: %.200s", c->name, status,
                                  answer.data != NULL ? answer.data : "");
        if (p->status == STATUS_OK) p->status = read_answer(p, c, &answer);
    }
    buffer_free(&answer);
    free(body);
    atomic_store(&p->done, true);
    return NULL;
}

// ---- what the server says of itself ----

// The value of a line of /metrics; -1: there is none.
static double read_metric(const struct gate *g, const char *name) {
    struct buffer text;
    int status;
    double value = -1;
    if (http_ask(g->fresh->child.port, "/metrics", NULL, &status, &text, NULL) == STATUS_OK) {
        const char *at = strstr(text.data, name);
        while (at != NULL && (at[-1] != '\n' || at[strlen(name)] != ' ')) at = strstr(at + 1, name);
        if (at != NULL) value = strtod(at + strlen(name), NULL);
    }
    buffer_free(&text);
    return value;
}

static bool read_hex(const char *hex, unsigned char digest[32]) {
    for (int i = 0; i < 32; i++) {
        unsigned byte;
        if (sscanf(hex + 2 * i, "%2x", &byte) != 1) return false;
        digest[i] = (unsigned char)byte;
    }
    return true;
}

static enum status read_passes(struct gate *g, struct error *e) {
    FILE *file = fopen(g->fresh->logits, "r");
    long long request;
    struct pass_report r;
    char hex[65];
    if (file == NULL) return error_set(e, STATUS_IO, "%s: %s", g->fresh->logits, strerror(errno));
    pthread_mutex_lock(&g->lock);
    g->n_passes = 0;
    pthread_mutex_unlock(&g->lock);
    while (fscanf(file, "%lld %d %d %64s", &request, &r.start, &r.n_row, hex) == 4) {
        r.request = request;
        if (read_hex(hex, r.sha256)) arms_add_pass(g, &r);
    }
    fclose(file);
    return STATUS_OK;
}

// ---- running ----

static void wait_for(struct gate *g, struct post *p) {
    while (!atomic_load(&p->done)) {
        double waiting = read_metric(g, "tokenfold_requests_waiting");
        if (waiting > g->most_waiting) g->most_waiting = (int32_t)waiting;
        clock_sleep_ns(LOOK_NS);
    }
    pthread_join(p->thread, NULL);
    p->started = false;
}

enum status fresh_run(struct gate *g, struct job *jobs, int32_t n, bool together, struct error *e) {
    struct post *posts = calloc((size_t)n, sizeof *posts);
    enum status s = posts == NULL ? error_memory(e) : STATUS_OK;
    g->most_waiting = 0;
    for (int32_t i = 0; i < n && s == STATUS_OK; i++) {
        struct post *p = &posts[i];
        p->gate = g;
        p->job = &jobs[i];
        p->started = pthread_create(&p->thread, NULL, run_post, p) == 0;
        if (!p->started) s = error_set(e, STATUS_IO, "no thread for a gate's request");
        if (p->started && !together) wait_for(g, p);
    }
    for (int32_t i = 0; i < n && posts != NULL; i++) {
        if (posts[i].started) wait_for(g, &posts[i]);
        if (s == STATUS_OK && posts[i].status != STATUS_OK)
            s = error_set(e, posts[i].status, "%s", posts[i].error.text);
    }
    free(posts);
    return s == STATUS_OK ? read_passes(g, e) : s;
}

void fresh_judge_idle(struct gate *g, struct verdict *v) {
    int64_t give_up = clock_ns() + 20000000000;
    double held, leaked, seated;
    do {
        held = read_metric(g, "tokenfold_pool_pages{state=\"used\"}");
        leaked = read_metric(g, "tokenfold_leaked");
        seated = read_metric(g, "tokenfold_lanes{state=\"seated\"}");
        if (held == 0 && leaked == 0 && seated == 0) return;
        clock_sleep_ns(LOOK_NS);
    } while (clock_ns() < give_up);
    verdict_red(v, "no request lives, and %g pages and %g lanes are held; %g leaked", held, seated, leaked);
}
