#include "format/masker.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define CACHE_BYTES ((size_t)2 << 20) // of masks that are kept
#define CACHE_WAYS  4
#define SETS_MAX    64
#define KEY_BYTES   1024 // a larger state's mask is not kept
#define ENDS_MAX    16

// More characters or elements than a token can have of either, as good as any larger number.
#define PLENTY (VOCABULARY_TOKEN_BYTES + 1)

struct kept {
    uint64_t hash;
    uint32_t n_key; // 0: free
};

struct masker {
    struct grammar *g;
    const struct vocabulary *v;
    int32_t ends[ENDS_MAX], n_ends;
    int32_t n_words; // of a mask that is kept
    size_t n_sets;
    struct kept *kept; // [n_sets * CACHE_WAYS]
    char *keys;        // [n_sets * CACHE_WAYS][KEY_BYTES]
    uint32_t *words;   // [n_sets * CACHE_WAYS][n_words], and one that is not kept
    uint32_t next_way;
    struct masker_counts counts;
    struct grammar_state path[VOCABULARY_TOKEN_BYTES + 1]; // of a walk, by depth
};

enum status masker_create(struct grammar *g, const struct vocabulary *v, const int32_t *ends, int32_t n_ends,
                          struct masker **out, struct error *e) {
    struct masker *m = n_ends <= ENDS_MAX ? calloc(1, sizeof *m) : NULL;
    if (m == NULL) {
        grammar_free(g);
        return n_ends <= ENDS_MAX ? error_memory(e) : error_set(e, STATUS_LIMIT, "a reply has too many ends");
    }
    m->g = g;
    m->v = vocabulary_share(v);
    m->n_ends = n_ends;
    if (n_ends > 0) memcpy(m->ends, ends, (size_t)n_ends * sizeof *ends);
    m->n_words = (v->n_ids + 31) / 32;
    size_t each = KEY_BYTES + (size_t)m->n_words * sizeof *m->words;
    m->n_sets = CACHE_BYTES / each / CACHE_WAYS;
    m->n_sets = m->n_sets < 4 ? 4 : m->n_sets > SETS_MAX ? SETS_MAX : m->n_sets;
    size_t n = m->n_sets * CACHE_WAYS;
    m->kept = calloc(n, sizeof *m->kept);
    m->keys = malloc(n * KEY_BYTES);
    m->words = malloc((n + 1) * (size_t)m->n_words * sizeof *m->words + 1);
    if (m->kept == NULL || m->keys == NULL || m->words == NULL) {
        masker_free(m);
        return error_memory(e);
    }
    *out = m;
    return STATUS_OK;
}

void masker_free(struct masker *m) {
    if (m == NULL) return;
    grammar_free(m->g);
    vocabulary_free((struct vocabulary *)m->v);
    free(m->kept);
    free(m->keys);
    free(m->words);
    free(m);
}

void masker_start(const struct masker *m, struct grammar_state *s) { grammar_start(m->g, s); }

struct masker_counts masker_get_counts(const struct masker *m) {
    return m->counts;
}

// ---- making a mask ----

static void allow(uint32_t *words, int32_t n_words, int32_t id) {
    if (id >= 0 && id / 32 < n_words) words[id / 32] |= 1u << id % 32;
}

static void walk(struct masker *m, const struct vocabulary_trie *t, uint32_t *words) {
    for (int32_t i = 0; i < t->n;) {
        const struct vocabulary_node *n = &t->nodes[i];
        bool lives = grammar_step(m->g, &m->path[n->depth - 1], n->byte, &m->path[n->depth]);
        if (lives && n->id >= 0) allow(words, m->n_words, n->id);
        i = lives ? i + 1 : n->skip;
    }
}

// Which class of tokens one of the state's readings allows as far as its characters go, and how far; false: none, or
// one that would have to ask the other readings about the rest of the class.
static bool find_class(const struct masker *m, const struct grammar_state *s, enum vocabulary_class *class,
                       uint32_t *room) {
    const struct grammar_frame *stack = s->frames;
    bool found = false;
    for (int i = 0; i < s->n_readings; stack += s->depths[i++]) {
        uint32_t own;
        enum grammar_inside inside = grammar_inside(m->g, stack + s->depths[i] - 1, &own);
        if (inside == INSIDE_OTHER || (found && own <= *room)) continue;
        found = true;
        *class = inside == INSIDE_STRING ? CLASS_STRING : CLASS_TEXT;
        *room = own;
    }
    return found && (*room >= PLENTY || s->n_readings == 1);
}

