// Owns regular expressions as JSON Schema's `pattern` has them, in the part that every dialect reads alike: characters,
// ".", classes, \d \w \s and their complements (of ASCII), \t \n \r \f \v \xHH \uHHHH and escaped punctuation, groups
// "(...)" and "(?:...)", "|", "* + ? {n} {n,} {n,m}" (lazy or not), "^" at the beginning and "$" at the end of an
// alternative that is not in a group. As there, a match anywhere in the text counts. Everything else is refused.
#ifndef TF_FORMAT_PATTERN_H
#define TF_FORMAT_PATTERN_H

#include "format/dfa.h"

// Characters that texts may have, as ranges that rise; a pattern means its matches made up of these.
struct pattern_alphabet {
    const uint32_t (*ranges)[2];
    size_t n;
};

// Fills the empty pool `out` with the texts that pattern[0..n) (UTF-8) matches; its states may be dead ends. Sets
// *start, and adds to *n_steps as nfa_determine. Errors: UNSUPPORTED, LIMIT, MEMORY; sentences are the end of "<where>
// ...".
enum status pattern_compile(const char *pattern, size_t n, const struct pattern_alphabet *alphabet, struct dfa *out,
                            int32_t *start, int64_t *n_steps, struct error *e);

#endif
