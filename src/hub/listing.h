// Owns what a hub says about a revision of a repository: its commit, and the files that a checkpoint needs with their
// sizes and digests. The answer is not trusted: paths that lead elsewhere, commits and digests that are no hashes,
// sizes that are no sizes, and files that come twice are refused. Pure functions; any thread.
#ifndef TF_HUB_LISTING_H
#define TF_HUB_LISTING_H

#include "hub/name.h"
#include <stdint.h>

#define HUB_LISTING_BYTES_MAX ((size_t)32 << 20)
#define HUB_FILES_MAX         100000 // in a repository
#define HUB_FILE_SIZE_MAX     ((int64_t)1 << 50)

struct hub_file {
    char name[HUB_FILE_BYTES]; // a plain name: files in folders are not a checkpoint's
    char digest[HUB_DIGEST_BYTES];
    bool sha256; // digest is SHA-256 of the file; otherwise it is git's: SHA-1 of "blob SIZE\0" and the file
    int64_t size;
};

struct hub_listing {
    char commit[HUB_COMMIT_BYTES];
    struct hub_file *files; // [n_files], small ones first
    size_t n_files;
    int64_t total_bytes;
};

// text: the answer of /api/models/REPO/revision/REVISION?blobs=true. Errors: INVALID (the hub is at fault; the sentence
// says how), NOT_FOUND (no checkpoint is in it), LIMIT, MEMORY.
enum status hub_listing_read(const char *text, size_t n, struct hub_listing *out, struct error *e);
void hub_listing_free(struct hub_listing *l); // an all-zero struct is fine

// Whether a file belongs to a checkpoint: weights in safetensors, configuration, tokenizer, template, licence.
bool hub_listing_wants(const char *name);

#endif
