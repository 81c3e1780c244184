// Prints every matrix of a checkpoint as the forward pass sees it: its place, its sizes, and the CRC-32 of its values
// dequantised to fp32, row by row. For test_weights.py.
#include "base/numeric.h"
#include "format/checkpoint.h"
#include "format/mlx.h"
#include "model/weights.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static uint32_t crc(uint32_t c, const void *data, size_t n) {
    const unsigned char *p = data;
    for (c = ~c; n; n--) {
        c ^= *p++;
        for (int k = 0; k < 8; k++) c = c >> 1 ^ (0xedb88320 & -(c & 1));
    }
    return ~c;
}

static float value(const void *data, enum dtype type, int64_t i) {
    if (type == DTYPE_F32) return ((const float *)data)[i];
    uint16_t half = ((const uint16_t *)data)[i];
    return type == DTYPE_BF16 ? bf16_to_float(half) : f16_to_float(half);
}

static void print_matrix(const char *name, const struct weight *w) {
    if (w->kind == WEIGHT_NONE) return;
    float *row = malloc((size_t)w->n_in * sizeof *row), *scales = malloc((size_t)w->n_in * sizeof *scales),
          *biases = malloc((size_t)w->n_in * sizeof *biases);
    must(row && scales && biases);
    uint32_t sum = 0;
    for (int64_t r = 0; r < w->n_out; r++) {
        struct weight one = weight_rows(*w, r, 1);
        if (w->kind == WEIGHT_PLAIN) {
            for (int64_t i = 0; i < w->n_in; i++) row[i] = value(one.data, w->dtype, i);
        } else {
            for (int64_t g = 0; g < w->n_in / w->group; g++) {
                scales[g] = value(one.scales, w->dtype, g);
                biases[g] = value(one.biases, w->dtype, g);
            }
            mlx_dequantise_row(one.data, scales, biases, w->bits, w->group, w->n_in, row);
        }
        sum = crc(sum, row, (size_t)w->n_in * sizeof *row);
    }
    printf("%s %" PRId64 " %" PRId64 " %08" PRIx32 "\n", name, w->n_out, w->n_in, sum);
    free(row);
    free(scales);
    free(biases);
}

static void print_layer(const char *prefix, const struct layer_weights *l, int64_t n_experts) {
    const struct {
        const char *name;
        const struct weight *w;
    } all[] = {
        {"self_attn.q_proj", &l->q},
        {"self_attn.k_proj", &l->k},
        {"self_attn.v_proj", &l->v},
        {"self_attn.o_proj", &l->o},
        {"linear_attn.in_proj_qkv", &l->qkv},
        {"linear_attn.in_proj_z", &l->z},
        {"linear_attn.in_proj_b", &l->b},
        {"linear_attn.in_proj_a", &l->a},
        {"linear_attn.out_proj", &l->out},
        {n_experts ? "mlp.shared_expert.gate_proj" : "mlp.gate_proj", &l->mlp.gate},
        {n_experts ? "mlp.shared_expert.up_proj" : "mlp.up_proj", &l->mlp.up},
        {n_experts ? "mlp.shared_expert.down_proj" : "mlp.down_proj", &l->mlp.down},
        {"mlp.gate", &l->router},
        {"mlp.shared_expert_gate", &l->shared_gate},
    };
    char name[128];
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        snprintf(name, sizeof name, "%s%s", prefix, all[i].name);
        print_matrix(name, all[i].w);
    }
    for (int64_t e = 0; e < n_experts; e++) {
        snprintf(name, sizeof name, "%sexpert.%" PRId64 ".gate", prefix, e);
        print_matrix(name, &l->expert_gate[e]);
        snprintf(name, sizeof name, "%sexpert.%" PRId64 ".up", prefix, e);
        print_matrix(name, &l->expert_up[e]);
        snprintf(name, sizeof name, "%sexpert.%" PRId64 ".down", prefix, e);
        print_matrix(name, &l->expert_down[e]);
    }
}

int main(int n_arguments, char **arguments) {
    struct checkpoint *c;
    struct model_config config;
    struct model_weights *w;
    struct error e = {0};
    must(n_arguments == 2);
    if (checkpoint_open(arguments[1], &c, &e) || config_load(c, &config, &e) || weights_load(c, &config, &w, &e)) {
        fprintf(stderr, "%s\n", e.text);
        return 1;
    }
    print_matrix("embed_tokens", &w->embedding);
    print_matrix("lm_head", &w->output);
    for (int64_t i = 0; i < config.n_layers; i++) {
        char prefix[64];
        snprintf(prefix, sizeof prefix, "layers.%" PRId64 ".", i);
        print_layer(prefix, &w->layers[i], config.n_experts);
    }
    print_matrix("mtp.fc", &w->mtp.fc);
    for (int64_t i = 0; i < w->mtp.n_layers; i++) print_layer("mtp.layers.0.", &w->mtp.layers[i], config.n_experts);
    weights_free(w);
    config_free(&config);
    checkpoint_free(c);
    return 0;
}
