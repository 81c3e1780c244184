// Owns the cutting of a template into tokens, with Jinja's white space control done. Private to the jinja files.
#ifndef TF_FORMAT_JINJA_TOKEN_H
#define TF_FORMAT_JINJA_TOKEN_H

#include "base/arena.h"
#include "format/jinja.h"
#include <stdbool.h>
#include <stdint.h>

enum token_type {
    TOKEN_END,
    TOKEN_DATA,
    TOKEN_BLOCK_BEGIN,
    TOKEN_BLOCK_END,
    TOKEN_PRINT_BEGIN,
    TOKEN_PRINT_END,
    TOKEN_NAME,
    TOKEN_STRING,
    TOKEN_INTEGER,
    TOKEN_REAL,
    TOKEN_OPERATOR,
    TOKEN_BAD, // the lexer has written an error
};

// Operators are their characters, two of them as 256 * second + first.
#define OPERATOR2(a, b) ((int)(a) | (int)(b) << 8)

struct token {
    enum token_type type;
    uint32_t line;
    int op;           // OPERATOR
    const char *text; // DATA, NAME, and STRING with its escapes resolved
    size_t n;
    int64_t integer;
    double real;
};

struct lexer {
    const char *source; // newlines are \n, one at the end is gone
    size_t n, at;
    uint32_t line;
    size_t line_at;       // `line` was counted up to here
    enum token_type mode; // DATA, BLOCK_BEGIN or PRINT_BEGIN: what the lexer is inside of
    bool line_starting;   // the text before `at` ends a line, as far as lstrip_blocks is concerned
    bool data_done;       // the text before the tag at `tag_at` has been handed out
    size_t tag_at;
    char open[JINJA_NESTING_MAX]; // brackets still open in the tag
    size_t n_open;
    struct arena *memory;
    struct error *error;
    enum status status;
};

bool lexer_init(struct lexer *l, const char *source, size_t n, struct arena *memory, struct error *e);
void lexer_next(struct lexer *l, struct token *out); // TOKEN_BAD when l->status is set

#endif
