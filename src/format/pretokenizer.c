#define PCRE2_CODE_UNIT_WIDTH 8
#include "format/pretokenizer.h"

#include "base/buffer.h"
#include <pcre2.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PATTERN_BYTES_MAX 4096
// A match may take this many steps for each byte that it could look at, and as many again as a constant. Two walks back
// over a run of white space, the most that the known patterns need, stay far below; a pattern whose backtracking
// explodes does not.
#define STEPS_PER_BYTE 16
#define STEPS_CONSTANT 1000000
#define HEAP_KIB_MAX   65536

const char pretokenizer_gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

struct pretokenizer {
    pcre2_code *stages[PRETOKENIZER_STAGES_MAX];
    int n_stages;
};

// ---- translation ----

// \s is White_Space in Oniguruma; PCRE2's own \s has U+180E besides.
#define SPACES "\\t-\\r \\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"

// The reference implementation has the properties of Unicode 16, PCRE2 of Debian 12 those of Unicode 14. These are the
// code points between: what UCD 16 has in general categories L, M and N and UCD 14 does not.
static const char late_letters[] =
    "\\x{1C89}-\\x{1C8A}\\x{A7CB}-\\x{A7CD}\\x{A7DA}-\\x{A7DC}\\x{105C0}-\\x{105F3}\\x{10D4A}-\\x{10D65}"
    "\\x{10D6F}-\\x{10D85}\\x{10EC2}-\\x{10EC4}\\x{1123F}-\\x{11240}\\x{11380}-\\x{11389}\\x{1138B}\\x{1138E}"
    "\\x{11390}-\\x{113B5}\\x{113B7}\\x{113D1}\\x{113D3}\\x{11BC0}-\\x{11BE0}\\x{11F02}\\x{11F04}-\\x{11F10}"
    "\\x{11F12}-\\x{11F33}\\x{1342F}\\x{13441}-\\x{13446}\\x{13460}-\\x{143FA}\\x{16100}-\\x{1611D}"
    "\\x{16D40}-\\x{16D6C}\\x{18CFF}\\x{1B132}\\x{1B155}\\x{1DF25}-\\x{1DF2A}\\x{1E030}-\\x{1E06D}"
    "\\x{1E4D0}-\\x{1E4EB}\\x{1E5D0}-\\x{1E5ED}\\x{1E5F0}\\x{2B739}\\x{2EBF0}-\\x{2EE5D}\\x{31350}-\\x{323AF}";
static const char late_marks[] =
    "\\x{897}\\x{CF3}\\x{ECE}\\x{10D69}-\\x{10D6D}\\x{10EFC}-\\x{10EFF}\\x{11241}\\x{113B8}-\\x{113C0}\\x{113C2}"
    "\\x{113C5}\\x{113C7}-\\x{113CA}\\x{113CC}-\\x{113D0}\\x{113D2}\\x{113E1}-\\x{113E2}\\x{11F00}-\\x{11F01}"
    "\\x{11F03}\\x{11F34}-\\x{11F3A}\\x{11F3E}-\\x{11F42}\\x{11F5A}\\x{13440}\\x{13447}-\\x{13455}"
    "\\x{1611E}-\\x{1612F}\\x{1E08F}\\x{1E4EC}-\\x{1E4EF}\\x{1E5EE}-\\x{1E5EF}";
static const char late_numbers[] =
    "\\x{10D40}-\\x{10D49}\\x{116D0}-\\x{116E3}\\x{11BF0}-\\x{11BF9}\\x{11F50}-\\x{11F59}\\x{16130}-\\x{16139}"
    "\\x{16D70}-\\x{16D79}\\x{1CCF0}-\\x{1CCF9}\\x{1D2C0}-\\x{1D2D3}\\x{1E4F0}-\\x{1E4F9}\\x{1E5F1}-\\x{1E5FA}";

struct translation {
    const char *pattern;
    size_t n, at;
    struct buffer out;
    struct error *e;
};

