#include "model/config.h"

#include "format/checkpoint.h"
#include "tests/model/tiny.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define N_OF(a) (sizeof(a) / sizeof *(a))

static enum status parse(const json_t *config, const char *generation, const char *tokenizer, struct model_config *out,
                         struct error *e) {
    json_t *g = generation ? json_loads(generation, 0, NULL) : NULL,
           *t = tokenizer ? json_loads(tokenizer, 0, NULL) : NULL;
    enum status status = config_parse(config, g, t, out, e);
    json_decref(g);
    json_decref(t);
    return status;
}

static void test_dense(void **state) {
    (void)state;
    struct tiny *t = tiny_create((struct tiny_options){.layout = TINY_HF});
    struct model_config c;
    struct error e;
    assert_int_equal(parse(t->config, NULL, NULL, &c, &e), STATUS_OK);
    assert_int_equal(c.family, MODEL_QWEN35);
    assert_int_equal(c.n_layers, 2);
    assert_int_equal(c.layers[0], LAYER_DELTA);
    assert_int_equal(c.layers[1], LAYER_ATTENTION);
    assert_int_equal(c.n_attention_layers, 1);
    assert_int_equal(c.n_delta_layers, 1);
    assert_int_equal(c.n_hidden, 64);
    assert_int_equal(c.n_vocab, 128);
    assert_int_equal(c.n_context, 4096);
    assert_int_equal(c.n_heads, 2);
    assert_int_equal(c.n_kv_heads, 1);
    assert_int_equal(c.head_dim, 32);
    assert_int_equal(c.n_rotary, 8);
    assert_true(c.rope_theta == 1e7);
    assert_true(c.norm_eps == 1e-6);
    assert_int_equal(c.n_key_heads, 1);
    assert_int_equal(c.n_value_heads, 2);
    assert_int_equal(c.key_dim, 8);
    assert_int_equal(c.value_dim, 16);
    assert_int_equal(c.n_taps, 4);
    assert_int_equal(config_n_channels(&c), 48);
    assert_int_equal(c.n_intermediate, 96);
    assert_int_equal(c.n_experts, 0);
    assert_int_equal(c.n_mtp_layers, 1);
    assert_false(c.tied);
    assert_false(c.gate_sigmoid);
    assert_int_equal(c.quant.bits, 0);
    assert_int_equal(c.n_eos, 1);
    assert_int_equal(c.eos_ids[0], 1);
    assert_true(isnan(c.sampling.temperature) && isnan(c.sampling.top_p) && isnan(c.sampling.min_p));
    assert_int_equal(c.sampling.top_k, -1);
    assert_string_equal(config_family_name(c.family), "qwen3_5");
    config_free(&c);
    tiny_free(t);
}

static void test_moe(void **state) {
    (void)state;
    struct tiny *t = tiny_create((struct tiny_options){.layout = TINY_MLX, .moe = true});
    struct model_config c;
    struct error e;
    assert_int_equal(parse(t->config, NULL, NULL, &c, &e), STATUS_OK);
    assert_int_equal(c.family, MODEL_QWEN35_MOE);
    assert_int_equal(c.n_experts, 4);
    assert_int_equal(c.n_experts_used, 2);
    assert_int_equal(c.expert_width, 32);
    assert_int_equal(c.shared_width, 64);
    assert_int_equal(c.n_intermediate, 0);
    assert_int_equal(c.quant.bits, 4);
    assert_int_equal(c.quant.group, 32);
    assert_int_equal(c.quant.n_overrides, 4);
    const struct quant_override *o = config_find_override(&c, "model.language_model.layers.1.mlp.gate");
    assert_non_null(o);
    assert_int_equal(o->bits, 8);
    assert_null(config_find_override(&c, "layers.1.mlp.up_proj"));
    assert_string_equal(config_family_name(c.family), "qwen3_5_moe");
    config_free(&c);
    tiny_free(t);
}

