// info MODEL: what a checkpoint is, from its headers and small files. Opens no device and reads no matrix.
#include "cli/commands.h"
#include "cli/options.h"
#include "format/checkpoint.h"
#include "format/json.h"
#include "model/layout.h"
#include "model/weights.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct info {
    const char *dir;
    struct checkpoint *checkpoint;
    struct model_config config;
    struct model_weights *weights;
    bool tokenizer, template;
    char drafter[CHECKPOINT_PATH_BYTES]; // folder of a DFlash drafter beside the checkpoint; "" when there is none
};

static bool has_file(const char *dir, const char *name) {
    char path[CHECKPOINT_PATH_BYTES];
    return checkpoint_locate(dir, name, path, NULL) == STATUS_OK;
}

// A drafter is a folder of its own, named after the model's: MODEL-DFlash2.
static void find_drafter(struct info *i) {
    static const char *const suffixes[] = {"-DFlash2", "-DFlash"};
    for (int k = 0; k < 2 && !i->drafter[0]; k++) {
        int n = snprintf(i->drafter, sizeof i->drafter, "%s%s", checkpoint_folder(i->checkpoint), suffixes[k]);
        if (n >= (int)sizeof i->drafter || !has_file(i->drafter, "config.json")) i->drafter[0] = 0;
    }
}

static enum status read_info(struct info *i, struct error *e) {
    enum status status = checkpoint_open(i->dir, &i->checkpoint, e);
    if (!status) status = config_load(i->checkpoint, &i->config, e);
    if (!status) status = weights_load(i->checkpoint, &i->config, &i->weights, e);
    if (status) return status;
    i->tokenizer = has_file(i->dir, "tokenizer.json");
    i->template = has_file(i->dir, "chat_template.jinja") ||
                  json_object_get(checkpoint_tokenizer_config(i->checkpoint), "chat_template");
    find_drafter(i);
    return STATUS_OK;
}

static void free_info(struct info *i) {
    weights_free(i->weights);
    config_free(&i->config);
    checkpoint_free(i->checkpoint);
}

static bool is_quantised(const struct info *i) {
    const struct weight_census *c = &i->weights->census;
    return weights_count(c) > c->n_by_bits[16] + c->n_by_bits[32];
}

static const char *layout(const struct info *i) {
    if (is_quantised(i)) return "MLX affine";
    return !strcmp(checkpoint_format(i->checkpoint), "mlx") ? "MLX" : "Hugging Face";
}

// Of keys and values, for each position of a stream.
static double kv_bytes(const struct model_config *c, enum dtype kv) {
    struct page_layout l = page_lay_out(c, 1, kv);
    return (double)(c->n_attention_layers * (l.layer_bytes + l.scale_bytes));
}

// ---- for people ----

static void print_count(int64_t n) {
    if (n >= 1000000000)
        printf("%.2f billion", (double)n / 1e9);
    else if (n >= 1000000)
        printf("%.1f million", (double)n / 1e6);
    else
        printf("%" PRId64, n);
}

static void print_widths(const struct weight_census *census) {
    double total = (double)weights_count(census);
    const char *separator = "";
    for (int bits = 2; bits <= 32; bits++) {
        double percent = 100 * (double)census->n_by_bits[bits] / total;
        if (percent == 0) continue;
        if (percent < 0.1)
            printf("%s%d bits < 0.1 %%", separator, bits);
        else
            printf("%s%d bits %.1f %%", separator, bits, percent);
        separator = ", ";
    }
}

static void print_sampling(const struct sampling_defaults *s) {
    const struct {
        const char *name;
        double value;
    } values[] = {{"temperature", s->temperature},
                  {"top-p", s->top_p},
                  {"top-k", s->top_k < 0 ? NAN : (double)s->top_k},
                  {"min-p", s->min_p},
                  {"repetition penalty", s->repetition_penalty},
                  {"presence penalty", s->presence_penalty}};
    const char *separator = "";
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        if (isnan(values[i].value)) continue;
        printf("%s%s %g", separator, values[i].name, values[i].value);
        separator = ", ";
    }
    printf("%s\n", separator[0] ? "" : "not said");
}

