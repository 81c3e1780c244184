// run: one prompt, one reply on stdout.
#include "base/buffer.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/prompt_logits.h"
#include "engine/digest.h"
#include "format/detokenizer.h"
#include "format/json.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define JSON_BYTES_MAX ((size_t)256 << 20)

struct run {
    const struct options *options;
    const char *dir, *text; // text NULL: the prompt is given as ids
    struct device *device;
    struct engine *engine;
    const struct engine_info *info;
    struct token_list prompt;
};

// ---- the prompt ----

static enum status parse_ids(const char *text, struct token_list *list, struct error *e) {
    list->ids = malloc((strlen(text) / 2 + 1) * sizeof *list->ids);
    if (list->ids == NULL) return error_memory(e);
    for (const char *at = text;; at++) {
        char *end;
        errno = 0;
        long id = strtol(at, &end, 10);
        if (end == at || errno != 0 || id < 0 || id > INT32_MAX || (*end != ',' && *end != 0))
            return error_set(e, STATUS_INVALID, "--tokens must be ids separated by commas, and is not one at \"%.20s\"",
                             at);
        list->ids[list->n++] = (int32_t)id;
        at = end;
        if (*end == 0) return STATUS_OK;
    }
}

static enum status append_chat(struct run *r, struct error *e) {
    const struct options *o = r->options;
    struct chat_template *template;
    struct chat_prompt prompt = {0};
    struct chat_options chat = options_for_chat(o);
    enum status st = chat_template_load(r->dir, o->chat_template, &template, e);
    if (st == STATUS_NOT_FOUND && o->chat_template == NULL)
        return error_set(e, st, "%s has no chat template: use --raw to continue the text as it is", r->dir);
    if (st != STATUS_OK) return st;
    json_t *messages = json_pack("[{s:s, s:s%}]", "role", "user", "content", r->text, strlen(r->text));
    if (messages == NULL)
        st = error_set(e, STATUS_INVALID, "the prompt is not UTF-8");
    else
        st = chat_render(template, messages, NULL, &chat, &prompt, e);
    if (st == STATUS_OK)
        st = tokenizer_append_spans(r->info->tokenizer, prompt.text.spans, prompt.text.n_spans, &r->prompt, e);
    chat_prompt_free(&prompt);
    json_decref(messages);
    chat_template_free(template);
    return st;
}

static enum status make_prompt(struct run *r, struct error *e) {
    if (r->text == NULL) return STATUS_OK; // --tokens was read before anything was opened
    if (r->info->tokenizer == NULL)
        return error_set(e, STATUS_NOT_FOUND, "%s has no tokenizer.json: give the prompt as ids, with --tokens",
                         r->dir);
    enum status st = r->options->raw
                         ? tokenizer_append(r->info->tokenizer, r->text, strlen(r->text), true, &r->prompt, e)
                         : append_chat(r, e);
    if (st == STATUS_OK && r->prompt.n == 0) return error_set(e, STATUS_INVALID, "the prompt is empty");
    return st;
}

// ---- the reply ----

static void print_new(const struct run *r, const struct request *request, const struct request_view *v,
                      int32_t n_printed, struct detokenizer *d) {
    for (int32_t i = n_printed; i < v->n_tokens; i++) {
        int32_t id = request_tokens(request)[i].id;
        if (r->options->tokens != NULL) {
            printf("%s%d", i == 0 ? "" : ",", id);
        } else if (!(v->ended_by_eos && i == v->n_tokens - 1)) {
            size_t n;
            const char *text = detokenizer_feed(d, id, &n);
            fwrite(text, 1, n, stdout);
        }
    }
    fflush(stdout);
}

static void print_end(struct detokenizer *d) {
    size_t n;
    const char *text = d == NULL ? "" : detokenizer_finish(d, &n);
    if (d != NULL) fwrite(text, 1, n, stdout);
    putchar('\n');
}

static const char *finish_name(enum finish f) {
    return f == FINISH_LENGTH ? "length" : f == FINISH_STOP ? "stop" : "error";
}

static double per_second(int64_t n, int64_t ns) { return ns > 0 ? (double)n * 1e9 / (double)ns : 0; }

static json_t *timings(const struct run *r, const struct request_view *v) {
    // The first token comes out of the prompt's last pass.
    return json_pack("{s:f, s:f, s:f, s:f, s:i, s:i, s:i}", "prompt_ms", (double)v->prompt_ns / 1e6, "decode_ms",
                     (double)v->decode_ns / 1e6, "prompt_tokens_per_second",
                     per_second((int64_t)r->prompt.n, v->prompt_ns), "decode_tokens_per_second",
                     per_second(v->n_tokens - 1, v->decode_ns), "rounds", v->n_rounds, "drafted", v->n_drafted,
                     "accepted", v->n_accepted);
}

