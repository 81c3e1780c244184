#include "format/added_tokens.h"

#include "format/normalizer.h"
#include "format/unicode.h"
#include <stdlib.h>
#include <string.h>

void added_tokens_free(struct added_tokens *a) {
    for (size_t i = 0; i < a->n; i++) {
        free(a->tokens[i].text);
        free(a->tokens[i].match);
    }
    free(a->tokens);
    free(a->by_text);
    free(a->raw.tokens);
    free(a->normalized.tokens);
    *a = (struct added_tokens){0};
}

enum status added_tokens_add(struct added_tokens *a, int32_t id, const char *text, size_t n, bool special,
                             bool normalized, struct error *e) {
    if (n == 0 || !unicode_valid(text, n))
        return error_set(e, STATUS_INVALID, "the added token with id %d has %s", id, n ? "invalid UTF-8" : "no text");
    if (n > ADDED_TOKEN_BYTES_MAX)
        return error_set(e, STATUS_LIMIT, "the added token with id %d has %zu bytes, more than %d", id, n,
                         ADDED_TOKEN_BYTES_MAX);
    if (a->n == ADDED_TOKENS_MAX)
        return error_set(e, STATUS_LIMIT, "there are more than %d added tokens", ADDED_TOKENS_MAX);
    if (a->n == a->capacity) {
        size_t capacity = a->capacity ? 2 * a->capacity : 64;
        struct added_token *tokens = realloc(a->tokens, capacity * sizeof *tokens);
        if (!tokens) return error_memory(e);
        a->tokens = tokens;
        a->capacity = capacity;
    }
    char *copy = malloc(n + 1);
    if (!copy) return error_memory(e);
    memcpy(copy, text, n);
    copy[n] = '\0';
    a->tokens[a->n] = (struct added_token){
        .id = id, .text = copy, .n = n, .special = special, .normalized = normalized, .order = a->n};
    a->n++;
    return STATUS_OK;
}

// ---- sorting ----

static int compare_bytes(const char *a, size_t n_a, const char *b, size_t n_b) {
    int order = memcmp(a, b, n_a < n_b ? n_a : n_b);
    return order ? order : (n_a > n_b) - (n_a < n_b);
}

static int compare_ids(const void *a, const void *b) {
    const struct added_token *x = a, *y = b;
    int order = (x->id > y->id) - (x->id < y->id);
    return order ? order : (x->order > y->order) - (x->order < y->order);
}

static int compare_texts(const void *a, const void *b) {
    const struct added_token *x = *(const struct added_token *const *)a, *y = *(const struct added_token *const *)b;
    return compare_bytes(x->text, x->n, y->text, y->n);
}

static int compare_matches(const void *a, const void *b) {
    const struct added_token *x = *(const struct added_token *const *)a, *y = *(const struct added_token *const *)b;
    int order = compare_bytes(x->match, x->n_match, y->match, y->n_match);
    return order ? order : (x->id > y->id) - (x->id < y->id);
}

// Makes `match` of every token. NFC does not change ASCII, so most tokens take no work.
static enum status prepare_matches(struct added_tokens *a, bool nfc, struct error *e) {
    for (size_t i = 0; i < a->n; i++) {
        struct added_token *t = &a->tokens[i];
        if (t->normalized && nfc) {
            enum status status = normalizer_nfc(t->text, t->n, &t->match, &t->n_match, e);
            if (status != STATUS_OK) return status;
            continue;
        }
        t->match = malloc(t->n);
        if (!t->match) return error_memory(e);
        memcpy(t->match, t->text, t->n);
        t->n_match = t->n;
    }
    return STATUS_OK;
}

static enum status build_matcher(const struct added_tokens *a, bool normalized, struct added_matcher *m,
                                 struct error *e) {
    m->tokens = malloc((a->n + 1) * sizeof *m->tokens);
    if (!m->tokens) return error_memory(e);
    for (size_t i = 0; i < a->n; i++) {
        if (a->tokens[i].normalized != normalized) continue;
        m->tokens[m->n++] = &a->tokens[i];
        m->first[(unsigned char)a->tokens[i].match[0]] = true;
    }
    qsort(m->tokens, m->n, sizeof *m->tokens, compare_matches);
    return STATUS_OK;
}