// The same model written the other ways that exporters write it.
static void test_spellings(void **state) {
    (void)state;
    struct tiny *t = tiny_create((struct tiny_options){.layout = TINY_HF});
    struct model_config nested, c;
    struct error e;
    assert_int_equal(parse(t->config, NULL, NULL, &nested, &e), STATUS_OK);
    // flat: the text config is the whole file, its rope fields flattened
    json_t *flat = json_deep_copy(t->text), *rope = json_object_get(flat, "rope_parameters");
    json_object_update(flat, rope);
    json_object_del(flat, "rope_parameters");
    assert_int_equal(parse(flat, NULL, NULL, &c, &e), STATUS_OK);
    assert_memory_equal(&c, &nested, sizeof c);
    json_edit(flat, "/model_type", "\"qwen3_5\"");
    assert_int_equal(parse(flat, NULL, NULL, &c, &e), STATUS_OK);
    assert_memory_equal(&c, &nested, sizeof c);
    json_decref(flat);
    // no layer_types: every n-th is full attention
    json_edit(t->config, "/text_config/layer_types", NULL);
    assert_int_equal(parse(t->config, NULL, NULL, &c, &e), STATUS_OK);
    assert_memory_equal(&c, &nested, sizeof c);
    json_edit(t->config, "/text_config/full_attention_interval", NULL);
    json_edit(t->config, "/text_config/num_hidden_layers", "8");
    assert_int_equal(parse(t->config, NULL, NULL, &c, &e), STATUS_OK);
    assert_int_equal(c.n_attention_layers, 2);
    assert_int_equal(c.layers[3], LAYER_ATTENTION);
    assert_int_equal(c.layers[7], LAYER_ATTENTION);
    static const struct {
        const char *path, *text;
        bool sigmoid, tied;
    } edits[] = {
        {"/text_config/output_gate_type", NULL, false, false},
        {"/text_config/output_gate_type", "\"silu\"", false, false},
        {"/text_config/output_gate_type", "\"sigmoid\"", true, false},
        {"/text_config/hidden_act", NULL, true, false},
        {"/text_config/attn_output_gate", NULL, true, false},
        {"/text_config/tie_word_embeddings", NULL, true, false},
        {"/tie_word_embeddings", "true", true, true},
        {"/text_config/tie_word_embeddings", "true", true, true},
        {"/tie_word_embeddings", NULL, true, true},
        {"/text_config/rope_parameters/rope_type", NULL, true, true},
        {"/model_type", NULL, true, true},
        {"/text_config/model_type", "\"qwen3_5\"", true, true},
        {"/text_config/rope_scaling", "null", true, true},
        {"/quantization_config", "null", true, true},
    };
    for (size_t i = 0; i < N_OF(edits); i++) {
        json_edit(t->config, edits[i].path, edits[i].text);
        if (parse(t->config, NULL, NULL, &c, &e)) fail_msg("edit %zu: %s", i, e.text);
        assert_int_equal(c.gate_sigmoid, edits[i].sigmoid);
        assert_int_equal(c.tied, edits[i].tied);
    }
    tiny_free(t);
}

