// The rounds' attention compiled without pages, for bench/kernels_cuda.c: the same source, whose kernels and all else
// that is not static get other names.
#define TF_ATTENTION_FLAT
#define attention_rows   attention_rows_flat
#define attention_prompt attention_prompt_flat
#define need_attention   need_attention_flat
#include "cuda/attention_rows.cu"
