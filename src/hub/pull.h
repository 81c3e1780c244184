// Owns a verified download: repositories' files into Hugging Face's cache. Room is checked before the first file comes;
// what was interrupted goes on where it stopped; a file gets its name only when its digest is right; the links that
// make a snapshot come last, when all its files are there. One thread at a time; processes may run it side by side.
#ifndef TF_HUB_PULL_H
#define TF_HUB_PULL_H

#include "hub/cache.h"
#include "hub/name.h"

struct pull_options {
    const char *endpoint; // of the hub or a mirror
    const char *token;    // NULL: none
    const char *cache;    // the cache's folder
    int64_t stall_s;      // the longest silence
    int64_t pause_ns;     // before another try; doubled for each further one
    int retries;          // tries in a row that bring nothing, before giving up
    bool verify;          // read again what is there already
    void (*progress)(void *context, int64_t bytes_done, int64_t bytes_total); // of all repositories; may be NULL
    void (*note)(void *context, const char *sentence);                        // what happens; may be NULL
    void *context;
};

// The commits of all repositories are asked for first, then their files are brought. snapshots: [n_names] paths.
// Errors: those of transfer.h; LIMIT (there is no room), BUSY (another process downloads one of the files), IO.
enum status pull_repos(const struct pull_options *options, const struct hub_name *names, size_t n_names,
                       char (*snapshots)[HUB_PATH_BYTES], struct error *e);

#endif