static const struct {
    bool moe;
    const char *path, *text; // of config.json
    enum status status;
    const char *sentence;
} refusals[] = {
    {0, "/model_type", "\"llama\"", STATUS_UNSUPPORTED,
     "config.json: /model_type is \"llama\"; supported are qwen3_5 and qwen3_5_moe"},
    {0, "/text_config/model_type", "\"qwen4_exp\"", STATUS_UNSUPPORTED, "/text_config/model_type is \"qwen4_exp\""},
    {0, "/text_config/model_type", "\"qwen3_5_moe_text\"", STATUS_INVALID, "different families"},
    {0, "/model_type", "7", STATUS_INVALID, "/model_type must be a string, not an integer"},
    {0, "/text_config", "[]", STATUS_INVALID, "/text_config must be an object"},
    {0, "/text_config", "{}", STATUS_INVALID, "/text_config/num_hidden_layers is missing"},
    {0, "/text_config", NULL, STATUS_INVALID, "config.json: /num_hidden_layers is missing"},
    {0, "/text_config/hidden_size", NULL, STATUS_INVALID, "/text_config/hidden_size is missing"},
    {0, "/text_config/hidden_size", "0", STATUS_INVALID, "/text_config/hidden_size must be an integer from 1 to"},
    {0, "/text_config/hidden_size", "64.0", STATUS_INVALID, "/text_config/hidden_size must be an integer"},
    {0, "/text_config/hidden_size", "\"64\"", STATUS_INVALID, "not a string"},
    {0, "/text_config/hidden_size", "9223372036854775807", STATUS_INVALID, "must be an integer from 1 to 65536"},
    {0, "/text_config/hidden_size", "-64", STATUS_INVALID, "not -64"},
    {0, "/text_config/num_hidden_layers", "257", STATUS_INVALID, "from 1 to 256"},
    {0, "/text_config/num_hidden_layers", "3", STATUS_INVALID, "/text_config/layer_types has 2 entries for 3 layers"},
    {0, "/text_config/layer_types", "{}", STATUS_INVALID, "/text_config/layer_types must be an array"},
    {0, "/text_config/layer_types/1", "\"sliding_attention\"", STATUS_UNSUPPORTED,
     "/text_config/layer_types/1 is \"sliding_attention\""},
    {0, "/text_config/layer_types/0", "3", STATUS_INVALID, "/text_config/layer_types/0 must be a string"},
    {0, "/text_config/layer_types/0", "null", STATUS_INVALID, "/text_config/layer_types/0 must be a string"},
    {0, "/text_config/vocab_size", "1", STATUS_INVALID, "/text_config/vocab_size must be"},
    {0, "/text_config/num_attention_heads", "3", STATUS_OK, ""},
    {0, "/text_config/num_key_value_heads", "3", STATUS_INVALID,
     "/text_config/num_attention_heads is 2, which is not a multiple of num_key_value_heads, 3"},
    {0, "/text_config/num_key_value_heads", "0", STATUS_INVALID, "/text_config/num_key_value_heads must be"},
    {0, "/text_config/linear_num_key_heads", "3", STATUS_INVALID,
     "linear_num_value_heads is 2, which is not a multiple of"},
    {0, "/text_config/linear_conv_kernel_dim", "1", STATUS_INVALID, "/text_config/linear_conv_kernel_dim"},
    {0, "/text_config/linear_conv_kernel_dim", "9", STATUS_INVALID, "from 2 to 8"},
    {0, "/text_config/intermediate_size", NULL, STATUS_INVALID, "/text_config/intermediate_size is missing"},
    {0, "/text_config/num_experts", "8", STATUS_INVALID,
     "/text_config/num_experts is 8, but a model of type qwen3_5 has no experts"},
    {0, "/text_config/num_experts", "0", STATUS_OK, ""},
    {1, "/text_config/num_experts", NULL, STATUS_INVALID, "/text_config/num_experts is missing"},
    {1, "/text_config/num_experts_per_tok", "5", STATUS_INVALID,
     "/text_config/num_experts_per_tok is 5, more than num_experts, 4"},
    {1, "/text_config/num_experts", "100000", STATUS_INVALID, "from 1 to 1024"},
    {1, "/text_config/shared_expert_intermediate_size", "0", STATUS_INVALID,
     "/text_config/shared_expert_intermediate_size"},
    {0, "/text_config/rms_norm_eps", "0", STATUS_INVALID, "/text_config/rms_norm_eps must be a number from 1e-12"},
    {0, "/text_config/rms_norm_eps", "true", STATUS_INVALID, "/text_config/rms_norm_eps must be a number, not true"},
    {0, "/text_config/attn_output_gate", "false", STATUS_UNSUPPORTED, "/text_config/attn_output_gate is false"},
    {0, "/text_config/attention_bias", "true", STATUS_UNSUPPORTED, "/text_config/attention_bias is true"},
    {0, "/text_config/attention_bias", "0", STATUS_INVALID, "/text_config/attention_bias must be true or false"},
    {0, "/text_config/hidden_act", "\"gelu\"", STATUS_UNSUPPORTED, "/text_config/hidden_act is \"gelu\""},
    {0, "/text_config/output_gate_type", "\"relu\"", STATUS_UNSUPPORTED, "/text_config/output_gate_type is \"relu\""},
    {0, "/tie_word_embeddings", "true", STATUS_INVALID,
     "/tie_word_embeddings and /text_config/tie_word_embeddings contradict"},
    {0, "/tie_word_embeddings", "1", STATUS_INVALID, "/tie_word_embeddings must be true or false"},
    {0, "/text_config/rope_parameters", "5", STATUS_INVALID, "/text_config/rope_parameters must be an object"},
    {0, "/text_config/rope_parameters", NULL, STATUS_INVALID, "/text_config/rope_theta is missing"},
    {0, "/text_config/rope_parameters/rope_type", "\"yarn\"", STATUS_UNSUPPORTED,
     "/text_config/rope_parameters/rope_type is \"yarn\""},
    {0, "/text_config/rope_parameters/rope_theta", "0.5", STATUS_INVALID,
     "/text_config/rope_parameters/rope_theta must be a number from 1"},
    {0, "/text_config/rope_parameters/partial_rotary_factor", "0.28", STATUS_INVALID,
     "partial_rotary_factor 0.28 of head_dim 32 is 8.96 dims"},
    {0, "/text_config/rope_parameters/partial_rotary_factor", "0.03125", STATUS_INVALID, "is 1 dims"},
    {0, "/text_config/rope_parameters/partial_rotary_factor", "0.09375", STATUS_INVALID, "is 3 dims"},
    {0, "/text_config/rope_parameters/partial_rotary_factor", "2", STATUS_INVALID,
     "partial_rotary_factor must be a number from 0 to 1"},
    {0, "/text_config/rope_scaling", "{\"type\":\"yarn\"}", STATUS_UNSUPPORTED, "/text_config/rope_scaling is set"},
    {0, "/text_config/mtp_num_hidden_layers", "9", STATUS_INVALID, "/text_config/mtp_num_hidden_layers"},
    {0, "/text_config/max_position_embeddings", "0", STATUS_INVALID, "/text_config/max_position_embeddings"},
    {0, "/text_config/eos_token_id", "128", STATUS_INVALID,
     "/text_config/eos_token_id is 128, which is not an id below vocab_size, 128"},
    {0, "/text_config/eos_token_id", "-1", STATUS_INVALID, "/text_config/eos_token_id is -1"},
    {0, "/text_config/eos_token_id", "[1,\"2\"]", STATUS_INVALID, "/text_config/eos_token_id/1 must be an integer"},
    {0, "/text_config/eos_token_id", "[1,null]", STATUS_INVALID, "/text_config/eos_token_id/1 must be an integer"},
    {0, "/text_config/eos_token_id", "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]", STATUS_LIMIT,
     "/text_config/eos_token_id/16"},
    {0, "/eos_token_id", "1000", STATUS_INVALID, "/eos_token_id is 1000"},
    {0, "/quantization", "4", STATUS_INVALID, "/quantization must be an object"},
    {0, "/quantization", "{\"group_size\":32}", STATUS_INVALID, "/quantization/bits is missing"},
    {0, "/quantization", "{\"bits\":4}", STATUS_INVALID, "/quantization/group_size is missing"},
    {0, "/quantization", "{\"bits\":7,\"group_size\":32}", STATUS_UNSUPPORTED, "/quantization/bits is 7"},
    {0, "/quantization", "{\"bits\":4,\"group_size\":16}", STATUS_UNSUPPORTED, "/quantization/group_size is 16"},
    {0, "/quantization", "{\"bits\":4,\"group_size\":32,\"mode\":\"mxfp4\"}", STATUS_UNSUPPORTED,
     "/quantization/mode is \"mxfp4\""},
    {0, "/quantization", "{\"bits\":4,\"group_size\":32,\"lm_head\":{\"bits\":1}}", STATUS_UNSUPPORTED,
     "/quantization/lm_head/bits is 1"},
    {0, "/quantization", "{\"bits\":4,\"group_size\":32,\"lm_head\":5}", STATUS_INVALID,
     "/quantization/lm_head must be an object"},
    {0, "/quantization",
     "{\"bits\":4,\"group_size\":32,\"model.lm_head\":false,\"language_model.lm_head\":{\"bits\":6}}", STATUS_INVALID,
     "/quantization gives two widths for lm_head"},
    {0, "/quantization_config", "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}", STATUS_UNSUPPORTED,
     "/quantization_config/quant_method is \"fp8\""},
};

