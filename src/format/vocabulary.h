// Owns a tokenizer's vocabulary as masks want it: a trie of the tokens' bytes, so that what is shared is read once, and
// which tokens are nothing but ordinary characters, so that most need not be read at all. Added tokens (tags) are
// apart; special ones, and those of more than VOCABULARY_TOKEN_BYTES, are in none of it. Never changes once made; any
// thread may read it. It has several owners, and the last one to let go frees it.
#ifndef TF_FORMAT_VOCABULARY_H
#define TF_FORMAT_VOCABULARY_H

#include "format/tokenizer.h"
#include <stdatomic.h>

#define VOCABULARY_TOKEN_BYTES 64

struct vocabulary_node {
    int32_t id;   // of the token that ends here; -1: none
    int32_t skip; // the node behind those below this one
    uint8_t byte;
    uint8_t depth; // bytes up to here
};

// Nodes in the order of a walk: each is followed by those below it.
struct vocabulary_trie {
    struct vocabulary_node *nodes;
    int32_t n;
};

enum vocabulary_class { CLASS_STRING, CLASS_TEXT, VOCABULARY_CLASSES };

struct vocabulary {
    atomic_int n_owners;
    atomic_llong claimed_bytes;
    const struct tokenizer *tokenizer;
    int32_t n_ids;
    struct vocabulary_trie all;
    int32_t *added; // [n_added]
    int32_t n_added;
    // Of each class (grammar.h: INSIDE_STRING, INSIDE_TEXT): how many characters a token of it has, 0 for those that
    // are not of it, and the trie of these.
    uint8_t *characters[VOCABULARY_CLASSES]; // [n_ids]
    struct vocabulary_trie rest[VOCABULARY_CLASSES];
    uint32_t *words[VOCABULARY_CLASSES]; // the mask of all of the class, [(n_ids + 31) / 32]
};

// Ids from n_ids on are left out. The tokenizer must outlive it. Errors: LIMIT, MEMORY.
enum status vocabulary_create(const struct tokenizer *t, int32_t n_ids, struct vocabulary **out, struct error *e);
const struct vocabulary *vocabulary_share(const struct vocabulary *v); // v, with one more owner
void vocabulary_free(struct vocabulary *v);                            // one owner less; NULL is fine

// What all that share it may take together: requests that wait have their masks' memory too, outside of the ledger of
// the device's memory (memory/ledger.h). BUSY where it would be more.
#define VOCABULARY_CLAIMS_MAX (1ll << 30)
enum status vocabulary_claim(const struct vocabulary *v, size_t bytes, struct error *e);
void vocabulary_release(const struct vocabulary *v, size_t bytes);

#endif
