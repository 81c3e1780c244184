// pull REPO[@REV]...: verified downloads into Hugging Face's cache, where serve finds them by name.
#include "base/mapped_file.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "hub/pull.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_ENDPOINT "https://huggingface.co"
#define REPOS_MAX        8
#define STALL_SECONDS    60
#define PAUSE_NS         ((int64_t)1000000000)

static const char *variable(const char *name) {
    const char *value = getenv(name);
    return value != NULL && *value != 0 ? value : NULL;
}

// The token that `hf auth login` has left is the hub's own: a mirror gets a token only when HF_TOKEN names it.
static char *read_token(const char *endpoint) {
    const char *token = variable("HF_TOKEN");
    char file[HUB_PATH_BYTES], *text;
    size_t n;
    struct error e;
    if (token != NULL) return strdup(token);
    if (strcmp(endpoint, DEFAULT_ENDPOINT) != 0) return NULL;
    if (hub_token_file(file, &e) != STATUS_OK || file_read(file, 4096, &text, &n, &e) != STATUS_OK) return NULL;
    text[strcspn(text, " \r\n")] = 0;
    if (*text != 0) return text;
    free(text);
    return NULL;
}

static int64_t stall_seconds(void) {
    const char *text = variable("HF_HUB_DOWNLOAD_TIMEOUT");
    long seconds = text != NULL ? strtol(text, NULL, 10) : 0;
    return seconds > 0 && seconds < 86400 ? seconds : STALL_SECONDS;
}

static void show(void *context, int64_t bytes_done, int64_t bytes_total) {
    static char doing[] = "downloading";
    const struct options *o = context;
    if (!o->no_progress) progress_show(doing, bytes_done, bytes_total);
}

static void say(void *context, const char *sentence) {
    const struct options *o = context;
    if (!o->no_progress) progress_clear();
    fprintf(stderr, "%s\n", sentence);
}

static enum status pull(const struct options *o, struct error *e) {
    struct hub_name names[REPOS_MAX];
    char cache[HUB_PATH_BYTES];
    enum status st = hub_cache_folder(cache, e);
    for (int i = 0; i < o->n_args && st == STATUS_OK; i++) st = hub_name_read(o->args[i], &names[i], e);
    if (st != STATUS_OK) return st;
    char(*snapshots)[HUB_PATH_BYTES] = calloc((size_t)o->n_args, sizeof *snapshots);
    if (snapshots == NULL) return error_memory(e);
    const char *endpoint = variable("HF_ENDPOINT") != NULL ? variable("HF_ENDPOINT") : DEFAULT_ENDPOINT;
    char *token = read_token(endpoint);
    struct pull_options options = {
        .endpoint = endpoint,
        .token = token,
        .cache = cache,
        .stall_s = stall_seconds(),
        .pause_ns = PAUSE_NS,
        .retries = (int)o->retries,
        .verify = o->verify,
        .progress = show,
        .note = say,
        .context = (void *)o,
    };
    st = pull_repos(&options, names, (size_t)o->n_args, snapshots, e);
    for (int i = 0; i < o->n_args && st == STATUS_OK; i++) printf("%s\n", snapshots[i]);
    free(token);
    free(snapshots);
    return st;
}

int cmd_pull(int argc, char **argv) {
    struct options o;
    struct error e;
    int exit_code;
    if (!options_parse(VERB_PULL, argc, argv, &o, &exit_code)) return exit_code;
    if (o.n_args < 1 || o.n_args > REPOS_MAX) {
        fprintf(stderr, "tokenfold: pull takes 1 to %d repositories: pull ORG/NAME[@REVISION] [ORG/DRAFTER]\n",
                REPOS_MAX);
        return EXIT_USAGE;
    }
    if (pull(&o, &e) == STATUS_OK) return 0;
    fprintf(stderr, "tokenfold: %s\n", e.text);
    return EXIT_FAILED;
}