static void print_text(const struct info *i) {
    const struct model_config *c = &i->config;
    const struct model_weights *w = i->weights;
    size_t n_files = checkpoint_n_files(i->checkpoint);
    double bytes = (double)checkpoint_bytes(i->checkpoint), gib = 1 << 30, mib = 1 << 20;
    printf("folder      %s\n", checkpoint_folder(i->checkpoint));
    printf("format      %s, %zu file%s, %.2f %s\n", layout(i), n_files, n_files == 1 ? "" : "s",
           bytes < gib ? bytes / mib : bytes / gib, bytes < gib ? "MiB" : "GiB");
    printf("family      %s, %s\n", config_family_name(c->family), c->n_experts ? "mixture of experts" : "dense");
    printf("parameters  ");
    print_count(weights_count(&w->census));
    printf("%s\nweights     ", c->tied ? ", output tied to the embedding" : "");
    print_widths(&w->census);
    printf("\nlayers      %" PRId64 ": %" PRId64 " gated delta, %" PRId64 " full attention\n", c->n_layers,
           c->n_delta_layers, c->n_attention_layers);
    printf("hidden      %" PRId64 "\n", c->n_hidden);
    if (c->n_experts)
        printf("experts     %" PRId64 " of width %" PRId64 ", %" PRId64 " a token, and a shared one of width %" PRId64
               "\n",
               c->n_experts, c->expert_width, c->n_experts_used, c->shared_width);
    else
        printf("mlp         %" PRId64 "\n", c->n_intermediate);
    printf("attention   %" PRId64 " heads, %" PRId64 " KV heads, of %" PRId64 " (%" PRId64 " rotate)\n", c->n_heads,
           c->n_kv_heads, c->head_dim, c->n_rotary);
    printf("delta       %" PRId64 " key heads of %" PRId64 ", %" PRId64 " value heads of %" PRId64 "\n", c->n_key_heads,
           c->key_dim, c->n_value_heads, c->value_dim);
    printf("kv          %.4g KiB a token in bf16, %.4g in fp8\n", kv_bytes(c, DTYPE_BF16) / 1024,
           kv_bytes(c, DTYPE_E4M3) / 1024);
    printf("vocabulary  %" PRId64 "\ncontext     %" PRId64 "\n", c->n_vocab, c->n_context);
    printf("sampling    ");
    print_sampling(&c->sampling);
    printf("MTP head    ");
    if (w->mtp.present) print_count(weights_count(&w->mtp_census));
    if (w->mtp.present) printf(" parameters, ");
    if (w->mtp.present) print_widths(&w->mtp_census);
    printf("%s\ndrafter     %s\n", w->mtp.present ? "" : w->mtp.absence, i->drafter[0] ? i->drafter : "none beside it");
    printf("tokenizer   %s\ntemplate    %s\n", i->tokenizer ? "yes" : "none: it takes token ids only",
           i->template ? "yes" : "none");
}

// ---- for programs ----

static json_t *census_json(const struct weight_census *census) {
    json_t *o = json_object();
    for (int bits = 2; bits <= 32; bits++) {
        char key[16];
        snprintf(key, sizeof key, "%d", bits);
        if (census->n_by_bits[bits]) json_object_set_new(o, key, json_integer(census->n_by_bits[bits]));
    }
    return o;
}

static void set_int(json_t *o, const char *key, int64_t value) { json_object_set_new(o, key, json_integer(value)); }

static void set_real(json_t *o, const char *key, double value) {
    json_object_set_new(o, key, isnan(value) ? json_null() : json_real(value));
}

static json_t *sampling_json(const struct sampling_defaults *s) {
    json_t *o = json_object();
    set_real(o, "temperature", s->temperature);
    set_real(o, "top_p", s->top_p);
    json_object_set_new(o, "top_k", s->top_k < 0 ? json_null() : json_integer(s->top_k));
    set_real(o, "min_p", s->min_p);
    set_real(o, "repetition_penalty", s->repetition_penalty);
    set_real(o, "presence_penalty", s->presence_penalty);
    return o;
}

