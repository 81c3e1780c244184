// Puts the overlays of an instruction set over the portable kernels, from the narrowest to the widest.
#include "cpu/x86/x86.h"

void cpu_x86_overlay(struct cpu_kernels *k, enum cpu_isa isa, enum compute compute) {
    if (isa < ISA_AVX2) return;
    (isa == ISA_AVX2 ? cpu_x86_fill_float_avx2 : cpu_x86_fill_float_avx512)(k);
    if (compute == COMPUTE_F32) return;
    int planes = compute == COMPUTE_INT8 ? 1 : 2;
    // AVX-512 without VNNI has nothing over AVX2 for integers.
    (isa < ISA_VNNI ? cpu_x86_fill_integer_avx2 : cpu_x86_fill_integer_vnni)(k, planes);
    if (isa < ISA_AMX) return;
    cpu_x86_fill_integer_rows_amx(k, planes);
    cpu_x86_fill_integer_prompt_amx(k, planes);
    cpu_x86_fill_plain_prompt_amx(k);
    cpu_x86_fill_plain_rows_amx(k);
    cpu_x86_fill_attend_amx(k);
}
