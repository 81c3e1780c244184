// What a hub says about a repository: whatever it is, the files that are left have plain names and real digests.
#include "base/status.h"
#include "hub/listing.h"
#include <stdint.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    struct hub_listing l;
    struct error e;
    if (hub_listing_read((const char *)data, n, &l, &e) != STATUS_OK) return 0;
    must(hub_is_commit(l.commit) && l.n_files >= 2 && l.total_bytes >= 0);
    for (size_t i = 0; i < l.n_files; i++) {
        const struct hub_file *f = &l.files[i];
        must(strchr(f->name, '/') == NULL && hub_is_safe_path(f->name, strlen(f->name)));
        must(hub_is_digest(f->digest, f->sha256 ? 64 : 40) && f->size >= 0);
    }
    hub_listing_free(&l);
    return 0;
}
