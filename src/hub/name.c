#include "hub/name.h"
#include <string.h>

#define COMMIT_DIGITS      40
#define LONG_COMMIT_DIGITS 64

static bool is_plain(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
}

// One step of a name: plain characters, a letter or digit first, and neither ".." nor "--", which the cache's folders
// put between steps.
static bool is_step(const char *text, size_t n, bool double_dash) {
    if (n == 0 || text[0] == '.' || text[0] == '-') return false;
    for (size_t i = 0; i < n; i++) {
        if (!is_plain(text[i])) return false;
        if (i == 0 || text[i - 1] != text[i]) continue;
        if (text[i] == '.' || (text[i] == '-' && !double_dash)) return false;
    }
    return true;
}

bool hub_is_repo(const char *text) {
    const char *slash = strchr(text, '/');
    return slash != NULL && strlen(text) < HUB_REPO_BYTES && is_step(text, (size_t)(slash - text), false) &&
           is_step(slash + 1, strlen(slash + 1), false);
}

bool hub_is_revision(const char *text) {
    if (strlen(text) >= HUB_REVISION_BYTES) return false;
    for (;;) {
        size_t n = strcspn(text, "/");
        if (!is_step(text, n, true)) return false;
        if (text[n] == 0) return true;
        text += n + 1;
    }
}

bool hub_is_digest(const char *text, size_t n_digits) {
    return strlen(text) == n_digits && strspn(text, "0123456789abcdef") == n_digits;
}

bool hub_is_commit(const char *text) {
    return hub_is_digest(text, COMMIT_DIGITS) || hub_is_digest(text, LONG_COMMIT_DIGITS);
}

bool hub_is_safe_path(const char *text, size_t n) {
    if (n == 0 || memchr(text, 0, n) != NULL) return false;
    for (size_t at = 0; at <= n;) {
        const char *end = memchr(text + at, '/', n - at);
        size_t step = end != NULL ? (size_t)(end - text) - at : n - at;
        if (step == 0 || step >= HUB_FILE_BYTES) return false;
        if (text[at] == '.' && (step == 1 || (step == 2 && text[at + 1] == '.'))) return false;
        for (size_t i = at; i < at + step; i++)
            if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f || text[i] == '\\') return false;
        at += step + 1;
    }
    return true;
}

enum status hub_name_read(const char *text, struct hub_name *out, struct error *e) {
    struct hub_name name = {.revision = "main"};
    size_t n = strcspn(text, "@");
    if (n < sizeof name.repo) memcpy(name.repo, text, n);
    if (n >= sizeof name.repo || !hub_is_repo(name.repo))
        return error_set(e, STATUS_INVALID, "\"%s\" is not the name of a repository: it must be ORG/NAME", text);
    if (text[n] == '@') {
        if (!hub_is_revision(text + n + 1))
            return error_set(e, STATUS_INVALID, "\"%s\" is not a revision: it must be a branch, a tag or a commit",
                             text + n + 1);
        memcpy(name.revision, text + n + 1, strlen(text + n + 1) + 1);
    }
    *out = name;
    return STATUS_OK;
}
