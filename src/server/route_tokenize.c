// POST /tokenize and /detokenize.
#include "format/detokenizer.h"
#include "server/internal.h"
#include <inttypes.h>
#include <stdlib.h>

static bool read_body(struct exchange *x, enum route_id route, json_t **body, struct request_fields *f,
                      struct api_error *e) {
    *body = NULL;
    return exchange_parse(x, body, e) && fields_read(&x->server->service, route, *body, f, e);
}

static void write_tokens(struct buffer *b, const struct service *s, const struct prompt *p) {
    buffer_printf(b, "{\"count\":%zu,\"max_model_len\":%" PRId32 ",\"tokens\":[", p->ids.n, s->info->context);
    for (size_t i = 0; i < p->ids.n; i++) buffer_printf(b, "%s%" PRId32, i > 0 ? "," : "", p->ids.ids[i]);
    buffer_append_text(b, "]}");
}

static bool tokenize(struct exchange *x, struct buffer *out, struct api_error *e) {
    const struct service *s = &x->server->service;
    struct request_fields f = {0};
    struct prompt prompt;
    json_t *body;
    bool ok = read_body(x, ROUTE_TOKENIZE, &body, &f, e);
    if (ok) {
        ok = f.messages.value != NULL ? prompt_from_messages(s, &f, &prompt, e) : prompt_from_text(s, &f, &prompt, e);
        if (ok) {
            write_tokens(out, s, &prompt);
            prompt_free(&prompt);
        }
        fields_free(&f);
    }
    json_decref(body);
    return ok;
}

static bool detokenize(struct exchange *x, struct buffer *out, struct api_error *e) {
    const struct service *s = &x->server->service;
    struct request_fields f = {0};
    struct prompt prompt;
    struct error error;
    json_t *body;
    char *text;
    size_t n;
    bool ok = read_body(x, ROUTE_DETOKENIZE, &body, &f, e);
    if (ok && s->info->tokenizer == NULL) ok = api_refuse(e, 400, "unsupported", "this model has no tokenizer");
    if (ok && prompt_from_ids(s, &f.tokens, &prompt, e)) {
        ok = detokenizer_decode(s->info->tokenizer, prompt.ids.ids, prompt.ids.n, f.skip_special, &text, &n, &error) ==
                 STATUS_OK ||
             api_refuse_error(e, &error);
        prompt_free(&prompt);
        if (ok) {
            buffer_append_text(out, "{\"content\":");
            wire_write_text(out, text, n);
            buffer_append_text(out, ",\"prompt\":");
            wire_write_text(out, text, n);
            buffer_append_text(out, "}");
            free(text);
        }
    } else {
        ok = false;
    }
    fields_free(&f);
    json_decref(body);
    return ok;
}

void route_answer(struct exchange *x, bool (*work)(struct exchange *, struct buffer *, struct api_error *)) {
    struct buffer out;
    struct api_error e;
    buffer_init(&out, 0);
    service_enter_gate(&x->server->service);
    bool ok = work(x, &out, &e);
    service_leave_gate(&x->server->service);
    if (ok) {
        exchange_send_json(x, 200, &out);
    } else {
        buffer_free(&out);
        exchange_send_error(x, &e);
    }
}

void route_tokenize(struct exchange *x) { route_answer(x, tokenize); }

void route_detokenize(struct exchange *x) { route_answer(x, detokenize); }
