// A server over the scripted engine, for Python tests with real clients. What a request's reply is to be stands in its
// prompt, as JSON between "@@" and "@@":
//   {"say": text, "ids": [...], "queue_ms": n, "prompt_ms": n, "token_ms": n, "fail_at": n, "no_end": true}
// Without that the reply is "Hello there.". Prints its address; ends when its standard input does.
#include "base/log.h"
#include "tests/server/scripted_engine.h"
#include "server/server.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROMPT_BYTES 65536

static void get_ms(const json_t *wish, const char *name, int64_t *ns) {
    *ns = (int64_t)json_integer_value(json_object_get(wish, name)) * 1000000;
}

static void follow(const json_t *wish, struct script *script) {
    const json_t *ids = json_object_get(wish, "ids"), *fail = json_object_get(wish, "fail_at");
    for (size_t i = 0; i < json_array_size(ids); i++)
        script_add(script, (int32_t)json_integer_value(json_array_get(ids, i)));
    const char *say = json_string_value(json_object_get(wish, "say"));
    if (say != NULL) script_say(script, say);
    if (!json_is_true(json_object_get(wish, "no_end"))) script_end(script);
    get_ms(wish, "queue_ms", &script->queue_ns);
    get_ms(wish, "prompt_ms", &script->prompt_ns);
    get_ms(wish, "token_ms", &script->token_ns);
    if (json_is_integer(fail)) {
        script->fail_at = (int32_t)json_integer_value(fail);
        script->fail_code = STATUS_DEVICE;
    }
}

static void choose(const struct request_params *p, struct script *script) {
    static _Thread_local char text[PROMPT_BYTES + 1];
    size_t n = 0;
    for (int32_t i = 0; i < p->n_prompt && n < PROMPT_BYTES; i++)
        if (p->prompt[i] > 0 && p->prompt[i] < 256) text[n++] = (char)p->prompt[i];
    text[n] = 0;
    char *start = strstr(text, "@@"), *end = start != NULL ? strstr(start + 2, "@@") : NULL;
    json_t *wish = end != NULL ? json_loadb(start + 2, (size_t)(end - start - 2), 0, NULL) : NULL;
    if (wish != NULL) {
        follow(wish, script);
    } else {
        script_say(script, "Hello there.");
        script_end(script);
    }
    json_decref(wish);
}

int main(int argc, char **argv) {
    struct scripted_options engine_options = {.parallel = 4, .queue = 16, .choose = choose};
    struct engine *engine = scripted_create(&engine_options);
    struct chat_template *chat = scripted_template(argc > 1 && strcmp(argv[1], "--thinks") == 0);
    struct server_options options = {.engine = engine,
                                     .chat = chat,
                                     .host = "127.0.0.1",
                                     .name = "scripted",
                                     .sampling = {.temperature = 1, .top_p = 1, .repetition = 1},
                                     .limits.keep_alive_ns = 200000000};
    struct server *server;
    struct error e;
    if (server_start(&options, &server, &e) != STATUS_OK) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    printf("listening on http://127.0.0.1:%d\n", server_port(server));
    fflush(stdout);
    char ignored[256];
    while (read(STDIN_FILENO, ignored, sizeof ignored) > 0) continue;
    server_stop(server);
    engine_free(engine);
    chat_template_free(chat);
    return 0;
}