static void test_refusals(void **state) {
    (void)state;
    for (size_t i = 0; i < N_OF(refusals); i++) {
        struct tiny *t = tiny_create((struct tiny_options){.layout = TINY_HF, .moe = refusals[i].moe});
        json_edit(t->config, refusals[i].path, refusals[i].text);
        struct model_config c, untouched;
        memset(&c, 0x5a, sizeof c);
        untouched = c;
        struct error e = {0};
        enum status status = parse(t->config, NULL, NULL, &c, &e);
        if (status != refusals[i].status || !strstr(e.text, refusals[i].sentence))
            fail_msg("row %zu: %s, \"%s\" lacks \"%s\"", i, status_name(status), e.text, refusals[i].sentence);
        if (status) assert_memory_equal(&c, &untouched, sizeof c);
        if (status) assert_ptr_equal(strstr(e.text, "config.json: "), e.text);
        if (!status) config_free(&c);
        tiny_free(t);
    }
}

static void test_overrides(void **state) {
    (void)state;
    struct tiny *t = tiny_create((struct tiny_options){.layout = TINY_HF});
    json_edit(t->config, "/quantization",
              "{\"bits\":4,\"group_size\":64,\"mode\":\"affine\",\"model.language_model.layers.0.mlp.up_proj\":"
              "{\"bits\":6},\"language_model.model.layers.1.mlp.up_proj\":{\"group_size\":32,\"bits\":3},\"model."
              "layers.1.mlp.gate_proj\":false,"
              "\"language_model.lm_head\":true,\"embed_tokens\":{\"bits\":16,\"group_size\":0},\"other\":null,"
              "\"language_model.model.layers.0.mlp.up_proj\":{\"bits\":6}}");
    struct model_config c;
    struct error e;
    if (parse(t->config, NULL, NULL, &c, &e)) fail_msg("%s", e.text);
    static const struct {
        const char *module;
        int bits, group;
    } wanted[] = {
        {"layers.0.mlp.up_proj", 6, 64},
        {"language_model.model.layers.0.mlp.up_proj", 6, 64},
        {"model.layers.1.mlp.up_proj", 3, 32},
        {"layers.1.mlp.gate_proj", 0, 0},
        {"lm_head", 4, 64},
        {"model.embed_tokens", 0, 0},
    };
    for (size_t i = 0; i < N_OF(wanted); i++) {
        const struct quant_override *o = config_find_override(&c, wanted[i].module);
        assert_non_null(o);
        assert_int_equal(o->bits, wanted[i].bits);
        assert_int_equal(o->group, wanted[i].group);
    }
    assert_null(config_find_override(&c, "other"));
    assert_null(config_find_override(&c, ""));
    config_free(&c);
    tiny_free(t);
}

