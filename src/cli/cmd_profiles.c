// profiles: the settings that come from the environment, as docs/profiles.md has them.
#include "cli/commands.h"
#include "memory/profile.h"
#include <stdio.h>

int cmd_profiles(int argc, char **argv) {
    (void)argv;
    if (argc > 1) {
        fprintf(stderr, "tokenfold: profiles takes no arguments\n");
        return EXIT_USAGE;
    }
    struct buffer page;
    buffer_init(&page, 0);
    bool ok = profile_write_page(&page);
    if (ok) fwrite(page.data, 1, page.n, stdout);
    buffer_free(&page);
    return ok ? 0 : EXIT_FAILED;
}
