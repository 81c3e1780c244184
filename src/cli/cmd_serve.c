// serve: the HTTP server over one engine, until a signal or a failure of the device ends it.
#include "base/clock.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "server/server.h"
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SECOND  ((int64_t)1000000000)
#define LOOK_NS (SECOND / 10) // how often signals and the engine are looked after
// After a failure of the device every request gets its error; that needs no more than this.
#define FAILED_NS (2 * SECOND)
#define TELL_NS   (2 * SECOND) // in which clients take what is said to them at the end

struct serve {
    const struct options *options;
    const char *dir;
    char name[PATH_MAX];
    struct chat_template *chat;
    struct device *device;
    struct engine *engine;
    struct profile profile;
    struct server *server;
};

static volatile sig_atomic_t n_signals;

// The first signal asks for an orderly end. The second one ends the process where it stands.
static void on_signal(int number) {
    (void)number;
    if (++n_signals > 1) _exit(EXIT_FAILED);
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

// The model's name for clients: --name, or that of its folder, also when it was named "." or "dir/".
static const char *choose_name(struct serve *s) {
    if (s->options->name != NULL) return s->options->name;
    char *path = realpath(s->dir, NULL);
    const char *last = path != NULL ? strrchr(path, '/') : NULL;
    snprintf(s->name, sizeof s->name, "%s", last != NULL && last[1] != 0 ? last + 1 : "model");
    free(path);
    return s->name;
}

// ---- start ----

static enum status open_engine(struct serve *s, struct error *e) {
    const struct options *o = s->options;
    struct engine_options options = options_for_engine(o);
    enum status status = chat_template_load(s->dir, o->chat_template, &s->chat, e);
    if (status == STATUS_NOT_FOUND && o->chat_template == NULL) {
        log_line(LOG_WARN, "%s: /v1/chat/completions will refuse requests", e->text);
        status = STATUS_OK;
    }
    if (status != STATUS_OK) return status;
    return options_open_engine(o, s->dir, &options, &s->device, &s->engine, &s->profile, e);
}

static enum status open_server(struct serve *s, struct error *e) {
    const struct options *o = s->options;
    struct server_options options = {
        .engine = s->engine,
        .chat = s->chat,
        .chat_defaults = options_for_chat(o),
        .has_seed = o->seed >= 0,
        .host = o->host,
        .port = (int)o->port,
        .name = choose_name(s),
        .aliases = o->aliases.values,
        .n_aliases = (size_t)o->aliases.n,
        .api_keys = o->api_keys.values,
        .n_api_keys = (size_t)o->api_keys.n,
        .api_key_file = o->api_key_file,
        .share_per_key = strcmp(o->share_prefixes, "per-key") == 0,
        .overrides = s->profile.overrides,
        .limits = {.body_bytes = (size_t)o->body_bytes,
                   .header_bytes = (size_t)o->header_bytes,
                   .connections = (int32_t)o->connections,
                   .receive_ns = o->receive_seconds * SECOND,
                   .idle_ns = o->idle_seconds * SECOND,
                   .send_ns = o->send_seconds * SECOND,
                   .request_ns = o->request_seconds * SECOND,
                   .keep_alive_ns = o->keep_alive_seconds * SECOND},
        .log_requests = o->log_requests,
    };
    options.chat_defaults.now_s = 0; // the time of each request, not that of the start
    options_get_sampling(o, &engine_get_info(s->engine)->config->sampling, &options.sampling);
    return server_start(&options, &s->server, e);
}

static void announce(const struct serve *s) {
    const struct options *o = s->options;
    bool v6 = strchr(o->host, ':') != NULL, any = strcmp(o->host, "0.0.0.0") == 0 || strcmp(o->host, "::") == 0;
    char url[512];
    snprintf(url, sizeof url, "http://%s%s%s:%d", v6 && !any ? "[" : "", any ? "127.0.0.1" : o->host,
             v6 && !any ? "]" : "", server_port(s->server));
    log_line(LOG_INFO, "%s", engine_get_info(s->engine)->start_sentence);
    log_line(LOG_INFO, "registered overrides: %s", s->profile.overrides);
    if (!server_is_loopback(s->server) && !server_has_keys(s->server))
        log_line(LOG_WARN, "%s can be reached from other machines and asks for no key: see --api-key-file", o->host);
    log_line(LOG_INFO, "serving %s, listening on %s", o->name != NULL ? o->name : s->name, url);
    printf("curl %s/v1/chat/completions -H 'Content-Type: application/json'%s \\\n"
           "     -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Hello!\"}], \"max_tokens\": 64}'\n",
           url, server_has_keys(s->server) ? " -H 'Authorization: Bearer KEY'" : "");
    fflush(stdout);
    clearerr(stdout); // nobody has to read it
}

// ---- the end ----

static bool is_failed(struct serve *s) {
    struct engine_counts counts;
    engine_get_counts(s->engine, &counts);
    return counts.failed;
}

static bool replies_end(struct serve *s, int64_t limit_ns) {
    for (int64_t until = clock_ns() + limit_ns; clock_ns() < until; clock_sleep_ns(LOOK_NS))
        if (server_idle(s->server) && engine_idle(s->engine)) return true;
    return false;
}

// Whoever still waits for a reply when time is over is told so.
static void drain(struct serve *s, int64_t limit_ns) {
    server_drain(s->server);
    if (replies_end(s, limit_ns)) return;
    log_line(LOG_WARN, "replies that have not ended are broken off");
    engine_end_all(s->engine);
    replies_end(s, TELL_NS);
}

static int serve_until_the_end(struct serve *s) {
    while (n_signals == 0 && !is_failed(s)) clock_sleep_ns(LOOK_NS);
    bool failed = is_failed(s);
    if (failed) {
        log_line(LOG_ERROR, "the device has failed: the server ends");
    } else {
        log_line(LOG_INFO, "shutting down: running replies have %lld s to finish",
                 (long long)s->options->drain_seconds);
    }
    drain(s, failed ? FAILED_NS : s->options->drain_seconds * SECOND);
    return failed ? EXIT_FAILED : 0;
}

static void close_serve(struct serve *s) {
    server_stop(s->server);
    engine_free(s->engine);
    device_free(s->device);
    chat_template_free(s->chat);
}

int cmd_serve(int argc, char **argv) {
    struct options o;
    struct error e;
    int exit_code = 0;
    if (!options_parse(VERB_SERVE, argc, argv, &o, &exit_code)) return exit_code;
    if (o.n_args > 1) {
        fprintf(stderr, "tokenfold: serve takes one MODEL at most\n");
        return EXIT_USAGE;
    }
    const char *named = o.n_args == 1 ? o.args[0] : NULL;
    struct serve s = {.options = &o};
    enum status status = options_find_model(named, &s.dir, &e);
    if (status == STATUS_OK && o.name == NULL && named != NULL && s.dir != named) o.name = named; // ORG/NAME
    if (status == STATUS_OK) status = open_engine(&s, &e);
    if (status == STATUS_OK) status = open_server(&s, &e);
    if (status == STATUS_OK) {
        catch_signals();
        announce(&s);
        exit_code = serve_until_the_end(&s);
    } else {
        fprintf(stderr, "tokenfold: %s\n", e.text);
        exit_code = EXIT_FAILED;
    }
    close_serve(&s);
    return exit_code;
}
