// Runs a fuzz target over inputs without a fuzzer: replay_NAME [FILE|FOLDER]..., by default tests/fuzz/corpus/NAME.
// The inputs are copied into memory of exactly their size, so that a sanitizer sees a read past the end.
#include "base/mapped_file.h"
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_INPUT_BYTES ((size_t)64 << 20)

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static bool replay_file(const char *path) {
    struct error e;
    char *text;
    size_t n;
    if (file_read(path, MAX_INPUT_BYTES, &text, &n, &e) != STATUS_OK) {
        printf("%s\n", e.text);
        return false;
    }
    printf("%s\n", path); // before it runs: after a crash the last line names the input
    fflush(stdout);
    uint8_t *exact = malloc(n ? n : 1);
    must(exact);
    memcpy(exact, text, n);
    free(text);
    LLVMFuzzerTestOneInput(exact, n);
    free(exact);
    return true;
}

// Returns how many inputs were run, or -1.
static int replay_folder(const char *path) {
    struct dirent **entries;
    int n_entries = scandir(path, &entries, NULL, alphasort);
    if (n_entries < 0) {
        printf("%s: %s\n", path, strerror(errno));
        return -1;
    }
    int n_run = 0;
    for (int i = 0; i < n_entries; i++) {
        char name[PATH_MAX + NAME_MAX + 2];
        struct stat info;
        snprintf(name, sizeof name, "%.*s/%s", PATH_MAX, path, entries[i]->d_name);
        bool is_input = stat(name, &info) == 0 && S_ISREG(info.st_mode);
        if (n_run >= 0 && is_input) n_run = replay_file(name) ? n_run + 1 : -1;
        free(entries[i]);
    }
    free(entries);
    return n_run;
}

static int replay(const char *path) {
    struct stat info;
    if (stat(path, &info) == 0 && S_ISREG(info.st_mode)) return replay_file(path) ? 1 : -1;
    return replay_folder(path);
}

int main(int n_arguments, char **arguments) {
    const char *base = strrchr(arguments[0], '/');
    const char *name = strstr(base ? base : arguments[0], "replay_");
    char corpus[4096];
    snprintf(corpus, sizeof corpus, "tests/fuzz/corpus/%s", name ? name + strlen("replay_") : "");
    int total = 0;
    for (int i = 1; i < (n_arguments > 1 ? n_arguments : 2); i++) {
        int n = replay(n_arguments > 1 ? arguments[i] : corpus);
        if (n < 0) return 1;
        total += n;
    }
    printf("%d inputs\n", total);
    return total > 0 ? 0 : 1; // an empty corpus tests nothing
}
