// Part of stepping a grammar: text of any characters, as JSON has it in quotes or as it is. Pure functions.
#ifndef TF_FORMAT_GRAMMAR_LEAF_H
#define TF_FORMAT_GRAMMAR_LEAF_H

#include "format/grammar_internal.h"

enum leaf_answer { LEAF_DEAD, LEAF_GOES_ON, LEAF_ENDS };

void leaf_begin(const struct node *n, struct grammar_frame *f);
enum leaf_answer leaf_step_string(const struct dfa *d, const struct node *n, struct grammar_frame *f,
                                  unsigned char byte);
enum leaf_answer leaf_step_text(const struct node *n, struct grammar_frame *f, unsigned char byte);
bool leaf_text_may_end(const struct node *n, const struct grammar_frame *f);
bool leaf_is_between_characters(const struct node *n, const struct grammar_frame *f); // any character may come next

#endif
