#include "format/vocabulary.h"
#include "format/unicode.h"
#include <stdlib.h>
#include <string.h>

struct token {
    const char *bytes;
    uint32_t n;
    int32_t id;
};

static int compare_tokens(const void *a, const void *b) {
    const struct token *x = a, *y = b;
    size_t n = x->n < y->n ? x->n : y->n;
    int order = memcmp(x->bytes, y->bytes, n);
    if (order != 0) return order;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

// Tokens are sorted. One that shares all its bytes with the one before it gets a last node of its own.
static bool make_trie(const struct token *tokens, int32_t n, struct vocabulary_trie *out) {
    int64_t n_nodes = 0;
    for (int pass = 0; pass < 2; pass++) {
        int32_t path[VOCABULARY_TOKEN_BYTES] = {0}, at = 0;
        uint32_t depth = 0;
        for (int32_t i = 0; i < n; i++) {
            uint32_t shared = 0;
            while (i > 0 && shared < depth && shared < tokens[i].n - 1 &&
                   tokens[i].bytes[shared] == tokens[i - 1].bytes[shared])
                shared++;
            for (uint32_t d = shared; pass == 1 && d < depth; d++) out->nodes[path[d]].skip = at;
            for (uint32_t d = shared; d < tokens[i].n; d++, at++) {
                path[d] = at;
                if (pass == 1)
                    out->nodes[at] = (struct vocabulary_node){.id = d + 1 == tokens[i].n ? tokens[i].id : -1,
                                                              .byte = (uint8_t)tokens[i].bytes[d],
                                                              .depth = (uint8_t)(d + 1)};
            }
            depth = tokens[i].n;
        }
        for (uint32_t d = 0; pass == 1 && d < depth; d++) out->nodes[path[d]].skip = at;
        n_nodes = at;
        if (pass == 1) break;
        out->nodes = malloc(((size_t)n_nodes + 1) * sizeof *out->nodes);
        if (out->nodes == NULL) return false;
    }
    out->n = (int32_t)n_nodes;
    return true;
}

// Characters of a token that is of the class; 0: it is not.
static uint8_t count_characters(const struct token *t, enum vocabulary_class class) {
    uint8_t count = 0;
    if (!unicode_valid(t->bytes, t->n)) return 0;
    for (uint32_t i = 0; i < t->n; i++) {
        unsigned char byte = (unsigned char)t->bytes[i];
        if (byte < 0x20 || byte == '<') return 0;
        if (class == CLASS_STRING && (byte == '"' || byte == '\\')) return 0;
        if (class == CLASS_TEXT && (byte == '>' || byte == '=')) return 0;
        count = (uint8_t)(count + ((byte & 0xc0) != 0x80));
    }
    return count;
}

static int32_t gather(struct vocabulary *v, struct token *tokens) {
    int32_t n = 0;
    for (int32_t id = 0; id < v->n_ids; id++) {
        size_t n_bytes;
        const char *bytes = tokenizer_id_bytes(v->tokenizer, id, &n_bytes);
        if (bytes == NULL || n_bytes == 0 || n_bytes > VOCABULARY_TOKEN_BYTES || tokenizer_is_special(v->tokenizer, id))
            continue;
        if (tokenizer_is_added(v->tokenizer, id)) {
            v->added[v->n_added++] = id;
            continue;
        }
        tokens[n++] = (struct token){.bytes = bytes, .n = (uint32_t)n_bytes, .id = id};
    }
    qsort(tokens, (size_t)n, sizeof *tokens, compare_tokens);
    return n;
}

static bool fill(struct vocabulary *v) {
    size_t n_ids = (size_t)v->n_ids + 1;
    struct token *tokens = malloc(n_ids * sizeof *tokens), *rest = malloc(n_ids * sizeof *rest);
    v->added = malloc(n_ids * sizeof *v->added);
    bool ok = tokens != NULL && rest != NULL && v->added != NULL;
    int32_t n = ok ? gather(v, tokens) : 0;
    ok = ok && make_trie(tokens, n, &v->all);
    for (int class = 0; ok && class < VOCABULARY_CLASSES; class ++) {
        int32_t n_rest = 0;
        v->characters[class] = calloc(n_ids, sizeof *v->characters[class]);
        v->words[class] = calloc(n_ids / 32 + 1, sizeof *v->words[class]);
        ok = v->characters[class] != NULL && v->words[class] != NULL;
        for (int32_t i = 0; ok && i < n; i++) {
            uint8_t count = count_characters(&tokens[i], (enum vocabulary_class) class);
            v->characters[class][tokens[i].id] = count;
            if (count == 0) rest[n_rest++] = tokens[i];
            v->words[class][tokens[i].id / 32] |= (uint32_t)(count > 0) << tokens[i].id % 32;
        }
        ok = ok && make_trie(rest, n_rest, &v->rest[class]);
    }
    free(tokens);
    free(rest);
    return ok;
}

enum status vocabulary_create(const struct tokenizer *t, int32_t n_ids, struct vocabulary **out, struct error *e) {
    struct vocabulary *v = calloc(1, sizeof *v);
    if (v == NULL) return error_memory(e);
    atomic_init(&v->n_owners, 1);
    atomic_init(&v->claimed_bytes, 0);
    v->tokenizer = t;
    v->n_ids = tokenizer_count_ids(t) < n_ids ? tokenizer_count_ids(t) : n_ids;
    if (!fill(v)) {
        vocabulary_free(v);
        return error_memory(e);
    }
    *out = v;
    return STATUS_OK;
}

const struct vocabulary *vocabulary_share(const struct vocabulary *v) {
    atomic_fetch_add(&((struct vocabulary *)v)->n_owners, 1); // the only part that changes
    return v;
}

void vocabulary_free(struct vocabulary *v) {
    if (v == NULL || atomic_fetch_sub(&v->n_owners, 1) != 1) return;
    free(v->all.nodes);
    free(v->added);
    for (int class = 0; class < VOCABULARY_CLASSES; class ++) {
        free(v->characters[class]);
        free(v->words[class]);
        free(v->rest[class].nodes);
    }
    free(v);
}

enum status vocabulary_claim(const struct vocabulary *v, size_t bytes, struct error *e) {
    atomic_llong *claimed = &((struct vocabulary *)v)->claimed_bytes;
    if (atomic_fetch_add(claimed, (long long)bytes) + (long long)bytes <= VOCABULARY_CLAIMS_MAX) return STATUS_OK;
    atomic_fetch_sub(claimed, (long long)bytes);
    return error_set(e, STATUS_BUSY,
                     "requests for structured output, running and waiting, take all of the %lld MiB that they may take",
                     VOCABULARY_CLAIMS_MAX >> 20);
}

void vocabulary_release(const struct vocabulary *v, size_t bytes) {
    atomic_fetch_sub(&((struct vocabulary *)v)->claimed_bytes, (long long)bytes);
}
