// Owns the CPU backend: the operations in C, overlaid by faster versions for the instruction sets that the processor
// has.
#ifndef TF_CPU_DEVICE_CPU_H
#define TF_CPU_DEVICE_CPU_H

#include "ops/device.h"
#include <stdbool.h>

// Instruction sets, each including those before it as far as the overlays need them. ISA_C is portable C.
enum cpu_isa { ISA_C, ISA_AVX2, ISA_AVX512, ISA_VNNI, ISA_AMX };

// The best that this processor and the operating system allow.
enum cpu_isa cpu_isa_detect(void);
const char *cpu_isa_name(enum cpu_isa isa);

// n_threads 0: one a core that this process may use. isa is lowered to what the processor has. COMPUTE_AUTO is bf16:
// int8 is faster, but less exact than a default may be, and has to be asked for; `quantised` says whether the
// checkpoint's weights are quantised, without which int8 is bf16. With isa ISA_C and COMPUTE_F32 it is the reference.
enum status cpu_device_create(enum compute compute, bool quantised, int n_threads, enum cpu_isa isa,
                              struct device **out, struct error *e);

#endif
