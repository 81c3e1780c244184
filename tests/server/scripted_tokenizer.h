// The scripted engine's tokenizer.
#ifndef TF_TESTS_SCRIPTED_TOKENIZER_H
#define TF_TESTS_SCRIPTED_TOKENIZER_H

#include "format/tokenizer.h"

struct tokenizer *scripted_tokenizer(void);
extern const char *const scripted_added[];
extern const size_t n_scripted_added;

#endif
