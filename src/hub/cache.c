#include "hub/cache.h"
#include "base/mapped_file.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define FOLDER_MODE 0755
#define PREFIX      "models--"

// ---- paths ----

static enum status make_path(char path[HUB_PATH_BYTES], struct error *e, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static enum status make_path(char path[HUB_PATH_BYTES], struct error *e, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(path, HUB_PATH_BYTES, format, args);
    va_end(args);
    if (n >= 0 && n < HUB_PATH_BYTES) return STATUS_OK;
    return error_set(e, STATUS_LIMIT, "the path of the Hugging Face cache is too long");
}

// "models--ORG--NAME" of "ORG/NAME".
static void folder_of(const char *repo, char folder[HUB_REPO_BYTES + 16]) {
    size_t n = strcspn(repo, "/");
    snprintf(folder, HUB_REPO_BYTES + 16, PREFIX "%.*s--%s", (int)n, repo, repo + n + 1);
}

// The other way round; false when it is no such folder.
static bool repo_of(const char *folder, char repo[HUB_REPO_BYTES]) {
    size_t n_prefix = strlen(PREFIX);
    if (strncmp(folder, PREFIX, n_prefix) != 0 || strlen(folder + n_prefix) >= HUB_REPO_BYTES) return false;
    const char *middle = strstr(folder + n_prefix, "--");
    if (middle == NULL) return false;
    snprintf(repo, HUB_REPO_BYTES, "%.*s/%s", (int)(middle - folder - (ptrdiff_t)n_prefix), folder + n_prefix,
             middle + 2);
    return hub_is_repo(repo);
}

// Below the first variable that is set.
struct place {
    const char *variable, *below;
};

static enum status find_place(const struct place places[4], char path[HUB_PATH_BYTES], struct error *e) {
    for (int i = 0; i < 4; i++) {
        const char *value = getenv(places[i].variable);
        if (value != NULL && *value != 0) return make_path(path, e, "%s%s", value, places[i].below);
    }
    return error_set(e, STATUS_NOT_FOUND, "neither HF_HOME nor HOME is set: there is no place for downloads");
}

enum status hub_cache_folder(char path[HUB_PATH_BYTES], struct error *e) {
    static const struct place places[4] = {{"HF_HUB_CACHE", ""},
                                           {"HF_HOME", "/hub"},
                                           {"XDG_CACHE_HOME", "/huggingface/hub"},
                                           {"HOME", "/.cache/huggingface/hub"}};
    return find_place(places, path, e);
}

enum status hub_token_file(char path[HUB_PATH_BYTES], struct error *e) {
    static const struct place places[4] = {{"HF_TOKEN_PATH", ""},
                                           {"HF_HOME", "/token"},
                                           {"XDG_CACHE_HOME", "/huggingface/token"},
                                           {"HOME", "/.cache/huggingface/token"}};
    return find_place(places, path, e);
}

// ---- reading ----

static bool is_folder(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

// The commit that a revision means, as the cache noted it.
static bool read_ref(const char *path, char commit[HUB_COMMIT_BYTES]) {
    char *text;
    size_t n;
    struct error e;
    if (file_read(path, 4096, &text, &n, &e) != STATUS_OK) return false;
    n = strspn(text, "0123456789abcdef");
    bool ok = n < HUB_COMMIT_BYTES && text[n + strspn(text + n, " \r\n")] == 0;
    if (ok) {
        memcpy(commit, text, n);
        commit[n] = 0;
        ok = hub_is_commit(commit);
    }
    free(text);
    return ok;
}

enum status hub_cache_find(const char *cache, const struct hub_name *name, char path[HUB_PATH_BYTES], struct error *e) {
    char folder[HUB_REPO_BYTES + 16], ref[HUB_PATH_BYTES], commit[HUB_COMMIT_BYTES] = "", snapshot[HUB_PATH_BYTES];
    bool is_main = strcmp(name->revision, "main") == 0;
    const char *at = is_main ? "" : "@", *revision = is_main ? "" : name->revision;
    folder_of(name->repo, folder);
    enum status st = make_path(ref, e, "%s/%s/refs/%s", cache, folder, name->revision);
    if (st != STATUS_OK) return st;
    if (hub_is_commit(name->revision)) {
        memcpy(commit, name->revision, strlen(name->revision) + 1);
    } else if (!read_ref(ref, commit)) {
        return error_set(e, STATUS_NOT_FOUND, "%s%s%s is not in the Hugging Face cache (%s): tokenfold pull %s%s%s",
                         name->repo, at, revision, cache, name->repo, at, revision);
    }
    st = make_path(snapshot, e, "%s/%s/snapshots/%s", cache, folder, commit);
    if (st != STATUS_OK) return st;
    if (!is_folder(snapshot))
        return error_set(e, STATUS_NOT_FOUND,
                         "%s has no snapshot %s in the Hugging Face cache (%s): tokenfold pull %s%s%s", name->repo,
                         commit, cache, name->repo, at, revision);
    memcpy(path, snapshot, sizeof snapshot);
    return STATUS_OK;
}

static enum status list_snapshots(const char *cache, const char *folder, const char *repo, hub_cache_fn *take,
                                  void *context, struct error *e) {
    char path[HUB_PATH_BYTES], snapshot[HUB_PATH_BYTES];
    enum status st = make_path(path, e, "%s/%s/snapshots", cache, folder);
    if (st != STATUS_OK) return st;
    DIR *dir = opendir(path);
    if (dir == NULL) return STATUS_OK; // nothing was downloaded
    for (struct dirent *entry; (entry = readdir(dir)) != NULL && st == STATUS_OK;) {
        if (!hub_is_commit(entry->d_name)) continue;
        st = make_path(snapshot, e, "%s/%s", path, entry->d_name);
        if (st == STATUS_OK && is_folder(snapshot)) take(context, repo, entry->d_name, snapshot);
    }
    closedir(dir);
    return st;
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

enum status hub_cache_list(const char *cache, hub_cache_fn *take, void *context, struct error *e) {
    struct dirent **entries;
    int n = scandir(cache, &entries, NULL, by_name);
    if (n < 0 && errno == ENOENT) return STATUS_OK;
    if (n < 0) return error_set(e, STATUS_IO, "%s: %s", cache, strerror(errno));
    enum status st = STATUS_OK;
    for (int i = 0; i < n; i++) {
        char repo[HUB_REPO_BYTES];
        if (st == STATUS_OK && repo_of(entries[i]->d_name, repo))
            st = list_snapshots(cache, entries[i]->d_name, repo, take, context, e);
        free(entries[i]);
    }
    free(entries);
    return st;
}

// ---- writing ----

static enum status make_folders(char *path, struct error *e) {
    for (char *at = path + 1;; at++) {
        if (*at != '/' && *at != 0) continue;
        char end = *at;
        *at = 0;
        bool ok = mkdir(path, FOLDER_MODE) == 0 || (errno == EEXIST && is_folder(path));
        enum status st = ok ? STATUS_OK : error_set(e, STATUS_IO, "%s cannot be made: %s", path, strerror(errno));
        *at = end;
        if (st != STATUS_OK || end == 0) return st;
    }
}

enum status hub_cache_prepare(const char *cache, const char *repo, char blobs[HUB_PATH_BYTES], struct error *e) {
    char folder[HUB_REPO_BYTES + 16], path[HUB_PATH_BYTES];
    folder_of(repo, folder);
    enum status st = make_path(path, e, "%s/.locks/%s", cache, folder);
    if (st == STATUS_OK) st = make_folders(path, e);
    if (st == STATUS_OK) st = make_path(path, e, "%s/%s/blobs", cache, folder);
    if (st == STATUS_OK) st = make_folders(path, e);
    if (st == STATUS_OK) memcpy(blobs, path, sizeof path);
    return st;
}

enum status hub_cache_lock(const char *cache, const char *repo, const char *digest, int *fd, struct error *e) {
    char folder[HUB_REPO_BYTES + 16], path[HUB_PATH_BYTES];
    folder_of(repo, folder);
    enum status st = make_path(path, e, "%s/.locks/%s/%s.lock", cache, folder, digest);
    if (st != STATUS_OK) return st;
    int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (lock < 0) return error_set(e, STATUS_IO, "%s: %s", path, strerror(errno));
    if (flock(lock, LOCK_EX | LOCK_NB) != 0) {
        st = errno == EWOULDBLOCK
                 ? error_set(e, STATUS_BUSY, "another process is downloading this file (it holds %s)", path)
                 : error_set(e, STATUS_IO, "%s: %s", path, strerror(errno));
        close(lock);
        return st;
    }
    *fd = lock;
    return STATUS_OK;
}

bool hub_cache_has(const char *blobs, const struct hub_file *file) {
    char path[HUB_PATH_BYTES];
    struct stat info;
    return make_path(path, NULL, "%s/%s", blobs, file->digest) == STATUS_OK && lstat(path, &info) == 0 &&
           S_ISREG(info.st_mode) && info.st_size == file->size;
}

enum status hub_cache_link(const char *cache, const char *repo, const char *commit, const struct hub_file *file,
                           struct error *e) {
    char folder[HUB_REPO_BYTES + 16], path[HUB_PATH_BYTES], fresh[HUB_PATH_BYTES], target[HUB_DIGEST_BYTES + 16];
    folder_of(repo, folder);
    snprintf(target, sizeof target, "../../blobs/%s", file->digest);
    enum status st = make_path(path, e, "%s/%s/snapshots/%s", cache, folder, commit);
    if (st == STATUS_OK) st = make_folders(path, e);
    if (st == STATUS_OK) st = make_path(path, e, "%s/%s/snapshots/%s/%s", cache, folder, commit, file->name);
    // No repository's file can have the fresh link's name: those that begin with a dot are not wanted.
    if (st == STATUS_OK)
        st = make_path(fresh, e, "%s/%s/snapshots/%s/.%ld.link", cache, folder, commit, (long)getpid());
    if (st != STATUS_OK) return st;
    unlink(fresh);
    if (symlink(target, fresh) == 0 && rename(fresh, path) == 0) return STATUS_OK;
    st = error_set(e, STATUS_IO, "%s cannot be linked: %s", path, strerror(errno));
    unlink(fresh);
    return st;
}

enum status hub_cache_note(const char *cache, const struct hub_name *name, const char *commit, struct error *e) {
    char folder[HUB_REPO_BYTES + 16], path[HUB_PATH_BYTES], fresh[HUB_PATH_BYTES];
    if (hub_is_commit(name->revision)) return STATUS_OK;
    folder_of(name->repo, folder);
    enum status st = make_path(path, e, "%s/%s/refs/%s", cache, folder, name->revision);
    if (st == STATUS_OK) st = make_path(fresh, e, "%s.%ld", path, (long)getpid());
    if (st != STATUS_OK) return st;
    char *last = strrchr(path, '/');
    *last = 0;
    st = make_folders(path, e);
    *last = '/';
    if (st != STATUS_OK) return st;
    FILE *f = fopen(fresh, "w");
    bool ok = f != NULL && fputs(commit, f) >= 0;
    if (f != NULL) ok = fclose(f) == 0 && ok;
    if (ok && rename(fresh, path) == 0) return STATUS_OK;
    st = error_set(e, STATUS_IO, "%s cannot be written: %s", path, strerror(errno));
    unlink(fresh);
    return st;
}
