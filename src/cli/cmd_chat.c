// chat: a conversation in the terminal, through the checkpoint's own template. Ctrl-C ends a reply, Ctrl-D the program.
#include "cli/commands.h"
#include "cli/options.h"
#include "format/chat_turns.h"
#include "server/reply.h"
#include <editline/readline.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TICK_NS 100000000 // how long Ctrl-C may go unseen

struct chat {
    const struct options *options;
    struct device *device;
    struct engine *engine;
    const struct engine_info *info;
    struct chat_template *template;
    int32_t turn_token;
    json_t *messages;
    bool terminal;
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig) {
    (void)sig;
    interrupted = 1;
}

// ---- one turn ----

static enum status submit(struct chat *c, bool *starts_in_think, struct request **out, struct error *e) {
    struct chat_options how = options_for_chat(c->options);
    struct chat_prompt prompt = {0};
    struct token_list ids = {0};
    enum status s = chat_render(c->template, c->messages, NULL, &how, &prompt, e);
    if (s == STATUS_OK) s = tokenizer_append_spans(c->info->tokenizer, prompt.text.spans, prompt.text.n_spans, &ids, e);
    if (s == STATUS_OK) {
        struct chat_turns turns = chat_find_turns(ids.ids, (int32_t)ids.n, c->turn_token);
        struct request_params p = {.prompt = ids.ids,
                                   .n_prompt = (int32_t)ids.n,
                                   .system_end = turns.first,
                                   .last_turn = turns.previous,
                                   .history_end = turns.last,
                                   .max_tokens = c->options->max_tokens,
                                   .draft = true,
                                   .has_seed = c->options->seed >= 0};
        options_get_sampling(c->options, &c->info->config->sampling, &p.draw);
        *starts_in_think = prompt.starts_in_think;
        s = engine_submit(c->engine, &p, out, e);
    }
    token_list_free(&ids);
    chat_prompt_free(&prompt);
    return s;
}

// Reasoning is shown dimmed, and is no part of the message that the next turn sees.
static bool show(const struct chat *c, struct reply *reply, struct buffer *content, bool *dim) {
    for (size_t i = 0; i < reply_count_deltas(reply); i++) {
        struct delta d = reply_get_delta(reply, i);
        bool thought = d.kind == DELTA_REASONING;
        if (c->terminal && thought != *dim) fputs(thought ? "\033[2m" : "\033[0m\n", stdout);
        *dim = thought;
        if (!thought || c->terminal) fwrite(d.text, 1, d.n, stdout);
        if (!thought && !buffer_append(content, d.text, d.n)) return false;
    }
    reply_clear(reply);
    fflush(stdout);
    return true;
}

static enum status follow(struct chat *c, struct request *request, struct reply *reply, struct buffer *content,
                          struct error *e) {
    struct request_view v = {0};
    bool dim = false, ended = false;
    enum status s = STATUS_OK;
    for (int32_t n = 0; s == STATUS_OK && v.state != REQUEST_DONE; n = v.n_tokens) {
        if (interrupted) request_cancel(request);
        request_wait(request, n, v.state, TICK_NS, &v);
        if (c->terminal && v.n_tokens == 0 && v.state == REQUEST_PROMPT)
            fprintf(stderr, "\r\033[2m%d tokens of the prompt read\033[0m", v.n_prompt_done);
        if (c->terminal && n == 0 && v.n_tokens > 0) fputs("\r\033[K", stderr);
        for (int32_t i = n; i < v.n_tokens && !ended && s == STATUS_OK; i++)
            if (!(v.ended_by_eos && i == v.n_tokens - 1)) s = reply_feed(reply, request_tokens(request)[i].id, &ended);
        if (s == STATUS_OK && !show(c, reply, content, &dim)) s = STATUS_MEMORY;
    }
    if (s == STATUS_OK) s = reply_finish(reply);
    if (s == STATUS_OK && !show(c, reply, content, &dim)) s = STATUS_MEMORY;
    puts(c->terminal && dim ? "\033[0m" : "");
    if (s != STATUS_OK) return error_memory(e);
    if (v.finish == FINISH_ERROR) return error_set(e, v.error.code, "%s", v.error.text);
    if (v.finish == FINISH_LENGTH) fprintf(stderr, "(the reply reached its limit)\n");
    return STATUS_OK;
}

