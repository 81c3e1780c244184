// Owns the list of suites; each is in the op_*.c of its operation.
#ifndef TF_CHECK_SUITES_H
#define TF_CHECK_SUITES_H

struct suite;

extern const struct suite suite_linear, suite_linear_wide, suite_linear_prompt, suite_linear_prompt_terms, suite_embed,
    suite_norm, suite_swiglu, suite_activated, suite_qk_store, suite_qk_store_e4m3, suite_attention,
    suite_attention_prompt, suite_attention_e4m3, suite_attention_prompt_e4m3, suite_conv, suite_delta,
    suite_delta_prompt, suite_router, suite_experts, suite_moe, suite_draw, suite_block_conv, suite_block_attention,
    suite_copy, suite_conv_delta, suite_gated, suite_series, suite_arranged;

#endif
