// Where turns begin, on hand-made ids and on the template and tokenizer of a model that ships.
#include "format/chat_turns.h"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>
// cmocka last: it needs the headers above
#include <cmocka.h>

#define MODEL "models/fold-s"

static void the_first_and_the_last_two_are_found(void **state) {
    (void)state;
    static const int32_t ids[] = {9, 1, 9, 2, 9, 3, 9, 4};
    struct chat_turns t = chat_find_turns(ids, 8, 9);
    assert_int_equal(t.first, 2);
    assert_int_equal(t.previous, 4);
    assert_int_equal(t.last, 6);
    t = chat_find_turns(ids, 6, 9); // the first one is the last but one
    assert_int_equal(t.first, 2);
    assert_int_equal(t.previous, 2);
    assert_int_equal(t.last, 4);
    t = chat_find_turns(ids, 3, 9);
    assert_int_equal(t.first, 2);
    assert_int_equal(t.previous, 0);
    assert_int_equal(t.last, 2);
    assert_int_equal(chat_find_turns(ids, 2, 9).last, 0); // position 0 is no place to resume at
    assert_int_equal(chat_find_turns(ids, 0, 9).last, 0);
    assert_int_equal(chat_find_turns(ids, 8, CHAT_NO_TURN_TOKEN).last, 0);
}

static void the_token_is_that_of_the_generation_prompt(void **state) {
    (void)state;
    struct chat_template *chat;
    struct tokenizer *tokenizer;
    struct error e;
    assert_int_equal(chat_template_load(MODEL, NULL, &chat, &e), STATUS_OK);
    assert_int_equal(tokenizer_load(MODEL "/tokenizer.json", MODEL "/tokenizer_config.json", &tokenizer, &e),
                     STATUS_OK);
    assert_int_equal(chat_find_turn_token(chat, tokenizer), tokenizer_find(tokenizer, "<|im_start|>", 12));
    chat_template_free(chat);
    assert_int_equal(chat_template_create("{{ messages[0].content }}", 25, NULL, &chat, &e), STATUS_OK);
    assert_int_equal(chat_find_turn_token(chat, tokenizer), CHAT_NO_TURN_TOKEN);
    chat_template_free(chat);
    tokenizer_free(tokenizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_and_the_last_two_are_found),
        cmocka_unit_test(the_token_is_that_of_the_generation_prompt),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
