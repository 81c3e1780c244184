#include "format/pattern.h"
#include "format/nfa.h"
#include <string.h>

#define REPEAT_MAX  1000
#define NESTING_MAX 16 // groups inside each other: bounds the recursion
#define RANGES_MAX  64 // of a class

struct parser {
    const unsigned char *text;
    size_t n, at;
    const struct pattern_alphabet *alphabet;
    struct nfa nfa;
    int depth;
    bool refused;
};

struct class {
    uint32_t ranges[RANGES_MAX][2];
    int n;
};

static bool refuse(struct parser *p) {
    p->refused = true;
    return false;
}

static bool looks_at(const struct parser *p, char c) { return p->at < p->n && p->text[p->at] == (unsigned char)c; }

static bool skip(struct parser *p, char c) {
    if (!looks_at(p, c)) return false;
    p->at++;
    return true;
}

// ---- classes ----

static bool add_range(struct parser *p, struct class *c, uint32_t low, uint32_t high) {
    if (c->n == RANGES_MAX) return refuse(p);
    c->ranges[c->n][0] = low;
    c->ranges[c->n++][1] = high;
    return true;
}

static void sort_ranges(struct class *c) {
    for (int i = 1; i < c->n; i++)
        for (int k = i; k > 0 && c->ranges[k - 1][0] > c->ranges[k][0]; k--) {
            uint32_t moved[2] = {c->ranges[k][0], c->ranges[k][1]};
            memcpy(c->ranges[k], c->ranges[k - 1], sizeof moved);
            memcpy(c->ranges[k - 1], moved, sizeof moved);
        }
}

static bool complement(struct parser *p, struct class *c, uint32_t last) {
    struct class rest = {.n = 0};
    uint32_t next = 0;
    sort_ranges(c);
    for (int i = 0; i < c->n; i++) {
        if (c->ranges[i][0] > next && !add_range(p, &rest, next, c->ranges[i][0] - 1)) return false;
        if (c->ranges[i][1] + 1 > next) next = c->ranges[i][1] + 1;
    }
    if (next <= last && !add_range(p, &rest, next, last)) return false;
    *c = rest;
    return true;
}

// What of the class is in the alphabet.
static void link_class(struct parser *p, const struct class *c, int32_t from, int32_t to) {
    for (int i = 0; i < c->n; i++) {
        for (size_t k = 0; k < p->alphabet->n; k++) {
            uint32_t low = c->ranges[i][0], high = c->ranges[i][1];
            const uint32_t *own = p->alphabet->ranges[k];
            if (low < own[0]) low = own[0];
            if (high > own[1]) high = own[1];
            if (low <= high) nfa_link_characters(&p->nfa, from, low, high, to);
        }
    }
}

// \d, \w, \s. Their complements are taken within ASCII: dialects differ in what lies beyond.
static bool add_named_class(struct parser *p, struct class *out, unsigned char name) {
    struct class c = {.n = 0};
    switch (name | 0x20) {
    case 'd': add_range(p, &c, '0', '9'); break;
    case 'w':
        add_range(p, &c, '0', '9');
        add_range(p, &c, 'A', 'Z');
        add_range(p, &c, '_', '_');
        add_range(p, &c, 'a', 'z');
        break;
    default:
        add_range(p, &c, '\t', '\r');
        add_range(p, &c, ' ', ' ');
        break;
    }
    if ((name & 0x20) == 0 && !complement(p, &c, 0x7f)) return false;
    for (int i = 0; i < c.n; i++)
        if (!add_range(p, out, c.ranges[i][0], c.ranges[i][1])) return false;
    return true;
}

// ---- single characters ----

static bool read_utf8(struct parser *p, uint32_t *c) {
    unsigned char first = p->text[p->at];
    size_t n = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (p->at + n > p->n) return refuse(p);
    *c = n == 1 ? first : first & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) *c = *c << 6 | (p->text[p->at + i] & 0x3f);
    p->at += n;
    return true;
}

static bool read_hex(struct parser *p, int n, uint32_t *c) {
    *c = 0;
    for (int i = 0; i < n; i++, p->at++) {
        unsigned char digit = p->at < p->n ? p->text[p->at] : 0;
        if (digit >= '0' && digit <= '9')
            *c = *c << 4 | (digit - '0');
        else if ((digit | 0x20) >= 'a' && (digit | 0x20) <= 'f')
            *c = *c << 4 | ((digit | 0x20) - 'a' + 10);
        else
            return refuse(p);
    }
    return *c < 0xd800 || *c > 0xdfff || refuse(p);
}