static int32_t find_token(void *context, const char *text) {
    return !strcmp(text, "<|im_end|>") ? *(int32_t *)context : -1;
}

// C51: what ends a reply is the union of what the three files say, however each says it.
static void test_eos(void **state) {
    (void)state;
    static const struct {
        const char *config, *generation, *tokenizer;
        int32_t im_end;
        int n;
        int32_t ids[4];
    } cases[] = {
        {"1", NULL, NULL, 0, 1, {1}},
        {NULL, NULL, NULL, 0, 0, {0}},
        {"[1,2]", NULL, NULL, 0, 2, {1, 2}},
        {"1", "{\"eos_token_id\":[3,1]}", NULL, 0, 2, {1, 3}},
        {"1", "{\"eos_token_id\":3}", "{\"eos_token\":\"<|im_end|>\"}", 5, 3, {1, 3, 5}},
        {"1",
         "{\"eos_token_id\":[3,1]}",
         "{\"eos_token\":{\"content\":\"<|im_end|>\",\"lstrip\":false}}",
         3,
         2,
         {1, 3}},
        {NULL, "{\"eos_token_id\":null}", "{\"eos_token\":\"<|im_end|>\"}", 0, 1, {0}},
        {"1", "{}", "{\"eos_token\":null}", 0, 1, {1}},
    };
    for (size_t i = 0; i < N_OF(cases); i++) {
        struct tiny *t = tiny_create((struct tiny_options){.layout = TINY_HF});
        json_edit(t->config, "/text_config/eos_token_id", cases[i].config);
        struct model_config c;
        struct error e;
        assert_int_equal(parse(t->config, cases[i].generation, cases[i].tokenizer, &c, &e), STATUS_OK);
        int32_t im_end = cases[i].im_end;
        assert_int_equal(config_resolve_eos(&c, find_token, &im_end, &e), STATUS_OK);
        assert_int_equal(c.n_eos, cases[i].n);
        for (int k = 0; k < cases[i].n; k++) assert_true(config_is_eos(&c, cases[i].ids[k]));
        assert_false(config_is_eos(&c, 100));
        config_free(&c);
        tiny_free(t);
    }
    struct tiny *t = tiny_create((struct tiny_options){.layout = TINY_HF});
    struct model_config c;
    struct error e;
    assert_int_equal(parse(t->config, NULL, "{\"eos_token\":\"<none>\"}", &c, &e), STATUS_OK);
    assert_int_equal(config_resolve_eos(&c, find_token, NULL, &e), STATUS_INVALID);
    assert_string_equal(e.text, "tokenizer_config.json: /eos_token is \"<none>\", which the tokenizer does not have");
    int32_t outside = 128;
    snprintf(c.eos_text, sizeof c.eos_text, "<|im_end|>");
    assert_int_equal(config_resolve_eos(&c, find_token, &outside, &e), STATUS_INVALID);
    assert_ptr_equal(strstr(e.text, "tokenizer_config.json: /eos_token"), e.text);
    tiny_free(t);
}

