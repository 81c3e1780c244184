// Which names are unset when a scope is entered. Jinja resolves names when it compiles: a name that a scope assigns,
// and does not read before, belongs to that scope from its start, so that an inner scope that reads it earlier finds it
// unset although an outer variable of that name exists. The interpreter looks names up from the inside out, which is
// the same except for these names; each scope keeps a list of them and unsets them when it is entered.
#include "format/jinja_ast.h"
#include <string.h>

#define WORDS ((JINJA_NAMES_MAX + 63) / 64)

struct name_set {
    uint64_t bits[WORDS];
};

struct frame {
    const struct frame *parent;
    struct name_set known;  // read or assigned here so far
    struct name_set stored; // assigned here so far
    struct name_set hidden;
};

struct resolver {
    struct jinja_template *t;
    bool failed; // out of memory
};

static bool has(const struct name_set *set, int name) { return set->bits[name / 64] >> (name % 64) & 1; }
static void add(struct name_set *set, int name) { set->bits[name / 64] |= UINT64_C(1) << (name % 64); }

static bool known_outside(const struct frame *f, int name) {
    for (f = f->parent; f; f = f->parent)
        if (has(&f->known, name)) return true;
    return false;
}

static void load(struct frame *f, int name) {
    if (!known_outside(f, name)) add(&f->known, name);
}

static void store(struct frame *f, int name) {
    add(&f->stored, name);
    if (has(&f->known, name)) return;
    add(&f->known, name);
    if (!known_outside(f, name)) add(&f->hidden, name);
}

static void load_expression(struct frame *f, const struct node *node) {
    if (!node) return;
    if (node->kind == NODE_NAME || node->kind == NODE_CALL || node->kind == NODE_NAMESPACE_TARGET) load(f, node->name);
    for (uint32_t i = 0; i < node->n_kids; i++) load_expression(f, node->kids[i]);
}

static void store_target(struct frame *f, const struct node *node, bool parameter) {
    if (node->kind == NODE_NAMESPACE_TARGET)
        load(f, node->name);
    else if (node->kind == NODE_NAME && parameter)
        add(&f->known, node->name);
    else if (node->kind == NODE_NAME)
        store(f, node->name);
    for (uint32_t i = 0; i < node->n_kids; i++) store_target(f, node->kids[i], parameter);
}

static void visit_statement(struct frame *f, const struct node *node);

// Branches start from the same state. A name that only some of them assign keeps its outer value in the others.
static void visit_if(struct frame *f, const struct node *node) {
    const struct frame before = *f;
    struct frame after = *f;
    for (uint32_t i = 0; i < node->n_kids; i++) {
        bool is_test = i % 2 == 0 && i + 1 < node->n_kids;
        if (is_test && i == 0) {
            load_expression(f, node->kids[i]);
            after = *f;
            continue;
        }
        struct frame branch = before;
        for (int w = 0; w < WORDS; w++) branch.known.bits[w] |= f->known.bits[w];
        if (is_test)
            load_expression(&branch, node->kids[i]);
        else
            visit_statement(&branch, node->kids[i]);
        for (int w = 0; w < WORDS; w++) {
            uint64_t stored = branch.stored.bits[w] & ~before.stored.bits[w];
            after.known.bits[w] |= branch.known.bits[w];
            after.stored.bits[w] |= branch.stored.bits[w];
            after.hidden.bits[w] |= branch.hidden.bits[w] & ~stored;
        }
    }
    *f = after;
}

// What a statement does to the names of the scope that it stands in.
static void visit_statement(struct frame *f, const struct node *node) {
    switch (node->kind) {
    case NODE_BODY:
        for (uint32_t i = 0; i < node->n_kids; i++) visit_statement(f, node->kids[i]);
        break;
    case NODE_PRINT: load_expression(f, node->kids[0]); break;
    case NODE_IF: visit_if(f, node); break;
    case NODE_FOR: load_expression(f, node->kids[1]); break;
    case NODE_SET:
        load_expression(f, node->kids[1]);
        store_target(f, node->kids[0], false);
        break;
    case NODE_SET_BLOCK: store_target(f, node->kids[0], false); break;
    case NODE_MACRO: store(f, node->name); break;
    case NODE_FILTER_BLOCK: load_expression(f, node->kids[0]); break;
    case NODE_WITH:
        for (uint32_t i = 2; i < node->n_kids; i += 2) load_expression(f, node->kids[i]);
        break;
    default: break;
    }
}

static void resolve_inner(struct resolver *r, const struct frame *f, struct node *node);

// Finishes a scope whose statements are in body: notes its hidden names there, then does the scopes inside.
static void finish_scope(struct resolver *r, struct frame *f, struct node *body) {
    visit_statement(f, body);
    size_t n = 0;
    for (int w = 0; w < WORDS; w++) n += (size_t)__builtin_popcountll(f->hidden.bits[w]);
    int *names = n ? arena_alloc(r->t->memory, n * sizeof *names) : NULL;
    if (n && !names) r->failed = true;
    body->hidden = names;
    for (int i = 0; names && i < r->t->n_names; i++)
        if (has(&f->hidden, i)) names[body->n_hidden++] = i;
    resolve_inner(r, f, body);
}

static void resolve_for(struct resolver *r, const struct frame *parent, struct node *node) {
    struct frame body = {.parent = parent};
    store_target(&body, node->kids[0], true);
    for (int i = 0; i < r->t->n_names; i++)
        if (!strcmp(r->t->names[i].text, "loop")) add(&body.known, i);
    finish_scope(r, &body, node->kids[3]);
    struct frame other = {.parent = parent};
    if (node->kids[4]) finish_scope(r, &other, node->kids[4]);
}

static void resolve_macro(struct resolver *r, const struct frame *parent, struct node *node) {
    struct frame f = {.parent = parent};
    for (uint32_t i = 0; i < node->n_names; i++) add(&f.known, node->names[i]);
    for (uint32_t i = 1; i < node->n_kids; i++) load_expression(&f, node->kids[i]);
    finish_scope(r, &f, node->kids[0]);
}

static void resolve_inner(struct resolver *r, const struct frame *f, struct node *node) {
    struct frame inner = {.parent = f};
    switch (node->kind) {
    case NODE_BODY:
        for (uint32_t i = 0; i < node->n_kids; i++) resolve_inner(r, f, node->kids[i]);
        break;
    case NODE_IF:
        for (uint32_t i = 1; i < node->n_kids; i += 2) resolve_inner(r, f, node->kids[i]);
        if (node->n_kids % 2) resolve_inner(r, f, node->kids[node->n_kids - 1]);
        break;
    case NODE_FOR: resolve_for(r, f, node); break;
    case NODE_MACRO: resolve_macro(r, f, node); break;
    case NODE_SET_BLOCK: finish_scope(r, &inner, node->kids[2]); break;
    case NODE_FILTER_BLOCK: finish_scope(r, &inner, node->kids[1]); break;
    case NODE_GENERATION: finish_scope(r, &inner, node->kids[0]); break;
    case NODE_WITH:
        for (uint32_t i = 1; i < node->n_kids; i += 2) add(&inner.known, node->kids[i]->name);
        finish_scope(r, &inner, node->kids[0]);
        break;
    default: break;
    }
}

enum status jinja_resolve_scopes(struct jinja_template *t, struct error *e) {
    struct resolver r = {.t = t};
    struct frame outermost = {.parent = NULL};
    finish_scope(&r, &outermost, t->root);
    return r.failed ? error_memory(e) : STATUS_OK;
}