static bool next_is(const struct translation *t, const char *text) {
    size_t n = strlen(text);
    return t->n - t->at >= n && !memcmp(t->pattern + t->at, text, n);
}

static void copy(struct translation *t, size_t n) {
    buffer_append(&t->out, t->pattern + t->at, n);
    t->at += n;
}

// Refuses the n bytes that stand at t->at.
static enum status refuse(const struct translation *t, size_t n) {
    if (n > t->n - t->at) n = t->n - t->at;
    return error_set(t->e, STATUS_UNSUPPORTED, "the pattern has \"%.*s\" at byte %zu, which is not supported", (int)n,
                     t->pattern + t->at, t->at);
}

// Writes a set of characters, as members of the class that stands open or as a class of its own.
static void put_set(struct translation *t, bool in_class, bool negated, const char *members, const char *more) {
    if (!in_class) buffer_append_text(&t->out, negated ? "[^" : "[");
    buffer_append_text(&t->out, members);
    buffer_append_text(&t->out, more);
    if (!in_class) buffer_append_text(&t->out, "]");
}

// Translates what begins with a backslash. *is_set tells whether it stands for a set of characters.
static enum status translate_escape(struct translation *t, bool in_class, bool *is_set) {
    static const struct {
        const char *escape, *negated, *members, *more;
    } sets[] = {
        {"\\s", "\\S", SPACES, ""},
        {"\\p{L}", "\\P{L}", "\\p{L}", late_letters},
        {"\\p{M}", "\\P{M}", "\\p{M}", late_marks},
        {"\\p{N}", "\\P{N}", "\\p{N}", late_numbers},
    };
    *is_set = true;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
        bool negated = next_is(t, sets[i].negated);
        if (!negated && !next_is(t, sets[i].escape)) continue;
        size_t n = strlen(sets[i].escape);
        // A class can hold the complement of a set only if the set has a single name, which these have not.
        if (negated && in_class) return refuse(t, n);
        put_set(t, in_class, negated, sets[i].members, sets[i].more);
        t->at += n;
        return STATUS_OK;
    }
    *is_set = false;
    if (t->n - t->at < 2) return error_set(t->e, STATUS_INVALID, "the pattern ends in a backslash");
    unsigned char c = (unsigned char)t->pattern[t->at + 1];
    if (c == '\0' || !strchr("rnt!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", c))
        return refuse(t, c == 'p' || c == 'P' ? 5 : 2);
    copy(t, 2);
    return STATUS_OK;
}

static enum status translate_class(struct translation *t) {
    size_t start = t->at;
    copy(t, next_is(t, "[^") ? 2 : 1);
    if (next_is(t, "]")) return refuse(t, 1);
    while (!next_is(t, "]")) {
        if (t->at == t->n)
            return error_set(t->e, STATUS_INVALID, "the pattern opens a class at byte %zu and never closes it", start);
        if (next_is(t, "[") || next_is(t, "&&")) return refuse(t, 2);
        bool is_set = false;
        if (next_is(t, "\\")) {
            enum status status = translate_escape(t, true, &is_set);
            if (status != STATUS_OK) return status;
        } else {
            copy(t, 1);
        }
        // Engines differ on what a range means that begins or ends with a set.
        if (is_set && next_is(t, "-") && !next_is(t, "-]")) return refuse(t, 2);
        if (next_is(t, "-\\s") || next_is(t, "-\\p") || next_is(t, "-\\S") || next_is(t, "-\\P")) return refuse(t, 3);
    }
    copy(t, 1);
    return STATUS_OK;
}

static enum status translate_group(struct translation *t) {
    static const char *const openings[] = {"(?:", "(?i:", "(?=", "(?!"};
    for (size_t i = 0; i < sizeof openings / sizeof *openings; i++)
        if (next_is(t, openings[i])) {
            copy(t, strlen(openings[i]));
            return STATUS_OK;
        }
    if (next_is(t, "(?") || next_is(t, "(*")) return refuse(t, 3);
    copy(t, 1);
    return STATUS_OK;
}

