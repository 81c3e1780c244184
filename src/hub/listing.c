#include "hub/listing.h"
#include "format/json.h"
#include <stdlib.h>
#include <string.h>

#define GIT_DIGITS    40
#define SHA256_DIGITS 64

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n > m && strcmp(name + n - m, end) == 0;
}

bool hub_listing_wants(const char *name) {
    static const char *const endings[] = {".safetensors", ".json", ".jinja"};
    static const char *const names[] = {"merges.txt", "LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE"};
    if (strchr(name, '/') != NULL || name[0] == '.') return false;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (ends_with(name, endings[i])) return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

// Git's digest is that of the pointer, not of the file, where the file itself lies in large file storage.
static enum status read_digest(const struct json_view *v, struct hub_file *f, struct error *e) {
    struct json_view lfs;
    const char *digest;
    enum status st = json_get_view(v, "lfs", JSON_OPTIONAL, JSON_OBJECT, &lfs, e);
    if (st != STATUS_OK) return st;
    f->sha256 = lfs.value != NULL;
    st = f->sha256 ? json_get_string(&lfs, "sha256", JSON_REQUIRED, &digest, NULL, e)
                   : json_get_string(v, "blobId", JSON_REQUIRED, &digest, NULL, e);
    if (st != STATUS_OK) return st;
    if (!hub_is_digest(digest, f->sha256 ? SHA256_DIGITS : GIT_DIGITS))
        return error_set(e, STATUS_INVALID, "%s has a digest that is none", v->path);
    memcpy(f->digest, digest, strlen(digest) + 1);
    st = json_get_int(v, "size", JSON_OPTIONAL, 0, HUB_FILE_SIZE_MAX, &f->size, e);
    if (st == STATUS_OK && f->size < 0 && f->sha256)
        st = json_get_int(&lfs, "size", JSON_OPTIONAL, 0, HUB_FILE_SIZE_MAX, &f->size, e);
    if (st == STATUS_OK && f->size < 0) st = error_set(e, STATUS_INVALID, "%s/size is missing", v->path);
    return st;
}

static enum status add_file(struct hub_listing *l, const struct json_view *v, struct error *e) {
    struct hub_file f = {.size = -1};
    const char *name;
    size_t n;
    enum status st = json_must_be(v, JSON_OBJECT, e);
    if (st == STATUS_OK) st = json_get_string(v, "rfilename", JSON_REQUIRED, &name, &n, e);
    if (st != STATUS_OK) return st;
    if (!hub_is_safe_path(name, n))
        return error_set(e, STATUS_INVALID, "%s/rfilename leads out of the repository", v->path);
    if (!hub_listing_wants(name)) return STATUS_OK;
    memcpy(f.name, name, n + 1); // a safe path without folders is shorter than HUB_FILE_BYTES
    st = read_digest(v, &f, e);
    if (st != STATUS_OK) return st;
    for (size_t i = 0; i < l->n_files; i++)
        if (strcmp(l->files[i].name, f.name) == 0)
            return error_set(e, STATUS_INVALID, "%s/rfilename comes twice", v->path);
    l->total_bytes += f.size; // HUB_FILES_MAX times HUB_FILE_SIZE_MAX fits
    l->files[l->n_files++] = f;
    return STATUS_OK;
}

static int by_size(const void *a, const void *b) {
    const struct hub_file *x = a, *y = b;
    if (x->size != y->size) return x->size < y->size ? -1 : 1;
    return strcmp(x->name, y->name);
}

static enum status check_checkpoint(const struct hub_listing *l, struct error *e) {
    bool config = false, weights = false;
    for (size_t i = 0; i < l->n_files; i++) {
        config |= strcmp(l->files[i].name, "config.json") == 0;
        weights |= ends_with(l->files[i].name, ".safetensors");
    }
    if (config && weights) return STATUS_OK;
    return error_set(e, STATUS_NOT_FOUND, "there is no %s in it: it holds no checkpoint that tokenfold reads",
                     config ? "safetensors file" : "config.json");
}

static size_t count_wanted(const struct json_view *siblings) {
    size_t n = 0;
    for (size_t i = 0; i < json_length(siblings); i++) {
        const char *name = json_string_value(json_object_get(json_array_get(siblings->value, i), "rfilename"));
        n += name != NULL && hub_listing_wants(name);
    }
    return n;
}

static enum status read_listing(const json_t *json, struct hub_listing *l, struct error *e) {
    struct json_view root = json_root(json), siblings, file;
    const char *commit;
    enum status st = json_get_string(&root, "sha", JSON_REQUIRED, &commit, NULL, e);
    if (st == STATUS_OK && !hub_is_commit(commit)) st = error_set(e, STATUS_INVALID, "/sha is not a commit");
    if (st == STATUS_OK) st = json_get_view(&root, "siblings", JSON_REQUIRED, JSON_ARRAY, &siblings, e);
    if (st != STATUS_OK) return st;
    memcpy(l->commit, commit, strlen(commit) + 1);
    if (json_length(&siblings) > HUB_FILES_MAX)
        return error_set(e, STATUS_LIMIT, "/siblings has more than %d files", HUB_FILES_MAX);
    l->files = calloc(count_wanted(&siblings) + 1, sizeof *l->files);
    if (l->files == NULL) return error_memory(e);
    for (size_t i = 0; i < json_length(&siblings) && st == STATUS_OK; i++)
        st = json_element(&siblings, i, &file)
                 ? add_file(l, &file, e)
                 : error_set(e, STATUS_INVALID, "%s/%zu must not be null", siblings.path, i);
    if (st == STATUS_OK) st = check_checkpoint(l, e);
    if (st == STATUS_OK) qsort(l->files, l->n_files, sizeof *l->files, by_size);
    return st;
}

enum status hub_listing_read(const char *text, size_t n, struct hub_listing *out, struct error *e) {
    json_t *json;
    enum status st = json_parse(text, n, HUB_LISTING_BYTES_MAX, JSON_PARSE_DUPLICATES, &json, e);
    if (st != STATUS_OK) return st;
    struct hub_listing l = {0};
    st = read_listing(json, &l, e);
    json_decref(json);
    if (st != STATUS_OK) {
        hub_listing_free(&l);
        return st;
    }
    *out = l;
    return STATUS_OK;
}

void hub_listing_free(struct hub_listing *l) {
    free(l->files);
    *l = (struct hub_listing){0};
}
