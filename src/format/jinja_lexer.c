#include "format/jinja_ast.h"
#include "format/unicode.h"
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

// Copies the source with \r\n and \r as \n, and without the newline at its end: Jinja drops that one.
bool lexer_init(struct lexer *l, const char *source, size_t n, struct arena *memory, struct error *e) {
    char *copy = arena_alloc(memory, n + 1);
    *l = (struct lexer){
        .source = copy, .line = 1, .mode = TOKEN_DATA, .line_starting = true, .memory = memory, .error = e};
    if (!copy) {
        l->status = error_memory(e);
        return false;
    }
    size_t out = 0;
    for (size_t i = 0; i < n; i++) {
        if (source[i] == '\r') {
            copy[out++] = '\n';
            if (i + 1 < n && source[i + 1] == '\n') i++;
        } else {
            copy[out++] = source[i];
        }
    }
    if (out && copy[out - 1] == '\n') out--;
    copy[out] = '\0';
    l->n = out;
    return true;
}

static uint32_t line_here(struct lexer *l) {
    for (; l->line_at < l->at; l->line_at++) l->line += l->source[l->line_at] == '\n';
    return l->line;
}

static void fail(struct lexer *l, struct token *out, enum status code, const char *what) {
    out->type = TOKEN_BAD;
    l->status = error_set(l->error, code, "line %u: %s", line_here(l), what);
}

static bool looking_at(const struct lexer *l, size_t at, const char *text) {
    size_t n = strlen(text);
    return n <= l->n - at && !memcmp(l->source + at, text, n);
}

static size_t skip_space(const struct lexer *l, size_t at) {
    while (at < l->n) {
        size_t next = at;
        if (!unicode_is_space(unicode_next(l->source, l->n, &next))) break;
        at = next;
    }
    return at;
}

// The end of text[start..end) without the white space at its end.
static size_t strip_right(const struct lexer *l, size_t start, size_t end) {
    const char *text = l->source + start;
    size_t n = end - start;
    while (n) {
        size_t before = n;
        if (!unicode_is_space(unicode_previous(text, &before))) break;
        n = before;
    }
    return start + n;
}

// Matches a tag's closer at `at`, such as "%}", with its sign: '-' eats the white space that follows, none eats one
// newline when trim is set. Returns the place behind it, or 0.
static size_t match_closer(const struct lexer *l, size_t at, const char *closer, bool trim, bool plus_allowed) {
    if (looking_at(l, at, closer)) {
        at += strlen(closer);
        return trim && at < l->n && l->source[at] == '\n' ? at + 1 : at;
    }
    if (at >= l->n || !looking_at(l, at + 1, closer)) return 0;
    if (l->source[at] == '-') return skip_space(l, at + 1 + strlen(closer));
    return plus_allowed && l->source[at] == '+' ? at + 1 + strlen(closer) : 0;
}

// "{% raw %}" at `at`: the place behind it, or 0. Unlike other blocks it keeps a newline that follows.
static size_t match_raw_opener(const struct lexer *l, size_t at) {
    size_t p = at + 2;
    if (p < l->n && (l->source[p] == '-' || l->source[p] == '+')) p++;
    p = skip_space(l, p);
    if (!looking_at(l, p, "raw")) return 0;
    return match_closer(l, skip_space(l, p + 3), "%}", false, false);
}

// The end of the text that stands before a tag, after the white space control of the tag.
static size_t text_end(const struct lexer *l, size_t start, size_t tag, bool strips_line) {
    char sign = tag + 2 < l->n ? l->source[tag + 2] : '\0';
    if (sign == '-') return strip_right(l, start, tag);
    if (sign == '+' || !strips_line) return tag;
    size_t line = tag;
    while (line > start && l->source[line - 1] != '\n') line--;
    if (line == start && !l->line_starting) return tag;
    size_t kept = strip_right(l, start, tag);
    return kept <= line ? line : tag;
}

static void set_at(struct lexer *l, size_t at) {
    l->line_starting = at > l->at && l->source[at - 1] == '\n';
    l->at = at;
}

