// The prompts' attention compiled without pages, as attention_rows_flat.cu.
#define TF_ATTENTION_FLAT
#define attention_rows   attention_rows_flat
#define attention_prompt attention_prompt_flat
#define cuda_attention   cuda_attention_flat
#include "bench/timer_cuda.h"
#include "cuda/attention_prompt.cu"

extern "C" void attention_flat(struct device *d, const struct attention_args *a) { cuda_attention_flat(d, a); }
