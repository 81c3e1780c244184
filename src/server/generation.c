#include "server/generation.h"
#include "base/clock.h"
#include "server/structured.h"
#include "server/wire.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

// A reply that ends before the engine knows (the one call that was allowed) is over at the engine a round later.
#define SETTLE_NS ((int64_t)2000000000)

// What a response object repeats is held, and sent three times, for each request that waits.
#define ECHO_BYTES_MAX (4 << 20)

// ---- start ----

static void make_nonce(char nonce[GENERATION_NONCE_BYTES]) {
    unsigned char bytes[12] = {0};
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes) { // never on Linux; then the clock must do
        int64_t now = clock_ns();
        memcpy(bytes, &now, sizeof now);
    }
    for (size_t i = 0; i < sizeof bytes; i++) snprintf(nonce + 2 * i, 3, "%02x", bytes[i]);
}

static enum status make_reply(struct generation *g, const struct request_fields *f, const struct prompt *p,
                              bool calls_first, struct error *e) {
    struct toolcall_options parser = {.starts_in_think = p->starts_in_think,
                                      .may_think = p->may_think,
                                      .one_call = !f->parallel_calls,
                                      .calls_first = calls_first,
                                      .tools = p->tools};
    g->tools = json_incref((json_t *)p->tools);
    struct reply_options options = {.tokenizer = g->service->info->tokenizer,
                                    .stop = &f->stop,
                                    .parser = g->route != ROUTE_COMPLETIONS ? &parser : NULL,
                                    .places = g->n_top >= 0};
    return reply_create(&options, &g->reply, e);
}

static struct request_params params_of(const struct generation *g, const struct request_fields *f,
                                       const struct prompt *p, const struct chat_turns *turns) {
    const struct server_options *o = g->service->options;
    struct request_params r = {
        .prompt = p->ids.ids,
        .n_prompt = (int32_t)p->ids.n, // bounded by a multiple of the window
        .system_end = turns->first,
        .last_turn = turns->previous,
        .history_end = turns->last,
        .salt = p->salt,
        .max_tokens = f->max_tokens,
        .draw = {.temperature = f->temperature,
                 .top_p = f->top_p,
                 .min_p = f->min_p,
                 .repetition = f->repetition,
                 .presence = f->presence,
                 .frequency = f->frequency,
                 .top_k = (int32_t)f->top_k,
                 .seed = f->seed >= 0 ? (uint64_t)f->seed : o->sampling.seed,
                 .bias = f->bias,
                 .n_bias = f->n_bias,
                 .n_top = g->n_top},
        .has_seed = f->seed >= 0 || o->has_seed,
        .ignore_eos = f->ignore_eos,
        .draft = f->draft,
        .stop = f->stops,
        .n_stop = g->service->info->tokenizer != NULL ? f->n_stops : 0,
        .priority = (int32_t)f->priority,
        .deadline_ns = g->deadline_ns,
    };
    return r;
}

// What the engine refuses has its own codes: the window and a full queue.
static bool refuse_submit(const struct error *error, struct api_error *e) {
    if (error->code == STATUS_LIMIT) return api_refuse(e, 400, "context_length_exceeded", "%s", error->text);
    if (error->code == STATUS_BUSY) return api_refuse(e, 429, "queue_full", "%s", error->text);
    return api_refuse_error(e, error);
}

static bool start(struct generation *g, const struct request_fields *f, const struct prompt *p, struct api_error *e) {
    struct error error;
    if (g->echo.failed)
        return api_refuse(e, 400, "limit_exceeded",
                          "/instructions, /tools and /metadata have more than %d bytes together", ECHO_BYTES_MAX);
    if (p->ids.n == 0) return api_refuse(e, 400, NULL, "the prompt is empty: it must have at least one token");
    if (g->service->info->tokenizer == NULL && f->n_stops > 0)
        return api_refuse(e, 400, "unsupported", "/stop needs a tokenizer, which this model does not have");
    g->n_prompt = (int32_t)p->ids.n;
    if (g->return_token_ids) {
        g->prompt = malloc(p->ids.n * sizeof *g->prompt);
        if (g->prompt == NULL) {
            error_memory(&error);
            return api_refuse_error(e, &error);
        }
        memcpy(g->prompt, p->ids.ids, p->ids.n * sizeof *g->prompt);
    }
    struct masker *masker;
    bool calls_first;
    if (!structured_open(g->service, g->route, f, p, &masker, &calls_first, e)) return false;
    if (make_reply(g, f, p, calls_first, &error) != STATUS_OK) {
        masker_free(masker);
        return api_refuse_error(e, &error);
    }
    struct chat_turns turns = chat_find_turns(p->ids.ids, g->n_prompt, g->service->turn_token);
    struct request_params params = params_of(g, f, p, &turns);
    params.masker = masker;
    if (engine_submit(g->service->options->engine, &params, &g->request, &error) != STATUS_OK) {
        g->request = NULL;
        return refuse_submit(&error, e);
    }
    return true;
}