static void emit_text(struct lexer *l, struct token *out, size_t end) {
    out->type = TOKEN_DATA;
    out->line = line_here(l);
    out->text = l->source + l->at;
    out->n = end - l->at;
}

static void lex_comment(struct lexer *l, struct token *out) {
    for (size_t p = l->at; p < l->n; p++) {
        size_t end = match_closer(l, p, "#}", true, true);
        if (!end) continue;
        set_at(l, end);
        return;
    }
    if (l->at < l->n) // Jinja lets an opener at the very end pass
        fail(l, out, STATUS_INVALID, "a comment that starts here has no end");
}

// Hands out the text of a raw block; l->at is behind its opener.
static void lex_raw(struct lexer *l, struct token *out) {
    for (size_t p = l->at; p < l->n; p++) {
        if (!looking_at(l, p, "{%")) continue;
        size_t q = p + 2;
        if (q < l->n && (l->source[q] == '-' || l->source[q] == '+')) q++;
        q = skip_space(l, q);
        if (!looking_at(l, q, "endraw")) continue;
        size_t end = match_closer(l, skip_space(l, q + 6), "%}", true, true);
        if (!end) continue;
        emit_text(l, out, text_end(l, l->at, p, true));
        set_at(l, end);
        return;
    }
    emit_text(l, out, l->at);
    if (l->at < l->n) fail(l, out, STATUS_INVALID, "a raw block that starts here has no {% endraw %}");
}

// Where the next tag starts, or l->n.
static size_t find_tag(const struct lexer *l) {
    for (size_t p = l->at; p + 1 < l->n; p++) {
        const char *brace = memchr(l->source + p, '{', l->n - 1 - p);
        if (!brace) break;
        p = (size_t)(brace - l->source);
        if (strchr("{%#", brace[1])) return p;
    }
    return l->n;
}

// Between tags: hands out text, or enters the tag behind it. Comments and empty texts are passed over.
static void lex_data(struct lexer *l, struct token *out) {
    while (l->at < l->n) {
        size_t tag = l->data_done ? l->tag_at : find_tag(l);
        char kind = tag < l->n ? l->source[tag + 1] : '\0';
        size_t end = tag < l->n ? text_end(l, l->at, tag, kind != '{') : l->n;
        if (!l->data_done && end > l->at) {
            emit_text(l, out, end);
            l->data_done = tag < l->n;
            l->tag_at = tag;
            if (!l->data_done) l->at = l->n;
            return;
        }
        l->data_done = false;
        l->at = tag;
        out->line = line_here(l);
        size_t raw = kind == '%' ? match_raw_opener(l, tag) : 0;
        if (raw) {
            set_at(l, raw);
            lex_raw(l, out);
            if (out->type == TOKEN_BAD || out->n) return;
            continue;
        }
        size_t inside = tag + 2 < l->n && (l->source[tag + 2] == '-' || l->source[tag + 2] == '+') ? tag + 3 : tag + 2;
        set_at(l, inside);
        if (kind != '#') {
            l->mode = kind == '%' ? TOKEN_BLOCK_BEGIN : TOKEN_PRINT_BEGIN;
            out->type = l->mode;
            return;
        }
        lex_comment(l, out);
        if (l->status) return;
    }
    out->type = TOKEN_END;
    out->line = line_here(l);
}

static void put_code_point(char *text, size_t *n, uint32_t cp) { *n += unicode_write(cp, text + *n); }

