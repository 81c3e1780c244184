// Puts the overlays of an instruction set over the portable kernels, from the narrowest to the widest.
#include "cpu/x86/x86.h"

// Quantised weights by integer activations; AVX-512 without VNNI has nothing over AVX2 here. Where a mode wants bf16
// products, a round's activations are int16: the same weights are read, and no less of x is kept.
static void overlay_integers(struct cpu_kernels *k, enum cpu_isa isa, enum compute compute) {
    bool two = compute == COMPUTE_BF16;
    if (isa < ISA_VNNI) {
        (two ? cpu_x86_fill_int16_avx2 : cpu_x86_fill_int8_avx2)(k);
        return;
    }
    (two ? cpu_x86_fill_int16_vnni : cpu_x86_fill_int8_vnni)(k);
    if (isa >= ISA_AMX) (two ? cpu_x86_fill_int16_amx : cpu_x86_fill_int8_amx)(k);
}

void cpu_x86_overlay(struct cpu_kernels *k, enum cpu_isa isa, enum compute compute) {
    if (isa < ISA_AVX2) return;
    if (isa == ISA_AVX2)
        cpu_x86_fill_float_avx2(k, compute);
    else
        cpu_x86_fill_float_avx512(k, compute);
    if (compute == COMPUTE_F32) return; // rounding is for the other modes
    overlay_integers(k, isa, compute);
    if (isa < ISA_AMX) return;
    cpu_x86_fill_prompt_amx(k);
    cpu_x86_fill_rows_plain_amx(k);
    cpu_x86_fill_attend_amx(k);
}
