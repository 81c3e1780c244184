// version: what this program is and what it was built with.
#include "cli/commands.h"
#include "cpu/device_cpu.h"
#include <stdio.h>

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

int cmd_version(int argc, char **argv) {
    (void)argv;
    if (argc > 1) {
        fprintf(stderr, "tokenfold: version takes no arguments\n");
        return EXIT_USAGE;
    }
    printf("tokenfold %s\n", TF_VERSION);
    printf("built with %s, %s\n", COMPILER, TF_CUDA ? "CUDA code included" : "without CUDA code");
    printf("this processor: %s\n", cpu_isa_name(cpu_isa_detect()));
    return 0;
}
