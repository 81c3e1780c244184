// Any bytes as config.json, generation_config.json and tokenizer_config.json, one after another with a NUL between:
// what is accepted must keep the promises that the rest of the program counts on.
#include "model/config.h"

#include "format/json.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static int32_t find_token(void *context, const char *text) {
    (void)context;
    return text[0] == '<' ? (int32_t)strlen(text) : -1;
}

static void check(const struct model_config *c) {
    must(c->n_layers >= 1 && c->n_layers <= MODEL_LAYERS_MAX &&
         c->n_attention_layers + c->n_delta_layers == c->n_layers);
    must(c->n_hidden >= 1 && c->n_vocab >= 2 && c->n_context >= 1 && c->norm_eps > 0);
    must(c->n_kv_heads >= 1 && c->n_heads % c->n_kv_heads == 0 && c->n_key_heads >= 1 &&
         c->n_value_heads % c->n_key_heads == 0);
    must(c->n_rotary >= 2 && c->n_rotary <= c->head_dim && c->n_rotary % 2 == 0 && isfinite(c->rope_theta));
    must(c->family == MODEL_QWEN35_MOE
             ? c->n_experts >= c->n_experts_used && c->n_experts_used >= 1 && !c->n_intermediate
             : c->n_intermediate >= 1 && !c->n_experts);
    must(c->n_eos >= 0 && c->n_eos <= MODEL_EOS_MAX);
    for (int i = 0; i < c->n_eos; i++) must(c->eos_ids[i] >= 0 && c->eos_ids[i] < c->n_vocab);
    for (size_t i = 0; i < c->quant.n_overrides; i++) {
        const struct quant_override *o = &c->quant.overrides[i];
        must(memchr(o->path, 0, sizeof o->path) && config_find_override(c, o->path));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    json_t *files[3] = {NULL, NULL, NULL};
    const char *at = (const char *)data, *end = at + n;
    for (int i = 0; i < 3 && at < end; i++) {
        const char *stop = memchr(at, 0, (size_t)(end - at));
        if (!stop) stop = end;
        json_parse(at, (size_t)(stop - at), (size_t)1 << 20, JSON_PARSE_DEFAULT, &files[i], NULL);
        at = stop + 1;
    }
    struct model_config c;
    struct error e = {0};
    enum status status = files[0] ? config_parse(files[0], files[1], files[2], &c, &e) : STATUS_INVALID;
    if (files[0]) must(status == STATUS_OK || (e.code == status && e.text[0]));
    if (!status) {
        check(&c);
        status = config_resolve_eos(&c, find_token, NULL, &e);
        check(&c);
        config_free(&c);
    }
    for (int i = 0; i < 3; i++) json_decref(files[i]);
    return 0;
}