// What follows a backslash, if it stands for one character.
static bool read_escape(struct parser *p, uint32_t *c) {
    static const char names[] = "tnrfv", codes[] = "\t\n\r\f\v";
    static const char punctuation[] = "^$\\.*+?()[]{}|/-\"'#&,:;<=>@!%~`_ ";
    if (p->at == p->n) return refuse(p);
    unsigned char name = p->text[p->at++];
    if (name == 'x') return read_hex(p, 2, c);
    if (name == 'u') return read_hex(p, 4, c);
    const char *known = name != 0 ? strchr(names, name) : NULL;
    if (known != NULL) {
        *c = (uint32_t)codes[known - names];
        return true;
    }
    if (name == 0 || name == '_' || name == ' ' || strchr(punctuation, name) == NULL) return refuse(p);
    *c = name;
    return true;
}

static bool is_class_name(const struct parser *p) {
    return p->at + 1 < p->n && p->text[p->at] == '\\' && strchr("dwsDWS", p->text[p->at + 1]) != NULL &&
           p->text[p->at + 1] != 0;
}

static bool read_class_character(struct parser *p, uint32_t *c) {
    if (p->at == p->n || looks_at(p, '[')) return refuse(p); // dialects differ about a bracket in brackets
    return skip(p, '\\') ? read_escape(p, c) : read_utf8(p, c);
}

// "[...]", behind its bracket.
static bool read_class(struct parser *p, struct class *c) {
    bool negated = skip(p, '^');
    if (looks_at(p, ']')) return refuse(p); // the empty class, or a bracket
    while (!skip(p, ']')) {
        uint32_t low, high;
        if (is_class_name(p)) {
            p->at += 2;
            if (!add_named_class(p, c, p->text[p->at - 1])) return false;
            if (looks_at(p, '-') && !(p->at + 1 < p->n && p->text[p->at + 1] == ']')) return refuse(p);
            continue;
        }
        if (!read_class_character(p, &low)) return false;
        high = low;
        if (looks_at(p, '-') && p->at + 1 < p->n && p->text[p->at + 1] != ']') {
            p->at++;
            if (is_class_name(p) || !read_class_character(p, &high)) return refuse(p);
        }
        if (high < low) return refuse(p);
        if (!add_range(p, c, low, high)) return false;
    }
    return !negated || complement(p, c, 0x10ffff);
}

// ---- expressions: each reads its text and links it from `from` to `to` ----

static bool read_alternatives(struct parser *p, int32_t from, int32_t to);

static bool read_group(struct parser *p, int32_t from, int32_t to) {
    if (skip(p, '?') && !skip(p, ':')) return refuse(p);
    if (++p->depth > NESTING_MAX) return refuse(p);
    if (!read_alternatives(p, from, to)) return false;
    p->depth--;
    return skip(p, ')') || refuse(p);
}

static bool read_atom(struct parser *p, int32_t from, int32_t to) {
    struct class c = {.n = 0};
    uint32_t single;
    if (p->at == p->n) return refuse(p);
    if (skip(p, '(')) return read_group(p, from, to);
    if (skip(p, '[')) {
        if (!read_class(p, &c)) return false;
    } else if (skip(p, '.')) {
        static const uint32_t newlines[][2] = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
        for (int i = 0; i < 3; i++) add_range(p, &c, newlines[i][0], newlines[i][1]);
        if (!complement(p, &c, 0x10ffff)) return false;
    } else if (is_class_name(p)) {
        p->at += 2;
        if (!add_named_class(p, &c, p->text[p->at - 1])) return false;
    } else {
        if (p->text[p->at] != 0 && strchr("^$*+?{}])|", p->text[p->at]) != NULL) return refuse(p);
        if (!(skip(p, '\\') ? read_escape(p, &single) : read_utf8(p, &single))) return false;
        add_range(p, &c, single, single);
    }
    link_class(p, &c, from, to);
    return true;
}

static bool read_count(struct parser *p, int *count) {
    size_t start = p->at;
    for (*count = 0; p->at < p->n && p->text[p->at] >= '0' && p->text[p->at] <= '9'; p->at++) {
        *count = *count * 10 + (p->text[p->at] - '0');
        if (*count > REPEAT_MAX) return refuse(p);
    }
    return p->at > start || refuse(p);
}