// {m}, {m,} and {m,n}. Oniguruma reads a further + or ? behind them as a repeat of its own.
static enum status translate_counts(struct translation *t) {
    size_t at = t->at + 1, n_digits = 0, n_commas = 0;
    for (; at < t->n && t->pattern[at] != '}'; at++) {
        bool digit = t->pattern[at] >= '0' && t->pattern[at] <= '9';
        if (!digit && (t->pattern[at] != ',' || n_digits == 0 || n_commas > 0)) return refuse(t, 2);
        n_digits += digit;
        n_commas += !digit;
    }
    if (at == t->n || n_digits == 0) return refuse(t, 2);
    copy(t, at + 1 - t->at);
    return next_is(t, "+") || next_is(t, "?") ? refuse(t, 1) : STATUS_OK;
}

static enum status translate(struct translation *t) {
    enum status status = STATUS_OK;
    bool is_set;
    while (status == STATUS_OK && t->at < t->n) {
        switch (t->pattern[t->at]) {
        case '\\': status = translate_escape(t, false, &is_set); break;
        case '[': status = translate_class(t); break;
        case '(': status = translate_group(t); break;
        case '{': status = translate_counts(t); break;
        case '.':
        case '^':
        case '$': status = refuse(t, 1); break;
        default: copy(t, 1);
        }
    }
    if (status == STATUS_OK && t->out.failed) status = error_memory(t->e);
    return status;
}

// ---- compiling ----

struct pretokenizer *pretokenizer_create(void) {
    return calloc(1, sizeof(struct pretokenizer));
}

void pretokenizer_free(struct pretokenizer *p) {
    if (!p) return;
    for (int i = 0; i < p->n_stages; i++) pcre2_code_free(p->stages[i]);
    free(p);
}

static enum status compile(const char *pattern, size_t n, uint32_t options, pcre2_code **out, struct error *e) {
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) return error_memory(e);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    int code = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code *compiled = pcre2_compile((PCRE2_SPTR)pattern, n, options | PCRE2_UTF, &code, &offset, context);
    pcre2_compile_context_free(context);
    if (!compiled) {
        if (code == PCRE2_ERROR_NOMEMORY || code == PCRE2_ERROR_HEAP_FAILED) return error_memory(e);
        char text[128] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
        return error_set(e, STATUS_INVALID, "the pattern is not a regular expression: %s", text);
    }
    uint32_t matches_nothing = 0;
    pcre2_pattern_info(compiled, PCRE2_INFO_MATCHEMPTY, &matches_nothing);
    if (matches_nothing) {
        pcre2_code_free(compiled);
        return error_set(e, STATUS_UNSUPPORTED, "the pattern can match the empty text, which is not supported");
    }
    // Where machine code may not be made, pcre2_match interprets the pattern: slower, with the same result.
    (void)pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);
    *out = compiled;
    return STATUS_OK;
}

enum status pretokenizer_add(struct pretokenizer *p, const char *pattern, size_t n, bool literal, struct error *e) {
    if (p->n_stages == PRETOKENIZER_STAGES_MAX)
        return error_set(e, STATUS_LIMIT, "there are more than %d patterns", PRETOKENIZER_STAGES_MAX);
    if (n > PATTERN_BYTES_MAX)
        return error_set(e, STATUS_LIMIT, "a pattern of %zu bytes is longer than %d", n, PATTERN_BYTES_MAX);
    if (n == 0) return error_set(e, STATUS_INVALID, "the pattern is empty");
    pcre2_code *compiled = NULL;
    enum status status;
    if (literal) {
        status = compile(pattern, n, PCRE2_LITERAL, &compiled, e);
    } else {
        struct translation t = {.pattern = pattern, .n = n, .e = e};
        buffer_init(&t.out, 0);
        status = translate(&t);
        if (status == STATUS_OK) status = compile(t.out.data, t.out.n, PCRE2_UCP, &compiled, e);
        buffer_free(&t.out);
    }
    if (status == STATUS_OK) p->stages[p->n_stages++] = compiled;
    return status;
}

