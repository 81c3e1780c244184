// Owns the question where turns begin in the ids of a rendered conversation, which is where later prompts are likely to
// part from this one. The answer is a hint for a cache. Any thread.
#ifndef TF_FORMAT_CHAT_TURNS_H
#define TF_FORMAT_CHAT_TURNS_H

#include "format/chat.h"
#include "format/tokenizer.h"

#define CHAT_NO_TURN_TOKEN (-1)

// The control token that opens every turn in what the template writes, such as <|im_start|>: the one that the
// generation prompt begins with. CHAT_NO_TURN_TOKEN when there is none, or no memory to find it.
int32_t chat_find_turn_token(const struct chat_template *t, const struct tokenizer *tokenizer);

// Positions of that token in a prompt; 0 where there is none (a turn at position 0 is no place to resume at).
struct chat_turns {
    int32_t first;    // the end of system message and tools, where there are any
    int32_t previous; // the last one but one: the start of the last message
    int32_t last;     // the end of the history, where the reply's own turn begins
};
struct chat_turns chat_find_turns(const int32_t *ids, int32_t n, int32_t turn_token);

#endif
