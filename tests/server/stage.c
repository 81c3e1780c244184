#include "tests/server/stage.h"
#include "base/clock.h"
#include "format/json.h"
#include <stdio.h>
#include <string.h>

void stage_open(struct stage *s, const struct scripted_options *engine, const struct server_options *options,
                bool thinks) {
    struct error e;
    *s = (struct stage){.engine = scripted_create(engine), .chat = scripted_template(thinks)};
    struct server_options o = options != NULL ? *options : (struct server_options){0};
    o.engine = s->engine;
    o.chat = s->chat;
    o.host = "127.0.0.1";
    if (o.name == NULL) o.name = "scripted";
    o.sampling = (struct draw_params){.temperature = 1, .top_p = 1, .repetition = 1};
    if (server_start(&o, &s->server, &e) != STATUS_OK) must_failed(e.text, __FILE__, __LINE__);
    s->port = server_port(s->server);
}

void stage_close(struct stage *s) {
    server_stop(s->server);
    engine_free(s->engine);
    chat_template_free(s->chat);
}

void stage_say(struct stage *s, const char *text) {
    static struct script script;
    script_init(&script);
    script_say(&script, text);
    script_end(&script);
    scripted_set(s->engine, &script);
}

// The message that a stream's chunks add up to, in the shape of a whole reply's choice.
static json_t *add_up(const json_t *events) {
    struct buffer content, reasoning;
    json_t *calls = json_array(), *choice = json_object(), *message = json_object(), *entries = json_array();
    buffer_init(&content, 0);
    buffer_init(&reasoning, 0);
    size_t i;
    const json_t *event;
    json_array_foreach(events, i, event) {
        const json_t *delta = json_at(event, "choices.0.delta"), *call = json_at(delta, "tool_calls.0");
        buffer_append_text(&content, text_at(delta, "content"));
        buffer_append_text(&reasoning, text_at(delta, "reasoning_content"));
        must(i == 0 ? strcmp(text_at(delta, "role"), "assistant") == 0 : json_at(delta, "role") == NULL);
        json_array_extend(entries, (json_t *)json_at(event, "choices.0.logprobs.content"));
        if (json_is_string(json_at(event, "choices.0.finish_reason")))
            json_object_set(choice, "finish_reason", (json_t *)json_at(event, "choices.0.finish_reason"));
        if (call == NULL) continue;
        size_t index = (size_t)int_at(call, "index");
        if (index == json_array_size(calls)) {
            must(*text_at(call, "id") != 0 && *text_at(call, "function.name") != 0);
            json_array_append_new(calls,
                                  json_pack("{s:s, s:s}", "name", text_at(call, "function.name"), "arguments", ""));
        } else {
            must(json_at(call, "id") == NULL && json_at(call, "function.name") == NULL);
        }
        json_t *entry = json_array_get(calls, index);
        char joined[65536];
        snprintf(joined, sizeof joined, "%s%s", text_at(entry, "arguments"), text_at(call, "function.arguments"));
        json_object_set_new(entry, "arguments", json_string(joined));
    }
    json_object_set_new(message, "content", json_string(content.n > 0 ? content.data : ""));
    json_object_set_new(message, "reasoning", json_string(reasoning.n > 0 ? reasoning.data : ""));
    json_object_set_new(message, "calls", calls);
    json_object_set_new(choice, "message", message);
    json_object_set_new(choice, "entries", entries);
    buffer_free(&content);
    buffer_free(&reasoning);
    return choice;
}

static json_t *shape_whole(const json_t *reply) {
    json_t *calls = json_array(), *entries = json_array();
    const json_t *given = json_at(reply, "choices.0.message.tool_calls");
    for (size_t i = 0; i < json_array_size(given); i++)
        json_array_append_new(calls, json_pack("{s:s, s:s}", "name", text_at(json_array_get(given, i), "function.name"),
                                               "arguments", text_at(json_array_get(given, i), "function.arguments")));
    json_array_extend(entries, (json_t *)json_at(reply, "choices.0.logprobs.content"));
    return json_pack("{s:s, s:{s:s, s:s, s:o}, s:o}", "finish_reason", text_at(reply, "choices.0.finish_reason"),
                     "message", "content", text_at(reply, "choices.0.message.content"), "reasoning",
                     text_at(reply, "choices.0.message.reasoning_content"), "calls", calls, "entries", entries);
}

static void check_same_names(const json_t *events) {
    static const char *const names[] = {"id", "created", "model", "system_fingerprint"};
    for (size_t i = 1; i < json_array_size(events); i++)
        for (size_t k = 0; k < sizeof names / sizeof *names; k++)
            must(
                json_equal(json_at(json_array_get(events, 0), names[k]), json_at(json_array_get(events, i), names[k])));
}

json_t *stage_chat_both(struct stage *s, const char *extra) {
    struct http_reply whole, streamed;
    struct http_events events;
    char body[65536];
    static const char format[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]%s%s}";
    snprintf(body, sizeof body, format, extra, "");
    http_post(s->port, "/v1/chat/completions", body, &whole);
    snprintf(body, sizeof body, format, extra, ",\"stream\":true,\"stream_options\":{\"include_usage\":true}");
    http_post(s->port, "/v1/chat/completions", body, &streamed);
    if (whole.status != 200 || streamed.status != 200) must_failed(whole.body.data, __FILE__, __LINE__);
    http_events(&streamed, &events);
    must(events.done);
    check_same_names(events.list);
    json_t *a = shape_whole(whole.json), *b = add_up(events.list);
    if (!json_equal(a, b)) {
        json_dumpf(a, stderr, JSON_INDENT(1));
        json_dumpf(b, stderr, JSON_INDENT(1));
        must_failed("streamed and whole differ", __FILE__, __LINE__);
    }
    size_t n = json_array_size(events.list);
    must(json_equal(json_at(whole.json, "usage"), json_at(json_array_get(events.list, n - 1), "usage")));
    must(json_equal(json_at(whole.json, "tokenfold.token_sha256"),
                    json_at(json_array_get(events.list, n - 2), "tokenfold.token_sha256")));
    json_decref(a);
    json_decref(b);
    json_t *reply = json_incref(whole.json);
    http_events_free(&events);
    http_reply_free(&whole);
    http_reply_free(&streamed);
    return reply;
}

void stage_wait_counts(struct stage *s, int n_running, int n_waiting) {
    struct engine_counts counts;
    for (int64_t until = clock_ns() + 5000000000; clock_ns() < until; clock_sleep_ns(2000000)) {
        engine_get_counts(s->engine, &counts);
        if (counts.n_running == n_running && counts.n_waiting == n_waiting) return;
    }
    must_failed("the engine's counts are not what they should be", __FILE__, __LINE__);
}

void stage_wait_idle(struct stage *s) { stage_wait_counts(s, 0, 0); }