// Reads `digits` hexadecimal digits at `at`.
static bool read_hex(const struct lexer *l, size_t at, size_t end, int digits, uint32_t *out) {
    uint32_t cp = 0;
    for (int i = 0; i < digits; i++, at++) {
        if (at >= end || !isxdigit((unsigned char)l->source[at])) return false;
        int c = tolower((unsigned char)l->source[at]);
        cp = cp << 4 | (uint32_t)(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    *out = cp;
    return cp <= 0x10ffff && (cp < 0xd800 || cp > 0xdfff);
}

// Resolves one escape as Python does; `at` is behind the backslash. Returns the place behind the escape, or 0.
static size_t lex_escape(struct lexer *l, size_t at, size_t end, char *text, size_t *n) {
    static const char names[] = "abfnrtv\\'\"", values[] = "\a\b\f\n\r\t\v\\'\"";
    char c = l->source[at++];
    const char *known = strchr(names, c);
    if (c && known) {
        text[(*n)++] = values[known - names];
    } else if (c >= '0' && c <= '7') {
        uint32_t cp = (uint32_t)(c - '0');
        for (int i = 0; i < 2 && at < end && l->source[at] >= '0' && l->source[at] <= '7'; i++)
            cp = cp * 8 + (uint32_t)(l->source[at++] - '0');
        put_code_point(text, n, cp);
    } else if (c == 'x' || c == 'u' || c == 'U') {
        int digits = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        uint32_t cp;
        if (!read_hex(l, at, end, digits, &cp)) return 0;
        put_code_point(text, n, cp);
        at += (size_t)digits;
    } else if (c == 'N') {
        return 0;
    } else if (c != '\n') { // an unknown escape keeps its backslash; an escaped newline is nothing
        text[(*n)++] = '\\';
        text[(*n)++] = c;
    }
    return at;
}

static void lex_string(struct lexer *l, struct token *out) {
    char quote = l->source[l->at];
    size_t end = l->at + 1;
    while (end < l->n && l->source[end] != quote) end += l->source[end] == '\\' ? 2 : 1;
    if (end >= l->n) {
        fail(l, out, STATUS_INVALID, "a string that starts here has no end");
        return;
    }
    char *text = arena_alloc(l->memory, end - l->at);
    if (!text) {
        out->type = TOKEN_BAD;
        l->status = error_memory(l->error);
        return;
    }
    size_t n = 0;
    for (size_t p = l->at + 1; p < end;) {
        if (l->source[p] != '\\') {
            text[n++] = l->source[p++];
            continue;
        }
        p = lex_escape(l, p + 1, end, text, &n);
        if (!p) {
            fail(l, out, STATUS_UNSUPPORTED,
                 "a string has an escape that is malformed, half of a surrogate pair, or \\N{...}");
            return;
        }
    }
    out->type = TOKEN_STRING;
    out->text = text;
    out->n = n;
    l->at = end + 1;
}

// Digits with single underscores between them; the place behind them.
static size_t skip_digits(const struct lexer *l, size_t at) {
    while (at < l->n && (isdigit((unsigned char)l->source[at]) ||
                         (l->source[at] == '_' && at + 1 < l->n && isdigit((unsigned char)l->source[at + 1]))))
        at++;
    return at;
}

// The place behind a real number that starts at l->at, or 0 if what stands there is not one.
static size_t match_real(const struct lexer *l, size_t digits_end) {
    if (l->at && l->source[l->at - 1] == '.') return 0;
    size_t p = digits_end, fraction = 0, exponent = 0;
    if (p + 1 < l->n && l->source[p] == '.' && isdigit((unsigned char)l->source[p + 1]))
        p = fraction = skip_digits(l, p + 1);
    if (p < l->n && (l->source[p] == 'e' || l->source[p] == 'E')) {
        size_t q = p + 1;
        if (q < l->n && (l->source[q] == '+' || l->source[q] == '-')) q++;
        if (q < l->n && isdigit((unsigned char)l->source[q])) exponent = skip_digits(l, q);
    }
    return exponent ? exponent : fraction;
}

static void lex_number(struct lexer *l, struct token *out) {
    char text[64];
    size_t n = 0, end = skip_digits(l, l->at), real_end = match_real(l, end);
    int base = 10;
    if (l->source[l->at] == '0' && !real_end) {
        char c = l->at + 1 < l->n ? (char)tolower((unsigned char)l->source[l->at + 1]) : '\0';
        if (c == 'x' || c == 'o' || c == 'b') {
            fail(l, out, STATUS_UNSUPPORTED, "numbers with a base are not supported");
            return;
        }
        for (end = l->at; end < l->n && (l->source[end] == '0' || l->source[end] == '_'); end++) {
        }
        if (l->source[end - 1] == '_') end--;
    }
    if (real_end) end = real_end;
    for (size_t p = l->at; p < end && n < sizeof text; p++)
        if (l->source[p] != '_') text[n++] = l->source[p];
    if (n == sizeof text) {
        fail(l, out, STATUS_UNSUPPORTED, "a number is too long");
        return;
    }
    text[n] = '\0';
    errno = 0;
    if (real_end)
        out->real = strtod(text, NULL);
    else
        out->integer = strtoll(text, NULL, base);
    if (!real_end && errno == ERANGE) {
        fail(l, out, STATUS_UNSUPPORTED, "an integer does not fit into 64 bits");
        return;
    }
    out->type = real_end ? TOKEN_REAL : TOKEN_INTEGER;
    l->at = end;
}

static void lex_operator(struct lexer *l, struct token *out) {
    static const char pairs[] = "**//==!=>=<=";
    char a = l->source[l->at], b = l->at + 1 < l->n ? l->source[l->at + 1] : '\0';
    out->type = TOKEN_OPERATOR;
    for (const char *p = pairs; *p; p += 2) {
        if (p[0] != a || p[1] != b) continue;
        out->op = OPERATOR2(a, b);
        l->at += 2;
        return;
    }
    if (!a || !strchr("+-/*%~[](){}><=.:|,;", a)) {
        fail(l, out, STATUS_INVALID, "unexpected character in a tag");
        return;
    }
    out->op = a;
    static const char open[] = "([{", close[] = ")]}";
    const char *opener = strchr(open, a), *closer = strchr(close, a);
    if (opener && l->n_open == sizeof l->open) {
        fail(l, out, STATUS_LIMIT, "too many brackets inside each other");
    } else if (opener) {
        l->open[l->n_open++] = close[opener - open];
    } else if (closer && (!l->n_open || l->open[--l->n_open] != a)) {
        fail(l, out, STATUS_INVALID, "a closing bracket does not match");
    }
    l->at++;
}

static void lex_tag(struct lexer *l, struct token *out) {
    l->at = skip_space(l, l->at);
    out->line = line_here(l);
    bool block = l->mode == TOKEN_BLOCK_BEGIN;
    size_t end = l->n_open ? 0 : match_closer(l, l->at, block ? "%}" : "}}", block, block);
    if (end) {
        out->type = block ? TOKEN_BLOCK_END : TOKEN_PRINT_END;
        l->mode = TOKEN_DATA;
        set_at(l, end);
        return;
    }
    if (l->at >= l->n) {
        fail(l, out, STATUS_INVALID, "the template ends inside a tag");
        return;
    }
    unsigned char c = (unsigned char)l->source[l->at];
    if (isdigit(c)) {
        lex_number(l, out);
    } else if (isalpha(c) || c == '_') {
        out->type = TOKEN_NAME;
        out->text = l->source + l->at;
        while (l->at < l->n && (isalnum((unsigned char)l->source[l->at]) || l->source[l->at] == '_')) l->at++;
        out->n = (size_t)(l->source + l->at - out->text);
        if (l->at < l->n && (unsigned char)l->source[l->at] >= 0x80)
            fail(l, out, STATUS_UNSUPPORTED, "names outside ASCII are not supported");
    } else if (c == '"' || c == '\'') {
        lex_string(l, out);
    } else if (c >= 0x80) {
        fail(l, out, STATUS_UNSUPPORTED, "names outside ASCII are not supported");
    } else {
        lex_operator(l, out);
    }
}

void lexer_next(struct lexer *l, struct token *out) {
    *out = (struct token){.type = TOKEN_BAD};
    if (l->status) return;
    if (l->mode == TOKEN_DATA)
        lex_data(l, out);
    else
        lex_tag(l, out);
}
