// Owns which tokens may come next in one reply: a grammar, a vocabulary, and masks that were made before. A mask is a
// function of the state, and a state of the bytes of the tokens taken. All memory is taken when it is made; making a
// mask takes time in proportion to the vocabulary and the state's readings at most, and may be done in parts. One
// thread at a time.
#ifndef TF_FORMAT_MASKER_H
#define TF_FORMAT_MASKER_H

#include "format/grammar.h"
#include "format/vocabulary.h"

struct masker;

// The grammar's root must be finished. Takes the grammar, also when it fails, and shares the vocabulary. ends: ids that
// end a reply, allowed where it is complete; copied. Errors: LIMIT, MEMORY, and BUSY as vocabulary_claim.
enum status masker_create(struct grammar *g, const struct vocabulary *v, const int32_t *ends, int32_t n_ends,
                          struct masker **out, struct error *e);
void masker_free(struct masker *m); // NULL is fine

void masker_start(const struct masker *m, struct grammar_state *s);

// Whether the state's mask is there, after at most some *steps (of about 10 ns), which are taken off; a little more may
// be taken for a mask's first part. What was begun goes on in the next call, if no other state is asked about in
// between.
bool masker_prepare(struct masker *m, const struct grammar_state *s, int64_t *steps);

// Sets bit i % 32 of words[i / 32] for the ids i < 32 n_words that may come, and clears the others. An end is allowed
// where nothing else is. A mask that is not there is made, however long it takes.
void masker_fill(struct masker *m, const struct grammar_state *s, uint32_t *words, int32_t n_words);

// *s becomes the state behind the token. False when the token is none that may come: *s then allows an end only.
bool masker_take(struct masker *m, struct grammar_state *s, int32_t id);

struct masker_counts {
    int64_t n_asked, n_made; // masks that were filled in; and those that had to be made for that
};
struct masker_counts masker_get_counts(const struct masker *m);

#endif
