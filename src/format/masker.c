#include "format/masker.h"
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#define CACHE_BYTES  ((size_t)2 << 20) // of masks that are kept
#define CACHE_WAYS   4
#define SETS_MAX     64
#define KEY_BYTES    1024 // a larger state's mask is not kept
#define ENDS_MAX     16
#define KEPT_NOWHERE SIZE_MAX
#define TOP_STEPS    3 // that a byte takes where only what is on top changes

// More characters or elements than a token can have of either, as good as any larger number.
#define PLENTY (VOCABULARY_TOKEN_BYTES + 1)

struct kept {
    uint64_t hash;
    uint32_t n_key; // 0: free
};

// The mask that is being made, or was made last. Between two parts of the work it may be left for another one.
struct making {
    struct grammar_state key; // of no readings: there is none
    uint64_t hash;
    uint32_t *words;
    size_t way; // where it is kept once it is done; KEPT_NOWHERE: it is not
    bool begun; // what needs no walk is done
    const struct vocabulary_trie *trie;
    int32_t at; // in the trie
    // Of the walk, by depth: the state, or where that is one stack that differs from the first state's in what is on
    // top of it, only this.
    bool is_top[VOCABULARY_TOKEN_BYTES + 1];
    struct grammar_frame tops[VOCABULARY_TOKEN_BYTES + 1];
    struct grammar_state path[VOCABULARY_TOKEN_BYTES + 1];
};

struct masker {
    struct grammar *g;
    const struct vocabulary *v;
    size_t bytes; // as the vocabulary has counted them
    int32_t ends[ENDS_MAX], n_ends;
    int32_t n_words; // of a mask that is kept
    size_t n_sets;
    struct kept *kept; // [n_sets * CACHE_WAYS]
    char *keys;        // [n_sets * CACHE_WAYS][KEY_BYTES]
    uint32_t *words;   // [n_sets * CACHE_WAYS][n_words], and one that is not kept
    uint32_t next_way;
    struct masker_counts counts;
    struct grammar_state key;      // of the state at hand
    struct grammar_state token[3]; // along a token: before it, and two that take turns
    struct making making;
};

static bool allocate(struct masker *m) {
    size_t n = m->n_sets * CACHE_WAYS;
    m->kept = calloc(n, sizeof *m->kept);
    m->keys = malloc(n * KEY_BYTES);
    m->words = malloc((n + 1) * (size_t)m->n_words * sizeof *m->words + 1);
    return m->kept != NULL && m->keys != NULL && m->words != NULL;
}

static size_t count_sets(int32_t n_words) {
    size_t n = CACHE_BYTES / (KEY_BYTES + (size_t)n_words * sizeof(uint32_t)) / CACHE_WAYS;
    return n < 4 ? 4 : n > SETS_MAX ? SETS_MAX : n;
}

enum status masker_create(struct grammar *g, const struct vocabulary *v, const int32_t *ends, int32_t n_ends,
                          struct masker **out, struct error *e) {
    struct masker *m = n_ends <= ENDS_MAX ? calloc(1, sizeof *m) : NULL;
    if (m == NULL) {
        grammar_free(g);
        return n_ends <= ENDS_MAX ? error_memory(e) : error_set(e, STATUS_LIMIT, "a reply has too many ends");
    }
    m->g = g;
    m->n_ends = n_ends;
    if (n_ends > 0) memcpy(m->ends, ends, (size_t)n_ends * sizeof *ends);
    m->n_words = (v->n_ids + 31) / 32;
    m->n_sets = count_sets(m->n_words);
    m->bytes = sizeof *m + grammar_bytes(g) +
               m->n_sets * CACHE_WAYS * (KEY_BYTES + sizeof *m->kept + (size_t)m->n_words * sizeof *m->words);
    m->v = vocabulary_share(v);
    enum status status = vocabulary_claim(m->v, m->bytes, e);
    if (status != STATUS_OK)
        m->bytes = 0;
    else if (!allocate(m))
        status = error_memory(e);
    if (status == STATUS_OK)
        *out = m;
    else
        masker_free(m);
    return status;
}

