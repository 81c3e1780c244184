// POST /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages and /v1/messages/count_tokens.
#include "server/internal.h"
#include "server/translate.h"
#include <inttypes.h>

// How often a client that left is looked for while nothing comes from the engine.
#define LOOK_NS ((int64_t)50000000)

static bool prepare(struct exchange *x, enum route_id route, struct generation **out, struct api_error *e) {
    struct service *s = &x->server->service;
    struct request_fields f;
    struct prompt prompt;
    json_t *body = NULL;
    bool ok = exchange_parse(x, &body, e) && fields_read(s, route, body, &f, e);
    if (ok) {
        ok =
            translate_fields(s, route, &f, e) && (route == ROUTE_COMPLETIONS ? prompt_from_text(s, &f, &prompt, e)
                                                                             : prompt_from_messages(s, &f, &prompt, e));
        if (ok) {
            x->n_prompt = (int32_t)prompt.ids.n;
            prompt.salt = x->salt;
            ok = generation_start(s, route, &f, &prompt, x->received_ns, out, e);
            prompt_free(&prompt);
        }
        fields_free(&f);
    }
    json_decref(body);
    return ok;
}

// Waits for the whole reply. The generation stays the exchange's, so that it is freed however this ends.
static void answer_whole(struct exchange *x, struct generation *g) {
    struct wire_blocks blocks = {0};
    x->generation = g;
    while (!generation_is_over(g) && !exchange_is_gone(x)) {
        generation_wait(g, LOOK_NS);
        wire_blocks_gather(&blocks, g->reply);
    }
    x->n_reply = generation_count_ids(g);
    if (g->failed) {
        exchange_send_error(x, &g->error);
    } else if (g->finish_reason != NULL) {
        struct buffer json;
        buffer_init(&json, 0);
        g->wire->write_whole(&json, g, &blocks);
        if (blocks.failed) json.failed = true;
        x->outcome = g->finish_reason;
        exchange_send_json(x, 200, &json);
    } else {
        generation_cancel(g);
        x->outcome = "client left";
    }
    wire_blocks_free(&blocks);
}

static void generate(struct exchange *x, enum route_id route) {
    struct service *s = &x->server->service;
    struct generation *g;
    struct api_error e;
    service_enter_gate(s);
    bool ok = prepare(x, route, &g, &e);
    service_leave_gate(s);
    if (!ok) {
        exchange_send_error(x, &e);
    } else if (g->stream) {
        exchange_send_stream(x, g);
    } else {
        answer_whole(x, g);
    }
}

void route_responses(struct exchange *x) { generate(x, ROUTE_RESPONSES); }

void route_messages(struct exchange *x) { generate(x, ROUTE_MESSAGES); }

static bool count_tokens(struct exchange *x, struct buffer *out, struct api_error *e) {
    struct service *s = &x->server->service;
    struct request_fields f;
    struct prompt prompt;
    json_t *body = NULL;
    bool ok = exchange_parse(x, &body, e) && fields_read(s, ROUTE_MESSAGES, body, &f, e);
    if (ok) {
        ok = translate_fields(s, ROUTE_MESSAGES, &f, e) && prompt_from_messages(s, &f, &prompt, e);
        if (ok) {
            buffer_printf(out, "{\"input_tokens\":%zu}", prompt.ids.n);
            prompt_free(&prompt);
        }
        fields_free(&f);
    }
    json_decref(body);
    return ok;
}

void route_count_tokens(struct exchange *x) { route_answer(x, count_tokens); }

void route_chat(struct exchange *x) { generate(x, ROUTE_CHAT); }

void route_completions(struct exchange *x) { generate(x, ROUTE_COMPLETIONS); }
