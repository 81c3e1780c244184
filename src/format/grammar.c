// Stepping: the stacks of a state are taken one by one; the leaf on top of each reads the byte, and where it may end
// what stands below goes on, up to the leaves that can read the next byte.
#include "format/grammar.h"
#include "format/grammar_internal.h"
#include "format/grammar_leaf.h"
#include <string.h>

// Of lists and objects: what is being read.
enum phase { OPEN, SEPARATOR, KEY, LEAD, VALUE, CLOSE };

struct walk {
    const struct grammar *g;
    struct grammar_state *out;
    int depth;
    struct grammar_frame frames[GRAMMAR_DEPTH_MAX];
};

static const struct node *node_of(const struct walk *w, const struct grammar_frame *f) { return &w->g->nodes[f->node]; }

static struct grammar_frame *top(struct walk *w) { return &w->frames[w->depth - 1]; }

static bool fits(const struct walk *w, int32_t height) { return w->depth + height <= GRAMMAR_DEPTH_MAX; }

// Adds the stack to the state, unless it is there or there is no room.
static void emit(struct walk *w) {
    struct grammar_state *s = w->out;
    size_t bytes = (size_t)w->depth * sizeof *w->frames;
    const struct grammar_frame *at = s->frames;
    for (int i = 0; i < s->n_readings; at += s->depths[i++])
        if (s->depths[i] == w->depth && memcmp(at, w->frames, bytes) == 0) return;
    if (s->n_readings == GRAMMAR_READINGS || s->n_frames + w->depth > GRAMMAR_FRAMES) return;
    memcpy(s->frames + s->n_frames, w->frames, bytes);
    s->n_frames = (uint16_t)(s->n_frames + w->depth);
    s->depths[s->n_readings++] = (uint8_t)w->depth;
}

// ---- from node to node: each leaves the stack as it found it ----

static void enter(struct walk *w, int32_t node);
static void finish(struct walk *w, int32_t tag);

static void push(struct walk *w, int32_t node) {
    must(w->depth < GRAMMAR_DEPTH_MAX);
    w->frames[w->depth++] = (struct grammar_frame){.node = node, .at = DFA_NONE};
}

// `node`: that of the automaton, or 0.
static void enter_dfa(struct walk *w, int32_t node, int32_t start) {
    push(w, node);
    top(w)->at = start;
    const struct dfa_state *s = &w->g->dfa.states[start];
    if (s->n > 0) emit(w);
    if (s->tag != DFA_NONE) finish(w, s->tag);
    w->depth--;
}

// The part of a sequence that is on top; the last one takes the sequence's place.
static void enter_part(struct walk *w) {
    const struct node *n = node_of(w, top(w));
    int32_t part = w->g->parts[n->first + top(w)->at];
    bool last = top(w)->at == n->n - 1;
    w->depth -= last;
    enter(w, part);
    w->depth += last;
}

static void enter_in(struct walk *w, enum phase phase, int32_t start) {
    top(w)->sub = phase;
    enter_dfa(w, 0, start);
}

// The next element of a list, or its end.
static void go_on_with_list(struct walk *w, bool is_first) {
    const struct node *n = node_of(w, top(w));
    struct grammar_frame *f = top(w);
    if (f->room > 0 && fits(w, w->g->nodes[n->first].height)) {
        struct grammar_frame saved = *f;
        if (f->room != GRAMMAR_UNBOUNDED) f->room--;
        if (f->need > 0) f->need--;
        if (is_first || n->words.separator == DFA_NONE) {
            f->sub = VALUE;
            enter(w, n->first);
        } else {
            enter_in(w, SEPARATOR, n->words.separator);
        }
        *top(w) = saved;
    }
    if (f->need > 0) return;
    if (n->words.close == DFA_NONE) {
        finish(w, 0);
    } else {
        enter_in(w, CLOSE, n->words.close);
    }
}

// Which keys may come at the object's member `at`; DFA_NONE: none.
static int32_t keys_at(const struct walk *w, const struct member *m) {
    if (m->keys == DFA_NONE || fits(w, m->height)) return m->keys;
    return m->only;
}

