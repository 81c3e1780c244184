// Checkpoints that are wrong in one place: what is missing, foreign, of another shape or type, or contradicts
// config.json is refused with a sentence that names file and tensor.
#include "tests/model/tiny.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#define N_OF(a) (sizeof(a) / sizeof *(a))

enum spoil { REMOVE, RENAME, PUT, CONFIG };

struct row {
    struct tiny_options options;
    enum spoil how;
    const char *name;           // of a tensor, or a pointer into config.json
    const char *text;           // RENAME: the new name; CONFIG: the new value
    enum safetensors_type type; // PUT
    int n_dims;
    int64_t shape[4];
    enum status status;
    const char *sentence; // after the folder's path
};

#define HF                                                                                                             \
    { .layout = TINY_HF, .mtp = true }
#define MLX                                                                                                            \
    { .layout = TINY_MLX }
#define TIED                                                                                                           \
    { .layout = TINY_TEXT, .tied = true }
#define MOE                                                                                                            \
    { .layout = TINY_HF, .moe = true }
#define MOE_MLX                                                                                                        \
    { .layout = TINY_MLX, .moe = true }
#define ONE                                                                                                            \
    { .layout = TINY_HF, .moe = true, .one_by_one = true }
#define P     "model.language_model."
#define Q     "language_model.model."
#define FILE_ "/model.safetensors: tensor "
#define SHAPED(...)                                                                                                    \
    (sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), { __VA_ARGS__ }
#define BF  SAFETENSORS_BF16
#define U32 SAFETENSORS_U32

