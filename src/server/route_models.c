// GET /v1/models, /v1/models/NAME and /health.
#include "server/internal.h"
#include <inttypes.h>
#include <string.h>

static void write_model(struct buffer *b, const struct service *s, const char *name) {
    buffer_append_text(b, "{\"id\":");
    wire_write_text(b, name, strlen(name));
    buffer_printf(
        b, ",\"object\":\"model\",\"created\":%" PRId64 ",\"owned_by\":\"tokenfold\",\"max_model_len\":%" PRId32 "}",
        s->created, s->info->context);
}

void route_models(struct exchange *x) {
    const struct service *s = &x->server->service;
    struct buffer json;
    buffer_init(&json, 0);
    buffer_append_text(&json, "{\"object\":\"list\",\"data\":[");
    write_model(&json, s, s->options->name);
    for (size_t i = 0; i < s->options->n_aliases; i++) {
        buffer_append_text(&json, ",");
        write_model(&json, s, s->options->aliases[i]);
    }
    buffer_append_text(&json, "]}");
    exchange_send_json(x, 200, &json);
}

void route_model(struct exchange *x) {
    const struct service *s = &x->server->service;
    if (!service_has_model(s, x->model)) {
        struct api_error e;
        api_refuse(&e, 404, "model_not_found", "this server has no model of that name; it serves \"%s\"",
                   s->options->name);
        exchange_send_error(x, &e);
        return;
    }
    struct buffer json;
    buffer_init(&json, 0);
    write_model(&json, s, x->model);
    exchange_send_json(x, 200, &json);
}

void route_health(struct exchange *x) {
    struct engine_counts counts;
    struct api_error e;
    engine_get_counts(x->server->service.options->engine, &counts);
    if (counts.failed) {
        api_refuse(&e, 503, "engine_failed", "the engine has failed and makes no progress");
        exchange_send_error(x, &e);
    } else if (atomic_load(&x->server->draining)) {
        api_refuse(&e, 503, "shutting_down", "the server is shutting down");
        exchange_send_error(x, &e);
    } else {
        struct buffer json;
        buffer_init(&json, 0);
        buffer_printf(&json, "{\"status\":\"ok\",\"running\":%" PRId32 ",\"waiting\":%" PRId32 "}", counts.n_running,
                      counts.n_waiting);
        exchange_send_json(x, 200, &json);
    }
}
