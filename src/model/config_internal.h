// Shared by the files of config.h only.
#ifndef TF_MODEL_CONFIG_INTERNAL_H
#define TF_MODEL_CONFIG_INTERNAL_H

#include "format/json.h"
#include "model/config.h"

// The quantisation that root or text gives; *out stays as it was when neither gives any. *out owns its overrides.
enum status config_parse_quant(const struct json_view *root, const struct json_view *text, struct quant_config *out,
                               struct error *e);

#endif