bool generation_start(const struct service *s, enum route_id route, const struct request_fields *f,
                      const struct prompt *prompt, int64_t received_ns, struct generation **out, struct api_error *e) {
    struct generation *g = calloc(1, sizeof *g);
    if (g == NULL) {
        struct error error;
        error_memory(&error);
        return api_refuse_error(e, &error);
    }
    g->service = s;
    g->route = route;
    g->wire = wire_of(route);
    buffer_init(&g->echo, ECHO_BYTES_MAX);
    if (route == ROUTE_RESPONSES) wire_responses_write_echo(&g->echo, f);
    g->stream = f->stream;
    g->include_usage = f->include_usage;
    g->return_token_ids = f->return_token_ids;
    g->ignores_eos = f->ignore_eos;
    g->n_top = fields_n_top(f, route);
    g->created = clock_unix_seconds();
    g->deadline_ns = received_ns + s->options->limits.request_ns;
    make_nonce(g->nonce);
    if (!start(g, f, prompt, e)) {
        generation_free(g);
        return false;
    }
    *out = g;
    return true;
}

void generation_cancel(struct generation *g) {
    if (g->view.state != REQUEST_DONE) request_cancel(g->request);
}

void generation_free(struct generation *g) {
    if (g == NULL) return;
    request_free(g->request);
    reply_free(g->reply);
    json_decref(g->tools);
    free(g->prompt);
    buffer_free(&g->echo);
    free(g);
}

// ---- the reply ----

static void fail(struct generation *g, unsigned http, const char *code, const char *text) {
    api_refuse(&g->error, http, code, "%s", text);
    g->failed = true;
    generation_cancel(g);
}

static void fail_by_finish(struct generation *g) {
    switch (g->view.finish) {
    case FINISH_DEADLINE: {
        char text[128];
        snprintf(text, sizeof text, "the request took longer than the %lld s that this server allows",
                 (long long)(g->service->options->limits.request_ns / 1000000000));
        fail(g, 408, "request_timeout", text);
        return;
    }
    case FINISH_CANCELLED: fail(g, 503, "shutting_down", "the server is shutting down"); return;
    default: break;
    }
    api_refuse_error(&g->error, &g->view.error);
    if (g->error.http < 500) g->error.http = 500; // it was accepted: what failed since is not the client's doing
    g->failed = true;
}

// The reply ended by its own text: lets the engine finish too, so that its timings are complete.
static void settle(struct generation *g) {
    generation_cancel(g);
    int64_t until = clock_ns() + SETTLE_NS;
    for (int64_t now = clock_ns(); g->view.state != REQUEST_DONE && now < until; now = clock_ns())
        request_wait(g->request, g->view.n_tokens, g->view.state, until - now, &g->view);
}

static void finish(struct generation *g, bool ended_by_text) {
    g->terminated = !ended_by_text && g->view.ended_by_eos;
    if (reply_finish(g->reply) != STATUS_OK) {
        fail(g, 503, "out_of_memory", "out of memory");
        return;
    }
    g->totals = reply_get_totals(g->reply);
    bool complete = ended_by_text || g->totals.stopped || g->view.finish == FINISH_STOP;
    if (complete && g->totals.n_calls > 0 && !g->totals.truncated) {
        g->finish_reason = "tool_calls";
    } else {
        g->finish_reason = complete ? "stop" : "length";
    }
}

// A terminator becomes known as one only when the request ends, which may be a moment later.
static bool is_terminator(const struct generation *g, int32_t id) {
    const struct model_config *c = g->service->info->config;
    for (int i = 0; i < c->n_eos && !g->ignores_eos; i++)
        if (c->eos_ids[i] == id) return true;
    return false;
}

bool generation_is_over(const struct generation *g) { return g->failed || g->finish_reason != NULL; }

void generation_wait(struct generation *g, int64_t timeout_ns) {
    if (generation_is_over(g)) return;
    request_wait(g->request, g->view.n_tokens, g->view.state, timeout_ns, &g->view);
    const struct request_token *tokens = request_tokens(g->request);
    int32_t n = g->view.n_tokens - g->view.ended_by_eos;
    if (n > 0 && g->view.state != REQUEST_DONE && is_terminator(g, tokens[n - 1].id)) n--;
    bool ended = false;
    while (g->totals.n_fed < n && !ended) {
        if (reply_feed(g->reply, tokens[g->totals.n_fed].id, &ended) != STATUS_OK) {
            fail(g, 503, "out_of_memory", "out of memory");
            return;
        }
        g->totals = reply_get_totals(g->reply);
    }
    if (ended) {
        if (g->view.state != REQUEST_DONE) settle(g);
        finish(g, true);
    } else if (g->view.state == REQUEST_DONE) {
        if (g->view.finish == FINISH_STOP || g->view.finish == FINISH_LENGTH) {
            finish(g, false);
        } else {
            fail_by_finish(g);
        }
    }
}

int32_t generation_count_ids(const struct generation *g) { return g->totals.n_fed + g->terminated; }

const struct request_token *generation_token(const struct generation *g, int32_t i) {
    return &request_tokens(g->request)[i];
}