static void go_on_with_object(struct walk *w, int32_t at, bool is_first) {
    const struct node *n = node_of(w, top(w));
    const struct member *m = &w->g->members[n->first + at];
    int32_t keys = keys_at(w, m);
    top(w)->at = at;
    if (keys != DFA_NONE && (is_first || n->words.separator == DFA_NONE)) {
        enter_in(w, KEY, keys);
    } else if (keys != DFA_NONE) {
        enter_in(w, SEPARATOR, n->words.separator);
    }
    if (m->required < 0) enter_in(w, CLOSE, n->words.close);
}

static void enter_value(struct walk *w) {
    const struct node *n = node_of(w, top(w));
    top(w)->sub = VALUE;
    enter(w, w->g->members[n->first + top(w)->at].value);
}

static void advance_object(struct walk *w, int32_t tag) {
    const struct node *n = node_of(w, top(w));
    switch ((enum phase)top(w)->sub) {
    case OPEN: go_on_with_object(w, 0, true); break;
    case SEPARATOR: enter_in(w, KEY, keys_at(w, &w->g->members[n->first + top(w)->at])); break;
    case KEY:
        top(w)->at = tag;
        if (n->lead == DFA_NONE)
            enter_value(w);
        else
            enter_in(w, LEAD, n->lead);
        break;
    case LEAD: enter_value(w); break;
    case VALUE: go_on_with_object(w, top(w)->at + 1, false); break;
    case CLOSE: finish(w, 0); break;
    }
}

static void advance_list(struct walk *w) {
    switch ((enum phase)top(w)->sub) {
    case OPEN: go_on_with_list(w, true); break;
    case SEPARATOR:
        top(w)->sub = VALUE;
        enter(w, node_of(w, top(w))->first);
        break;
    case CLOSE: finish(w, 0); break;
    default: go_on_with_list(w, false); break;
    }
}

// What is on top goes on: a part of it has ended.
static void advance(struct walk *w, int32_t tag) {
    const struct node *n = node_of(w, top(w));
    switch (n->kind) {
    case NODE_SEQUENCE:
        top(w)->at++;
        enter_part(w);
        break;
    case NODE_SWITCH:
        w->depth--;
        enter(w, w->g->parts[n->first + tag]);
        w->depth++;
        break;
    case NODE_OBJECT: advance_object(w, tag); break;
    case NODE_LIST: advance_list(w); break;
    default: must(false);
    }
}

// What is on top has ended.
static void finish(struct walk *w, int32_t tag) {
    struct grammar_frame ended = *top(w);
    if (--w->depth == 0) {
        w->out->complete = 1;
    } else {
        struct grammar_frame below = *top(w);
        advance(w, tag);
        *top(w) = below;
    }
    w->frames[w->depth++] = ended;
}

static void enter_composite(struct walk *w, int32_t node) {
    const struct node *n = &w->g->nodes[node];
    push(w, node);
    if (n->kind == NODE_SEQUENCE) {
        top(w)->at = 0;
        enter_part(w);
    } else if (n->kind == NODE_SWITCH) {
        enter_dfa(w, 0, n->start);
    } else {
        if (n->kind == NODE_LIST) {
            top(w)->need = n->min;
            top(w)->room = n->max;
        }
        if (n->words.open != DFA_NONE)
            enter_in(w, OPEN, n->words.open);
        else if (n->kind == NODE_LIST)
            go_on_with_list(w, true);
        else
            go_on_with_object(w, 0, true);
    }
    w->depth--;
}

static void enter(struct walk *w, int32_t node) {
    const struct node *n = &w->g->nodes[node];
    if (n->kind == NODE_CHOICE) {
        for (int32_t i = 0; i < n->n; i++) {
            int32_t part = w->g->parts[n->first + i];
            if (fits(w, w->g->nodes[part].height)) enter(w, part);
        }
    } else if (n->kind == NODE_DFA) {
        enter_dfa(w, node, n->start);
    } else if (n->kind == NODE_STRING || n->kind == NODE_TEXT) {
        push(w, node);
        leaf_begin(n, top(w));
        emit(w);
        if (n->kind == NODE_TEXT && leaf_text_may_end(n, top(w))) finish(w, 0);
        w->depth--;
    } else {
        enter_composite(w, node);
    }
}

