// Owns the cutting of text into the stretches that BPE merges by themselves: one or more patterns, each cutting what
// the one before it left, every match and every gap a stretch of its own ("Isolated"). Patterns are those of
// tokenizer.json, written for Oniguruma; they run in PCRE2 after a translation that refuses what the two read
// differently. Part of the tokenizer; other layers use format/tokenizer.h. Filled by one thread; then any number of
// threads may cut with it.
#ifndef TF_FORMAT_PRETOKENIZER_H
#define TF_FORMAT_PRETOKENIZER_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>

#define PRETOKENIZER_STAGES_MAX 8

// The pattern of GPT-2, which ByteLevel pre-tokenisers with use_regex apply.
extern const char pretokenizer_gpt2_pattern[];

struct pretokenizer;
struct pretokenizer *pretokenizer_create(void); // without patterns: text stays whole. NULL when memory is out.
void pretokenizer_free(struct pretokenizer *p); // NULL is fine

// Adds a stage; `literal` means the exact text instead of a pattern. Errors: UNSUPPORTED (the sentence names the
// construct), INVALID (not a pattern), LIMIT (too many stages), MEMORY.
enum status pretokenizer_add(struct pretokenizer *p, const char *pattern, size_t n, bool literal, struct error *e);

// One thread's cutting of one text at a time.
struct pretokenizer_run;
struct pretokenizer_run *pretokenizer_run_create(const struct pretokenizer *p); // NULL when memory is out
void pretokenizer_run_free(struct pretokenizer_run *r);                         // NULL is fine

// Begins a text, which must be valid UTF-8 and stay in place until the last stretch is out.
void pretokenizer_begin(struct pretokenizer_run *r, const char *text, size_t n);
// The next stretch, in order; none is empty and together they are the text. *piece is NULL after the last. Errors:
// LIMIT (a match took more steps than a bound that is linear in the text's length), MEMORY.
enum status pretokenizer_next(struct pretokenizer_run *r, const char **piece, size_t *n, struct error *e);

#endif