static void set_dims(json_t *o, const struct model_config *c) {
    const struct {
        const char *key;
        int64_t value;
    } dims[] = {
        {"layers", c->n_layers},
        {"delta_layers", c->n_delta_layers},
        {"attention_layers", c->n_attention_layers},
        {"hidden", c->n_hidden},
        {"intermediate", c->n_intermediate},
        {"experts", c->n_experts},
        {"experts_used", c->n_experts_used},
        {"expert_width", c->expert_width},
        {"shared_width", c->shared_width},
        {"heads", c->n_heads},
        {"kv_heads", c->n_kv_heads},
        {"head_dim", c->head_dim},
        {"rotary_dims", c->n_rotary},
        {"key_heads", c->n_key_heads},
        {"value_heads", c->n_value_heads},
        {"key_dim", c->key_dim},
        {"value_dim", c->value_dim},
        {"conv_taps", c->n_taps},
        {"vocabulary", c->n_vocab},
        {"context", c->n_context},
    };
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) set_int(o, dims[i].key, dims[i].value);
}

static enum status print_json(const struct info *i, struct error *e) {
    const struct model_config *c = &i->config;
    const struct model_weights *w = i->weights;
    json_t *o = json_object(), *eos = json_array(), *mtp = json_object();
    json_object_set_new(o, "folder", json_string(checkpoint_folder(i->checkpoint)));
    json_object_set_new(o, "format", json_string(layout(i)));
    set_int(o, "files", (int64_t)checkpoint_n_files(i->checkpoint));
    set_int(o, "bytes", (int64_t)checkpoint_bytes(i->checkpoint));
    json_object_set_new(o, "family", json_string(config_family_name(c->family)));
    set_int(o, "parameters", weights_count(&w->census));
    json_object_set_new(o, "parameters_by_bits", census_json(&w->census));
    json_object_set_new(o, "quantised", json_boolean(is_quantised(i)));
    json_object_set_new(o, "tied", json_boolean(c->tied));
    set_dims(o, c);
    json_object_set_new(o, "kv_bytes_per_token",
                        json_pack("{s:f, s:f}", "bf16", kv_bytes(c, DTYPE_BF16), "fp8", kv_bytes(c, DTYPE_E4M3)));
    for (int k = 0; k < c->n_eos; k++) json_array_append_new(eos, json_integer(c->eos_ids[k]));
    json_object_set_new(o, "eos_ids", eos);
    json_object_set_new(o, "sampling", sampling_json(&c->sampling));
    json_object_set_new(mtp, "present", json_boolean(w->mtp.present));
    set_int(mtp, "layers", w->mtp.n_layers);
    set_int(mtp, "parameters", weights_count(&w->mtp_census));
    json_object_set_new(mtp, "parameters_by_bits", census_json(&w->mtp_census));
    json_object_set_new(mtp, "absence", w->mtp.present ? json_null() : json_string(w->mtp.absence));
    json_object_set_new(o, "mtp", mtp);
    json_object_set_new(o, "drafter", i->drafter[0] ? json_string(i->drafter) : json_null());
    json_object_set_new(o, "tokenizer", json_boolean(i->tokenizer));
    json_object_set_new(o, "chat_template", json_boolean(i->template));
    struct buffer b;
    buffer_init(&b, 0);
    bool ok = o && json_write(&b, o, JSON_STYLE_INDENT);
    if (ok) printf("%s\n", b.data);
    buffer_free(&b);
    json_decref(o);
    return ok ? STATUS_OK : error_memory(e);
}

int cmd_info(int argc, char **argv) {
    struct options o;
    int exit_code;
    if (!options_parse(VERB_INFO, argc, argv, &o, &exit_code)) return exit_code;
    if (o.n_args > 1) {
        fprintf(stderr, "tokenfold: info takes one MODEL\n");
        return EXIT_USAGE;
    }
    struct info i = {.dir = o.n_args ? o.args[0] : NULL};
    struct error e;
    enum status status = options_find_model(i.dir, &i.dir, &e);
    if (!status) status = read_info(&i, &e);
    if (!status && o.json) status = print_json(&i, &e);
    if (!status && !o.json) print_text(&i);
    free_info(&i);
    if (status) fprintf(stderr, "tokenfold: %s\n", e.text);
    return status ? EXIT_FAILED : 0;
}