static void test_other_files(void **state) {
    (void)state;
    static const struct {
        const char *generation, *tokenizer, *sentence; // "": accepted
    } cases[] = {
        {"{\"temperature\":-1}", NULL, "generation_config.json: /temperature must be a number from 0"},
        {"{\"temperature\":\"hot\"}", NULL, "generation_config.json: /temperature must be a number, not a string"},
        {"{\"top_p\":1.5}", NULL, "generation_config.json: /top_p"},
        {"{\"top_k\":2.5}", NULL, "generation_config.json: /top_k must be an integer"},
        {"{\"top_k\":-1}", NULL, "generation_config.json: /top_k"},
        {"{\"min_p\":2}", NULL, "generation_config.json: /min_p"},
        {"{\"repetition_penalty\":0}", NULL, "generation_config.json: /repetition_penalty"},
        {"{\"do_sample\":1}", NULL, "generation_config.json: /do_sample must be true or false"},
        {"{\"eos_token_id\":[1,500]}", NULL, "generation_config.json: /eos_token_id/1 is 500"},
        {NULL, "{\"eos_token\":5}", "tokenizer_config.json: /eos_token must be a string"},
        {NULL, "{\"eos_token\":{}}", "tokenizer_config.json: /eos_token/content is missing"},
        {NULL, "{\"eos_token\":\"0123456789012345678901234567890123456789012345678901234567890123\"}",
         "tokenizer_config.json: /eos_token is longer"},
        {"{\"temperature\":0.7,\"top_p\":0.95,\"top_k\":20,\"min_p\":0.05,\"repetition_penalty\":1.1,\"presence_"
         "penalty\":1.5,\"do_sample\":true}",
         "{}", ""},
    };
    struct tiny *t = tiny_create((struct tiny_options){.layout = TINY_HF});
    struct model_config c;
    struct error e;
    for (size_t i = 0; i < N_OF(cases); i++) {
        enum status status = parse(t->config, cases[i].generation, cases[i].tokenizer, &c, &e);
        if (!cases[i].sentence[0])
            assert_int_equal(status, STATUS_OK);
        else if (status == STATUS_OK || !strstr(e.text, cases[i].sentence))
            fail_msg("\"%s\" lacks \"%s\"", e.text, cases[i].sentence);
    }
    assert_true(c.sampling.temperature == 0.7 && c.sampling.top_p == 0.95 && c.sampling.min_p == 0.05);
    assert_true(c.sampling.repetition_penalty == 1.1 && c.sampling.presence_penalty == 1.5);
    assert_int_equal(c.sampling.top_k, 20);
    assert_int_equal(parse(t->config, "{\"temperature\":0.7,\"do_sample\":false}", NULL, &c, &e), STATUS_OK);
    assert_true(c.sampling.temperature == 0);
    tiny_free(t);
}

static void test_load(void **state) {
    (void)state;
    struct folder f = folder_create();
    struct tiny *t = tiny_create((struct tiny_options){.layout = TINY_HF});
    tiny_write(t, &f, 1);
    folder_write_text(&f, "generation_config.json", "{\"top_k\":true}");
    struct checkpoint *ck;
    struct model_config c;
    struct error e;
    assert_int_equal(checkpoint_open(f.path, &ck, &e), STATUS_OK);
    assert_int_equal(config_load(ck, &c, &e), STATUS_INVALID);
    char wanted[128];
    snprintf(wanted, sizeof wanted, "%s: generation_config.json: /top_k must be an integer, not true", f.path);
    assert_string_equal(e.text, wanted);
    assert_int_equal(config_load(ck, &c, NULL), STATUS_INVALID);
    checkpoint_free(ck);
    folder_remove(&f);
    tiny_free(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),       cmocka_unit_test(test_moe),       cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_refusals),    cmocka_unit_test(test_overrides), cmocka_unit_test(test_eos),
        cmocka_unit_test(test_other_files), cmocka_unit_test(test_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