// Sorts by id and drops repeated tokens.
static enum status sort_tokens(struct added_tokens *a, struct error *e) {
    if (a->n > 0) qsort(a->tokens, a->n, sizeof *a->tokens, compare_ids);
    size_t kept = 0;
    enum status status = STATUS_OK;
    for (size_t i = 0; i < a->n; i++) {
        struct added_token *last = kept > 0 ? &a->tokens[kept - 1] : NULL;
        if (!last || last->id != a->tokens[i].id) {
            a->tokens[kept++] = a->tokens[i];
            continue;
        }
        if (compare_bytes(last->text, last->n, a->tokens[i].text, a->tokens[i].n))
            status = error_set(e, STATUS_INVALID, "two added tokens have the id %d", last->id);
        free(a->tokens[i].text);
    }
    a->n = kept;
    return status;
}

enum status added_tokens_finish(struct added_tokens *a, bool nfc, struct error *e) {
    enum status status = sort_tokens(a, e);
    if (status != STATUS_OK) return status;
    a->by_text = malloc((a->n + 1) * sizeof *a->by_text);
    if (!a->by_text) return error_memory(e);
    for (size_t i = 0; i < a->n; i++) a->by_text[i] = &a->tokens[i];
    qsort(a->by_text, a->n, sizeof *a->by_text, compare_texts);
    for (size_t i = 1; i < a->n; i++)
        if (compare_texts(&a->by_text[i - 1], &a->by_text[i]) == 0)
            return error_set(e, STATUS_INVALID, "the added tokens with ids %d and %d have the same text",
                             a->by_text[i - 1]->id, a->by_text[i]->id);
    status = prepare_matches(a, nfc, e);
    if (status == STATUS_OK) status = build_matcher(a, false, &a->raw, e);
    if (status == STATUS_OK) status = build_matcher(a, true, &a->normalized, e);
    return status;
}

// ---- searching ----

const struct added_token *added_tokens_by_id(const struct added_tokens *a, int32_t id) {
    size_t low = 0, high = a->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (a->tokens[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low < a->n && a->tokens[low].id == id ? &a->tokens[low] : NULL;
}

const struct added_token *added_tokens_by_text(const struct added_tokens *a, const char *text, size_t n) {
    size_t low = 0, high = a->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = compare_bytes(a->by_text[middle]->text, a->by_text[middle]->n, text, n);
        if (order == 0) return a->by_text[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

// The first of tokens[low..high), all longer than `depth`, whose byte there is at least `byte`.
static size_t lower_bound(const struct added_matcher *m, size_t low, size_t high, size_t depth, int byte) {
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((unsigned char)m->tokens[middle]->match[depth] < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// The longest token that text[0..n) begins with.
static const struct added_token *longest_prefix(const struct added_matcher *m, const char *text, size_t n) {
    const struct added_token *longest = NULL;
    size_t low = 0, high = m->n;
    for (size_t depth = 0; depth < n; depth++) {
        int byte = (unsigned char)text[depth];
        low = lower_bound(m, low, high, depth, byte);
        high = lower_bound(m, low, high, depth, byte + 1);
        // Now tokens[low..high) share depth + 1 bytes with the text; a token that ends here stands before the longer.
        while (low < high && m->tokens[low]->n_match == depth + 1) longest = m->tokens[low++];
        if (low == high) break;
    }
    return longest;
}

const struct added_token *added_matcher_search(const struct added_matcher *m, const char *text, size_t n, size_t from,
                                               size_t *at) {
    if (m->n == 0) return NULL;
    for (size_t i = from; i < n; i++) {
        if (!m->first[(unsigned char)text[i]]) continue;
        const struct added_token *found = longest_prefix(m, text + i, n - i);
        if (found) {
            *at = i;
            return found;
        }
    }
    return NULL;
}
