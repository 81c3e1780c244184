// Owns automata over the decimal notation of numbers in a range: no exponent, no leading zeros, at most
// DECIMAL_DIGITS digits, so that what is written and what it reads back as lie on the same side of each bound.
#ifndef TF_FORMAT_DECIMAL_RANGE_H
#define TF_FORMAT_DECIMAL_RANGE_H

#include "format/dfa.h"

#define DECIMAL_DIGITS 15 // of a number; two different ones are different as doubles

struct decimal_bound {
    bool given, open; // open: the bound itself is out
    double value;
};

// Fills the empty pool `out`; its states may be dead ends, and all of them are when no such number exists. Sets *start.
// Errors: UNSUPPORTED (a bound that cannot be written in DECIMAL_DIGITS digits), LIMIT, MEMORY; sentences are the end
// of "<where> ...". Adds to *n_steps as nfa_determine.
enum status decimal_range(struct decimal_bound low, struct decimal_bound high, bool integer, struct dfa *out,
                          int32_t *start, int64_t *n_steps, struct error *e);

#endif