// ---- the interface ----

static void clear_state(struct grammar_state *s) { memset(s, 0, offsetof(struct grammar_state, frames)); }

void grammar_start(const struct grammar *g, struct grammar_state *s) {
    struct walk w = {.g = g, .out = s};
    clear_state(s);
    enter(&w, g->root);
}

static void step_leaf(struct walk *w, unsigned char byte) {
    const struct node *n = node_of(w, top(w));
    struct grammar_frame *f = top(w);
    if (n->kind == NODE_DFA) {
        f->at = dfa_step(&w->g->dfa, f->at, byte);
        if (f->at == DFA_NONE) return;
        const struct dfa_state *s = &w->g->dfa.states[f->at];
        if (s->n > 0) emit(w);
        if (s->tag != DFA_NONE) finish(w, s->tag);
    } else if (n->kind == NODE_STRING) {
        enum leaf_answer answer = leaf_step_string(&w->g->dfa, n, f, byte);
        if (answer == LEAF_GOES_ON) emit(w);
        if (answer == LEAF_ENDS) finish(w, 0);
    } else if (leaf_step_text(n, f, byte) == LEAF_GOES_ON) {
        emit(w);
        if (leaf_text_may_end(n, f)) finish(w, 0);
    }
}

bool grammar_step(const struct grammar *g, const struct grammar_state *from, unsigned char byte,
                  struct grammar_state *to) {
    struct walk w;
    w.g = g;
    w.out = to;
    clear_state(to);
    const struct grammar_frame *stack = from->frames;
    for (int i = 0; i < from->n_readings; stack += from->depths[i++]) {
        w.depth = from->depths[i];
        memcpy(w.frames, stack, (size_t)w.depth * sizeof *stack);
        step_leaf(&w, byte);
    }
    return to->n_readings > 0 || to->complete;
}

enum grammar_answer grammar_step_top(const struct grammar *g, struct grammar_frame *top, unsigned char byte) {
    const struct node *n = &g->nodes[top->node];
    if (n->kind == NODE_DFA) {
        top->at = dfa_step(&g->dfa, top->at, byte);
        if (top->at == DFA_NONE) return STEP_DEAD;
        return g->dfa.states[top->at].tag == DFA_NONE ? STEP_ON : STEP_OTHER;
    }
    if (n->kind != NODE_STRING) return STEP_OTHER;
    enum leaf_answer answer = leaf_step_string(&g->dfa, n, top, byte);
    return answer == LEAF_DEAD ? STEP_DEAD : answer == LEAF_GOES_ON ? STEP_ON : STEP_OTHER;
}

void grammar_keep_words(const struct grammar *g, const struct grammar_state *from, struct grammar_state *to) {
    const struct grammar_frame *stack = from->frames;
    clear_state(to);
    for (int i = 0; i < from->n_readings; stack += from->depths[i++]) {
        if (g->nodes[stack[from->depths[i] - 1].node].kind != NODE_DFA) continue;
        memcpy(to->frames + to->n_frames, stack, from->depths[i] * sizeof *stack);
        to->n_frames = (uint16_t)(to->n_frames + from->depths[i]);
        to->depths[to->n_readings++] = from->depths[i];
    }
}

enum grammar_inside grammar_inside(const struct grammar *g, const struct grammar_frame *f, uint32_t *room) {
    const struct node *n = &g->nodes[f->node];
    *room = f->room;
    if (n->kind == NODE_STRING && leaf_is_between_characters(n, f)) return INSIDE_STRING;
    if (n->kind == NODE_TEXT && leaf_is_between_characters(n, f)) return INSIDE_TEXT;
    return INSIDE_OTHER;
}
