// Stands in for the engine in tests of the server: it defines the functions of engine/engine.h, and plays scripts
// instead of running a model. The model has a byte-level tokenizer whose id of a byte is the byte, some pieces of
// several bytes, and the added tokens of Qwen's templates. Any thread.
#ifndef TF_TESTS_SCRIPTED_ENGINE_H
#define TF_TESTS_SCRIPTED_ENGINE_H

#include "engine/engine.h"
#include "format/chat.h"

#define SCRIPT_IDS_MAX 65536

// Pieces of several bytes: parts of characters.
enum { ID_F09F = 256, ID_9880, ID_E58C, ID_97, ID_STOP_TAIL /* "OP! and" */, ID_ADDED = 300 };

struct script {
    int32_t ids[SCRIPT_IDS_MAX]; // the reply; without an end-of-text id it is repeated up to max_tokens
    int32_t n;
    int64_t queue_ns, prompt_ns, token_ns; // how long each takes
    int32_t fail_at;                       // the reply fails after that many tokens; -1: never
    enum status fail_code;                 // of that failure
    enum status submit;                    // what engine_submit says; STATUS_OK to go on
};

struct scripted_options {
    int32_t parallel, context, max_tokens, queue; // 0: 4, 4096, 512, 16
    // Chooses the script of a request; NULL: that of scripted_set.
    void (*choose)(const struct request_params *params, struct script *script);
    bool no_tokenizer;
};

struct engine *scripted_create(const struct scripted_options *options);
void scripted_set(struct engine *e, const struct script *script); // for requests from now on
void scripted_set_failed(struct engine *e);                       // as after a device error

// Appends the ids of text: added tokens where their names stand, else one a byte.
void script_say(struct script *script, const char *text);
void script_add(struct script *script, int32_t id);
void script_end(struct script *script); // <|im_end|>
void script_init(struct script *script);

int32_t scripted_id(const struct engine *e, const char *added);
// What was submitted last: valid until the next submit.
const struct request_params *scripted_last_params(struct engine *e);
bool scripted_last_has_masker(struct engine *e); // its masker is gone: a script says what it says

// A small template in the manner of Qwen 3.5, with tools and thinking (on by default when `thinks`).
struct chat_template *scripted_template(bool thinks);

#endif
