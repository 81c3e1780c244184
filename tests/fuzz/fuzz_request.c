// The body of a request, for every route: parsed, its fields checked, its prompt made, and the prompt's ids read back
// as if they were a reply. There is no engine. The first byte chooses the route.
#include "base/status.h"
#include "server/fields.h"
#include "server/prompt.h"
#include "server/reply.h"
#include "server/translate.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define REPLY_IDS_MAX 4096

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char template_source[] =
    "{%- if tools %}{{ tools | tojson }}{% endif %}{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{%- for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}{{ c.function.arguments | tojson }}</tool_call>"
    "{%- endfor %}<|im_end|>\n{%- endfor %}{%- if add_generation_prompt %}<|im_start|>assistant\n"
    "{%- if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% else %}<think>\n{% "
    "endif %}"
    "{%- endif %}";

static struct server_options options = {.name = "fuzz", .sampling = {.temperature = 1, .top_p = 1, .repetition = 1}};
static struct model_config config;
static struct engine_info info;
static struct service service;

static void set_up(void) {
    struct error e;
    struct tokenizer *tokenizer;
    struct chat_template *chat;
    if (tokenizer_load("tests/fixtures/tokenizer/small/tokenizer.json", NULL, &tokenizer, &e) != STATUS_OK ||
        chat_template_create(template_source, strlen(template_source), NULL, &chat, &e) != STATUS_OK)
        must_failed(e.text, __FILE__, __LINE__);
    config.n_vocab = tokenizer_count_ids(tokenizer);
    info = (struct engine_info){.config = &config, .tokenizer = tokenizer, .context = 1024, .max_tokens = 64};
    options.chat = chat;
    service = (struct service){.options = &options, .info = &info, .n_vocab = (int32_t)config.n_vocab};
    json_object_seed(1);
}

static void read_back(const struct request_fields *f, const struct prompt *p) {
    struct error e;
    struct reply *r;
    struct toolcall_options parser = {.starts_in_think = p->starts_in_think,
                                      .may_think = p->may_think,
                                      .one_call = !f->parallel_calls,
                                      .tools = p->tools};
    struct reply_options o = {.tokenizer = info.tokenizer, .stop = &f->stop, .parser = &parser, .places = true};
    if (reply_create(&o, &r, &e) != STATUS_OK) return;
    bool ended = false;
    for (size_t i = 0; i < p->ids.n && i < REPLY_IDS_MAX && !ended; i++) {
        if (!tokenizer_has_id(info.tokenizer, p->ids.ids[i])) continue;
        must(reply_feed(r, p->ids.ids[i], &ended) == STATUS_OK);
        if (i % 3 == 0) reply_clear(r);
    }
    must(reply_finish(r) == STATUS_OK);
    must(reply_get_totals(r).n_shown <= reply_get_totals(r).n_fed);
    reply_free(r);
}

static void read_body(enum route_id route, const json_t *body) {
    struct request_fields f;
    struct prompt p;
    struct api_error e;
    enum tool_mode mode;
    const char *name;
    if (!fields_read(&service, route, body, &f, &e)) {
        must(e.http == 400 || e.http == 404);
        return;
    }
    bool made = !translate_fields(&service, route, &f, &e) ? false
                : route == ROUTE_DETOKENIZE                ? prompt_from_ids(&service, &f.tokens, &p, &e)
                : f.messages.value != NULL                 ? prompt_from_messages(&service, &f, &p, &e)
                                                           : prompt_from_text(&service, &f, &p, &e);
    if (made) {
        if (fields_read_tool_choice(&f, &mode, &name, &e)) read_back(&f, &p);
        prompt_free(&p);
    } else {
        must(e.http == 400);
    }
    fields_free(&f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    static const enum route_id routes[] = {ROUTE_CHAT,       ROUTE_COMPLETIONS, ROUTE_TOKENIZE,
                                           ROUTE_DETOKENIZE, ROUTE_MESSAGES,    ROUTE_RESPONSES};
    struct error e;
    json_t *body;
    if (info.config == NULL) set_up();
    if (n == 0 || json_parse((const char *)data + 1, n - 1, n, JSON_PARSE_DEFAULT, &body, &e) != STATUS_OK) return 0;
    read_body(routes[data[0] % 6], body);
    json_decref(body);
    return 0;
}