static const struct row rows[] = {
    // missing
    {HF,
     REMOVE,
     P "embed_tokens.weight",
     0,
     0,
     0,
     {0},
     STATUS_INVALID,
     ": tensor embed_tokens.weight is missing, under every known prefix"},
    {HF, REMOVE, "lm_head.weight", 0, 0, 0, {0}, STATUS_INVALID, ": tensor lm_head.weight is missing"},
    {HF, REMOVE, P "norm.weight", 0, 0, 0, {0}, STATUS_INVALID, ": tensor " P "norm.weight is missing"},
    {HF,
     REMOVE,
     P "layers.0.input_layernorm.weight",
     0,
     0,
     0,
     {0},
     STATUS_INVALID,
     ": tensor " P "layers.0.input_layernorm.weight is missing"},
    {HF,
     REMOVE,
     P "layers.0.linear_attn.A_log",
     0,
     0,
     0,
     {0},
     STATUS_INVALID,
     ": tensor " P "layers.0.linear_attn.A_log is missing"},
    {HF,
     REMOVE,
     P "layers.0.linear_attn.dt_bias",
     0,
     0,
     0,
     {0},
     STATUS_INVALID,
     ": tensor " P "layers.0.linear_attn.dt_bias is missing"},
    {HF,
     REMOVE,
     P "layers.0.linear_attn.conv1d.weight",
     0,
     0,
     0,
     {0},
     STATUS_INVALID,
     "linear_attn.conv1d.weight is missing"},
    {HF,
     REMOVE,
     P "layers.0.linear_attn.norm.weight",
     0,
     0,
     0,
     {0},
     STATUS_INVALID,
     "linear_attn.norm.weight is missing"},
    {HF,
     REMOVE,
     P "layers.0.linear_attn.in_proj_a.weight",
     0,
     0,
     0,
     {0},
     STATUS_INVALID,
     "in_proj_a.weight is missing"},
    {HF,
     REMOVE,
     P "layers.1.self_attn.q_norm.weight",
     0,
     0,
     0,
     {0},
     STATUS_INVALID,
     "layers.1.self_attn.q_norm.weight is missing"},
    {HF,
     REMOVE,
     P "layers.1.self_attn.o_proj.weight",
     0,
     0,
     0,
     {0},
     STATUS_INVALID,
     "layers.1.self_attn.o_proj.weight is missing"},
    {HF,
     REMOVE,
     P "layers.1.mlp.down_proj.weight",
     0,
     0,
     0,
     {0},
     STATUS_INVALID,
     "layers.1.mlp.down_proj.weight is missing"},
    {HF, REMOVE, "mtp.fc.weight", 0, 0, 0, {0}, STATUS_INVALID, ": tensor mtp.fc.weight is missing"},
    {HF, REMOVE, "mtp.norm.weight", 0, 0, 0, {0}, STATUS_INVALID, ": tensor mtp.norm.weight is missing"},
    {HF,
     REMOVE,
     "mtp.layers.0.self_attn.k_norm.weight",
     0,
     0,
     0,
     {0},
     STATUS_INVALID,
     ": tensor mtp.layers.0.self_attn.k_norm.weight is missing"},
    {MOE, REMOVE, P "layers.0.mlp.gate.weight", 0, 0, 0, {0}, STATUS_INVALID, "layers.0.mlp.gate.weight is missing"},
    {MOE,
     REMOVE,
     P "layers.0.mlp.experts.gate_up_proj",
     0,
     0,
     0,
     {0},
     STATUS_INVALID,
     "layers.0.mlp.experts.gate_up_proj is missing"},
    {MOE,
     REMOVE,
     P "layers.0.mlp.experts.down_proj",
     0,
     0,
     0,
     {0},
     STATUS_INVALID,
     "layers.0.mlp.experts.down_proj is missing"},
    {MOE,
     REMOVE,
     P "layers.1.mlp.shared_expert_gate.weight",
     0,
     0,
     0,
     {0},
     STATUS_INVALID,
     "shared_expert_gate.weight is missing"},
    {ONE,
     REMOVE,
     P "layers.0.mlp.experts.3.up_proj.weight",
     0,
     0,
     0,
     {0},
     STATUS_INVALID,
     "layers.0.mlp.experts.3.up_proj.weight is missing"},
    {MLX,
     REMOVE,
     Q "layers.0.mlp.up_proj.biases",
     0,
     0,
     0,
     {0},
     STATUS_INVALID,
     ": tensor " Q "layers.0.mlp.up_proj.biases is missing"},
    {MLX,
     REMOVE,
     Q "layers.0.mlp.up_proj.weight",
     0,
     0,
     0,
     {0},
     STATUS_INVALID,
     ": tensor " Q "layers.0.mlp.up_proj.weight is missing"},
    {MLX,
     REMOVE,
     Q "layers.0.mlp.up_proj.scales",
     0,
     0,
     0,
     {0},
     STATUS_UNSUPPORTED,
     FILE_ Q "layers.0.mlp.up_proj.weight is U32; supported here is BF16, F16 or F32, or U32 codes"},
    {MOE_MLX,
     REMOVE,
     Q "layers.0.mlp.switch_mlp.up_proj.weight",
     0,
     0,
     0,
     {0},
     STATUS_INVALID,
     "switch_mlp.up_proj.weight is missing"},
    // foreign
    {HF,
     RENAME,
     "lm_head.weight",
     "model.language_model.lm_head.bias",
     0,
     0,
     {0},
     STATUS_INVALID,
     ": tensor lm_head.weight is missing"},
    {HF, PUT, P "layers.0.mlp.up_proj.bias", 0, BF, SHAPED(96), STATUS_INVALID,
     FILE_ P "layers.0.mlp.up_proj.bias has no place"},
    {HF, PUT, P "layers.2.input_layernorm.weight", 0, BF, SHAPED(64), STATUS_INVALID,
     FILE_ P "layers.2.input_layernorm.weight has no place"},
    {HF, PUT, P "layers.1.linear_attn.A_log", 0, SAFETENSORS_F32, SHAPED(2), STATUS_INVALID,
     FILE_ P "layers.1.linear_attn.A_log has no place"},
    {HF, PUT, P "layers.0.mlp.gate_proj.scales", 0, BF, SHAPED(96, 2), STATUS_UNSUPPORTED,
     FILE_ P "layers.0.mlp.gate_proj.weight is BF16; supported here is U32, as .scales"},
    {HF, PUT, "mtp.layers.1.input_layernorm.weight", 0, BF, SHAPED(64), STATUS_INVALID,
     FILE_ "mtp.layers.1.input_layernorm.weight has no place"},
    {HF, PUT, "mtp.fc.bias", 0, BF, SHAPED(64), STATUS_INVALID, FILE_ "mtp.fc.bias has no place"},
    {HF, PUT, "model.embed_tokens.weight", 0, BF, SHAPED(128, 64), STATUS_INVALID,
     ": holds both model.language_model.embed_tokens.weight and model.embed_tokens.weight"},
    {HF, PUT, "language_model.lm_head.weight", 0, BF, SHAPED(128, 64), STATUS_INVALID,
     ": holds both lm_head.weight and language_model.lm_head.weight"},
    {TIED, PUT, "lm_head.weight", 0, BF, SHAPED(128, 64), STATUS_INVALID,
     FILE_ "lm_head.weight is there, but config.json says that the output is tied"},
    {MOE, PUT, P "layers.0.mlp.experts.0.gate_proj.weight", 0, BF, SHAPED(32, 64), STATUS_INVALID,
     "layers.0.mlp.experts.0.up_proj.weight is missing"},
    {ONE, PUT, P "layers.0.mlp.experts.4.gate_proj.weight", 0, BF, SHAPED(32, 64), STATUS_INVALID,
     FILE_ P "layers.0.mlp.experts.4.gate_proj.weight has no place"},
    {HF, PUT, "model.visual.blocks.0.attn.qkv.weight", 0, BF, SHAPED(3, 5), STATUS_OK, ""},
    {MLX, PUT, "vision_tower.patch_embed.proj.weight", 0, SAFETENSORS_F8_E4M3, SHAPED(7), STATUS_OK, ""},
    {HF, PUT, "visualise.weight", 0, BF, SHAPED(3), STATUS_INVALID, FILE_ "visualise.weight has no place"},
    // shapes
    {HF, PUT, P "embed_tokens.weight", 0, BF, SHAPED(127, 64), STATUS_INVALID,
     FILE_ P "embed_tokens.weight has shape [127, 64], but by config.json it must be [128, 64]"},
    {HF, PUT, P "embed_tokens.weight", 0, BF, SHAPED(64, 128), STATUS_INVALID, "has shape [64, 128]"},
    {HF, PUT, P "embed_tokens.weight", 0, BF, SHAPED(128 * 64), STATUS_INVALID, "has shape [8192]"},
    {HF, PUT, P "embed_tokens.weight", 0, BF, SHAPED(128, 64, 1), STATUS_INVALID, "has shape [128, 64, 1]"},
    {HF, PUT, P "norm.weight", 0, BF, SHAPED(65), STATUS_INVALID,
     FILE_ P "norm.weight has shape [65], but by config.json it must be [64]"},
    {HF, PUT, P "norm.weight", 0, BF, 0, {0}, STATUS_INVALID, FILE_ P "norm.weight has shape []"},
    {HF, PUT, P "norm.weight", 0, BF, SHAPED(64, 1), STATUS_INVALID, "must be [64]"},
    {HF, PUT, P "layers.0.linear_attn.conv1d.weight", 0, BF, SHAPED(48, 1, 3), STATUS_INVALID, "must be [48, 1, 4]"},
    {HF, PUT, P "layers.0.linear_attn.conv1d.weight", 0, BF, SHAPED(48, 4), STATUS_INVALID, "must be [48, 1, 4]"},
    {HF, PUT, P "layers.0.linear_attn.in_proj_qkv.weight", 0, BF, SHAPED(64, 64), STATUS_INVALID, "must be [48, 64]"},
    {HF, PUT, P "layers.1.self_attn.q_proj.weight", 0, BF, SHAPED(64, 64), STATUS_INVALID, "must be [128, 64]"},
    {HF, PUT, "mtp.fc.weight", 0, BF, SHAPED(64, 64), STATUS_INVALID,
     FILE_ "mtp.fc.weight has shape [64, 64], but by config.json it must be [64, 128]"},
    {MOE, PUT, P "layers.0.mlp.experts.gate_up_proj", 0, BF, SHAPED(4, 32, 64), STATUS_INVALID, "must be [4, 64, 64]"},
    {MOE, PUT, P "layers.0.mlp.experts.down_proj", 0, BF, SHAPED(3, 64, 32), STATUS_INVALID, "must be [4, 64, 32]"},
    {ONE, PUT, P "layers.0.mlp.experts.2.down_proj.weight", 0, BF, SHAPED(64, 64), STATUS_INVALID,
     "experts.2.down_proj.weight has shape [64, 64]"},
    {HF,
     CONFIG,
     "/text_config/vocab_size",
     "256",
     0,
     0,
     {0},
     STATUS_INVALID,
     "embed_tokens.weight has shape [128, 64], but by config.json it must be [256, 64]"},
    {HF,
     CONFIG,
     "/text_config/num_key_value_heads",
     "2",
     0,
     0,
     {0},
     STATUS_INVALID,
     "k_proj.weight has shape [32, 64], but by config.json it must be [64, 64]"},
    {HF,
     CONFIG,
     "/text_config/layer_types",
     "[\"full_attention\",\"linear_attention\"]",
     0,
     0,
     {0},
     STATUS_INVALID,
     "layers.0.self_attn.q_norm.weight is missing"},
    {HF, CONFIG, "/text_config/num_hidden_layers", "1", 0, 0, {0}, STATUS_INVALID, "layer_types has 2 entries"},
    {HF,
     CONFIG,
     "/text_config/mtp_num_hidden_layers",
     "2",
     0,
     0,
     {0},
     STATUS_INVALID,
     "mtp.layers.1.input_layernorm.weight is missing"},
    // types
    {HF, PUT, P "norm.weight", 0, SAFETENSORS_I32, SHAPED(64), STATUS_UNSUPPORTED,
     FILE_ P "norm.weight is I32; supported here is BF16, F16 or F32"},
    {HF, PUT, P "layers.0.mlp.up_proj.weight", 0, SAFETENSORS_F8_E4M3, SHAPED(96, 64), STATUS_UNSUPPORTED,
     FILE_ P "layers.0.mlp.up_proj.weight is F8_E4M3"},
    {HF, PUT, P "layers.0.mlp.up_proj.weight", 0, SAFETENSORS_F64, SHAPED(96, 64), STATUS_UNSUPPORTED, "is F64"},
    {MLX, PUT, Q "layers.0.mlp.up_proj.weight", 0, SAFETENSORS_I32, SHAPED(96, 8), STATUS_UNSUPPORTED,
     FILE_ Q "layers.0.mlp.up_proj.weight is I32; supported here is U32"},
    {MLX, PUT, Q "layers.0.mlp.up_proj.scales", 0, SAFETENSORS_U8, SHAPED(96, 2), STATUS_UNSUPPORTED,
     FILE_ Q "layers.0.mlp.up_proj.scales is U8"},
    {MLX, PUT, Q "layers.0.mlp.up_proj.biases", 0, SAFETENSORS_F32, SHAPED(96, 2), STATUS_UNSUPPORTED,
     "up_proj.biases is F32; supported here is the type of its .scales"},
    // packed shapes, C95
    {MLX, PUT, Q "layers.0.mlp.up_proj.weight", 0, U32, SHAPED(96, 9), STATUS_INVALID,
     FILE_ Q "layers.0.mlp.up_proj.weight of shape [96, 9] with scales [96, 2] is no affine form of a matrix of 96 "
             "rows and 64 columns"},
    {MLX, PUT, Q "layers.0.mlp.up_proj.weight", 0, U32, SHAPED(95, 8), STATUS_INVALID, "is no affine form"},
    {MLX, PUT, Q "layers.0.mlp.up_proj.weight", 0, U32, SHAPED(96, 8, 1), STATUS_INVALID, "is no affine form"},
    {MLX, PUT, Q "layers.0.mlp.up_proj.weight", 0, U32, SHAPED(96), STATUS_INVALID, "is no affine form"},
    {MLX, PUT, Q "layers.0.mlp.up_proj.scales", 0, BF, SHAPED(96, 3), STATUS_INVALID, "is no affine form"},
    {MLX, PUT, Q "layers.0.mlp.up_proj.scales", 0, BF, SHAPED(64, 2), STATUS_INVALID, "is no affine form"},
    {MLX, PUT, Q "layers.0.mlp.up_proj.scales", 0, BF, SHAPED(96, 4), STATUS_INVALID, "is no affine form"},
    {MLX, PUT, Q "layers.0.mlp.up_proj.biases", 0, BF, SHAPED(96, 1), STATUS_INVALID,
     FILE_ Q "layers.0.mlp.up_proj.biases has shape [96, 1]"},
    {MOE_MLX, PUT, Q "layers.0.mlp.switch_mlp.gate_proj.weight", 0, U32, SHAPED(3, 32, 8), STATUS_INVALID,
     "is no affine form"},
    {MOE_MLX, PUT, Q "layers.0.mlp.switch_mlp.gate_proj.scales", 0, BF, SHAPED(4, 64), STATUS_INVALID,
     "is no affine form"},
    {MOE_MLX, PUT, Q "layers.0.mlp.gate.weight", 0, U32, SHAPED(4, 8), STATUS_INVALID,
     FILE_ Q "layers.0.mlp.gate.weight of shape [4, 8] with scales [4, 2] has 4 bits in groups of 32, but config.json "
             "says 8 in groups of 32"},
    {MLX, PUT, Q "layers.0.mlp.up_proj.weight", 0, U32, SHAPED(96, 12), STATUS_OK,
     ""}, // 6 bits that only the shapes tell
    {MLX,
     CONFIG,
     "/quantization/model.language_model.layers.0.mlp.up_proj",
     "{\"bits\":6}",
     0,
     0,
     {0},
     STATUS_INVALID,
     FILE_ Q "layers.0.mlp.up_proj.weight of shape [96, 8] with scales [96, 2] has 4 bits in groups of 32, but "
             "config.json says 6"},
    {MLX,
     CONFIG,
     "/quantization/language_model.lm_head",
     "false",
     0,
     0,
     {0},
     STATUS_INVALID,
     FILE_ "language_model.lm_head.weight of shape [128, 8]"},
    {HF,
     CONFIG,
     "/quantization",
     "{\"bits\":4,\"group_size\":32,\"lm_head\":{\"bits\":6}}",
     0,
     0,
     {0},
     STATUS_INVALID,
     FILE_ "lm_head.weight is not quantised, but config.json gives lm_head 6 bits"},
    {HF, CONFIG, "/quantization", "{\"bits\":4,\"group_size\":32,\"lm_head\":false}", 0, 0, {0}, STATUS_OK, ""},
    {MLX, CONFIG, "/quantization", "null", 0, 0, {0}, STATUS_OK, ""},
    {MLX, CONFIG, "/quantization/bits", "2", 0, 0, {0}, STATUS_OK, ""},
    {MLX, CONFIG, "/quantization/group_size", "128", 0, 0, {0}, STATUS_OK, ""},
};

static void test_refusals(void **state) {
    (void)state;
    for (size_t i = 0; i < N_OF(rows); i++) {
        const struct row *r = &rows[i];
        struct tiny *t = tiny_create(r->options);
        if (r->how == REMOVE)
            tiny_remove(t, r->name);
        else if (r->how == RENAME)
            tiny_rename(t, r->name, r->text);
        else if (r->how == PUT)
            tiny_put(t, r->name, r->type, r->n_dims, r->shape);
        else
            json_edit(t->config, r->name, r->text);
        struct tiny_loaded l;
        struct error e = {0};
        enum status status = tiny_load(t, 1, &l, &e);
        if (status != r->status || !strstr(e.text, r->sentence))
            fail_msg("row %zu, %s: %s, \"%s\" lacks \"%s\"", i, r->name, status_name(status), e.text, r->sentence);
        if (status) {
            assert_ptr_equal(strstr(e.text, l.folder.path), e.text);
            assert_null(l.weights);
        }
        tiny_unload(&l);
        tiny_free(t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