// The state behind a token that begins at m->path[0], or NULL. Leaves path[0] as it is.
static const struct grammar_state *step_token(struct masker *m, int32_t id) {
    size_t n;
    const char *bytes = tokenizer_id_bytes(m->v->tokenizer, id, &n);
    if (bytes == NULL || n == 0 || n > VOCABULARY_TOKEN_BYTES || tokenizer_is_special(m->v->tokenizer, id)) return NULL;
    struct grammar_state *from = &m->path[0], *to = &m->path[1];
    if (tokenizer_is_added(m->v->tokenizer, id)) { // a tag of the reply's form, never a part of its text
        from = &m->path[3];
        grammar_keep_words(m->g, &m->path[0], from);
    }
    for (size_t i = 0; i < n; i++) {
        if (!grammar_step(m->g, from, (unsigned char)bytes[i], to)) return NULL;
        from = to;
        to = to == &m->path[1] ? &m->path[2] : &m->path[1];
    }
    return from;
}

static void make_mask(struct masker *m, const struct grammar_state *s, uint32_t *words) {
    enum vocabulary_class class = CLASS_TEXT;
    uint32_t room = 0;
    memset(words, 0, (size_t)m->n_words * sizeof *words);
    memcpy(&m->path[0], s, grammar_state_bytes(s));
    for (int32_t i = 0; i < m->v->n_added; i++)
        if (step_token(m, m->v->added[i]) != NULL) allow(words, m->n_words, m->v->added[i]);
    if (!find_class(m, s, &class, &room)) {
        walk(m, &m->v->all, words);
        return;
    }
    const uint8_t *characters = m->v->characters[class];
    uint32_t most = room < PLENTY ? room : PLENTY;
    for (int32_t id = 0; id < m->v->n_ids; id++) // 0 becomes the largest number
        words[id / 32] |= (uint32_t)(characters[id] - 1u < most) << id % 32;
    walk(m, &m->v->rest[class], words);
}

// ---- masks that are kept ----

// States that no token can tell apart have one key.
static void make_key(const struct grammar_state *s, struct grammar_state *key) {
    memcpy(key, s, grammar_state_bytes(s));
    for (int i = 0; i < key->n_frames; i++) {
        struct grammar_frame *f = &key->frames[i];
        if (f->need > PLENTY) f->need = PLENTY;
        if (f->room > PLENTY) f->room = PLENTY;
    }
}

// The mask of a key, which is made if it is not kept.
static const uint32_t *find_mask(struct masker *m, const struct grammar_state *s) {
    struct grammar_state *key = &m->path[VOCABULARY_TOKEN_BYTES];
    make_key(s, key);
    size_t n_key = grammar_state_bytes(key);
    m->counts.n_masks++;
    if (n_key > KEY_BYTES) {
        uint32_t *unkept = m->words + m->n_sets * CACHE_WAYS * (size_t)m->n_words;
        make_mask(m, s, unkept);
        return unkept;
    }
    uint64_t hash = XXH3_64bits(key, n_key);
    size_t first = hash % m->n_sets * CACHE_WAYS, way = first + m->next_way++ % CACHE_WAYS;
    for (size_t i = first; i < first + CACHE_WAYS; i++) {
        if (m->kept[i].n_key == 0) way = i;
        if (m->kept[i].n_key != n_key || m->kept[i].hash != hash) continue;
        if (memcmp(m->keys + i * KEY_BYTES, key, n_key) != 0) continue;
        m->counts.n_known++;
        return m->words + i * (size_t)m->n_words;
    }
    memcpy(m->keys + way * KEY_BYTES, key, n_key);
    m->kept[way] = (struct kept){.hash = hash, .n_key = (uint32_t)n_key};
    make_mask(m, s, m->words + way * (size_t)m->n_words);
    return m->words + way * (size_t)m->n_words;
}

void masker_fill(struct masker *m, const struct grammar_state *s, uint32_t *words, int32_t n_words) {
    uint32_t any = 0;
    memset(words, 0, (size_t)n_words * sizeof *words);
    if (s->n_readings > 0) {
        const uint32_t *mask = find_mask(m, s);
        memcpy(words, mask, (size_t)(n_words < m->n_words ? n_words : m->n_words) * sizeof *words);
    }
    for (int32_t i = 0; i < n_words; i++) any |= words[i];
    for (int32_t i = 0; i < m->n_ends && (s->complete || any == 0); i++) allow(words, n_words, m->ends[i]);
}

bool masker_take(struct masker *m, struct grammar_state *s, int32_t id) {
    const struct grammar_state *to = NULL;
    bool is_end = false;
    for (int32_t i = 0; i < m->n_ends; i++) is_end |= m->ends[i] == id;
    memcpy(&m->path[0], s, grammar_state_bytes(s));
    if (!is_end) to = step_token(m, id);
    if (to != NULL) {
        memcpy(s, to, grammar_state_bytes(to));
        return true;
    }
    bool lives = is_end && s->complete;
    memset(s, 0, offsetof(struct grammar_state, frames));
    s->complete = 1;
    return lives;
}
