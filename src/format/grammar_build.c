#include "format/grammar_internal.h"
#include <stdlib.h>
#include <string.h>

#define PARTS_MAX  (1 << 18)
#define CHAIN_MAX  64        // choices within choices: bounds the recursion of a step
#define VISITS_MAX (1 << 21) // of parts and members, until all heights and chains are known
#define WAYS_MAX   256       // through a choice and those within it: bounds the work of a step, which tries them all

static bool grow(void **items, int32_t n, int32_t more, int32_t *capacity, size_t size) {
    if (n + more <= *capacity) return true;
    int32_t wanted = 2 * (n + more) + 16;
    void *grown = realloc(*items, (size_t)wanted * size);
    if (grown == NULL) return false;
    *items = grown;
    *capacity = wanted;
    return true;
}

enum status grammar_create(struct grammar **out, struct error *e) {
    struct grammar *g = calloc(1, sizeof *g);
    int32_t first;
    if (g == NULL) return error_memory(e);
    enum status status = grammar_reserve(g, &first, e);
    if (status != STATUS_OK) {
        grammar_free(g);
        return status;
    }
    g->nodes[first].kind = NODE_DFA;
    g->nodes[first].height = 1;
    *out = g;
    return STATUS_OK;
}

void grammar_free(struct grammar *g) {
    if (g == NULL) return;
    dfa_free(&g->dfa);
    free(g->nodes);
    free(g->parts);
    free(g->members);
    free(g);
}

size_t grammar_bytes(const struct grammar *g) {
    return sizeof *g + (size_t)g->dfa.states_capacity * sizeof *g->dfa.states +
           (size_t)g->dfa.edges_capacity * sizeof *g->dfa.edges + (size_t)g->nodes_capacity * sizeof *g->nodes +
           (size_t)g->parts_capacity * sizeof *g->parts + (size_t)g->members_capacity * sizeof *g->members;
}

struct dfa *grammar_dfa(struct grammar *g) {
    return &g->dfa;
}

enum status grammar_reserve(struct grammar *g, int32_t *node, struct error *e) {
    if (g->n_nodes == GRAMMAR_NODES_MAX) return error_set(e, STATUS_LIMIT, "has more than %d parts", GRAMMAR_NODES_MAX);
    if (!grow((void **)&g->nodes, g->n_nodes, 1, &g->nodes_capacity, sizeof *g->nodes)) return error_memory(e);
    g->nodes[g->n_nodes] = (struct node){.height = HEIGHT_ENDLESS};
    *node = g->n_nodes++;
    return STATUS_OK;
}

static struct node *set(struct grammar *g, int32_t node, enum node_kind kind) {
    must(node > 0 && node < g->n_nodes && g->nodes[node].kind == NODE_UNSET);
    g->nodes[node].kind = kind;
    return &g->nodes[node];
}

void grammar_set_dfa(struct grammar *g, int32_t node, int32_t start) { set(g, node, NODE_DFA)->start = start; }

void grammar_set_string(struct grammar *g, int32_t node, const struct grammar_string *s) {
    struct node *n = set(g, node, NODE_STRING);
    n->min = s->min;
    n->max = s->max;
    n->start = s->pattern;
    n->guard = s->guard;
}

void grammar_set_text(struct grammar *g, int32_t node, const struct grammar_text *t) {
    struct node *n = set(g, node, NODE_TEXT);
    n->min = t->min;
    n->max = t->max;
    n->plain = t->plain;
    memcpy(n->stops, t->stops, sizeof n->stops);
}

static enum status add_parts(struct grammar *g, const int32_t *parts, size_t n, int32_t *first, struct error *e) {
    if (g->n_parts + n > PARTS_MAX) return error_set(e, STATUS_LIMIT, "has too many parts");
    if (!grow((void **)&g->parts, g->n_parts, (int32_t)n, &g->parts_capacity, sizeof *g->parts)) return error_memory(e);
    if (n > 0) memcpy(g->parts + g->n_parts, parts, n * sizeof *parts);
    *first = g->n_parts;
    g->n_parts += (int32_t)n;
    return STATUS_OK;
}

static enum status set_parts(struct grammar *g, int32_t node, enum node_kind kind, const int32_t *parts, size_t n,
                             struct error *e) {
    int32_t first = 0;
    enum status status = add_parts(g, parts, n, &first, e);
    if (status != STATUS_OK) return status;
    struct node *to = set(g, node, kind);
    to->first = first;
    to->n = (int32_t)n;
    return STATUS_OK;
}