static enum status answer(struct chat *c, struct error *e) {
    struct toolcall_options parser = {.may_think = true};
    struct reply_options options = {.tokenizer = c->info->tokenizer, .parser = &parser};
    struct request *request = NULL;
    struct reply *reply = NULL;
    struct buffer content;
    buffer_init(&content, 0);
    interrupted = 0;
    enum status s = submit(c, &parser.starts_in_think, &request, e);
    if (s == STATUS_OK) s = reply_create(&options, &reply, e);
    if (s == STATUS_OK) s = follow(c, request, reply, &content, e);
    if (s == STATUS_OK) {
        json_t *m =
            json_pack("{s:s, s:s%}", "role", "assistant", "content", content.n > 0 ? content.data : "", content.n);
        if (json_array_append_new(c->messages, m) != 0) s = error_memory(e);
    }
    reply_free(reply);
    request_free(request);
    buffer_free(&content);
    return s;
}

// ---- the conversation ----

// Ctrl-C between replies gives up what has been typed, and no more than that.
static char *ask_for_line(void) {
    char *line;
    do {
        interrupted = 0;
        line = readline("> ");
        if (line == NULL && interrupted) putchar('\n');
    } while (line == NULL && interrupted);
    return line;
}

// malloc'd; NULL at the end of input.
static char *read_line(const struct chat *c) {
    if (c->terminal) return ask_for_line();
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n = getline(&line, &capacity, stdin);
    if (n < 0) {
        free(line);
        return NULL;
    }
    if (n > 0 && line[n - 1] == '\n') line[n - 1] = 0;
    return line;
}

static void converse(struct chat *c) {
    struct error e;
    char *line;
    while ((line = read_line(c)) != NULL) {
        if (strcmp(line, "/clear") == 0) {
            json_array_clear(c->messages);
        } else if (strcmp(line, "/exit") == 0) {
            free(line);
            return;
        } else if (line[0] != 0) {
            if (c->terminal) add_history(line);
            json_t *m = json_pack("{s:s, s:s}", "role", "user", "content", line);
            enum status s = m == NULL ? error_set(&e, STATUS_INVALID, "that line is not UTF-8") : STATUS_OK;
            if (s == STATUS_OK && json_array_append_new(c->messages, m) != 0) s = error_memory(&e);
            if (s == STATUS_OK && (s = answer(c, &e)) != STATUS_OK) // the turn that failed is forgotten
                json_array_remove(c->messages, json_array_size(c->messages) - 1);
            if (s != STATUS_OK) fprintf(stderr, "tokenfold: %s\n", e.text);
        }
        free(line);
    }
    if (c->terminal) putchar('\n');
}

static enum status open_chat(struct chat *c, const char *dir, struct error *e) {
    const struct options *o = c->options;
    struct engine_options options = options_for_engine(o);
    enum status s = chat_template_load(dir, o->chat_template, &c->template, e);
    if (s == STATUS_OK) s = options_open_engine(o, dir, &options, &c->device, &c->engine, NULL, e);
    if (s != STATUS_OK) return s;
    c->info = engine_get_info(c->engine);
    if (c->info->tokenizer == NULL)
        return error_set(e, STATUS_NOT_FOUND, "%s has no tokenizer.json, so there is no text to talk in", dir);
    c->turn_token = chat_find_turn_token(c->template, c->info->tokenizer);
    c->messages = json_array();
    return c->messages != NULL ? STATUS_OK : error_memory(e);
}

int cmd_chat(int argc, char **argv) {
    struct options o;
    struct error e;
    int exit_code = 0;
    const char *dir = NULL;
    if (!options_parse(VERB_CHAT, argc, argv, &o, &exit_code)) return exit_code;
    if (o.n_args > 1) {
        fprintf(stderr, "tokenfold: chat takes one MODEL at most\n");
        return EXIT_USAGE;
    }
    struct chat c = {.options = &o, .terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO)};
    enum status s = options_find_model(o.n_args == 1 ? o.args[0] : NULL, &dir, &e);
    if (s == STATUS_OK) s = open_chat(&c, dir, &e);
    if (s == STATUS_OK) {
        struct sigaction action = {.sa_handler = on_interrupt};
        sigaction(SIGINT, &action, NULL);
        if (c.terminal) printf("%s\n/clear starts anew, Ctrl-C ends a reply, Ctrl-D leaves.\n", c.info->start_sentence);
        converse(&c);
    } else {
        fprintf(stderr, "tokenfold: %s\n", e.text);
    }
    json_decref(c.messages);
    engine_free(c.engine);
    device_free(c.device);
    chat_template_free(c.template);
    return s == STATUS_OK ? 0 : EXIT_FAILED;
}
