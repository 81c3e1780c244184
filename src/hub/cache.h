// Owns the layout of Hugging Face's cache, which other programs share: below the cache's folder
//   models--ORG--NAME/blobs/DIGEST            a file's bytes, named by their digest: only verified bytes get that name
//   models--ORG--NAME/blobs/DIGEST.incomplete what has come so far
//   models--ORG--NAME/snapshots/COMMIT/FILE   a link to ../../blobs/DIGEST
//   models--ORG--NAME/refs/REVISION           the commit that a branch or tag meant when it was last asked for
//   .locks/models--ORG--NAME/DIGEST.lock      held by the process that downloads that file
// Any thread; processes are kept apart by the locks.
#ifndef TF_HUB_CACHE_H
#define TF_HUB_CACHE_H

#include "hub/listing.h"
#include "hub/name.h"

#define HUB_PATH_BYTES 4096

// The cache's folder: HF_HUB_CACHE, else HF_HOME/hub, else XDG_CACHE_HOME/huggingface/hub, else
// ~/.cache/huggingface/hub. Errors: NOT_FOUND when none of them is set.
enum status hub_cache_folder(char path[HUB_PATH_BYTES], struct error *e);
// The file in which `hf auth login` leaves a token: HF_TOKEN_PATH, else `token` in HF_HOME or what that is when it is
// unset, as above. Errors: NOT_FOUND as above.
enum status hub_token_file(char path[HUB_PATH_BYTES], struct error *e);

// The snapshot of a repository that is in the cache: of the commit itself, or of the one that its revision last meant.
// NOT_FOUND when there is none.
enum status hub_cache_find(const char *cache, const struct hub_name *name, char path[HUB_PATH_BYTES], struct error *e);

// Calls take for every snapshot that some revision of a repository means, or that its folder holds. Errors: IO, MEMORY;
// a cache that does not exist has no snapshots.
typedef void hub_cache_fn(void *context, const char *repo, const char *commit, const char *path);
enum status hub_cache_list(const char *cache, hub_cache_fn *take, void *context, struct error *e);

// ---- writing ----

// Makes a repository's folders. blobs is where its files go.
enum status hub_cache_prepare(const char *cache, const char *repo, char blobs[HUB_PATH_BYTES], struct error *e);
// Locks a file against other processes; close(*fd) unlocks. BUSY when another one holds it.
enum status hub_cache_lock(const char *cache, const char *repo, const char *digest, int *fd, struct error *e);
// Whether the whole file is there.
bool hub_cache_has(const char *blobs, const struct hub_file *file);
// Puts a link to the file's bytes into the snapshot, in place of whatever has that name.
enum status hub_cache_link(const char *cache, const char *repo, const char *commit, const struct hub_file *file,
                           struct error *e);
// Notes which commit a revision means.
enum status hub_cache_note(const char *cache, const struct hub_name *name, const char *commit, struct error *e);

#endif