static enum status print_json(const struct run *r, const struct request *request, const struct request_view *v,
                              struct error *e) {
    size_t n = (size_t)v->n_tokens, n_text = 0;
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    char *text = NULL, digest[DIGEST_BYTES];
    if (ids == NULL) return error_memory(e);
    for (size_t i = 0; i < n; i++) ids[i] = request_tokens(request)[i].id;
    enum status st = digest_tokens(request_tokens(request), (int32_t)n, digest) ? STATUS_OK : error_memory(e);
    if (st == STATUS_OK && r->info->tokenizer != NULL)
        st = detokenizer_decode(r->info->tokenizer, ids, n - v->ended_by_eos, true, &text, &n_text, e);
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) json_array_append_new(list, json_integer(ids[i]));
    json_t *object = json_pack("{s:o, s:o, s:s, s:i, s:i, s:s, s:o}", "ids", list, "text",
                               text == NULL ? json_null() : json_stringn(text, n_text), "finish_reason",
                               finish_name(v->finish), "prompt_tokens", (int)r->prompt.n, "reply_tokens", (int)n,
                               "token_sha256", digest, "timings", timings(r, v));
    struct buffer b;
    buffer_init(&b, JSON_BYTES_MAX);
    if (st == STATUS_OK && (object == NULL || !json_write(&b, object, JSON_STYLE_COMPACT))) st = error_memory(e);
    if (st == STATUS_OK) printf("%s\n", b.data);
    buffer_free(&b);
    json_decref(object);
    free(text);
    free(ids);
    return st;
}

static enum status follow(const struct run *r, struct request *request, struct error *e) {
    bool as_text = !r->options->json && r->options->tokens == NULL;
    struct detokenizer *d = as_text ? detokenizer_create(r->info->tokenizer, true) : NULL;
    if (as_text && d == NULL) return error_memory(e);
    struct request_view v = {0};
    for (int32_t n = 0; v.state != REQUEST_DONE; n = v.n_tokens) {
        request_wait(request, n, v.state, -1, &v);
        if (!r->options->json) print_new(r, request, &v, n, d);
    }
    enum status st = STATUS_OK;
    if (v.finish == FINISH_ERROR) {
        st = error_set(e, v.error.code, "%s", v.error.text);
    } else if (r->options->json) {
        st = print_json(r, request, &v, e);
    } else {
        print_end(d);
    }
    detokenizer_free(d);
    return st;
}

static enum status reply(struct run *r, struct error *e) {
    const struct options *o = r->options;
    struct request_params p = {
        .prompt = r->prompt.ids,
        .n_prompt = (int32_t)r->prompt.n,
        .max_tokens = o->max_tokens,
        .has_seed = o->seed >= 0,
        .ignore_eos = o->ignore_eos,
        .draft = true,
    };
    options_get_sampling(o, &r->info->config->sampling, &p.draw);
    struct request *request;
    enum status st = engine_submit(r->engine, &p, &request, e);
    if (st != STATUS_OK) return st;
    st = follow(r, request, e);
    request_free(request);
    return st;
}

// ---- the verb ----

static void close_engine(struct run *r) {
    engine_free(r->engine);
    device_free(r->device);
    r->engine = NULL;
    r->device = NULL;
}

static enum status run_engine(struct run *r, struct error *e) {
    struct engine_options options = options_for_engine(r->options);
    enum status st = options_open_engine(r->options, r->dir, &options, &r->device, &r->engine, NULL, e);
    if (st == STATUS_OK) {
        r->info = engine_get_info(r->engine);
        st = make_prompt(r, e);
    }
    if (st == STATUS_OK && r->options->max_tokens != 0) st = reply(r, e);
    close_engine(r);
    return st;
}

static enum status run_logits(struct run *r, struct error *e) {
    const struct options *o = r->options;
    enum status st = options_open_device(o, r->dir, &r->device, e);
    if (st == STATUS_OK)
        st = prompt_logits_write(r->dir, r->device, options_kv(o, r->device), r->prompt.ids, (int32_t)r->prompt.n,
                                 (int32_t)o->pass_rows, o->logits, e);
    close_engine(r);
    return st;
}

static bool is_folder(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static enum status read_arguments(struct run *r, struct error *e) {
    const struct options *o = r->options;
    int n_prompt = o->tokens == NULL;
    if (o->n_args > n_prompt + 1)
        return error_set(e, STATUS_INVALID, "run takes [MODEL] PROMPT; more than that was given");
    if (o->n_args < n_prompt)
        return error_set(e, STATUS_INVALID, "run needs a prompt: run [MODEL] PROMPT, or --tokens 5,6,7");
    if (n_prompt && o->n_args == 1 && is_folder(o->args[0]))
        return error_set(e, STATUS_INVALID, "run needs a prompt after the model: run %s PROMPT", o->args[0]);
    if (n_prompt) r->text = o->args[o->n_args - 1];
    if (o->n_args > n_prompt) r->dir = o->args[0];
    if (o->max_tokens == 0 && o->logits == NULL)
        return error_set(e, STATUS_INVALID, "--max-tokens 0 leaves nothing to do without --logits");
    return o->tokens == NULL ? STATUS_OK : parse_ids(o->tokens, &r->prompt, e);
}

int cmd_run(int argc, char **argv) {
    struct options o;
    struct error e;
    int exit_code = 0;
    if (!options_parse(VERB_RUN, argc, argv, &o, &exit_code)) return exit_code;
    struct run r = {.options = &o};
    enum status st = read_arguments(&r, &e);
    bool usage = st == STATUS_INVALID;
    if (st == STATUS_OK) st = options_find_model(r.dir, &r.dir, &e);
    if (st == STATUS_OK && (r.text != NULL || o.max_tokens != 0)) st = run_engine(&r, &e);
    if (st == STATUS_OK && o.logits != NULL) st = run_logits(&r, &e);
    token_list_free(&r.prompt);
    if (st == STATUS_OK) return 0;
    fprintf(stderr, "tokenfold: %s\n", e.text);
    return usage ? EXIT_USAGE : EXIT_FAILED;
}
