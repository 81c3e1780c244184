#include "server/service.h"
#include "base/clock.h"
#include "base/machine.h"
#include "server/structured.h"
#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>

#define GATE_MAX 8

// Replies of one fingerprint come from the same program, model and backend.
static void make_fingerprint(struct service *s) {
    char text[1024];
    unsigned char digest[SHA256_DIGEST_LENGTH];
    int n = snprintf(text, sizeof text, "%s|%s|%s", TF_VERSION, s->options->name, s->info->start_sentence);
    SHA256((const unsigned char *)text, n < (int)sizeof text ? (size_t)n : sizeof text - 1, digest);
    snprintf(s->fingerprint, sizeof s->fingerprint, "fp_%02x%02x%02x%02x%02x", digest[0], digest[1], digest[2],
             digest[3], digest[4]);
}

enum status service_init(struct service *s, const struct server_options *options, struct error *e) {
    *s =
        (struct service){.options = options, .info = engine_get_info(options->engine), .created = clock_unix_seconds()};
    int64_t n_vocab = s->info->config->n_vocab;
    if (n_vocab < 1 || n_vocab > INT32_MAX) return error_set(e, STATUS_INVALID, "the model has no usable vocabulary");
    s->n_vocab = (int32_t)n_vocab;
    s->turn_token = options->chat != NULL && s->info->tokenizer != NULL
                        ? chat_find_turn_token(options->chat, s->info->tokenizer)
                        : CHAT_NO_TURN_TOKEN;
    s->vocabulary = vocabulary_slot_create();
    if (s->vocabulary == NULL) return error_memory(e);
    make_fingerprint(s);
    int n_cores = machine_cores();
    s->n_free = n_cores < GATE_MAX ? n_cores : GATE_MAX;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->opened, NULL);
    return STATUS_OK;
}

void service_destroy(struct service *s) {
    vocabulary_slot_free(s->vocabulary);
    pthread_cond_destroy(&s->opened);
    pthread_mutex_destroy(&s->lock);
}

bool service_has_model(const struct service *s, const char *name) {
    const struct server_options *o = s->options;
    if (strcmp(name, o->name) == 0 || strcmp(name, "default") == 0) return true;
    for (size_t i = 0; i < o->n_aliases; i++)
        if (strcmp(name, o->aliases[i]) == 0) return true;
    return false;
}

void service_enter_gate(struct service *s) {
    pthread_mutex_lock(&s->lock);
    while (s->n_free == 0) pthread_cond_wait(&s->opened, &s->lock);
    s->n_free--;
    pthread_mutex_unlock(&s->lock);
}

void service_leave_gate(struct service *s) {
    pthread_mutex_lock(&s->lock);
    s->n_free++;
    pthread_cond_signal(&s->opened);
    pthread_mutex_unlock(&s->lock);
}
