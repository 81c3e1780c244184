// GET /props: what the start sentence says, as JSON. GET /state: what there is at this moment.
#include "server/internal.h"
#include <string.h>

void route_props(struct exchange *x) {
    const struct service *s = &x->server->service;
    const struct server_options *o = s->options;
    const char *overrides = o->overrides != NULL ? o->overrides : "none";
    struct buffer json;
    buffer_init(&json, 0);
    buffer_append_text(&json, "{\"model\":");
    wire_write_text(&json, o->name, strlen(o->name));
    buffer_append_text(&json, ",\"version\":\"" TF_VERSION "\",\"device\":");
    wire_write_text(&json, s->info->device_name, strlen(s->info->device_name));
    buffer_append_text(&json, ",\"sentence\":");
    wire_write_text(&json, s->info->start_sentence, strlen(s->info->start_sentence));
    buffer_append_text(&json, ",\"overrides\":");
    wire_write_text(&json, overrides, strlen(overrides));
    buffer_append_text(&json, ",\"plan\":");
    engine_write_facts(o->engine, &json);
    buffer_printf(&json, ",\"shares_prefixes\":\"%s\"}", o->share_per_key ? "per-key" : "all");
    exchange_send_json(x, 200, &json);
}

void route_state(struct exchange *x) {
    struct buffer json;
    buffer_init(&json, 0);
    engine_write_state(x->server->service.options->engine, &json);
    exchange_send_json(x, 200, &json);
}
