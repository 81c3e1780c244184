#include "hub/pull.h"
#include "base/clock.h"
#include "hub/transfer.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define ROOM_TO_LEAVE ((int64_t)64 << 20) // on the disk, for folders, links and other programs
#define READ_BYTES    ((size_t)1 << 20)
// A try that brought at least this much is not one of those that count as nothing.
#define SOME_BYTES   ((int64_t)1 << 20)
#define PAUSE_NS_MAX ((int64_t)60000000000)

struct pull {
    const struct pull_options *options;
    struct transfer *transfer;
    int64_t bytes_done, bytes_total;
};

// A file on its way.
struct incoming {
    struct transfer_sink sink; // first: the transfer's callbacks get it
    struct pull *pull;
    const struct hub_file *file;
    char path[HUB_PATH_BYTES + 16]; // of its .incomplete
    int fd;
    EVP_MD_CTX *digest; // of the first sink.at bytes
};

static void note(const struct pull *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void note(const struct pull *p, const char *format, ...) {
    char text[1024];
    va_list args;
    if (p->options->note == NULL) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    p->options->note(p->options->context, text);
}

static void show(const struct pull *p, int64_t bytes_of_file) {
    if (p->options->progress != NULL)
        p->options->progress(p->options->context, p->bytes_done + bytes_of_file, p->bytes_total);
}

// ---- digests ----

static enum status digest_add(struct incoming *in, const void *data, size_t n, struct error *e) {
    return EVP_DigestUpdate(in->digest, data, n) == 1 ? STATUS_OK : error_memory(e);
}

static enum status digest_begin(struct incoming *in, struct error *e) {
    char head[64];
    if (in->digest == NULL) in->digest = EVP_MD_CTX_new();
    if (in->digest == NULL || EVP_DigestInit_ex(in->digest, in->file->sha256 ? EVP_sha256() : EVP_sha1(), NULL) != 1)
        return error_memory(e);
    if (in->file->sha256) return STATUS_OK;
    int n = snprintf(head, sizeof head, "blob %" PRId64, in->file->size);
    return digest_add(in, head, (size_t)n + 1, e); // with its NUL
}

// Of the bytes that an open file begins with.
static enum status digest_read(struct incoming *in, int64_t n_bytes, struct error *e) {
    enum status st = digest_begin(in, e);
    unsigned char *data = malloc(READ_BYTES);
    if (data == NULL) return error_memory(e);
    for (int64_t at = 0; st == STATUS_OK && at < n_bytes;) {
        int64_t left = n_bytes - at;
        ssize_t n = pread(in->fd, data, left < (int64_t)READ_BYTES ? (size_t)left : READ_BYTES, at);
        if (n <= 0) {
            st = error_set(e, STATUS_IO, "%s: %s", in->path, n < 0 ? strerror(errno) : "it has become shorter");
        } else {
            st = digest_add(in, data, (size_t)n, e);
            at += n;
            show(in->pull, at);
        }
    }
    free(data);
    return st;
}

static bool digest_matches(struct incoming *in) {
    unsigned char bytes[EVP_MAX_MD_SIZE];
    char text[2 * EVP_MAX_MD_SIZE + 1] = "";
    unsigned n = 0;
    if (EVP_DigestFinal_ex(in->digest, bytes, &n) != 1) return false;
    for (unsigned i = 0; i < n; i++) snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    return strcmp(text, in->file->digest) == 0;
}

// ---- one file ----

static enum status write_some(struct transfer_sink *sink, const void *data, size_t n, struct error *e) {
    struct incoming *in = (struct incoming *)sink;
    const char *bytes = data;
    for (size_t done = 0; done < n;) {
        ssize_t got = pwrite(in->fd, bytes + done, n - done, sink->at + (int64_t)done);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return error_set(e, STATUS_LIMIT, "%s cannot be written: %s", in->path, strerror(errno));
        done += (size_t)got;
    }
    sink->at += (int64_t)n;
    show(in->pull, sink->at);
    return digest_add(in, data, n, e);
}

static enum status start_again(struct transfer_sink *sink, struct error *e) {
    struct incoming *in = (struct incoming *)sink;
    if (ftruncate(in->fd, 0) != 0) return error_set(e, STATUS_IO, "%s: %s", in->path, strerror(errno));
    sink->at = 0;
    return digest_begin(in, e);
}

// Opens what has come so far, and takes it up to its last byte.
static enum status open_incoming(struct incoming *in, struct error *e) {
    struct stat info;
    in->fd = open(in->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (in->fd < 0 || fstat(in->fd, &info) != 0) return error_set(e, STATUS_IO, "%s: %s", in->path, strerror(errno));
    if (!S_ISREG(info.st_mode)) return error_set(e, STATUS_IO, "%s is not a file", in->path);
    if (info.st_size > in->file->size) return start_again(&in->sink, e);
    in->sink.at = info.st_size;
    return digest_read(in, in->sink.at, e);
}

static enum status fetch(struct incoming *in, const char *path, struct error *e) {
    const struct pull_options *o = in->pull->options;
    int64_t pause_ns = o->pause_ns;
    for (int tries = 0;;) {
        int64_t before = in->sink.at;
        if (in->sink.at == in->sink.size) return STATUS_OK;
        enum status st = transfer_file(in->pull->transfer, path, &in->sink, e);
        if (st != STATUS_IO && st != STATUS_BUSY) return st;
        if (in->sink.at - before >= SOME_BYTES) {
            tries = 0;
            pause_ns = o->pause_ns;
        }
        if (tries++ >= o->retries) return st;
        note(in->pull, "%s: %s; trying again", in->file->name, e->text);
        clock_sleep_ns(pause_ns);
        pause_ns = 2 * pause_ns < PAUSE_NS_MAX ? 2 * pause_ns : PAUSE_NS_MAX;
    }
}

// The last step: the right bytes get their name.
static enum status accept(struct incoming *in, const char *blobs, struct error *e) {
    char path[HUB_PATH_BYTES + HUB_DIGEST_BYTES];
    if (!digest_matches(in)) {
        unlink(in->path);
        return error_set(e, STATUS_INVALID, "what came is not the file: its digest is wrong, so it was thrown away");
    }
    snprintf(path, sizeof path, "%s/%s", blobs, in->file->digest);
    if (fsync(in->fd) != 0 || rename(in->path, path) != 0)
        return error_set(e, STATUS_IO, "%s: %s", path, strerror(errno));
    return STATUS_OK;
}

static enum status bring(struct pull *p, const struct hub_file *file, const char *url, const char *blobs,
                         struct error *e) {
    struct incoming in = {
        .sink = {.size = file->size, .write = write_some, .restart = start_again}, .pull = p, .file = file, .fd = -1};
    snprintf(in.path, sizeof in.path, "%s/%s.incomplete", blobs, file->digest);
    enum status st = open_incoming(&in, e);
    if (st == STATUS_OK) st = fetch(&in, url, e);
    if (st == STATUS_INVALID && in.fd >= 0) unlink(in.path); // a hub that misbehaves leaves nothing to go on with
    if (st == STATUS_OK) st = accept(&in, blobs, e);
    if (in.fd >= 0) close(in.fd);
    EVP_MD_CTX_free(in.digest);
    return st;
}

// Reads a file that is there already; false when it is not what its name says, and gone then.
static bool is_right(struct pull *p, const struct hub_file *file, const char *blobs) {
    struct error e;
    struct incoming in = {.pull = p, .file = file};
    snprintf(in.path, sizeof in.path, "%s/%s", blobs, file->digest);
    in.fd = open(in.path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    bool right = in.fd >= 0 && digest_read(&in, file->size, &e) == STATUS_OK && digest_matches(&in);
    if (in.fd >= 0) close(in.fd);
    EVP_MD_CTX_free(in.digest);
    if (!right) {
        note(p, "%s: what is there is damaged, and is brought again", file->name);
        unlink(in.path);
    }
    return right;
}

// ---- a repository ----

static enum status bring_file(struct pull *p, const struct hub_name *name, const struct hub_listing *l,
                              const struct hub_file *file, const char *blobs, struct error *e) {
    struct buffer url;
    int lock;
    enum status st = hub_cache_lock(p->options->cache, name->repo, file->digest, &lock, e);
    if (st != STATUS_OK) return error_prefix(e, "%s", file->name);
    if (!hub_cache_has(blobs, file) || (p->options->verify && !is_right(p, file, blobs))) {
        buffer_init(&url, 0);
        buffer_printf(&url, "/%s/resolve/%s/", name->repo, l->commit);
        transfer_escape(&url, file->name);
        st = url.failed ? error_memory(e) : bring(p, file, url.data, blobs, e);
        buffer_free(&url);
        if (st == STATUS_OK) note(p, "%s: %.1f MiB", file->name, (double)file->size / (1 << 20));
    }
    close(lock);
    if (st != STATUS_OK) return error_prefix(e, "%s", file->name);
    p->bytes_done += file->size;
    show(p, 0);
    return STATUS_OK;
}

static enum status bring_repo(struct pull *p, const struct hub_name *name, const struct hub_listing *l,
                              const char *blobs, char snapshot[HUB_PATH_BYTES], struct error *e) {
    const char *cache = p->options->cache;
    enum status st = STATUS_OK;
    for (size_t i = 0; i < l->n_files && st == STATUS_OK; i++) st = bring_file(p, name, l, &l->files[i], blobs, e);
    for (size_t i = 0; i < l->n_files && st == STATUS_OK; i++)
        st = hub_cache_link(cache, name->repo, l->commit, &l->files[i], e);
    if (st == STATUS_OK) st = hub_cache_note(cache, name, l->commit, e);
    struct hub_name exact = *name;
    snprintf(exact.revision, sizeof exact.revision, "%s", l->commit);
    if (st == STATUS_OK) st = hub_cache_find(cache, &exact, snapshot, e);
    return st;
}

static enum status list(struct pull *p, const struct hub_name *name, struct hub_listing *out, struct error *e) {
    struct buffer path, answer;
    int64_t pause_ns = p->options->pause_ns;
    enum status st;
    buffer_init(&path, 0);
    buffer_printf(&path, "/api/models/%s/revision/", name->repo);
    transfer_escape(&path, name->revision);
    buffer_append_text(&path, "?blobs=true");
    if (path.failed) return error_memory(e);
    for (int tries = 0;; tries++) {
        st = transfer_get(p->transfer, path.data, HUB_LISTING_BYTES_MAX, &answer, e);
        if ((st != STATUS_IO && st != STATUS_BUSY) || tries >= p->options->retries) break;
        clock_sleep_ns(pause_ns);
        pause_ns = 2 * pause_ns < PAUSE_NS_MAX ? 2 * pause_ns : PAUSE_NS_MAX;
    }
    buffer_free(&path);
    if (st != STATUS_OK) return error_prefix(e, "%s@%s", name->repo, name->revision);
    st = hub_listing_read(answer.data != NULL ? answer.data : "", answer.n, out, e);
    buffer_free(&answer);
    if (st != STATUS_OK) return error_prefix(e, "what the hub says about %s@%s", name->repo, name->revision);
    if (hub_is_commit(name->revision) && strcmp(name->revision, out->commit) != 0) {
        hub_listing_free(out);
        return error_set(e, STATUS_INVALID, "%s: the hub answers with another commit than %s", name->repo,
                         name->revision);
    }
    return STATUS_OK;
}

// ---- all of them ----

static int64_t bytes_missing(const struct hub_listing *l, const char *blobs) {
    int64_t n = 0;
    for (size_t i = 0; i < l->n_files; i++) {
        char path[HUB_PATH_BYTES + HUB_DIGEST_BYTES + 16];
        struct stat info;
        if (hub_cache_has(blobs, &l->files[i])) continue;
        n += l->files[i].size;
        snprintf(path, sizeof path, "%s/%s.incomplete", blobs, l->files[i].digest);
        if (lstat(path, &info) == 0 && info.st_size <= l->files[i].size) n -= info.st_size;
    }
    return n;
}

static enum status check_room(const struct pull *p, int64_t n_bytes, struct error *e) {
    struct statvfs disk;
    if (n_bytes == 0) return STATUS_OK;
    if (statvfs(p->options->cache, &disk) != 0)
        return error_set(e, STATUS_IO, "%s: %s", p->options->cache, strerror(errno));
    double room = (double)disk.f_bavail * (double)disk.f_frsize;
    if ((double)n_bytes + (double)ROOM_TO_LEAVE <= room) return STATUS_OK;
    return error_set(e, STATUS_LIMIT,
                     "%s has room for %.1f GiB, and %.1f GiB are to come: set HF_HOME to a larger disk",
                     p->options->cache, room / (1 << 30), (double)n_bytes / (1 << 30));
}

static enum status pull_all(struct pull *p, const struct hub_name *names, size_t n, struct hub_listing *listings,
                            char (*blobs)[HUB_PATH_BYTES], char (*snapshots)[HUB_PATH_BYTES], struct error *e) {
    int64_t n_missing = 0;
    enum status st = STATUS_OK;
    for (size_t i = 0; i < n && st == STATUS_OK; i++) {
        st = list(p, &names[i], &listings[i], e);
        if (st == STATUS_OK) st = hub_cache_prepare(p->options->cache, names[i].repo, blobs[i], e);
        if (st != STATUS_OK) break;
        p->bytes_total += listings[i].total_bytes;
        n_missing += bytes_missing(&listings[i], blobs[i]);
        note(p, "%s@%s is %s: %zu files, %.2f GiB", names[i].repo, names[i].revision, listings[i].commit,
             listings[i].n_files, (double)listings[i].total_bytes / (1 << 30));
    }
    if (st == STATUS_OK) st = check_room(p, n_missing, e);
    for (size_t i = 0; i < n && st == STATUS_OK; i++)
        st = bring_repo(p, &names[i], &listings[i], blobs[i], snapshots[i], e);
    return st;
}

enum status pull_repos(const struct pull_options *options, const struct hub_name *names, size_t n_names,
                       char (*snapshots)[HUB_PATH_BYTES], struct error *e) {
    struct transfer_options t = {.endpoint = options->endpoint, .token = options->token, .stall_s = options->stall_s};
    struct pull p = {.options = options};
    struct hub_listing *listings = calloc(n_names, sizeof *listings);
    char(*blobs)[HUB_PATH_BYTES] = calloc(n_names, sizeof *blobs);
    enum status st = listings != NULL && blobs != NULL ? transfer_create(&t, &p.transfer, e) : error_memory(e);
    if (st == STATUS_OK) st = pull_all(&p, names, n_names, listings, blobs, snapshots, e);
    for (size_t i = 0; i < n_names && listings != NULL; i++) hub_listing_free(&listings[i]);
    transfer_free(p.transfer);
    free(listings);
    free(blobs);
    return st;
}