// How often what precedes may come; max -1: any number of times.
static bool read_quantifier(struct parser *p, int *min, int *max) {
    *min = *max = 1;
    if (skip(p, '*')) {
        *min = 0;
        *max = -1;
    } else if (skip(p, '+')) {
        *max = -1;
    } else if (skip(p, '?')) {
        *min = 0;
    } else if (skip(p, '{')) {
        if (!read_count(p, min)) return false;
        *max = *min;
        if (skip(p, ',')) {
            *max = -1;
            if (!looks_at(p, '}') && !read_count(p, max)) return false;
        }
        if (!skip(p, '}') || (*max >= 0 && *max < *min)) return refuse(p);
    } else {
        return true;
    }
    skip(p, '?'); // laziness changes where a match ends, not whether there is one
    return !(p->at < p->n && p->text[p->at] != 0 && strchr("*+?{", p->text[p->at]) != NULL) || refuse(p);
}

// An atom is read anew for each time that it may come: its states cannot be shared.
static bool read_piece(struct parser *p, int32_t from, int32_t to) {
    size_t start = p->at, after;
    int min, max;
    int32_t first = nfa_add(&p->nfa), second = nfa_add(&p->nfa);
    if (!read_atom(p, first, second) || !read_quantifier(p, &min, &max)) return false;
    after = p->at;
    int n_copies = max < 0 ? min : max;
    if (max < 0) { // "any number": a loop that stands before the copies that must come
        nfa_link(&p->nfa, from, first);
        nfa_link(&p->nfa, second, first);
        int32_t next = nfa_add(&p->nfa);
        nfa_link(&p->nfa, first, next);
        from = next;
    }
    for (int i = 0; i < n_copies && !p->nfa.failed; i++) {
        int32_t next = nfa_add(&p->nfa);
        p->at = start;
        if (max >= 0 && i == 0) {
            nfa_link(&p->nfa, from, first);
            nfa_link(&p->nfa, second, next);
        } else if (!read_atom(p, from, next)) {
            return false;
        }
        if (i >= min) nfa_link(&p->nfa, from, to);
        from = next;
    }
    p->at = after;
    nfa_link(&p->nfa, from, to);
    return true;
}

static bool ends_alternative(const struct parser *p) { return p->at == p->n || looks_at(p, '|') || looks_at(p, ')'); }

static bool read_sequence(struct parser *p, int32_t from, int32_t to) {
    while (!ends_alternative(p)) {
        if (p->depth == 0 && looks_at(p, '$')) break;
        int32_t next = nfa_add(&p->nfa);
        if (p->nfa.failed) return false;
        if (!read_piece(p, from, next)) return false;
        from = next;
    }
    nfa_link(&p->nfa, from, to);
    return true;
}

// All texts of the alphabet: what may stand before and behind a match.
static void link_anything(struct parser *p, int32_t state) {
    struct class all = {.ranges = {{0, 0x10ffff}}, .n = 1};
    link_class(p, &all, state, state);
}

static bool read_alternatives(struct parser *p, int32_t from, int32_t to) {
    do {
        int32_t first = nfa_add(&p->nfa), last = nfa_add(&p->nfa);
        if (p->nfa.failed) return false;
        bool anchored = p->depth == 0 && skip(p, '^');
        nfa_link(&p->nfa, from, first);
        if (p->depth == 0 && !anchored) link_anything(p, first);
        int32_t begin = nfa_add(&p->nfa);
        nfa_link(&p->nfa, first, begin);
        if (!read_sequence(p, begin, last)) return false;
        anchored = p->depth == 0 && skip(p, '$');
        if (p->depth == 0 && !anchored) link_anything(p, last);
        nfa_link(&p->nfa, last, to);
        if (!ends_alternative(p)) return refuse(p);
    } while (skip(p, '|'));
    return true;
}

enum status pattern_compile(const char *pattern, size_t n, const struct pattern_alphabet *alphabet, struct dfa *out,
                            int32_t *start, int64_t *n_steps, struct error *e) {
    struct parser p = {.text = (const unsigned char *)pattern, .n = n, .alphabet = alphabet};
    int32_t first = nfa_add(&p.nfa), last = nfa_add(&p.nfa);
    enum status status = STATUS_OK;
    bool read = read_alternatives(&p, first, last) && (p.at == p.n || refuse(&p));
    if (p.refused || (!read && !p.nfa.failed)) {
        status = error_set(e, STATUS_UNSUPPORTED, "is an unsupported pattern at its byte %zu", p.at);
    } else {
        status = nfa_determine(&p.nfa, first, last, out, n_steps, e);
    }
    nfa_free(&p.nfa);
    *start = 0;
    return status;
}