enum status grammar_set_sequence(struct grammar *g, int32_t node, const int32_t *parts, size_t n, struct error *e) {
    must(n > 0);
    return set_parts(g, node, NODE_SEQUENCE, parts, n, e);
}

enum status grammar_set_choice(struct grammar *g, int32_t node, const int32_t *parts, size_t n, struct error *e) {
    must(n > 0);
    if (n > GRAMMAR_CHOICES_MAX)
        return error_set(e, STATUS_LIMIT, "has more than %d alternatives", GRAMMAR_CHOICES_MAX);
    return set_parts(g, node, NODE_CHOICE, parts, n, e);
}

enum status grammar_set_switch(struct grammar *g, int32_t node, int32_t words, const int32_t *parts, size_t n,
                               struct error *e) {
    enum status status = set_parts(g, node, NODE_SWITCH, parts, n, e);
    if (status == STATUS_OK) g->nodes[node].start = words;
    return status;
}

void grammar_set_list(struct grammar *g, int32_t node, const struct grammar_frame_words *words, int32_t element,
                      uint32_t min, uint32_t max) {
    struct node *n = set(g, node, NODE_LIST);
    n->words = *words;
    n->first = element;
    n->min = min;
    n->max = max;
}

// ---- objects ----

// The keys of members[from..n) up to the first required one, tagged with their places.
static enum status add_keys(struct grammar *g, const struct grammar_member *members, size_t from, size_t to,
                            int32_t *start, struct error *e) {
    struct dfa_word words[GRAMMAR_MEMBERS_MAX];
    size_t n = 0;
    for (size_t i = from; i <= to; i++)
        words[n++] = (struct dfa_word){.text = members[i].key, .n = members[i].n, .tag = (int32_t)i};
    return dfa_add_words(&g->dfa, words, n, start, e);
}

static enum status fill_member(struct grammar *g, const struct grammar_member *members, size_t n, size_t i,
                               struct member *m, struct error *e) {
    size_t last = i;
    *m = (struct member){.keys = DFA_NONE, .required = -1, .only = DFA_NONE, .value = -1};
    if (i == n) return STATUS_OK;
    while (last < n - 1 && !members[last].required) last++;
    m->value = members[i].value;
    m->is_required = members[i].required;
    m->required = members[last].required ? (int32_t)last : -1;
    enum status status = add_keys(g, members, i, last, &m->keys, e);
    if (m->is_required) m->only = m->keys;
    return status;
}

enum status grammar_set_object(struct grammar *g, int32_t node, const struct grammar_frame_words *words, int32_t lead,
                               const struct grammar_member *members, size_t n, struct error *e) {
    if (n > GRAMMAR_MEMBERS_MAX) return error_set(e, STATUS_LIMIT, "has more than %d members", GRAMMAR_MEMBERS_MAX);
    if (!grow((void **)&g->members, g->n_members, (int32_t)n + 1, &g->members_capacity, sizeof *g->members))
        return error_memory(e);
    struct member *own = g->members + g->n_members;
    for (size_t i = 0; i <= n; i++) {
        enum status status = fill_member(g, members, n, i, &own[i], e);
        if (status != STATUS_OK) return status;
    }
    for (size_t i = 0; i <= n; i++)
        if (own[i].required >= 0) own[i].only = own[own[i].required].keys;
    struct node *to = set(g, node, NODE_OBJECT);
    to->first = g->n_members;
    to->n = (int32_t)n;
    to->words = *words;
    to->lead = lead;
    g->n_members += (int32_t)n + 1;
    return STATUS_OK;
}

// ---- the end of building ----

static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

static int32_t height_of_parts(const struct grammar *g, const struct node *n) {
    int32_t height = n->kind == NODE_CHOICE ? HEIGHT_ENDLESS : 1;
    for (int32_t i = 0; i < n->n; i++) {
        int32_t part = g->nodes[g->parts[n->first + i]].height;
        // The last part of a sequence takes the sequence's place.
        if (n->kind == NODE_SEQUENCE && i < n->n - 1) part++;
        height = n->kind != NODE_CHOICE ? larger(height, part) : part < height ? part : height;
    }
    return height;
}

static int32_t height_of(const struct grammar *g, const struct node *n) {
    int32_t height = 1;
    switch (n->kind) {
    case NODE_UNSET: return HEIGHT_ENDLESS;
    case NODE_DFA:
    case NODE_STRING:
    case NODE_TEXT: return 1;
    case NODE_SEQUENCE:
    case NODE_CHOICE:
    case NODE_SWITCH: return height_of_parts(g, n);
    case NODE_LIST: return 1 + (n->min > 0 ? larger(1, g->nodes[n->first].height) : 1);
    case NODE_OBJECT:
        for (int32_t i = 0; i < n->n; i++) {
            const struct member *m = &g->members[n->first + i];
            if (m->is_required) height = larger(height, g->nodes[m->value].height);
        }
        return 1 + height;
    }
    return HEIGHT_ENDLESS;
}

