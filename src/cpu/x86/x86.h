// Owns the list of overlays. Each fills the part of the table that it has something faster for; a later one of the list
// goes over an earlier one.
#ifndef TF_CPU_X86_X86_H
#define TF_CPU_X86_X86_H

#include "cpu/kernel_table.h"

// fp32 arithmetic: rows, attention, the delta rule, and linears without quantised activations.
void cpu_x86_fill_float_avx2(struct cpu_kernels *k, enum compute compute);
void cpu_x86_fill_float_avx512(struct cpu_kernels *k, enum compute compute);
// Quantised weights by integer activations: int8 in both forms, int16 in rounds (int8_vnni.h).
void cpu_x86_fill_int8_avx2(struct cpu_kernels *k);
void cpu_x86_fill_int8_vnni(struct cpu_kernels *k);
void cpu_x86_fill_int8_amx(struct cpu_kernels *k);
void cpu_x86_fill_int16_avx2(struct cpu_kernels *k);
void cpu_x86_fill_int16_vnni(struct cpu_kernels *k);
void cpu_x86_fill_int16_amx(struct cpu_kernels *k);
// Products of bf16 on tiles: linears of prompts, linears of rounds with plain weights, attention of prompts.
void cpu_x86_fill_prompt_amx(struct cpu_kernels *k);
void cpu_x86_fill_rows_plain_amx(struct cpu_kernels *k);
void cpu_x86_fill_attend_amx(struct cpu_kernels *k);

#endif
