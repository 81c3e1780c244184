// Finds which instruction sets the processor has and the operating system lets this process use.
#include "cpu/device_cpu.h"

const char *cpu_isa_name(enum cpu_isa isa) {
    static const char *const names[] = {"c", "avx2", "avx512", "avx512-vnni", "amx"};
    return names[isa];
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ARCH_REQ_XCOMP_PERM 0x1023 // linux: asm/prctl.h
#define XFEATURE_TILE_DATA  18

// Bits of CPUID leaf 7, subleaf 0, register EDX, and subleaf 1, register EAX (Intel SDM, volume 2, CPUID).
#define LEAF7_EDX_AMX_BF16 (1u << 22)
#define LEAF7_EDX_AMX_TILE (1u << 24)
#define LEAF7_EDX_AMX_INT8 (1u << 25)
#define LEAF7_1_EAX_BF16   (1u << 5)

// Tile data is off in a process until it asks; threads started later inherit the permission.
static bool amx_permitted(void) { return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_TILE_DATA) == 0; }

static bool has_amx(void) {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    const unsigned wanted = LEAF7_EDX_AMX_BF16 | LEAF7_EDX_AMX_TILE | LEAF7_EDX_AMX_INT8;
    if (!__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) || (edx & wanted) != wanted) return false;
    if (!__get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) || !(eax & LEAF7_1_EAX_BF16)) return false;
    return amx_permitted();
}

// __builtin_cpu_supports also asks the operating system (XGETBV) whether it saves the wide registers.
enum cpu_isa cpu_isa_detect(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return ISA_C;
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx) || !(ecx & bit_F16C)) return ISA_C;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl"))
        return ISA_AVX2;
    if (!__builtin_cpu_supports("avx512vnni")) return ISA_AVX512;
    return has_amx() ? ISA_AMX : ISA_VNNI;
}

#else

enum cpu_isa cpu_isa_detect(void) { return ISA_C; }

#endif
