// Owns what a repository, a revision, a commit and a file of a hub may be called. Everything that a hub or a person
// names becomes part of a path or a URL only after one of these has allowed it. Pure functions; any thread.
#ifndef TF_HUB_NAME_H
#define TF_HUB_NAME_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>

#define HUB_REPO_BYTES     200 // "ORG/NAME"
#define HUB_REVISION_BYTES 200
#define HUB_COMMIT_BYTES   65 // 40 or 64 hexadecimal digits
#define HUB_DIGEST_BYTES   65
#define HUB_FILE_BYTES     256

struct hub_name {
    char repo[HUB_REPO_BYTES];         // "ORG/NAME"
    char revision[HUB_REVISION_BYTES]; // a branch, a tag or a commit; "main" when none was named
};

// "ORG/NAME" or "ORG/NAME@REVISION". Errors: INVALID.
enum status hub_name_read(const char *text, struct hub_name *out, struct error *e);

bool hub_is_repo(const char *text);     // ORG/NAME of letters, digits, '.', '_' and '-'
bool hub_is_revision(const char *text); // steps of the same characters, none of them "..", joined by '/'
bool hub_is_commit(const char *text);   // 40 or 64 lower-case hexadecimal digits
bool hub_is_digest(const char *text, size_t n_digits);
// A path below a folder that leads nowhere else: no empty, "." or ".." steps, no '\', no control characters.
bool hub_is_safe_path(const char *text, size_t n);

#endif