// ---- cutting ----

// A stretch that one stage is cutting: [at, n) is left, and the next match, if it has been looked for, is
// [match_start, match_end) with match_start >= at.
struct cut {
    const char *text;
    size_t n, at, match_start, match_end;
};

struct pretokenizer_run {
    const struct pretokenizer *p;
    pcre2_match_context *context;
    pcre2_match_data *match;
    // cuts[i] is what stage i cuts: a stretch that stage i - 1 made. The last one holds a finished stretch.
    struct cut cuts[PRETOKENIZER_STAGES_MAX + 1];
    int depth; // cuts in use
};

struct pretokenizer_run *pretokenizer_run_create(const struct pretokenizer *p) {
    struct pretokenizer_run *r = calloc(1, sizeof *r);
    if (!r) return NULL;
    r->p = p;
    r->context = pcre2_match_context_create(NULL);
    r->match = pcre2_match_data_create(1, NULL);
    if (!r->context || !r->match) {
        pretokenizer_run_free(r);
        return NULL;
    }
    pcre2_set_heap_limit(r->context, HEAP_KIB_MAX);
    return r;
}

void pretokenizer_run_free(struct pretokenizer_run *r) {
    if (!r) return;
    pcre2_match_context_free(r->context);
    pcre2_match_data_free(r->match);
    free(r);
}

void pretokenizer_begin(struct pretokenizer_run *r, const char *text, size_t n) {
    r->cuts[0] = (struct cut){.text = text, .n = n};
    r->depth = 1;
}

// Finds the next match in c; none is put as an empty one at the end.
static enum status find_match(struct pretokenizer_run *r, const pcre2_code *code, struct cut *c, struct error *e) {
    size_t steps = STEPS_CONSTANT + STEPS_PER_BYTE * (c->n - c->at);
    pcre2_set_match_limit(r->context, steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX);
    // The text is known to be valid; checking it again at every match would make the whole quadratic.
    int rc = pcre2_match(code, (PCRE2_SPTR)c->text, c->n, c->at, PCRE2_NO_UTF_CHECK, r->match, r->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(code, (PCRE2_SPTR)c->text, c->n, c->at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, r->match,
                         r->context);
    if (rc == PCRE2_ERROR_NOMATCH) {
        c->match_start = c->match_end = c->n;
        return STATUS_OK;
    }
    if (rc == PCRE2_ERROR_NOMEMORY) return error_memory(e);
    if (rc < 0)
        return error_set(e, STATUS_LIMIT, "the text takes the pre-tokeniser's pattern too many steps (PCRE2 error %d)",
                         rc);
    const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(r->match);
    must(bounds[0] >= c->at && bounds[1] > bounds[0] && bounds[1] <= c->n);
    c->match_start = bounds[0];
    c->match_end = bounds[1];
    return STATUS_OK;
}

enum status pretokenizer_next(struct pretokenizer_run *r, const char **piece, size_t *n, struct error *e) {
    while (r->depth > 0) {
        struct cut *c = &r->cuts[r->depth - 1];
        if (c->at == c->n) {
            r->depth--;
            continue;
        }
        if (r->depth - 1 == r->p->n_stages) {
            r->depth--;
            *piece = c->text;
            *n = c->n;
            return STATUS_OK;
        }
        if (c->at == c->match_end) {
            enum status status = find_match(r, r->p->stages[r->depth - 1], c, e);
            if (status != STATUS_OK) return status;
        }
        size_t end = c->at < c->match_start ? c->match_start : c->match_end;
        r->cuts[r->depth++] = (struct cut){.text = c->text + c->at, .n = end - c->at};
        c->at = end;
    }
    *piece = NULL;
    *n = 0;
    return STATUS_OK;
}