void masker_free(struct masker *m) {
    if (m == NULL) return;
    grammar_free(m->g);
    vocabulary_release(m->v, m->bytes);
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

// The state behind a token that begins at `before`, or NULL.
static const struct grammar_state *step_token(struct masker *m, const struct grammar_state *before, int32_t id) {
    size_t n;
    const char *bytes = tokenizer_id_bytes(m->v->tokenizer, id, &n);
    if (bytes == NULL || n == 0 || n > VOCABULARY_TOKEN_BYTES || tokenizer_is_special(m->v->tokenizer, id)) return NULL;
    const struct grammar_state *from = before;
    if (tokenizer_is_added(m->v->tokenizer, id)) { // a tag of the reply's form, never a part of its text
        grammar_keep_words(m->g, before, &m->token[0]);
        from = &m->token[0];
    }
    for (size_t i = 0; i < n; i++) {
        struct grammar_state *to = &m->token[1 + i % 2];
        if (!grammar_step(m->g, from, (unsigned char)bytes[i], to)) return NULL;
        from = to;
    }
    return from;
}

// What a step through the trie costs: frames are copied and stepped, and each stack compared with those before it.
static int64_t cost_of(const struct grammar_state *s) { return 4 + s->n_frames + s->n_readings * s->n_readings / 3; }

// The tokens of a class that have room.
static void allow_class(struct masker *m, enum vocabulary_class class, uint32_t room, int64_t *steps) {
    uint32_t *words = m->making.words;
    const uint8_t *characters = m->v->characters[class];
    if (room >= PLENTY) {
        memcpy(words, m->v->words[class], (size_t)m->n_words * sizeof *words);
        return;
    }
    memset(words, 0, (size_t)m->n_words * sizeof *words);
    for (int32_t id = 0; id < m->v->n_ids; id++) // 0 becomes the largest number
        words[id / 32] |= (uint32_t)(characters[id] - 1u < room) << id % 32;
    *steps -= m->v->n_ids / 32;
}

// What needs no walk: added tokens, and a class of tokens as a whole.
static void begin_mask(struct masker *m, int64_t *steps) {
    struct making *k = &m->making;
    enum vocabulary_class class = CLASS_TEXT;
    uint32_t room = 0;
    k->begun = true;
    if (find_class(m, &k->path[0], &class, &room)) {
        allow_class(m, class, room, steps);
        k->trie = &m->v->rest[class];
    } else {
        memset(k->words, 0, (size_t)m->n_words * sizeof *k->words);
        k->trie = &m->v->all;
    }
    for (int32_t i = 0; i < m->v->n_added; i++)
        if (step_token(m, &k->path[0], m->v->added[i]) != NULL) allow(k->words, m->n_words, m->v->added[i]);
    *steps -= m->n_words / 64 + m->v->n_added * cost_of(&k->path[0]);
}

// The state that is reached by one more byte from the one at depth - 1; false: none.
static bool step_walk(struct masker *m, int depth, unsigned char byte, int64_t *steps) {
    struct making *k = &m->making;
    struct grammar_state *from = &k->path[depth - 1];
    k->is_top[depth] = k->is_top[depth - 1];
    if (k->is_top[depth]) {
        k->tops[depth] = k->tops[depth - 1];
        *steps -= TOP_STEPS;
        enum grammar_answer answer = grammar_step_top(m->g, &k->tops[depth], byte);
        if (answer != STEP_OTHER) return answer == STEP_ON;
        k->is_top[depth] = false;
        if (depth > 1) memcpy(from, &k->path[0], grammar_state_bytes(&k->path[0]));
        from->frames[from->n_frames - 1] = k->tops[depth - 1];
    }
    *steps -= cost_of(from);
    return grammar_step(m->g, from, byte, &k->path[depth]);
}

// Goes on with the mask; true when it is done. The first part, which is short, is not stopped in its middle.
static bool make_mask(struct masker *m, int64_t *steps) {
    struct making *k = &m->making;
    if (k->begun && k->at == k->trie->n) return true;
    if (*steps <= 0) return false;
    if (!k->begun) begin_mask(m, steps);
    const struct vocabulary_trie *t = k->trie;
    while (k->at != t->n && *steps > 0) {
        const struct vocabulary_node *at = &t->nodes[k->at];
        bool lives = step_walk(m, at->depth, at->byte, steps);
        if (lives && at->id >= 0) allow(k->words, m->n_words, at->id);
        k->at = lives ? k->at + 1 : at->skip;
    }
    return k->at == t->n;
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

static bool is_key(const struct grammar_state *key, const void *other, size_t n_other) {
    size_t n = grammar_state_bytes(key);
    return n == n_other && memcmp(key, other, n) == 0;
}

// Which way of which set keeps the key; KEPT_NOWHERE: none. *free: one to keep it in.
static size_t find_kept(struct masker *m, const struct grammar_state *key, uint64_t hash, size_t *free) {
    size_t first = hash % m->n_sets * CACHE_WAYS;
    *free = first + m->next_way % CACHE_WAYS;
    for (size_t i = first; i < first + CACHE_WAYS; i++) {
        if (m->kept[i].n_key == 0)
            *free = i;
        else if (m->kept[i].hash == hash && is_key(key, m->keys + i * KEY_BYTES, m->kept[i].n_key))
            return i;
    }
    return KEPT_NOWHERE;
}

static void begin_making(struct masker *m, const struct grammar_state *s, uint64_t hash, size_t way) {
    struct making *k = &m->making;
    if (grammar_state_bytes(&m->key) > KEY_BYTES) way = KEPT_NOWHERE;
    if (way != KEPT_NOWHERE) {
        m->next_way++;
        m->kept[way].n_key = 0;
    }
    memcpy(&k->key, &m->key, grammar_state_bytes(&m->key));
    memcpy(&k->path[0], s, grammar_state_bytes(s));
    k->is_top[0] = s->n_readings == 1;
    if (k->is_top[0]) k->tops[0] = s->frames[s->n_frames - 1];
    k->hash = hash;
    k->way = way;
    k->words = m->words + (way != KEPT_NOWHERE ? way : m->n_sets * CACHE_WAYS) * (size_t)m->n_words;
    k->begun = false;
    k->at = 0;
    m->counts.n_made++;
}

// The mask of a state with readings; NULL: the steps did not do for it.
static const uint32_t *find_mask(struct masker *m, const struct grammar_state *s, int64_t *steps) {
    struct making *k = &m->making;
    make_key(s, &m->key);
    if (!is_key(&m->key, &k->key, grammar_state_bytes(&k->key))) {
        size_t way;
        uint64_t hash = XXH3_64bits(&m->key, grammar_state_bytes(&m->key));
        size_t kept = find_kept(m, &m->key, hash, &way);
        if (kept != KEPT_NOWHERE) return m->words + kept * (size_t)m->n_words;
        if (*steps <= 0) return NULL; // what is being made, and what is kept, stay
        begin_making(m, s, hash, way);
    }
    if (!make_mask(m, steps)) return NULL;
    if (k->way != KEPT_NOWHERE && m->kept[k->way].n_key == 0) {
        size_t n_key = grammar_state_bytes(&k->key);
        memcpy(m->keys + k->way * KEY_BYTES, &k->key, n_key);
        m->kept[k->way] = (struct kept){.hash = k->hash, .n_key = (uint32_t)n_key};
    }
    return k->words;
}

bool masker_prepare(struct masker *m, const struct grammar_state *s, int64_t *steps) {
    return s->n_readings == 0 || find_mask(m, s, steps) != NULL;
}

void masker_fill(struct masker *m, const struct grammar_state *s, uint32_t *words, int32_t n_words) {
    uint32_t any = 0;
    m->counts.n_asked++;
    memset(words, 0, (size_t)n_words * sizeof *words);
    if (s->n_readings > 0) {
        int64_t steps = INT64_MAX;
        const uint32_t *mask = find_mask(m, s, &steps);
        memcpy(words, mask, (size_t)(n_words < m->n_words ? n_words : m->n_words) * sizeof *words);
    }
    for (int32_t i = 0; i < n_words; i++) any |= words[i];
    for (int32_t i = 0; i < m->n_ends && (s->complete || any == 0); i++) allow(words, n_words, m->ends[i]);
}

bool masker_take(struct masker *m, struct grammar_state *s, int32_t id) {
    const struct grammar_state *to = NULL;
    bool is_end = false;
    for (int32_t i = 0; i < m->n_ends; i++) is_end |= m->ends[i] == id;
    if (!is_end) to = step_token(m, s, id);
    if (to != NULL) {
        memcpy(s, to, grammar_state_bytes(to));
        return true;
    }
    bool lives = is_end && s->complete;
    memset(s, 0, offsetof(struct grammar_state, frames));
    s->complete = 1;
    return lives;
}
