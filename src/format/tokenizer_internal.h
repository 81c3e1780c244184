// What tokenizer.c (encoding) and tokenizer_load.c (reading tokenizer.json) share.
#ifndef TF_FORMAT_TOKENIZER_INTERNAL_H
#define TF_FORMAT_TOKENIZER_INTERNAL_H

#include "format/added_tokens.h"
#include "format/bpe.h"
#include "format/pretokenizer.h"
#include "format/tokenizer.h"

struct tokenizer {
    struct bpe *bpe;
    struct pretokenizer *pretokenizer;
    struct added_tokens added;
    bool nfc;
    int32_t n_ids;
    size_t id_bytes_max;
};

#endif
