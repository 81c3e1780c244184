// Puts the overlays of an instruction set over the portable kernels, from the narrowest to the widest.
#include "cpu/x86/x86.h"

// Quantised weights by int8 activations; AVX-512 without VNNI has nothing over AVX2 here.
static void overlay_int8(struct cpu_kernels *k, enum cpu_isa isa) {
    if (isa < ISA_VNNI)
        cpu_x86_fill_int8_avx2(k);
    else
        cpu_x86_fill_int8_vnni(k);
    if (isa >= ISA_AMX) cpu_x86_fill_int8_amx(k);
}

void cpu_x86_overlay(struct cpu_kernels *k, enum cpu_isa isa, enum compute compute) {
    if (isa < ISA_AVX2) return;
    if (isa == ISA_AVX2)
        cpu_x86_fill_float_avx2(k, compute);
    else
        cpu_x86_fill_float_avx512(k, compute);
    if (compute == COMPUTE_INT8) overlay_int8(k, isa);
    if (compute == COMPUTE_F32 || isa < ISA_AMX) return; // rounding to bf16 is for the other modes
    cpu_x86_fill_prompt_amx(k);
}
