// The fp32 kernels, compiled for AVX-512.
#include "cpu/x86/attend_body.h"
#include "cpu/x86/conv_body.h"
#include "cpu/x86/delta_chunk_body.h"
#include "cpu/x86/delta_rows_body.h"
#include "cpu/x86/delta_scores_body.h"
#include "cpu/x86/draw_body.h"
#include "cpu/x86/linear_body.h"
#include "cpu/x86/rows_body.h"
#include "cpu/x86/x86.h"

void cpu_x86_fill_float_avx512(struct cpu_kernels *k) {
    fill_rows(k);
    fill_conv(k);
    fill_draw(k);
    fill_linear(k);
    fill_attend(k);
    fill_delta_rows(k);
    fill_delta_chunk(k);
    fill_delta_scores(k);
}
