#include "format/chat_turns.h"

// The ids of a conversation of one message; false when the template or the tokenizer refuses it.
static bool render(const struct chat_template *t, const struct tokenizer *tokenizer, const json_t *messages,
                   bool generation_prompt, struct token_list *out) {
    struct chat_options o = {.no_generation_prompt = !generation_prompt, .now_s = 1};
    struct chat_prompt p = {0};
    bool ok = chat_render(t, messages, NULL, &o, &p, NULL) == STATUS_OK &&
              tokenizer_append_spans(tokenizer, p.text.spans, p.text.n_spans, out, NULL) == STATUS_OK;
    chat_prompt_free(&p);
    return ok;
}

int32_t chat_find_turn_token(const struct chat_template *t, const struct tokenizer *tokenizer) {
    struct token_list with = {0}, without = {0};
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "one");
    int32_t token = CHAT_NO_TURN_TOKEN;
    if (messages != NULL && render(t, tokenizer, messages, true, &with) &&
        render(t, tokenizer, messages, false, &without)) {
        size_t same = 0;
        while (same < without.n && same < with.n && with.ids[same] == without.ids[same]) same++;
        if (same < with.n && tokenizer_is_special(tokenizer, with.ids[same])) token = with.ids[same];
    }
    json_decref(messages);
    token_list_free(&with);
    token_list_free(&without);
    return token;
}

struct chat_turns chat_find_turns(const int32_t *ids, int32_t n, int32_t turn_token) {
    struct chat_turns t = {0};
    if (turn_token == CHAT_NO_TURN_TOKEN) return t;
    int32_t i = n - 1;
    while (i > 0 && ids[i] != turn_token) i--;
    if (i <= 0) return t;
    t.last = i--;
    while (i > 0 && ids[i] != turn_token) i--;
    if (i > 0) t.previous = i;
    for (t.first = 1; ids[t.first] != turn_token;) t.first++;
    return t;
}