// What one pass over all nodes visits.
static int64_t visits_of_pass(const struct grammar *g) { return (int64_t)g->n_nodes + g->n_parts + g->n_members; }

// Heights only fall, and by whole numbers below a stack's depth. Parts mostly come behind what they are parts of, so
// passes go backwards, and few do. False: too many would.
static bool find_heights(struct grammar *g, int64_t *n_visit) {
    bool changed = true;
    while (changed) {
        changed = false;
        *n_visit += visits_of_pass(g);
        if (*n_visit > VISITS_MAX) return false;
        for (int32_t i = g->n_nodes - 1; i > 0; i--) {
            int32_t height = height_of(g, &g->nodes[i]);
            if (height > GRAMMAR_DEPTH_MAX) height = HEIGHT_ENDLESS;
            changed |= height < g->nodes[i].height;
            g->nodes[i].height = height;
        }
    }
    for (int32_t i = 1; i < g->n_nodes; i++) {
        const struct node *n = &g->nodes[i];
        for (int32_t k = n->kind == NODE_OBJECT ? n->n - 1 : -1; k >= 0; k--) {
            struct member *m = &g->members[n->first + k];
            int32_t own = g->nodes[m->value].height;
            m->height = m->is_required || k == n->n - 1 ? own : larger(own, m[1].height);
        }
    }
    return true;
}

// How many choices lie within each other, at most, and how many ways lead through them: two that both hold the same
// third one have all of its ways twice.
struct chain {
    int32_t rank, n_ways;
};

static struct chain chain_of(const struct grammar *g, const struct node *n, const struct chain *chains) {
    struct chain own = {0, 0};
    for (int32_t k = 0; k < n->n; k++) {
        int32_t part = g->parts[n->first + k];
        bool is_choice = g->nodes[part].kind == NODE_CHOICE;
        own.rank = larger(own.rank, 1 + chains[part].rank);
        own.n_ways += is_choice ? chains[part].n_ways : 1;
        if (own.n_ways > WAYS_MAX) own.n_ways = WAYS_MAX + 1;
    }
    return own;
}

// A circle of choices has no end.
static bool find_chains(const struct grammar *g, struct chain *chains, int32_t *n_ways, int64_t *n_visit) {
    bool changed = true;
    for (int pass = 0; changed && pass <= CHAIN_MAX; pass++) {
        changed = false;
        *n_visit += visits_of_pass(g);
        for (int32_t i = g->n_nodes - 1; i > 0 && *n_visit <= VISITS_MAX; i--) {
            if (g->nodes[i].kind != NODE_CHOICE) continue;
            struct chain own = chain_of(g, &g->nodes[i], chains);
            changed |= own.rank != chains[i].rank || own.n_ways != chains[i].n_ways;
            chains[i] = own;
        }
    }
    *n_ways = 0;
    for (int32_t i = 1; i < g->n_nodes; i++) *n_ways = larger(*n_ways, chains[i].n_ways);
    return !changed;
}

bool grammar_is_endless(const struct grammar *g, int32_t node) { return g->nodes[node].height > GRAMMAR_DEPTH_MAX; }

enum status grammar_finish(struct grammar *g, int32_t root, struct error *e) {
    struct chain *chains = calloc((size_t)g->n_nodes, sizeof *chains);
    int32_t n_ways;
    int64_t n_visit = 0;
    static const char too_long[] = "has parts that refer to each other in too many ways";
    if (chains == NULL) return error_memory(e);
    bool ends = find_chains(g, chains, &n_ways, &n_visit);
    free(chains);
    if (n_visit > VISITS_MAX) return error_set(e, STATUS_LIMIT, "%s", too_long);
    if (!ends)
        return error_set(e, STATUS_UNSUPPORTED, "has alternatives that lead to each other in a circle, or %d deep",
                         CHAIN_MAX);
    if (n_ways > WAYS_MAX)
        return error_set(e, STATUS_LIMIT, "has alternatives within alternatives of more than %d ways", WAYS_MAX);
    g->root = root;
    return find_heights(g, &n_visit) ? STATUS_OK : error_set(e, STATUS_LIMIT, "%s", too_long);
}
