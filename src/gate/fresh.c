#include "gate/fresh.h"
#include "base/clock.h"
#include "format/detokenizer.h"
#include "format/json.h"
#include "gate/http.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_NS  ((int64_t)120000000000)
#define LOOK_NS   ((int64_t)20000000)
#define FLAGS_MAX 64
#define PATH_SIZE 512 // of the names of temporary files

struct fresh {
    pid_t pid; // 0: none runs
    int port;
    char log[PATH_SIZE], logits[PATH_SIZE]; // files of this process, removed when the server ends
};

bool fresh_runs(const struct gate *g) { return g->fresh != NULL && g->fresh->pid != 0; }

// ---- start and end ----

static enum status make_file(char path[PATH_SIZE], struct error *e) {
    const char *folder = getenv("TMPDIR");
    if (folder == NULL || *folder == '\0') folder = "/tmp";
    int n = snprintf(path, PATH_SIZE, "%s/tokenfold-gate-XXXXXX", folder);
    if (n >= PATH_SIZE) return error_set(e, STATUS_INVALID, "TMPDIR: %s is too long a name of a folder", folder);
    int fd = mkstemp(path);
    if (fd < 0) return error_set(e, STATUS_IO, "%s: %s", path, strerror(errno));
    close(fd);
    return STATUS_OK;
}

static void set_number(const char *name, int64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    setenv(name, text, 1);
}

// In the child: never returns.
static void become_server(const struct gate *g, const struct arm *arm, const struct fresh *f) {
    const char *argv[FLAGS_MAX];
    char parallel[16], context[16], cache[32], memory[32];
    int n = 0, fd = open(f->log, O_WRONLY | O_APPEND);
    snprintf(parallel, sizeof parallel, "%d", arm->parallel);
    snprintf(context, sizeof context, "%d", arm->context > 0 ? arm->context : g->context);
    snprintf(cache, sizeof cache, "%.9f", (double)arm->cache_bytes / (1 << 30));
    snprintf(memory, sizeof memory, "%lld", (long long)arm->kv_memory_bytes);
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
    for (int i = 0; i < g->options->n_flags && n < FLAGS_MAX - 1; i++) argv[n++] = g->options->flags[i];
    argv[n] = NULL;
    set_number("TF_QWEN_KV_PAGES", arm->page_rows);
    set_number("TF_QWEN_KV_PAGES_ALL", arm->pages_all);
    set_number("TF_QWEN_KV_SHARE", arm->share);
    setenv("TF_GATE_LOGITS", f->logits, 1);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    execv(g->options->program, (char *const *)argv);
    _exit(127);
}

// The port from the log; 0: it does not listen yet.
static int find_port(const struct fresh *f) {
    static const char words[] = "listening on http://127.0.0.1:";
    char text[8192];
    FILE *file = fopen(f->log, "r");
    size_t n = file != NULL ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file != NULL) fclose(file);
    text[n] = 0;
    const char *at = strstr(text, words);
    return at != NULL && strchr(at, '\n') != NULL ? atoi(at + sizeof words - 1) : 0;
}

static enum status wait_until_it_listens(struct fresh *f, struct error *e) {
    int64_t give_up = clock_ns() + START_NS;
    while ((f->port = find_port(f)) == 0) {
        if (waitpid(f->pid, NULL, WNOHANG) == f->pid) {
            f->pid = 0;
            return error_set(e, STATUS_IO, "a gate's server did not start: see %s", f->log);
        }
        if (clock_ns() > give_up) return error_set(e, STATUS_IO, "a gate's server does not listen: see %s", f->log);
        clock_sleep_ns(LOOK_NS);
    }
    return STATUS_OK;
}

enum status fresh_start(struct gate *g, const struct arm *arm, struct error *e) {
    fresh_stop(g);
    if (g->fresh == NULL) g->fresh = calloc(1, sizeof *g->fresh);
    if (g->fresh == NULL) return error_memory(e);
    struct fresh *f = g->fresh;
    enum status s = make_file(f->log, e);
    if (s == STATUS_OK) s = make_file(f->logits, e);
    if (s != STATUS_OK) return s;
    g->n_passes = 0;
    fflush(stdout); // the child would print it again
    f->pid = fork();
    if (f->pid == 0) become_server(g, arm, f);
    if (f->pid < 0) {
        f->pid = 0;
        return error_set(e, STATUS_IO, "no process for a gate's server: %s", strerror(errno));
    }
    return wait_until_it_listens(f, e);
}

void fresh_stop(struct gate *g) {
    struct fresh *f = g->fresh;
    if (!fresh_runs(g)) return;
    kill(f->pid, SIGTERM);
    while (waitpid(f->pid, NULL, 0) < 0 && errno == EINTR) continue;
    f->pid = 0;
    unlink(f->log);
    unlink(f->logits);
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
    int status = 0, port = p->gate->fresh->port;
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
    if (http_ask(g->fresh->port, "/metrics", NULL, &status, &text, NULL) == STATUS_OK) {
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
