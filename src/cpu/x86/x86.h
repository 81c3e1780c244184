// Owns the list of overlays. Each fills the part of the table that it has something faster for; a later one of the list
// goes over an earlier one.
#ifndef TF_CPU_X86_X86_H
#define TF_CPU_X86_X86_H

#include "cpu/kernel_table.h"

// fp32 arithmetic: rows, attention, the delta rule, and linears.
void cpu_x86_fill_float_avx2(struct cpu_kernels *k);
void cpu_x86_fill_float_avx512(struct cpu_kernels *k);
// Quantised weights by activations of one or two planes of int8 (int8_vnni.h), in both forms.
void cpu_x86_fill_integer_avx2(struct cpu_kernels *k, int planes);
void cpu_x86_fill_integer_vnni(struct cpu_kernels *k, int planes);
// The same on tiles: of rounds and of prompts.
void cpu_x86_fill_integer_rows_amx(struct cpu_kernels *k, int planes);
void cpu_x86_fill_integer_prompt_amx(struct cpu_kernels *k, int planes);
// Products of bf16 on tiles, two to each fp32 activation: plain weights in both forms, attention of prompts.
void cpu_x86_fill_plain_prompt_amx(struct cpu_kernels *k);
void cpu_x86_fill_plain_rows_amx(struct cpu_kernels *k);
void cpu_x86_fill_attend_amx(struct cpu_kernels *k);

#endif
